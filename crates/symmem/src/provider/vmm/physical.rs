//! A handle of physical memory, or of a multicast object, which the driver treats alike.
//!
//! Made by [`Physical::create`], by an import (`shareable.rs`) or as a multicast object; released when the
//! last owner goes. Mappings own the handle they map, so it goes after them.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
    CUresult,
};

use super::{give_back, shareable};
use crate::cuda::Device;
use crate::cuda::driver::check;
use crate::{Error, Result};

/// Physical memory, this process' share of it.
#[derive(Debug)]
pub(crate) struct Physical {
    device: Device,
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
}

impl Physical {
    /// At least `bytes` of `device`'s memory, as whole granules, exportable in every way that works here.
    pub(super) fn create(device: &Device, bytes: usize) -> Result<Self> {
        let kinds = shareable::kinds(device)?;
        let prop = properties(device, kinds)?;
        let granularity = granularity(device, &prop)?;
        let rounded = bytes.max(1).checked_next_multiple_of(granularity).ok_or_else(|| {
            Error::invalid("allocation", format!("{bytes} bytes are more than there is address space"))
        })?;
        Self::create_with(device, rounded, &prop)
    }

    /// `bytes`, whole granules, with the given properties; without reach for network cards where only that is
    /// refused.
    pub(super) fn create_with(device: &Device, bytes: usize, prop: &CUmemAllocationProp) -> Result<Self> {
        let _bound = device.bind()?;
        let mut handle = 0;
        // SAFETY: writes one handle; the properties are complete.
        let mut code = unsafe { sys::cuMemCreate(&mut handle, bytes, prop, 0) };
        if is_refusal(code) && prop.allocFlags.gpuDirectRDMACapable != 0 {
            // The attribute is the device's; containers and some machines refuse all the same.
            let mut plain = *prop;
            plain.allocFlags.gpuDirectRDMACapable = 0;
            tracing::debug!(device = device.ordinal(), ?code, "not with GPUDirect RDMA, trying without");
            // SAFETY: as above.
            code = unsafe { sys::cuMemCreate(&mut handle, bytes, &plain, 0) };
        }
        check("cuMemCreate", code)?;
        // SAFETY: the handle was just made for this owner.
        Ok(unsafe { Self::from_raw(device, handle, bytes) })
    }

    /// Takes over a handle of `bytes`.
    ///
    /// # Safety
    /// The handle is the driver's, of at least that size, and nobody else releases it.
    pub(super) unsafe fn from_raw(
        device: &Device,
        handle: CUmemGenericAllocationHandle,
        bytes: usize,
    ) -> Self {
        Self { device: device.clone(), handle, bytes }
    }

    pub(super) fn raw(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the handle, and mappings of it own this.
        give_back(&self.device, "cuMemRelease", || unsafe { sys::cuMemRelease(self.handle) });
    }
}

/// Whether `code` says that memory of these properties cannot be had, rather than that something went wrong.
fn is_refusal(code: CUresult) -> bool {
    use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED};
    matches!(code, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_PERMITTED | CUDA_ERROR_NOT_SUPPORTED)
}

/// Pinned memory of `device`, exportable as `kinds`.
pub(super) fn properties(device: &Device, kinds: CUmemAllocationHandleType) -> Result<CUmemAllocationProp> {
    // SAFETY: a plain C struct, for which all zeros means "nothing special".
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = kinds;
    prop.location = location(device);
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    // Network cards may then reach the memory as well.
    prop.allocFlags.gpuDirectRDMACapable = u8::from(device.attribute(rdma)? != 0);
    Ok(prop)
}

/// Where memory of `device` is.
pub(super) fn location(device: &Device) -> CUmemLocation {
    // SAFETY: a plain C struct.
    let mut location: CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location.__bindgen_anon_1.id = device.raw();
    location
}

/// What sizes must be a multiple of.
pub(super) fn granularity(device: &Device, prop: &CUmemAllocationProp) -> Result<usize> {
    let _bound = device.bind()?;
    let wanted = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut granularity = 0;
    // SAFETY: writes one number; the properties are complete.
    let code = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, prop, wanted) };
    check("cuMemGetAllocationGranularity", code)?;
    Ok(granularity.max(1))
}
