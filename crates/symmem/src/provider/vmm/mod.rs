//! Device memory through the driver's virtual memory management: physical memory, address ranges, and
//! mappings.
//!
//! A [`MemoryProvider`]: memory for allocations and pads, and for the control blocks of engines. What it
//! guarantees: anything that is made is given back in the only right order (unmap, release, free the
//! addresses; multicast before all of that), by ownership and on every path of failure; memory that kernels
//! may still use waits in [`deferred`]; a forked child gives nothing back, since the driver is not its own.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

mod card;
mod join;
mod mapping;
mod multicast;
mod multicast_setup;
mod physical;
mod reservation;
mod shareable;

use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};

use self::join::JoinedVmm;
use self::mapping::DeviceMapping;
use self::multicast::Multicast;
use self::physical::Physical;
use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::driver::trace_release;
use crate::cuda::{Device, Stream, buffer, deferred};
use crate::group::Running;
use crate::provider::{Joined, LocalMemory, MemoryProvider};
use crate::sys::fork;
use crate::{Error, Result};

/// The provider of a device's memory.
#[derive(Clone, Debug)]
pub(crate) struct Vmm {
    device: Device,
    /// Whether ranks that do not reach each other may join: each has its own memory alone then.
    may_be_apart: bool,
}

impl Vmm {
    /// For ranks that reach each other.
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), may_be_apart: false }
    }

    /// For ranks that have other means where they do not reach each other.
    pub(crate) fn apart(device: &Device) -> Self {
        Self { device: device.clone(), may_be_apart: true }
    }
}

impl MemoryProvider for Vmm {
    fn name(&self) -> &'static str {
        "vmm"
    }

    /// At least one granule, that can be exported to other ranks.
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>> {
        let device = &self.device;
        check_no_capture("allocation of device memory")?;
        check_supported(device)?;
        deferred::reap();
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let physical = Physical::create(device, bytes)?;
        let mapping = DeviceMapping::new(device, Arc::new(physical))?;
        let memory = DeviceMemory { mapping, bytes };
        memory.clear()?;
        Ok(Arc::new(memory))
    }

    fn join(&self, running: &Running<'_>) -> Result<Arc<dyn Joined>> {
        Ok(Arc::new(JoinedVmm::join(self, running)?))
    }
}

/// Memory of this rank on its device, mapped, not yet known to anybody else.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    mapping: DeviceMapping,
    bytes: usize,
}

impl DeviceMemory {
    fn device(&self) -> &Device {
        self.mapping.device()
    }

    fn physical(&self) -> &Arc<Physical> {
        self.mapping.physical()
    }

    /// Writes zeros all over, and waits for that, on no user's stream: nobody else knows the memory yet.
    fn clear(&self) -> Result<()> {
        let stream = Stream::service(self.device())?;
        // SAFETY: the range is mapped for writing on this device, and the work is waited for.
        unsafe { buffer::fill_bytes(self.address(), self.mapped_bytes(), 0, &stream) }?;
        stream.synchronize()
    }
}

impl LocalMemory for DeviceMemory {
    fn address(&self) -> u64 {
        self.mapping.address()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whole granules.
    fn mapped_bytes(&self) -> usize {
        self.mapping.bytes()
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

/// Runs the driver call `give` that gives something back; true if it did. Nobody can be told of a failure,
/// and the first error must not be hidden by it, so it is only written down.
fn give_back(device: &Device, call: &'static str, give: impl FnOnce() -> CUresult) -> bool {
    // What a forked child inherited belongs to the rank.
    if fork::is_child() {
        return false;
    }
    // Most of these calls need no context; a context that cannot be made current must not keep memory from
    // going.
    let _bound = device.bind();
    let code = give();
    trace_release(call, code);
    code == CUresult::CUDA_SUCCESS
}
