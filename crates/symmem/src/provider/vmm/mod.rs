//! Device memory through the driver's virtual memory management: physical memory, address ranges, and mappings.
//!
//! Called by allocations, by the exchange between ranks ([`exchange`]) and by the engine for its control block.
//! What it guarantees: whatever is made is given back in the only right order (unmap, release, free the addresses;
//! multicast before all of that), by ownership and on every path of failure; memory that kernels may still use waits
//! in [`deferred`]; a forked child gives nothing back, since the driver is not its own.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

pub(crate) mod exchange;
mod mapping;
pub(crate) mod multicast;
mod physical;
mod reservation;
pub(crate) mod shareable;

use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};

pub(crate) use self::mapping::Mapping;
pub(crate) use self::multicast::Multicast;
pub(crate) use self::physical::Physical;
use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::driver::trace_release;
use crate::cuda::{Device, Stream, buffer, deferred};
use crate::sys::fork;
use crate::{Error, Result};

/// The provider of device memory.
pub(crate) struct Vmm;

impl Vmm {
    /// Its name in messages, and what ranks compare.
    pub(crate) const NAME: &str = "vmm";

    /// Local: `bytes` zeroed bytes on `device`, that can be exported to other ranks. At least one granule.
    pub(crate) fn alloc(device: &Device, bytes: usize) -> Result<Arc<DeviceMemory>> {
        check_no_capture("allocation of device memory")?;
        check_supported(device)?;
        deferred::reap();
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let physical = Physical::create(device, bytes)?;
        let mapping = Mapping::new(device, Arc::new(physical))?;
        let memory = DeviceMemory { mapping, bytes };
        memory.clear()?;
        Ok(Arc::new(memory))
    }
}

/// Memory of this rank on its device, mapped, not yet known to anybody else.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    mapping: Mapping,
    bytes: usize,
}

impl DeviceMemory {
    /// First byte, as kernels see it.
    pub(crate) fn address(&self) -> u64 {
        self.mapping.address()
    }

    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that there are: whole granules.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapping.bytes()
    }

    pub(crate) fn device(&self) -> &Device {
        self.mapping.device()
    }

    pub(crate) fn physical(&self) -> &Arc<Physical> {
        self.mapping.physical()
    }

    /// Writes zeros all over, and waits for that, on no user's stream: nobody else knows the memory yet.
    fn clear(&self) -> Result<()> {
        let stream = Stream::service(self.device())?;
        // SAFETY: the range is mapped for writing on this device, and the work is waited for.
        unsafe { buffer::fill_bytes(self.address(), self.mapped_bytes(), 0, &stream) }?;
        stream.synchronize()
    }

    /// Copies `bytes` to `offset`, on no user's stream, and waits for that.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let (size, len) = (self.mapped_bytes(), bytes.len());
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let (offset, bytes, size) = (offset as u64, len as u64, size as u64);
            return Err(Error::OutOfBounds { op: "write", offset, bytes, size });
        }
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let stream = Stream::service(self.device())?;
        // SAFETY: in range, as just checked.
        unsafe { buffer::write(self.address() + offset as u64, len, bytes, &stream) }
    }
}

fn check_supported(device: &Device) -> Result<()> {
    let has = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if device.attribute(has)? != 0 {
        return Ok(());
    }
    Err(Error::invalid(
        device.to_string(),
        "it has no virtual memory management, without which its memory cannot be shared. Hint: WSL and vGPU often lack it; use a driver on bare Linux",
    ))
}

/// Runs the driver call `give` that gives something back; true if it did. Nobody can be told of a failure, and the
/// first error must not be hidden by it, so it is only written down.
fn give_back(device: &Device, call: &'static str, give: impl FnOnce() -> CUresult) -> bool {
    // What a forked child inherited belongs to the rank.
    if fork::is_child() {
        return false;
    }
    // Most of these calls need no context; a context that cannot be made current must not keep memory from going.
    let _bound = device.bind();
    let code = give();
    trace_release(call, code);
    code == CUresult::CUDA_SUCCESS
}
