//! What only the handle of device memory can do: addresses of everybody's memory and pads, as this rank's
//! device has them, and this rank's elements. And what such a handle is made of.
//!
//! Public. The operations on it are in `collective/device`. What it guarantees: the addresses are valid as
//! long as any handle, or the allocation if nobody closed it, and after that until the work that the engine
//! was given is done.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::any::Any;
use std::sync::Arc;

use super::allocation::DeviceBlock;
use super::rendezvous;
use crate::cuda::{Device, DeviceSlice, Stream};
use crate::engine::cuda::{Algorithm, Engine, Region};
use crate::group::Group;
use crate::memory::place::{Cuda, Place, PlaceParts};
use crate::memory::rendezvous::{Covered, KeptTable as _, close};
use crate::numeric::Element;
use crate::operation::Op;
use crate::sys::fork;
use crate::{Error, Result};

/// A handle of device memory that the devices of all ranks of a group reach. Clones and slices share the
/// mappings.
///
/// Kernels of your own take the addresses of everybody's memory as a table, which
/// [`peer_ptrs`](SymmetricMemory::peer_ptrs) has on the host and
/// [`peer_ptrs_dev`](SymmetricMemory::peer_ptrs_dev) on the device.
pub type SymmetricMemory<T> = crate::memory::SymmetricMemory<T, Cuda>;

impl Place for Cuda {
    type Group = Engine;
    type Algorithm = Algorithm;
    type Pointer = u64;
    type Block = DeviceBlock;
    type Parts = DeviceParts;
}

/// What a handle of device memory is made of.
#[derive(Clone, Debug)]
pub struct DeviceParts {
    /// What it covers.
    pub(crate) region: Region,
    block: Arc<DeviceBlock>,
}

impl DeviceParts {
    fn over(&self, region: Region) -> Self {
        Self { region, block: Arc::clone(&self.block) }
    }

    fn check_open(&self, op: &'static str) -> Result<()> {
        self.region.table.check_open(op)
    }

    /// [`DeviceParts::check_open`], where no operation checks the process next.
    fn check_view(&self, op: &'static str) -> Result<()> {
        if fork::is_child() {
            return Err(Error::Forked { op });
        }
        self.check_open(op)
    }

    fn address_in(&self, op: &'static str, addresses: &[u64], rank: usize) -> Result<u64> {
        self.check_view(op)?;
        match addresses[rank] {
            0 => Err(self.region.out_of_reach(rank)),
            address => Ok(address),
        }
    }
}

impl PlaceParts<Cuda> for DeviceParts {
    fn kept(block: &Arc<DeviceBlock>, engine: &Engine) -> Result<Option<Self>> {
        let region = rendezvous::kept(block, engine)?;
        Ok(region.map(|region| Self { region, block: Arc::clone(block) }))
    }

    fn meet(block: &Arc<DeviceBlock>, engine: &Engine, covered: Result<Covered>) -> Result<Self> {
        let region = rendezvous::meet(block, engine, covered)?;
        Ok(Self { region, block: Arc::clone(block) })
    }

    #[inline]
    fn group(&self) -> &Group {
        self.region.engine.group()
    }

    #[inline]
    fn start(&self) -> usize {
        self.region.offset
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.region.bytes
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        let bases = self.region.table.data.iter();
        self.region.data.iter().zip(bases).map(|(address, base)| (address - base) as usize)
    }

    fn buffer_size(&self) -> usize {
        self.region.table.bytes
    }

    fn pad_size(&self) -> usize {
        self.region.table.pad_bytes
    }

    fn cut(&self, start: usize, bytes: usize) -> Self {
        self.over(self.region.part(start, bytes))
    }

    fn using(&self, algorithm: Algorithm) -> Self {
        self.over(self.region.on(self.region.engine.using(algorithm)))
    }

    fn reaches(&self, op: &'static str, rank: usize) -> Result<bool> {
        self.check_view(op)?;
        Ok(self.region.data[rank] != 0)
    }

    fn peer_ptr(&self, op: &'static str, rank: usize) -> Result<u64> {
        self.address_in(op, &self.region.data, rank)
    }

    fn pad_ptr(&self, op: &'static str, rank: usize) -> Result<u64> {
        self.address_in(op, &self.region.table.pads, rank)
    }

    fn multicast_ptr(&self) -> Option<u64> {
        self.region.multicast().ok()
    }

    fn close(&self) -> Result<()> {
        self.check_open(Op::Close.name())?;
        self.group().operate(Op::Close, None, |running| {
            self.block.remember(&self.region.table.fate);
            close(running, &self.block, self.region.engine.key(), &self.region.table)
        })?;
        // What fails after this is no matter of the memory's, if its work is done.
        self.block.settle();
        Ok(())
    }
}

impl<T: Element> Clone for SymmetricMemory<T> {
    fn clone(&self) -> Self {
        Self::new(self.parts.clone())
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// The same memory for the operations of another lane of the engine.
    pub(crate) fn with_engine(&self, engine: Engine) -> Self {
        Self::new(self.parts.over(self.region().on(engine)))
    }

    /// What it covers.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.parts.region
    }

    /// Whether the memory is open. One load of what every operation reads.
    #[inline]
    pub(crate) fn check_open(&self, op: &'static str) -> Result<()> {
        self.parts.check_open(op)
    }

    /// The engine that carries the operations of this handle.
    pub fn engine(&self) -> &Engine {
        &self.region().engine
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.engine().device()
    }

    /// Where the handle's first element of every rank is, in rank order; 0 for a rank that is out of reach.
    pub fn peer_ptrs(&self) -> &[u64] {
        &self.region().data
    }

    /// The device address of a table of [`SymmetricMemory::peer_ptrs`], valid as long as any handle of this
    /// memory. The table of a rendezvous is there already; that of a slice is made when it is first asked
    /// for.
    pub fn peer_ptrs_dev(&self) -> Result<u64> {
        self.region().table.table_of(&self.region().data)
    }

    /// Where every rank's signal pad is, in rank order; 0 for a rank that is out of reach.
    pub fn pad_ptrs(&self) -> &[u64] {
        &self.region().table.pads
    }

    /// The device address of a table of [`SymmetricMemory::pad_ptrs`], valid as long as any handle of this
    /// memory.
    pub fn pad_ptrs_dev(&self) -> Result<u64> {
        self.region().table.table_of(&self.region().table.pads)
    }

    /// Where every rank's allocation begins, in rank order, whatever the offset of this handle.
    pub fn base_ptrs(&self) -> &[u64] {
        &self.region().table.data
    }

    /// The device address of a table of [`SymmetricMemory::base_ptrs`], valid as long as any handle of this
    /// memory.
    pub fn base_ptrs_dev(&self) -> Result<u64> {
        self.region().table.table_of(&self.region().table.data)
    }

    /// What keeps the addresses valid, and nothing else: neither the engine nor the membership in its group.
    pub fn mappings(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.region().table) as _
    }

    /// This rank's memory, to be read by an operation.
    pub fn local(&self) -> Result<DeviceSlice<'_, T>> {
        // SAFETY: this rank's own memory, mapped as long as the handle, and longer if the engine works on it.
        unsafe {
            let (own, keep) = (self.region().own_address(), &self.region().table);
            DeviceSlice::from_parts(own, self.len(), self.device(), Some(keep))
        }
    }

    /// Writes all elements of this rank's memory, after the work that is on `stream`, and waits until they
    /// are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        self.parts.block.write(self.region().offset, self.len(), elements, stream)
    }

    /// Reads all elements of this rank's memory, after the work that is on `stream`.
    /// [`Error::Poisoned`](crate::Error::Poisoned) once the group, or another that worked on them, has
    /// failed.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        self.parts.block.check_usable("read")?;
        self.salvage(stream)
    }

    /// [`SymmetricMemory::read`] whatever the state of the memory: also after the group failed.
    pub fn salvage(&self, stream: &Stream) -> Result<Vec<T>> {
        self.parts.block.salvage(self.region().offset, self.len(), stream)
    }
}
