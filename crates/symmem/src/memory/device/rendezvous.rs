//! The rendezvous of device memory: compare, make pads, exchange, upload the tables, vote; then multicast, if it can be.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use super::allocation::Block;
use super::handle::{SymmetricMemory, moved, out_of_bounds};
use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::{Buffer, Device, Stream, deferred};
use crate::engine::cuda::Engine;
use crate::error::Halt;
use crate::group::{Brought, Running};
use crate::memory::peers::PeerTable;
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::provider::{LocalMemory, write_on};
use crate::table::{Column, Keep};
use crate::{Error, Result};

/// Where the tables begin after the pad: a multiple of this.
const TABLE_ALIGNMENT: usize = 256;
/// Tables that have room in any case.
const TABLES: usize = 16;

/// Everybody's memory and pad, as this rank's device reaches them.
pub(crate) struct Table {
    data: Vec<u64>,
    pads: Arc<Vec<u64>>,
    bytes: usize,
    pad_bytes: usize,
    number: u64,
    is_direct: bool,
    /// The address that reaches everybody's memory at once, or why there is none.
    multicast: Result<u64, String>,
    /// `None` only while it is dropped.
    mapped: Option<Mapped>,
    /// Whether the engine's work on the memory is done.
    idle: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// What keeps the addresses valid.
struct Mapped {
    peers: PeerTable,
    pointers: Pointers,
    /// As much private memory, where NCCL cannot be given the window's: see [`Table::make_room`].
    room: OnceLock<Buffer<u8>>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, bytes, pad_bytes, .. } = self;
        f.debug_struct("Table")
            .field("number", number)
            .field("bytes", bytes)
            .field("pad_bytes", pad_bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Kernels may still be at work on it: it goes when they are done, without anybody waiting for that.
        if let Some(mapped) = self.mapped.take() {
            let idle = Arc::clone(&self.idle);
            deferred::bury_until(Box::new(move || idle()), Box::new(mapped));
        }
    }
}

impl Table {
    pub(super) fn data(&self) -> &[u64] {
        &self.data
    }

    pub(super) fn pads(&self) -> &Arc<Vec<u64>> {
        &self.pads
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pad_bytes(&self) -> usize {
        self.pad_bytes
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn multicast(&self) -> Result<u64, &str> {
        self.multicast.as_ref().copied().map_err(String::as_str)
    }

    /// Whether everybody is in reach of everybody.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// What the provider's library knows the memory by.
    pub(crate) fn registration(&self) -> Option<&Keep> {
        self.mapped.as_ref()?.peers.data.registration.as_ref()
    }

    /// Where the private memory for carried operations is; 0 where there is none.
    pub(super) fn room(&self) -> u64 {
        self.mapped.as_ref().and_then(|mapped| mapped.room.get()).map_or(0, Buffer::device_ptr)
    }

    /// Collective, for handles whose offsets differ. NCCL takes what lies in a window to be at the same place on every rank,
    /// and mixes up elements where it is not; so operations that it carries go by way of memory that it does not know.
    fn make_room(&self, running: &Running<'_>, engine: &Engine) -> Result<()> {
        let Some(mapped) = &self.mapped else { return Err(Error::Closed { op: "rendezvous" }) };
        let is_carried = !(self.is_direct && engine.is_direct());
        if !is_carried || mapped.peers.data.registration.is_none() {
            return Ok(());
        }
        // This rank may have made it before, for an operation of its own; the vote is everybody's all the same.
        let made = match mapped.room.get() {
            Some(_) => Ok(()),
            None => Buffer::new(engine.device(), self.bytes).map(|room| drop(mapped.room.set(room))),
        };
        running.conclude(running.next_tag()?, made.map_err(Halt::from))
    }

    /// Local. Where that memory is, made if need be; not while `stream` is captured.
    pub(crate) fn need_room(&self, stream: &Stream) -> Result<u64> {
        if self.room() == 0 {
            let what = "private memory for an operation of NCCL's";
            check_no_capture(what)?;
            if stream.capture_id()?.is_some() {
                let problem = "it cannot be made while the stream is captured. Hint: run the operation once before the capture";
                return Err(Error::invalid(what, problem));
            }
            let _relaxed = Relaxed::enter();
            let Some(mapped) = &self.mapped else { return Err(Error::Closed { op: "room" }) };
            // Another thread may have been faster; then this one's goes.
            drop(mapped.room.set(Buffer::new(stream.device(), self.bytes)?));
        }
        Ok(self.room())
    }

    /// The device address of a table of `addresses`.
    pub(super) fn table_of(&self, addresses: &[u64]) -> Result<u64> {
        match &self.mapped {
            Some(mapped) => mapped.pointers.table_of(addresses),
            None => Err(Error::Closed { op: "table" }),
        }
    }

    /// Collective: maps everybody's `block`, with a pad for each rank.
    fn share(running: &Running<'_>, engine: &Engine, block: &Block, openings: &[Opening]) -> Result<Self> {
        let pad_bytes = openings[0].pad_bytes;
        let joined = engine.joined(block.provider())?;
        let room = Pointers::start(pad_bytes) + TABLES * size_of::<u64>() * openings.len();
        let pad = joined.pads().unwrap_or(joined).provider().alloc(room);
        let own = pad.as_ref().ok().cloned();
        // The tables that everybody asks for are there from the start, and their failure is in the vote.
        let finish = |data: &Column, pads: &Column| {
            let pointers = Pointers::new(engine.device(), own, pad_bytes)?;
            let offsets = openings.iter().map(|opening| opening.offset as u64);
            let data: Vec<u64> =
                data.addresses().zip(offsets).map(|(base, offset)| moved(base, offset)).collect();
            pointers.table_of(&data)?;
            pointers.table_of(&pads.addresses().collect::<Vec<_>>())?;
            Ok(pointers)
        };
        let memory = Some(Arc::clone(block.memory()));
        let (peers, pointers) = PeerTable::share(running, joined, engine.far(), memory, pad, finish)?;
        Ok(Self {
            data: peers.data.addresses().collect(),
            pads: Arc::new(peers.pads.addresses().collect()),
            bytes: block.memory().bytes(),
            pad_bytes,
            number: peers.number,
            is_direct: peers.data.is_direct,
            multicast: peers.data.multicast.clone(),
            mapped: Some(Mapped { peers, pointers, room: OnceLock::new() }),
            idle: engine.idle(),
        })
    }
}

/// Tables of addresses in device memory, for kernels: in what this rank's pad leaves of its last granule.
struct Pointers {
    device: Device,
    memory: Arc<dyn LocalMemory>,
    tables: Mutex<Tables>,
}

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

/// What a rank says before anything is made.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    bytes: usize,
    pad_bytes: usize,
    dtype: String,
    /// In bytes; ranks may differ in it.
    offset: usize,
    /// Elements of the handle, if it is not all that follows the offset.
    part: Option<usize>,
    /// The rendezvous that this rank has already.
    number: Option<u64>,
    provider: String,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Brought for Opening {
    const WHAT: &str = "the allocation";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let Self { bytes, pad_bytes, dtype, provider, part, .. } = self;
        let part = part.map(|len| format!(", a part of {len} elements")).unwrap_or_default();
        format!("{bytes} bytes of {dtype} in {provider}, pad of {pad_bytes} bytes{part}")
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. A handle of the elements from `offset` on, of `len` in all: as many as there are behind everybody's
    /// offset, so that what is in range here is in range on every rank.
    pub(super) fn rendezvous(block: &Block, engine: &Engine, offset: usize, len: usize) -> Result<Self> {
        let bounds = if offset > len { Err(out_of_bounds::<T>(offset, len)) } else { Ok(()) };
        let start = offset.saturating_mul(size_of::<T>());
        let (table, offsets) = meet::<T>(block, engine, start, None, bounds)?;
        // As many elements as there are behind everybody's offset: what is in range here is in range on every rank.
        let farthest = offsets.iter().max().map_or(0, |bytes| bytes / size_of::<T>());
        Ok(Self::new(engine, table, &offsets, len - farthest))
    }

    /// Collective. A handle of `len` elements from byte `start` on.
    pub(super) fn rendezvous_part(block: &Block, engine: &Engine, start: usize, len: usize) -> Result<Self> {
        let bounds = element::fit::<T>(Op::Rendezvous.name(), start, len, block.memory().bytes());
        // The ranks compare `len`, and each checked its own range: kernels that reach for a peer's part find all of it.
        let (table, offsets) = meet::<T>(block, engine, start, Some(len), bounds)?;
        Ok(Self::new(engine, table, &offsets, len))
    }
}

/// Compares what the ranks bring, and gives the table of `block` and everybody's offset in bytes. A rank whose own
/// arguments are wrong tells the others instead of staying away.
fn meet<T: Element>(
    block: &Block,
    engine: &Engine,
    offset: usize,
    part: Option<usize>,
    bounds: Result<()>,
) -> Result<(Arc<Table>, Vec<usize>)> {
    let group = engine.group();
    let span =
        tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes = block.memory().bytes());
    let _entered = span.enter();
    group.operate(Op::Rendezvous, None, |running| meet_in::<T>(running, block, engine, offset, part, bounds))
}

fn meet_in<T: Element>(
    running: &Running<'_>,
    block: &Block,
    engine: &Engine,
    offset: usize,
    part: Option<usize>,
    bounds: Result<()>,
) -> Result<(Arc<Table>, Vec<usize>)> {
    let group = engine.group();
    // Until the vote is over: whoever else would bring this memory does so meanwhile, and is refused.
    let claim =
        check_place(block, engine).and(bounds).and_then(|()| block.tables.claim(group, &engine.key()));
    let kept = block.tables.find(group, &engine.key());
    let opening = Opening {
        bytes: block.memory().bytes(),
        pad_bytes: group.context().signal_pad_size(),
        dtype: T::DTYPE.name().to_owned(),
        offset,
        part,
        number: kept.as_ref().map(|table| table.number),
        provider: block.provider().to_string(),
        error: claim.as_ref().err().map(ToString::to_string),
    };
    let openings = running.compare(Op::Rendezvous, &opening)?;
    let claim = claim?;
    // A table is used again only if all ranks mean the same one.
    let again = openings.iter().all(|theirs| theirs.number == opening.number);
    let table = match kept.filter(|_| again) {
        Some(table) => table,
        None => {
            let table = Arc::new(Table::share(running, engine, block, &openings)?);
            claim.keep(Arc::downgrade(&table));
            table
        }
    };
    if openings.iter().any(|theirs| theirs.offset != offset) {
        table.make_room(running, engine)?;
    }
    Ok((table, openings.iter().map(|opening| opening.offset).collect()))
}

fn check_place(block: &Block, engine: &Engine) -> Result<()> {
    check_no_capture("rendezvous")?;
    let (memory, device) = (block.device(), engine.device());
    if memory != device {
        let problem =
            format!("it is on {memory}, the engine on {device}. Hint: allocate on the engine's device");
        return Err(Error::invalid("allocation", problem));
    }
    engine.joined(block.provider()).map(drop)
}
