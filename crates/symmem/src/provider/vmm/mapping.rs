//! Physical memory in an address range, readable and writable by one device.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::sync::Arc;

use cudarc::driver::sys::{self, CUmemAccess_flags, CUmemAccessDesc};

use super::physical::location;
use super::reservation::Reservation;
use super::{Physical, give_back};
use crate::Result;
use crate::cuda::Device;
use crate::cuda::driver::check;

/// Mapped memory. Goes in the order that the driver wants: unmap, release, free the addresses.
#[derive(Debug)]
pub(crate) struct DeviceMapping {
    /// Before `reservation`: fields are dropped in this order, after `drop` has unmapped.
    physical: Arc<Physical>,
    reservation: Reservation,
}

impl DeviceMapping {
    /// Maps all of `physical`, which may be memory of another device, for `device`.
    pub(crate) fn new(device: &Device, physical: Arc<Physical>) -> Result<Self> {
        let reservation = Reservation::new(device, physical.bytes())?;
        let _bound = device.bind()?;
        // SAFETY: the range is reserved, empty and as long as the memory.
        let code = unsafe { sys::cuMemMap(reservation.address(), reservation.bytes(), 0, physical.raw(), 0) };
        check("cuMemMap", code)?;
        // From here on drop unmaps.
        let mapping = Self { physical, reservation };
        mapping.allow(device)?;
        Ok(mapping)
    }

    /// Lets `device` read and write.
    fn allow(&self, device: &Device) -> Result<()> {
        let access = CUmemAccessDesc {
            location: location(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped, and the call reads one description.
        let code = unsafe { sys::cuMemSetAccess(self.address(), self.bytes(), &access, 1) };
        check("cuMemSetAccess", code)
    }

    /// First byte, as kernels see it.
    pub(crate) fn address(&self) -> u64 {
        self.reservation.address()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.reservation.bytes()
    }

    pub(crate) fn device(&self) -> &Device {
        self.reservation.device()
    }

    pub(crate) fn physical(&self) -> &Arc<Physical> {
        &self.physical
    }
}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this owner; kernels that may use it kept it alive (see `cuda/deferred.rs`).
        let unmapped = give_back(self.device(), "cuMemUnmap", || unsafe {
            sys::cuMemUnmap(self.address(), self.bytes())
        });
        // A range with something in it must not be freed. When a context is lost nothing can be unmapped any
        // more, and the addresses stay with the process.
        if !unmapped {
            self.reservation.abandon();
        }
    }
}
