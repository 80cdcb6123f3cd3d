//! The rendezvous of device memory: what is made of everybody's addresses once the ranks have compared what
//! they bring (`memory/rendezvous.rs`). Make pads, exchange, upload the tables, vote; then multicast, if it
//! can be, and what the engine needs besides.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::allocation::DeviceBlock;
use crate::cuda::capture::check_no_capture;
use crate::device::{DeviceTable, Pointers};
use crate::engine::cuda::{Engine, Region};
use crate::group::Running;
use crate::memory::rendezvous::{AgreedRendezvous, Coming, Covered, KeptTable};
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

/// A handle by the table that this rank has of `block` on `engine`, if it has one.
pub(super) fn kept(block: &Arc<DeviceBlock>, engine: &Engine) -> Result<Option<Region>> {
    let Some(table) = block.tables.find(engine.group(), engine.key()) else { return Ok(None) };
    check_place(block, engine)?;
    Ok(Some(Region::new(engine, table, &vec![0; engine.group().size()], block.bytes())))
}

/// Collective: a region of the table of `block` on `engine`, which all ranks have or make together.
pub(super) fn meet(block: &Arc<DeviceBlock>, engine: &Engine, covered: Result<Covered>) -> Result<Region> {
    // Kernels that reach for a peer's part find all of it: the ranks compare how many elements a handle has
    // that does not go to the end, and each has checked its own range.
    let bytes = covered.as_ref().ok().and_then(|covered| covered.range().1);
    let part = covered.as_ref().ok().and_then(|covered| Some(bytes? / covered.layout.dtype.size()));
    let covered = check_place(block, engine).and(covered).map(Some);
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
    Ok(Region::new(engine, table, &agreed.offsets, bytes.unwrap_or(agreed.rest)))
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
