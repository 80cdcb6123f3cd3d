//! A local allocation on a device.
//!
//! Public. Local to make and to drop; [`Allocation::rendezvous`] makes it symmetric.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use super::handle::SymmetricMemory;
use super::rendezvous::Table;
use crate::config::{Config, Provider};
use crate::cuda::activity::all_idle;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream, buffer, deferred};
use crate::engine::cuda::Engine;
use crate::memory::Tables;
use crate::numeric::Element;
use crate::provider::{LocalMemory, registry};
use crate::{Error, Result};

/// The memory behind an allocation, and its rendezvous so far.
#[derive(Debug)]
pub(super) struct Block {
    memory: Arc<dyn LocalMemory>,
    device: Device,
    provider: Provider,
    /// By engine. The handles keep them, so that mappings go with the last one.
    pub(super) tables: Tables<Weak<Table>>,
}

impl Block {
    pub(super) fn memory(&self) -> &Arc<dyn LocalMemory> {
        &self.memory
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn provider(&self) -> Provider {
        self.provider
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A kernel may have been given it as private memory, and unmapping does not wait.
        let device = self.device.ordinal();
        deferred::bury_until(Box::new(move || all_idle(device)), Box::new(Arc::clone(&self.memory)));
    }
}

/// Zeroed device memory of this rank that can become symmetric. Local to make, local to drop.
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
#[derive(Debug)]
pub struct Allocation<T: Element> {
    block: Arc<Block>,
    len: usize,
    element: PhantomData<T>,
}

impl Device {
    /// Local. Allocates `len` zeroed elements on this device, that can become symmetric, from the provider that
    /// `SYMMEM_PROVIDER` names. Not while this thread captures.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        Allocation::new(self, len)
    }
}

impl<T: Element> Allocation<T> {
    /// Local. Allocates `len` zeroed elements on `device`, and waits until they are zero.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        Self::with(device, len, Config::env_device_provider()?)
    }

    /// Local. [`Allocation::new`] from this provider. NCCL's memory meets on engines that have a communicator
    /// ([`Settings::provider`](crate::cuda::Settings::provider)).
    pub fn with(device: &Device, len: usize, provider: Provider) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| {
            let size = size_of::<T>();
            Error::invalid("allocation", format!("{len} elements of {size} bytes are too many"))
        })?;
        let memory = registry::on_device(provider, device)?.alloc(bytes)?;
        let block = Block { memory, device: device.clone(), provider, tables: Tables::default() };
        Ok(Self { block: Arc::new(block), len, element: PhantomData })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.block.device
    }

    /// Where it came from.
    pub fn provider(&self) -> Provider {
        self.block.provider
    }

    /// First byte on the device; the same for the life of the allocation. Work of your own that uses it must be done
    /// before the allocation and its handles are dropped.
    pub fn device_ptr(&self) -> u64 {
        self.block.memory.address()
    }

    /// Writes all elements, after the work that is on `stream`, and waits until they are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        check_stream(self.device(), stream)?;
        // SAFETY: the allocation's own memory.
        unsafe { buffer::write(self.device_ptr(), self.len, elements, stream) }
    }

    /// Reads all elements, after the work that is on `stream`.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        check_stream(self.device(), stream)?;
        // SAFETY: the allocation's own memory.
        unsafe { buffer::read(self.device_ptr(), self.len, stream) }
    }

    /// All elements, to be read by an operation.
    pub fn as_slice(&self) -> Result<DeviceSlice<'_, T>> {
        // SAFETY: the allocation's own memory.
        unsafe { DeviceSlice::from_parts(self.device_ptr(), self.len, self.device(), Some(&self.block)) }
    }

    /// All elements, to be written by an operation.
    pub fn as_slice_mut(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        // SAFETY: the allocation's own memory.
        unsafe { DeviceSliceMut::from_parts(self.device_ptr(), self.len, self.device(), Some(&self.block)) }
    }

    /// Collective over the engine's group: everybody maps everybody's allocation, which must agree in size and element
    /// type, and be on the engine's device. Either all ranks succeed or all get the same error, and the allocation can be
    /// tried again. Not while this thread captures.
    ///
    /// While a handle is alive on every rank, a second call maps nothing and gives another handle.
    pub fn rendezvous(&self, engine: &Engine) -> Result<SymmetricMemory<T>> {
        self.rendezvous_at(engine, 0)
    }

    /// Collective. [`Allocation::rendezvous`] with a handle that starts at element `offset`; ranks may differ in it.
    pub fn rendezvous_at(&self, engine: &Engine, offset: usize) -> Result<SymmetricMemory<T>> {
        SymmetricMemory::rendezvous(&self.block, engine, offset, self.len)
    }

    /// Collective. [`Allocation::rendezvous`] as elements of `U`, with a handle of `len` of them from byte `start` on, which
    /// must be a multiple of their size. For allocations whose element type is known only at run time: the ranks compare
    /// `U`, not `T`. Ranks may differ in `start`, not in `len`.
    pub fn rendezvous_as<U: Element>(
        &self,
        engine: &Engine,
        start: usize,
        len: usize,
    ) -> Result<SymmetricMemory<U>> {
        SymmetricMemory::rendezvous_part(&self.block, engine, start, len)
    }
}

/// Copies run on the memory's own device, the only one that reaches it.
pub(super) fn check_stream(device: &Device, stream: &Stream) -> Result<()> {
    if stream.device() == device {
        return Ok(());
    }
    let problem = format!("it is on {}, the memory on {device}", stream.device());
    Err(Error::invalid("stream", problem))
}
