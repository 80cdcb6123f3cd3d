//! Memory that NCCL allocates.
//!
//! Called by `provider/nccl`. What it guarantees: it is aligned for a window, and freed when its owner and
//! its windows are gone.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ptr;

use super::bindings::{SUCCESS, WINDOW_ALIGNMENT, WINDOWS};
use super::error::error;
use super::library::{NcclLibrary, nccl};
use crate::cuda::capture::Relaxed;
use crate::cuda::{Device, deferred};
use crate::sys::fork;
use crate::{Error, Result};

/// Memory of a device that NCCL has allocated.
#[derive(Debug)]
pub(crate) struct NcclAllocation {
    nccl: &'static NcclLibrary,
    device: Device,
    address: u64,
    bytes: usize,
}

impl NcclAllocation {
    /// Local: `bytes` bytes on `device`, with whatever is in them.
    pub(crate) fn alloc(device: &Device, bytes: usize) -> Result<Self> {
        let nccl = nccl()?;
        nccl.check(WINDOWS)?;
        deferred::reap();
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let mut address = ptr::null_mut();
        let _bound = device.bind()?;
        // SAFETY: writes one address.
        let code = unsafe { (nccl.functions.mem_alloc)(&mut address, bytes) };
        if code != SUCCESS {
            return Err(error(nccl, "ncclMemAlloc", code, ptr::null_mut()));
        }
        let memory = Self { nccl, device: device.clone(), address: address as u64, bytes };
        if !memory.address.is_multiple_of(WINDOW_ALIGNMENT as u64) {
            return Err(Error::invalid("memory of NCCL", "it is not aligned for a window"));
        }
        Ok(memory)
    }

    /// First byte, as kernels see it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for NcclAllocation {
    fn drop(&mut self) {
        // What a forked child inherited belongs to the rank.
        if fork::is_child() {
            return;
        }
        let _bound = self.device.bind();
        let _relaxed = Relaxed::enter();
        // SAFETY: allocated by NCCL; its windows held it, so they are gone; kernels that may use it kept it
        // alive.
        let code = unsafe { (self.nccl.functions.mem_free)(self.address as *mut _) };
        if code != SUCCESS {
            let error = error(self.nccl, "ncclMemFree", code, ptr::null_mut());
            tracing::warn!(%error, "not released");
        }
    }
}
