//! The handle of symmetric memory on devices: where everybody's memory and pads are, as this rank's device
//! sees them.
//!
//! Public. The operations on it are in `collective/device`. What it guarantees: the addresses are valid as
//! long as any handle, or the allocation if nobody closed it, and after that until the work that the engine
//! was given is done.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::any::Any;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::allocation::DeviceBlock;
use crate::Result;
use crate::cuda::{Device, DeviceSlice, Stream, buffer};
use crate::engine::cuda::{Engine, Region};
use crate::group::Group;
use crate::memory::rendezvous::{KeptTable as _, close};
use crate::numeric::{Element, element};
use crate::operation::Op;

/// Memory that the devices of all ranks of a group reach. A light handle; clones and slices share the
/// mappings.
///
/// The addresses are for kernels: operations of this crate, or your own, which take the tables
/// ([`SymmetricMemory::peer_ptrs`] by value, [`SymmetricMemory::peer_ptrs_dev`] in device memory).
#[derive(Debug)]
pub struct SymmetricMemory<T: Element> {
    /// What it covers.
    pub(crate) region: Region,
    block: Arc<DeviceBlock>,
    element: PhantomData<T>,
}

impl<T: Element> Clone for SymmetricMemory<T> {
    fn clone(&self) -> Self {
        Self::new(self.region.clone(), &self.block)
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// `region` of everybody's memory, of which this rank's is `block`.
    pub(super) fn new(region: Region, block: &Arc<DeviceBlock>) -> Self {
        Self { region, block: Arc::clone(block), element: PhantomData }
    }

    /// The same memory for the operations of another lane of the engine.
    pub(crate) fn with_engine(&self, engine: Engine) -> Self {
        Self::new(self.region.on(engine), &self.block)
    }

    /// Whether the memory is open. One load of what every operation reads.
    #[inline]
    pub(crate) fn check_open(&self, op: &'static str) -> Result<()> {
        self.region.table.check_open(op)
    }

    /// This rank in the group.
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.region.data.len()
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.engine().group()
    }

    /// The engine that carries the operations of this handle.
    pub fn engine(&self) -> &Engine {
        &self.region.engine
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.engine().device()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.region.bytes / size_of::<T>()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.region.bytes == 0
    }

    /// The handle's first element in this rank's allocation.
    pub fn offset(&self) -> usize {
        self.region.offset / size_of::<T>()
    }

    /// Bytes of the whole allocation, the same on every rank.
    pub fn buffer_size(&self) -> usize {
        self.region.table.bytes
    }

    /// Where the handle's first element of rank `rank` is, for kernels on this rank's device. An error where
    /// it is out of reach.
    pub fn peer_ptr(&self, rank: usize) -> Result<u64> {
        self.address_in("peer_ptr", &self.region.data, rank)
    }

    /// Where the handle's first element of every rank is, in rank order; 0 for a rank that is out of reach.
    pub fn peer_ptrs(&self) -> &[u64] {
        &self.region.data
    }

    /// The device address of a table of [`SymmetricMemory::peer_ptrs`], valid as long as any handle of this
    /// memory. The table of a rendezvous is there already; that of a slice is made when it is first asked
    /// for.
    pub fn peer_ptrs_dev(&self) -> Result<u64> {
        self.region.table.table_of(&self.region.data)
    }

    /// Where rank `rank`'s signal pad is, for kernels on this rank's device.
    pub fn pad_ptr(&self, rank: usize) -> Result<u64> {
        self.address_in("pad_ptr", &self.region.table.pads, rank)
    }

    fn address_in(&self, op: &'static str, addresses: &[u64], rank: usize) -> Result<u64> {
        self.group().check_rank(op, rank)?;
        self.check_open(op)?;
        match addresses[rank] {
            0 => Err(self.region.out_of_reach(rank)),
            address => Ok(address),
        }
    }

    /// Where every rank's signal pad is, in rank order; 0 for a rank that is out of reach.
    pub fn pad_ptrs(&self) -> &[u64] {
        &self.region.table.pads
    }

    /// The device address of a table of [`SymmetricMemory::pad_ptrs`], valid as long as any handle of this
    /// memory.
    pub fn pad_ptrs_dev(&self) -> Result<u64> {
        self.region.table.table_of(&self.region.table.pads)
    }

    /// Bytes of each rank's signal pad.
    pub fn signal_pad_size(&self) -> usize {
        self.region.table.pad_bytes
    }

    /// The address that reaches the handle's first element of all ranks at once, for multimem instructions
    /// only. `None` where devices or ranks have none, and where the ranks' offsets differ.
    pub fn multicast_ptr(&self) -> Option<u64> {
        self.region.multicast().ok()
    }

    /// Where every rank's allocation begins, in rank order, whatever the offset of this handle.
    pub fn base_ptrs(&self) -> &[u64] {
        &self.region.table.data
    }

    /// The device address of a table of [`SymmetricMemory::base_ptrs`], valid as long as any handle of this
    /// memory.
    pub fn base_ptrs_dev(&self) -> Result<u64> {
        self.region.table.table_of(&self.region.table.data)
    }

    /// What keeps the addresses valid, and nothing else: neither the engine nor the membership in its group.
    pub fn mappings(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.region.table) as _
    }

    /// Local. A part of this memory. Operations work on what the handle covers, so all ranks must cut alike.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = buffer::part::<T>(range, self.len())?;
        let size = size_of::<T>();
        Ok(Self::new(self.region.part(start * size, len * size), &self.block))
    }

    /// Local. The same memory as elements of `U`: everybody's first byte and the length must be multiples of
    /// their size.
    ///
    /// ```no_run
    /// # fn view(mem: &symmem::cuda::SymmetricMemory<u8>) -> symmem::Result<()> {
    /// let numbers = mem.slice(64..128)?.cast::<f32>()?;
    /// assert_eq!((numbers.offset(), numbers.len()), (16, 16));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cast<U: Element>(&self) -> Result<SymmetricMemory<U>> {
        for (address, base) in self.region.data.iter().zip(self.base_ptrs()) {
            element::recount::<T, U>((address - base) as usize / size_of::<T>(), self.len())?;
        }
        Ok(SymmetricMemory::new(self.region.clone(), &self.block))
    }

    /// This rank's memory, to be read by an operation.
    pub fn local(&self) -> Result<DeviceSlice<'_, T>> {
        // SAFETY: this rank's own memory, mapped as long as the handle, and longer if the engine works on it.
        unsafe {
            let (own, keep) = (self.region.own_address(), &self.region.table);
            DeviceSlice::from_parts(own, self.len(), self.device(), Some(keep))
        }
    }

    /// Writes all elements of this rank's memory, after the work that is on `stream`, and waits until they
    /// are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        self.block.write(self.region.offset, self.len(), elements, stream)
    }

    /// Reads all elements of this rank's memory, after the work that is on `stream`.
    /// [`Error::Poisoned`](crate::Error::Poisoned) once the group, or another that worked on them, has
    /// failed.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.check_usable("read")?;
        self.salvage(stream)
    }

    /// [`SymmetricMemory::read`] whatever the state of the memory: also after the group failed.
    pub fn salvage(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.salvage(self.region.offset, self.len(), stream)
    }

    /// Collective, on the host: ranks wait for each other, not for streams. Ends the use of the memory on
    /// this engine: all its handles give [`Error::Closed`](crate::Error::Closed) from here on. The bytes
    /// stay, and the allocation can be rendezvoused again. Work that was launched goes on, and the mappings
    /// stay until it is done, and until handles and graphs of it are gone.
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
        self.group().operate(Op::Close, None, |running| {
            self.block.remember(&self.region.table.fate);
            close(running, &self.block, self.engine().key(), &self.region.table)
        })?;
        // What fails after this is no matter of the memory's, if its work is done.
        self.block.settle();
        Ok(())
    }
}
