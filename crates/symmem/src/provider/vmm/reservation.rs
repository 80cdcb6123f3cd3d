//! A range of device addresses with nothing behind it. Freed when its owner goes.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use cudarc::driver::sys;

use super::give_back;
use crate::Result;
use crate::cuda::Device;
use crate::cuda::driver::check;

/// A reserved address range.
#[derive(Debug)]
pub(super) struct Reservation {
    device: Device,
    address: u64,
    bytes: usize,
    /// Never to be freed.
    abandoned: bool,
}

impl Reservation {
    /// Reserves `bytes`, whole granules, wherever the driver likes.
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self> {
        let _bound = device.bind()?;
        let mut address = 0;
        // SAFETY: writes one address.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) };
        check("cuMemAddressReserve", code)?;
        Ok(Self { device: device.clone(), address, bytes, abandoned: false })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Leaves the range to the process for good, since it could not be emptied.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        // SAFETY: the range was reserved by this owner, and whoever mapped something into it has unmapped
        // that.
        give_back(&self.device, "cuMemAddressFree", || unsafe {
            sys::cuMemAddressFree(self.address, self.bytes)
        });
    }
}
