//! Multicast: one address range whose stores reach the memory of every device of a group, and whose loads
//! reduce.
//!
//! The steps are collective and blocking in the driver (binding waits until every device was added), so the
//! exchange puts a vote between them; each step here is local and undone by dropping what it made.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUmemAllocationHandleType, CUmulticastGranularity_flags, CUmulticastObjectProp,
};

use super::{DeviceMapping, DeviceMemory, Physical, give_back};
use crate::Result;
use crate::cuda::Device;
use crate::cuda::driver::check;
use crate::provider::LocalMemory;

fn properties(devices: usize, bytes: usize, kinds: CUmemAllocationHandleType) -> CUmulticastObjectProp {
    CUmulticastObjectProp {
        numDevices: devices as u32,
        size: bytes,
        handleTypes: u64::from(kinds.0),
        flags: 0,
    }
}

/// What the size of an object over `devices` devices must be a multiple of.
pub(crate) fn granularity(
    device: &Device,
    devices: usize,
    bytes: usize,
    kinds: CUmemAllocationHandleType,
) -> Result<usize> {
    let _bound = device.bind()?;
    let prop = properties(devices, bytes, kinds);
    let smallest = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    let mut granularity = 0;
    // SAFETY: writes one number; the properties are complete.
    let code = unsafe { sys::cuMulticastGetGranularity(&mut granularity, &prop, smallest) };
    check("cuMulticastGetGranularity", code)?;
    Ok(granularity.max(1))
}

/// A multicast object of `bytes` for `devices` devices, none of which is part of it yet.
pub(crate) fn create(
    device: &Device,
    devices: usize,
    bytes: usize,
    kinds: CUmemAllocationHandleType,
) -> Result<Physical> {
    let _bound = device.bind()?;
    let prop = properties(devices, bytes, kinds);
    let mut handle = 0;
    // SAFETY: writes one handle; the properties are complete.
    let code = unsafe { sys::cuMulticastCreate(&mut handle, &prop) };
    check("cuMulticastCreate", code)?;
    // SAFETY: the handle was just made for this owner.
    Ok(unsafe { Physical::from_raw(device, handle, bytes) })
}

/// Makes `device` part of `object`.
pub(crate) fn add_device(object: &Physical, device: &Device) -> Result<()> {
    let _bound = device.bind()?;
    // SAFETY: both are alive.
    check("cuMulticastAddDevice", unsafe { sys::cuMulticastAddDevice(object.raw(), device.raw()) })
}

/// This rank's memory as part of a multicast object, and the object mapped. Goes in the order that drivers
/// need: unmap, unbind, release, and only then may the memory go.
#[derive(Debug)]
pub(crate) struct Multicast {
    mapping: DeviceMapping,
    /// After `mapping`: fields are dropped in this order.
    _binding: Binding,
}

#[derive(Debug)]
struct Binding {
    object: Arc<Physical>,
    /// After `object`: the memory outlives its part in it.
    memory: Arc<DeviceMemory>,
}

impl Multicast {
    /// Binds all of `memory` into `object`, to which every device was added, and maps the object.
    pub(crate) fn bind(object: &Arc<Physical>, memory: &Arc<DeviceMemory>) -> Result<Self> {
        let device = memory.device();
        let binding = {
            let _bound = device.bind()?;
            // SAFETY: both are alive and of this size.
            let code = unsafe {
                sys::cuMulticastBindMem(object.raw(), 0, memory.physical().raw(), 0, memory.mapped_bytes(), 0)
            };
            check("cuMulticastBindMem", code)?;
            Binding { object: Arc::clone(object), memory: Arc::clone(memory) }
        };
        let mapping = DeviceMapping::new(device, Arc::clone(object))?;
        Ok(Self { mapping, _binding: binding })
    }

    /// First byte. Only multimem instructions may touch it.
    pub(crate) fn address(&self) -> u64 {
        self.mapping.address()
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let (object, memory) = (&self.object, &self.memory);
        let device = memory.device();
        // SAFETY: bound by this owner, all of it, and mapped no more.
        give_back(device, "cuMulticastUnbind", || unsafe {
            sys::cuMulticastUnbind(object.raw(), device.raw(), 0, memory.mapped_bytes())
        });
    }
}
