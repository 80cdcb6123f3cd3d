//! The rendezvous of device memory: what is made of everybody's addresses once the ranks have compared what
//! they bring (`memory/rendezvous.rs`). Make pads, exchange, upload the tables, vote; then multicast, if it
//! can be, and what the engine needs besides.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::allocation::{Allocation, DeviceBlock};
use super::handle::SymmetricMemory;
use crate::cuda::capture::check_no_capture;
use crate::device::{DeviceTable, Pointers};
use crate::engine::cuda::{Engine, Region};
use crate::group::Running;
use crate::memory::Layout;
use crate::memory::rendezvous::{AgreedRendezvous, Coming, Covered, KeptTable};
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::table::{Column, PeerTable, moved};
use crate::{Error, Result};

impl KeptTable for DeviceTable {
    fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn state(&self) -> &AtomicU8 {
        &self.state
    }
}

impl<T: Element> Allocation<T> {
    /// Collective over the engine's group: everybody maps everybody's allocation, which must agree in size,
    /// element type and pad size, and be on the engine's device. Either all ranks succeed or all get the same
    /// error, and the allocation can be tried again. Not while this thread captures.
    ///
    /// The result is kept with the allocation: a second call for the same engine is local and gives another
    /// handle. What peers exported stays mapped, and so their memory is not freed, until
    /// [`SymmetricMemory::close`], or until the allocation and its last handle go; where the engine is gone,
    /// until the next rendezvous of the allocation. All ranks bring the same allocations again, or none does:
    /// one with a new allocation would wait for ranks that are done already.
    pub fn rendezvous(&self, engine: &Engine) -> Result<SymmetricMemory<T>> {
        let (group, block) = (engine.group(), &self.block);
        let Some(table) = block.tables.find(group, engine.key()) else {
            return self.rendezvous_at(engine, 0);
        };
        check_place(block, engine)?;
        let region = Region::new(engine, table, &vec![0; group.size()], block.bytes());
        Ok(SymmetricMemory::new(region, block))
    }

    /// Collective, each time. [`Allocation::rendezvous`] with a handle that starts at element `offset`; ranks
    /// may differ in it. It covers as many as there are behind everybody's offset, so that what is in range
    /// here is in range on every rank.
    pub fn rendezvous_at(&self, engine: &Engine, offset: usize) -> Result<SymmetricMemory<T>> {
        meet(&self.block, engine, Layout::behind::<T>(offset, self.len()), None)
    }

    /// Collective, each time. [`Allocation::rendezvous`] as elements of `U`, with a handle of `len` of them
    /// from byte `start` on, which must be a multiple of their size. For allocations whose element type is
    /// known only at run time: the ranks compare `U`, not `T`. Ranks may differ in `start`, not in `len`.
    pub fn rendezvous_as<U: Element>(
        &self,
        engine: &Engine,
        start: usize,
        len: usize,
    ) -> Result<SymmetricMemory<U>> {
        let bounds = element::fit::<U>(Op::Rendezvous.name(), start, len, self.block.bytes());
        let layout = bounds.map(|()| Layout::new(U::DTYPE, start, &[len]));
        // The ranks compare `len`, and each checked its own range: kernels that reach for a peer's part find
        // all of it.
        meet(&self.block, engine, layout, Some(len))
    }
}

/// Collective: a handle on the table of `block` on `engine`, which all ranks have or make together. It covers
/// `part` elements, which the ranks compare, or what all of them have behind their offsets.
fn meet<T: Element>(
    block: &Arc<DeviceBlock>,
    engine: &Engine,
    layout: Result<Layout>,
    part: Option<usize>,
) -> Result<SymmetricMemory<T>> {
    let covered = check_place(block, engine).and(layout);
    let covered = covered.map(|layout| Some(Covered { layout, rest: part.is_none() }));
    let coming = Coming { block, key: engine.key(), provider: block.provider.name(), covered, part };
    let (table, agreed) = coming.meet(engine.group(), |running, agreed, kept| {
        let table = match kept {
            Some(table) => table,
            None => Arc::new(share(running, engine, block, agreed)?),
        };
        if agreed.offsets_differ() {
            engine.bind(running, &table)?;
        }
        Ok(table)
    })?;
    let bytes = part.map_or(agreed.rest, |len| len * size_of::<T>());
    Ok(SymmetricMemory::new(Region::new(engine, table, &agreed.offsets, bytes), block))
}

/// Collective: maps everybody's `block`, with a pad for each rank.
fn share(
    running: &Running<'_>,
    engine: &Engine,
    block: &DeviceBlock,
    agreed: &AgreedRendezvous,
) -> Result<DeviceTable> {
    let (bytes, pad_bytes) = (block.bytes(), block.signal_pad_size());
    let joined = engine.joined(block.provider)?;
    let room = Pointers::bytes_with(pad_bytes, agreed.offsets.len());
    let pad = joined.pads().unwrap_or(joined).provider().alloc(room);
    let own = pad.as_ref().ok().cloned();
    // The tables that everybody asks for are there from the start, and their failure is in the vote.
    let finish = |data: &Column, pads: &Column| {
        let own = own.ok_or_else(|| Error::invalid("signal pad", "there is none"))?;
        let pointers = Pointers::new(engine.device(), own, pad_bytes);
        let data: Vec<u64> = data.addresses().zip(&agreed.offsets).map(moved).collect();
        pointers.table_of(&data)?;
        pointers.table_of(&pads.addresses().collect::<Vec<_>>())?;
        Ok(pointers)
    };
    let memory = block.memory().cloned();
    let (peers, pointers) = PeerTable::share(running, joined, engine.far(), memory, pad, finish)?;
    Ok(DeviceTable::new(peers, pointers, (bytes, pad_bytes), engine.fate()))
}

/// Whether `block` can be brought to `engine`.
fn check_place(block: &DeviceBlock, engine: &Engine) -> Result<()> {
    check_no_capture("rendezvous")?;
    block.check_usable(Op::Rendezvous.name())?;
    block.forget_the_gone();
    engine.check_memory("allocation", &block.device)?;
    engine.joined(block.provider).map(drop)
}
