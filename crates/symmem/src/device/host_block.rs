//! Host memory that kernels of an engine write: mapped into its device as long as this lives.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::sync::Arc;

use cudarc::driver::sys;

use crate::Result;
use crate::cuda::Device;
use crate::cuda::driver::check;
use crate::sys::memfd::Mapping;

/// `M` as a device reaches it.
#[derive(Debug)]
pub(crate) struct HostBlock<M: AsRef<Mapping>> {
    memory: Arc<M>,
    device: Device,
    address: u64,
}

impl<M: AsRef<Mapping>> HostBlock<M> {
    pub(crate) fn new(device: &Device, memory: &Arc<M>) -> Result<Self> {
        let mapping = memory.as_ref().as_ref();
        let _bound = device.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: whole pages of this process, which stay mapped until `drop` has taken them back.
        check("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(mapping.ptr().cast(), mapping.len(), flags)
        })?;
        let mut block = Self { memory: Arc::clone(memory), device: device.clone(), address: 0 };
        // SAFETY: registered memory; writes one address.
        check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut block.address, mapping.ptr().cast(), 0)
        })?;
        Ok(block)
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }
}

impl<M: AsRef<Mapping>> Drop for HostBlock<M> {
    fn drop(&mut self) {
        let pages = self.memory.as_ref().as_ref().ptr().cast();
        // SAFETY: registered when this was made; kernels that could write it are done, or their context is
        // lost.
        self.device.release("cuMemHostUnregister", || unsafe { sys::cuMemHostUnregister(pages) });
    }
}
