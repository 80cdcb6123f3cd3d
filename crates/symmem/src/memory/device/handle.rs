//! The handle of symmetric memory on devices: where everybody's memory and pads are, as this rank's device sees them.
//!
//! Public. The operations on it are the engine's (`engine/cuda/ops`). What it guarantees: the addresses are valid as long
//! as any handle, or the allocation if nobody closed it, and after that until the work that the engine was given is done.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::any::Any;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::allocation::Block;
use super::rendezvous::Table;
use crate::cuda::{Device, DeviceSlice, Stream, buffer};
use crate::engine::cuda::Engine;
use crate::group::{Group, Running};
use crate::memory::rendezvous::{Kept as _, close};
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::table::moved;
use crate::{Error, Result};

/// Memory that the devices of all ranks of a group reach. A light handle; clones and slices share the mappings.
///
/// The addresses are for kernels: operations of this crate, or your own, which take the tables
/// ([`SymmetricMemory::peer_ptrs`] by value, [`SymmetricMemory::peer_ptrs_dev`] in device memory).
#[derive(Debug)]
pub struct SymmetricMemory<T: Element> {
    pub(crate) engine: Engine,
    /// Everybody's first element of this handle.
    pub(crate) data: Arc<Vec<u64>>,
    pub(crate) len: usize,
    /// Bytes from the start of this rank's allocation to the handle's first element.
    pub(crate) offset: usize,
    /// Whether the ranks differ in it.
    pub(crate) offsets_differ: bool,
    block: Arc<Block>,
    /// Keeps the addresses valid.
    pub(crate) keep: Arc<Table>,
    element: PhantomData<T>,
}

impl<T: Element> Clone for SymmetricMemory<T> {
    fn clone(&self) -> Self {
        self.on(self.engine.clone())
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// `len` elements from byte `offset` of this rank's allocation on; `offsets` are everybody's.
    pub(super) fn new(
        engine: &Engine,
        block: &Arc<Block>,
        keep: Arc<Table>,
        offsets: &[usize],
        len: usize,
    ) -> Self {
        let data: Vec<u64> = keep.data.iter().copied().zip(offsets).map(moved).collect();
        let offset = offsets[engine.group().rank()];
        Self {
            engine: engine.clone(),
            len,
            offset,
            offsets_differ: offsets.iter().any(|theirs| *theirs != offset),
            data: Arc::new(data),
            block: Arc::clone(block),
            keep,
            element: PhantomData,
        }
    }

    /// The same memory for the operations of another lane of the engine.
    pub(crate) fn on(&self, engine: Engine) -> Self {
        Self { engine, ..self.of(self.len) }
    }

    /// The same memory as `len` elements of `U`.
    fn of<U: Element>(&self, len: usize) -> SymmetricMemory<U> {
        SymmetricMemory {
            engine: self.engine.clone(),
            data: Arc::clone(&self.data),
            len,
            offset: self.offset,
            offsets_differ: self.offsets_differ,
            block: Arc::clone(&self.block),
            keep: Arc::clone(&self.keep),
            element: PhantomData,
        }
    }

    /// Whether the memory is open. One load of what every operation reads.
    #[inline]
    pub(crate) fn check_open(&self, op: &'static str) -> Result<()> {
        self.keep.check_open(op)
    }

    /// Where the handle begins in the allocation of rank 0: the same on every rank, whatever its own offset.
    pub(crate) fn place(&self) -> u64 {
        self.data[0] - self.keep.data[0]
    }

    /// This rank in the group.
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.data.len()
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.engine.group()
    }

    /// The engine that carries the operations of this handle.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.engine.device()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The handle's first element in this rank's allocation.
    pub fn offset(&self) -> usize {
        self.offset / size_of::<T>()
    }

    /// Bytes of the whole allocation, the same on every rank.
    pub fn buffer_size(&self) -> usize {
        self.keep.bytes
    }

    /// Where the handle's first element of rank `rank` is, for kernels on this rank's device. An error where it is out of
    /// reach.
    pub fn peer_ptr(&self, rank: usize) -> Result<u64> {
        self.address_in("peer_ptr", &self.data, rank)
    }

    /// Where the handle's first element of every rank is, in rank order; 0 for a rank that is out of reach.
    pub fn peer_ptrs(&self) -> &[u64] {
        &self.data
    }

    /// The device address of a table of [`SymmetricMemory::peer_ptrs`], valid as long as any handle of this memory. The
    /// table of a rendezvous is there already; that of a slice is made when it is first asked for.
    pub fn peer_ptrs_dev(&self) -> Result<u64> {
        self.keep.table_of(&self.data)
    }

    /// Where rank `rank`'s signal pad is, for kernels on this rank's device.
    pub fn pad_ptr(&self, rank: usize) -> Result<u64> {
        self.address_in("pad_ptr", &self.keep.pads, rank)
    }

    fn address_in(&self, op: &'static str, addresses: &[u64], rank: usize) -> Result<u64> {
        self.group().check_rank(op, rank)?;
        self.check_open(op)?;
        if addresses[rank] == 0 { Err(self.out_of_reach(rank)) } else { Ok(addresses[rank]) }
    }

    /// Where every rank's signal pad is, in rank order; 0 for a rank that is out of reach.
    pub fn pad_ptrs(&self) -> &[u64] {
        &self.keep.pads
    }

    /// The device address of a table of [`SymmetricMemory::pad_ptrs`], valid as long as any handle of this memory.
    pub fn pad_ptrs_dev(&self) -> Result<u64> {
        self.keep.table_of(&self.keep.pads)
    }

    /// Bytes of each rank's signal pad.
    pub fn signal_pad_size(&self) -> usize {
        self.keep.pad_bytes
    }

    /// The address that reaches the handle's first element of all ranks at once, for multimem instructions only. `None`
    /// where devices or ranks have none, and where the ranks' offsets differ.
    pub fn multicast_ptr(&self) -> Option<u64> {
        self.multicast().ok()
    }

    /// The same, or why there is none.
    pub(crate) fn multicast(&self) -> Result<u64> {
        let base = match self.keep.multicast() {
            Ok(_) if self.offsets_differ => Err("the offsets of the ranks differ"),
            base => base,
        };
        let problem = |problem: &str| Error::NoMulticast { problem: problem.to_owned() };
        base.map(|base| base + self.offset as u64).map_err(problem)
    }

    /// Where every rank's allocation begins, in rank order, whatever the offset of this handle.
    pub fn base_ptrs(&self) -> &[u64] {
        &self.keep.data
    }

    /// The device address of a table of [`SymmetricMemory::base_ptrs`], valid as long as any handle of this memory.
    pub fn base_ptrs_dev(&self) -> Result<u64> {
        self.keep.table_of(&self.keep.data)
    }

    /// What keeps the addresses valid, and nothing else: neither the engine nor the membership in its group.
    pub fn mappings(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.keep) as _
    }

    /// Local. A part of this memory. Operations work on what the handle covers, so all ranks must cut alike.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = buffer::part::<T>(range, self.len)?;
        let start = start * size_of::<T>();
        let data: Vec<u64> = self.data.iter().map(|address| moved((*address, &start))).collect();
        Ok(Self { data: Arc::new(data), offset: self.offset + start, ..self.of(len) })
    }

    /// Local. The same memory as elements of `U`: everybody's first byte and the length must be multiples of their size.
    ///
    /// ```no_run
    /// # fn view(mem: &symmem::cuda::SymmetricMemory<u8>) -> symmem::Result<()> {
    /// let numbers = mem.slice(64..128)?.cast::<f32>()?;
    /// assert_eq!((numbers.offset(), numbers.len()), (16, 16));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cast<U: Element>(&self) -> Result<SymmetricMemory<U>> {
        let mut len = self.len;
        for (address, base) in self.data.iter().zip(&self.keep.data) {
            let offset = (address - base) as usize / size_of::<T>();
            len = element::recount::<T, U>(offset, self.len)?.1;
        }
        Ok(self.of(len))
    }

    /// This rank's memory, to be read by an operation.
    pub fn local(&self) -> Result<DeviceSlice<'_, T>> {
        // SAFETY: this rank's own memory, mapped as long as the handle, and longer if the engine works on it.
        unsafe { DeviceSlice::from_parts(self.data[self.rank()], self.len, self.device(), Some(&self.keep)) }
    }

    /// Writes all elements of this rank's memory, after the work that is on `stream`, and waits until they are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        self.block.write(self.offset, self.len, elements, stream)
    }

    /// Reads all elements of this rank's memory, after the work that is on `stream`. [`Error::Poisoned`] once the group, or another that
    /// worked on them, has failed.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.check_usable("read")?;
        self.salvage(stream)
    }

    /// [`SymmetricMemory::read`] whatever the state of the memory: also after the group failed.
    pub fn salvage(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.salvage(self.offset, self.len, stream)
    }

    /// Collective, on the host: ranks wait for each other, not for streams. Ends the use of the memory on this engine: all its handles
    /// give [`Error::Closed`] from here on. The bytes stay, and the allocation can be rendezvoused again. Work that was launched goes on,
    /// and the mappings stay until it is done, and until handles and graphs of it are gone.
    ///
    /// ```no_run
    /// # fn end(x: &symmem::cuda::Allocation<f32>, engine: &symmem::cuda::Engine) -> symmem::Result<()> {
    /// let (mem, other) = (x.rendezvous(engine)?, x.rendezvous(engine)?);
    /// mem.close()?;
    /// assert!(other.peer_ptr(0).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> Result<()> {
        self.check_open(Op::Close.name())?;
        let end = |running: &Running<'_>| {
            self.block.remember(&self.keep.fate);
            close(running, &self.block, self.engine.key(), &self.keep)
        };
        self.group().operate(Op::Close, None, end)?;
        // What fails after this is no matter of the memory's, if its work is done.
        self.block.settle();
        Ok(())
    }
}
