//! The rendezvous of device memory: what is made of everybody's addresses once the ranks have compared what they bring
//! (`memory/rendezvous.rs`). Make pads, exchange, upload the tables, vote; then multicast, if it can be, and what the engine needs besides.

use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

use super::allocation::Block;
use super::handle::SymmetricMemory;
use crate::cuda::capture::check_no_capture;
use crate::cuda::{Device, deferred};
use crate::engine::cuda::{Engine, Fate, Room};
use crate::group::Running;
use crate::memory::Layout;
use crate::memory::peers::PeerTable;
use crate::memory::rendezvous::{Agreed, Coming, Covered, Kept};
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::provider::{LocalMemory, write_on};
use crate::table::{Column, Keep, moved};
use crate::{Error, Result};

/// Where the tables begin after the pad: a multiple of this.
const TABLE_ALIGNMENT: usize = 256;
/// Tables that have room in any case.
const TABLES: usize = 16;

/// Everybody's memory and pad, as this rank's device reaches them.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) data: Vec<u64>,
    pub(crate) pads: Vec<u64>,
    pub(crate) bytes: usize,
    pub(crate) pad_bytes: usize,
    pub(crate) number: u64,
    /// Whether everybody is in reach of everybody.
    pub(crate) is_direct: bool,
    /// Whether it is closed.
    state: AtomicU8,
    /// `None` only while it is dropped.
    mapped: Option<Mapped>,
    /// Of the engine that works on it.
    pub(super) fate: Fate,
}

/// What keeps the addresses valid.
#[derive(Debug)]
struct Mapped {
    peers: PeerTable,
    pointers: Pointers,
    room: Room,
}

impl Drop for Table {
    fn drop(&mut self) {
        // Kernels may still be at work on it: it goes when they are done, without anybody waiting for that.
        if let Some(mapped) = self.mapped.take() {
            let fate = self.fate.clone();
            deferred::bury_until(Box::new(move || fate.is_idle()), Box::new(mapped));
        }
    }
}

impl Kept for Table {
    fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn state(&self) -> &AtomicU8 {
        &self.state
    }
}

impl Table {
    fn mapped(&self) -> Result<&Mapped> {
        self.mapped.as_ref().ok_or(Error::Closed { op: "table" })
    }

    /// The address that reaches everybody's memory at once, or why there is none.
    pub(super) fn multicast(&self) -> Result<u64, &str> {
        let data = self.mapped.as_ref().map(|mapped| &mapped.peers.data);
        data.map_or(Err("it is closed"), |data| data.multicast.as_ref().copied().map_err(String::as_str))
    }

    /// What the provider's library knows the memory by.
    pub(crate) fn registration(&self) -> Option<&Keep> {
        self.mapped.as_ref()?.peers.data.registration.as_ref()
    }

    /// The engine's own, for operations that NCCL carries.
    pub(crate) fn room(&self) -> Result<&Room> {
        Ok(&self.mapped()?.room)
    }

    /// The device address of a table of `addresses`.
    pub(super) fn table_of(&self, addresses: &[u64]) -> Result<u64> {
        self.mapped()?.pointers.table_of(addresses)
    }

    /// Collective: the table of `block` on `engine`, which all ranks have or make together, and everybody's offset in bytes. With
    /// `part` the ranks compare how many elements they mean.
    fn rendezvous(
        block: &Block,
        engine: &Engine,
        layout: Result<Layout>,
        part: Option<usize>,
    ) -> Result<(Arc<Self>, Vec<usize>)> {
        let covered = check_place(block, engine).and(layout);
        let covered = covered.map(|layout| Some(Covered { layout, rest: part.is_none() }));
        let coming = Coming { block, key: engine.key(), provider: block.provider().name(), covered, part };
        let (table, agreed) = coming.meet(engine.group(), |running, agreed, kept| {
            let table = match kept {
                Some(table) => table,
                None => Arc::new(Self::share(running, engine, block, agreed)?),
            };
            if agreed.offsets_differ() {
                let Mapped { peers, room, .. } = table.mapped()?;
                engine.bind(running, &peers.data, room)?;
            }
            Ok(table)
        })?;
        Ok((table, agreed.offsets))
    }

    /// Collective: maps everybody's `block`, with a pad for each rank.
    fn share(running: &Running<'_>, engine: &Engine, block: &Block, agreed: &Agreed) -> Result<Self> {
        let (bytes, pad_bytes) = (block.bytes(), block.signal_pad_size());
        let joined = engine.joined(block.provider())?;
        let room = Pointers::start(pad_bytes) + TABLES * size_of::<u64>() * agreed.offsets.len();
        let pad = joined.pads().unwrap_or(joined).provider().alloc(room);
        let own = pad.as_ref().ok().cloned();
        // The tables that everybody asks for are there from the start, and their failure is in the vote.
        let finish = |data: &Column, pads: &Column| {
            let pointers = Pointers::new(engine.device(), own, pad_bytes)?;
            let data: Vec<u64> = data.addresses().zip(&agreed.offsets).map(moved).collect();
            pointers.table_of(&data)?;
            pointers.table_of(&pads.addresses().collect::<Vec<_>>())?;
            Ok(pointers)
        };
        let memory = block.memory().cloned();
        let (peers, pointers) = PeerTable::share(running, joined, engine.far(), memory, pad, finish)?;
        Ok(Self {
            data: peers.data.addresses().collect(),
            pads: peers.pads.addresses().collect(),
            bytes,
            pad_bytes,
            number: peers.number,
            is_direct: peers.data.is_direct,
            state: AtomicU8::new(0),
            mapped: Some(Mapped { peers, pointers, room: Room::new(bytes) }),
            fate: engine.fate().clone(),
        })
    }
}

/// Tables of addresses in device memory, for kernels: in what this rank's pad leaves of its last granule.
#[derive(Debug)]
struct Pointers {
    device: Device,
    memory: Arc<dyn LocalMemory>,
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    /// The next free byte.
    next: usize,
    /// Those that were made, by what is in them. None is ever overwritten: a kernel may still read it.
    made: HashMap<Vec<u64>, u64>,
}

impl Pointers {
    /// Where tables begin in the memory of a pad of `pad_bytes`.
    fn start(pad_bytes: usize) -> usize {
        pad_bytes.next_multiple_of(TABLE_ALIGNMENT)
    }

    fn new(device: &Device, memory: Option<Arc<dyn LocalMemory>>, pad_bytes: usize) -> Result<Self> {
        let memory = memory.ok_or_else(|| Error::invalid("signal pad", "there is none"))?;
        let tables = Tables { next: Self::start(pad_bytes), made: HashMap::new() };
        Ok(Self { device: device.clone(), memory, tables: Mutex::new(tables) })
    }

    fn table_of(&self, addresses: &[u64]) -> Result<u64> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = tables.made.get(addresses) {
            return Ok(*address);
        }
        let start = tables.next;
        let end = start + size_of_val(addresses);
        if end > self.memory.mapped_bytes() {
            let problem = format!(
                "{} are there already and no more fit. Hint: keep and reuse slices, or pass peer_ptrs by value",
                tables.made.len()
            );
            return Err(Error::invalid("tables of addresses on the device", problem));
        }
        write_on(&self.device, &*self.memory, start, bytemuck::cast_slice(addresses))?;
        let address = self.memory.address() + start as u64;
        tables.next = end;
        tables.made.insert(addresses.to_vec(), address);
        Ok(address)
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective where the allocation has no table on the engine, else local. A handle of all `len` elements.
    pub(super) fn rendezvous(block: &Arc<Block>, engine: &Engine, len: usize) -> Result<Self> {
        let group = engine.group();
        match block.tables.find(group, engine.key()) {
            None => Self::rendezvous_at(block, engine, 0, len),
            Some(table) => {
                check_place(block, engine)?;
                Ok(Self::new(engine, block, table, &vec![0; group.size()], len))
            }
        }
    }

    /// Collective. A handle of the elements from `offset` on, of `len` in all: as many as there are behind everybody's
    /// offset, so that what is in range here is in range on every rank.
    pub(super) fn rendezvous_at(
        block: &Arc<Block>,
        engine: &Engine,
        offset: usize,
        len: usize,
    ) -> Result<Self> {
        let (table, offsets) = Table::rendezvous(block, engine, Layout::behind::<T>(offset, len), None)?;
        let farthest = offsets.iter().max().map_or(0, |bytes| bytes / size_of::<T>());
        Ok(Self::new(engine, block, table, &offsets, len - farthest))
    }

    /// Collective. A handle of `len` elements from byte `start` on.
    pub(super) fn rendezvous_part(
        block: &Arc<Block>,
        engine: &Engine,
        start: usize,
        len: usize,
    ) -> Result<Self> {
        let bounds = element::fit::<T>(Op::Rendezvous.name(), start, len, block.bytes());
        let layout = bounds.map(|()| Layout::new(T::DTYPE, start, &[len]));
        // The ranks compare `len`, and each checked its own range: kernels that reach for a peer's part find all of it.
        let (table, offsets) = Table::rendezvous(block, engine, layout, Some(len))?;
        Ok(Self::new(engine, block, table, &offsets, len))
    }
}

/// Whether `block` can be brought to `engine`.
fn check_place(block: &Block, engine: &Engine) -> Result<()> {
    check_no_capture("rendezvous")?;
    block.check_usable(Op::Rendezvous.name())?;
    block.forget_the_gone();
    let (memory, device) = (block.device(), engine.device());
    if memory != device {
        let problem =
            format!("it is on {memory}, the engine on {device}. Hint: allocate on the engine's device");
        return Err(Error::invalid("allocation", problem));
    }
    engine.joined(block.provider()).map(drop)
}
