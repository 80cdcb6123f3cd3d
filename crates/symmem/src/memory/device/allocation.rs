//! A local allocation on a device.
//!
//! Public. What allocations of all places can do is in `memory/allocation.rs`.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;
use crate::config::{Config, Provider};
use crate::cuda::activity::all_idle;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream, buffer, deferred};
use crate::device::{DeviceTable, Fate};
use crate::engine::cuda::Engine;
use crate::group::RankContext;
use crate::memory::MemoryBlock;
use crate::memory::context::bytes_of;
use crate::memory::place::{Cuda, PlaceBlock};
use crate::numeric::Element;
use crate::provider::registry;

/// The memory behind an allocation, and its state, which is as the host's.
#[derive(Debug)]
pub struct DeviceBlock {
    state: MemoryBlock<DeviceTable>,
    pub(super) device: Device,
    pub(super) provider: Provider,
    /// The engines on which this memory has no table any more, and whose work on it may still go on.
    past: Mutex<Vec<Fate>>,
}

impl PlaceBlock for DeviceBlock {
    type Table = DeviceTable;

    fn state(&self) -> &MemoryBlock<DeviceTable> {
        &self.state
    }
}

impl Deref for DeviceBlock {
    type Target = MemoryBlock<DeviceTable>;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl DeviceBlock {
    /// Whether this process may use the memory: it is the rank's own, and no group failed that worked on it.
    /// Operations are over before anybody on the host knows how, so this looks at the groups of all its
    /// tables, and of those that were closed while they worked.
    pub(super) fn check_usable(&self, op: &'static str) -> Result<()> {
        self.state.check_usable(op)?;
        self.tables
            .all()
            .iter()
            .filter_map(|table| table.fate.failure())
            .for_each(|cause| self.poison(cause));
        self.settle();
        self.state.check_usable(op)
    }

    /// Keeps the fate of an engine whose table goes, until that engine has done its work.
    pub(super) fn remember(&self, fate: &Fate) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).push(fate.clone());
    }

    /// Poisons the memory if an engine failed whose table is gone. An engine that has done its work is
    /// forgotten.
    pub(super) fn settle(&self) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).retain(|fate| {
            // Idle first, failure second: work that is done has stored its failure before.
            let is_idle = fate.is_idle();
            fate.failure().into_iter().for_each(|cause| self.poison(cause));
            !is_idle
        });
    }

    /// Lets go of the tables of engines that are gone: nobody can find or close them any more.
    pub(super) fn forget_the_gone(&self) {
        let gone = self.tables.take(|table| table.fate.is_over());
        gone.iter().for_each(|table| self.remember(&table.fate));
    }

    /// Writes `len` elements from byte `start` on, after the work that is on `stream`, and waits until they
    /// are there.
    pub(super) fn write<T: Element>(
        &self,
        start: usize,
        len: usize,
        elements: &[T],
        stream: &Stream,
    ) -> Result<()> {
        self.check_usable("write")?;
        stream.check_memory(&self.device)?;
        // SAFETY: this memory's own, which allocations and handles count their elements in.
        unsafe { buffer::write((self.address() + start) as u64, len, elements, stream) }
    }

    /// Reads `len` elements from byte `start` on, after the work that is on `stream`, whatever the state of
    /// the memory.
    pub(super) fn salvage<T: Element>(&self, start: usize, len: usize, stream: &Stream) -> Result<Vec<T>> {
        stream.check_memory(&self.device)?;
        // SAFETY: this memory's own, which allocations and handles count their elements in.
        unsafe { buffer::read((self.address() + start) as u64, len, stream) }
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // A kernel may have been given it as private memory, and unmapping does not wait.
        let device = self.device.ordinal();
        deferred::drop_when(Box::new(move || all_idle(device)), Box::new(self.memory().cloned()));
    }
}

/// Zeroed memory of a device that can become symmetric.
///
/// ```no_run
/// # fn main() -> symmem::Result<()> {
/// use symmem::cuda::{Device, Stream};
/// let device = Device::new(0)?;
/// let stream = Stream::new(&device)?;
/// let x = device.alloc::<f32>(1 << 20)?;
/// assert_eq!(x.read(&stream)?[0], 0.0);
/// # Ok(())
/// # }
/// ```
pub type Allocation<T> = crate::memory::Allocation<T, Cuda>;

impl Device {
    /// Local. Allocates `len` zeroed elements on this device, that can become symmetric, as the environment
    /// says (`SYMMEM_PROVIDER`, `SYMMEM_SIGNAL_PAD_SIZE`). Not while this thread captures.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        Allocation::new(self, len)
    }
}

impl Engine {
    /// Local. Allocates `len` zeroed elements on this engine's device, from its provider, with a signal pad
    /// of the size that the group's context says now.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        let pad_bytes = self.group().context().signal_pad_size();
        Allocation::make(self.device(), len, self.provider(), pad_bytes)
    }
}

impl RankContext {
    /// Local. Allocates `len` zeroed elements on `device`, that can become symmetric: from
    /// [`RankContext::device_provider`], with a signal pad of [`RankContext::signal_pad_size`].
    pub fn alloc_on<T: Element>(&self, device: &Device, len: usize) -> Result<Allocation<T>> {
        self.with_device_provider(|provider| Allocation::make(device, len, provider, self.signal_pad_size()))
    }
}

impl<T: Element> Allocation<T> {
    /// Local. Allocates `len` zeroed elements on `device`, as the environment says, and waits until they are
    /// zero. It does not see what a program sets in code; [`RankContext::alloc_on`] and [`Engine::alloc`] do.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        RankContext::from_env()?.alloc_on(device, len)
    }

    /// Local. [`Allocation::new`] from this provider. NCCL's memory meets on engines that have a communicator
    /// ([`Settings::provider`](crate::cuda::Settings::provider)).
    pub fn with(device: &Device, len: usize, provider: Provider) -> Result<Self> {
        Self::make(device, len, provider, *Config::from_env()?.signal_pad_size)
    }

    /// With a pad of `pad_bytes`, once it is symmetric.
    fn make(device: &Device, len: usize, provider: Provider, pad_bytes: usize) -> Result<Self> {
        let bytes = bytes_of::<T>(len)?;
        let memory = registry::on_device(provider, device)?.alloc(bytes)?;
        let state = MemoryBlock::new(memory, bytes, pad_bytes);
        let block = DeviceBlock { state, device: device.clone(), provider, past: Mutex::default() };
        Ok(Self::of(Arc::new(block), len))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.block.device
    }

    /// Where it came from.
    pub fn provider(&self) -> Provider {
        self.block.provider
    }

    /// First byte on the device; the same for the life of the allocation. Work of your own that uses it must
    /// be done before the allocation and its handles are dropped.
    pub fn device_ptr(&self) -> u64 {
        self.block.address() as u64
    }

    /// Writes all elements, after the work that is on `stream`, and waits until they are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        self.block.write(0, self.len(), elements, stream)
    }

    /// Reads all elements, after the work that is on `stream`. [`Error::Poisoned`](crate::Error::Poisoned)
    /// once a group has failed that worked on them.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.check_usable("read")?;
        self.salvage(stream)
    }

    /// [`Allocation::read`] whatever the state of the memory: also after a group failed that worked on it.
    pub fn salvage(&self, stream: &Stream) -> Result<Vec<T>> {
        self.block.salvage(0, self.len(), stream)
    }

    /// All elements, to be read by an operation.
    pub fn as_slice(&self) -> Result<DeviceSlice<'_, T>> {
        // SAFETY: the allocation's own memory.
        unsafe { DeviceSlice::from_parts(self.device_ptr(), self.len(), self.device(), Some(&self.block)) }
    }

    /// All elements, to be written by an operation.
    pub fn as_slice_mut(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        // SAFETY: the allocation's own memory.
        unsafe { DeviceSliceMut::from_parts(self.device_ptr(), self.len(), self.device(), Some(&self.block)) }
    }
}
