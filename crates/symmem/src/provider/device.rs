//! Memory of a device, whatever provider it came from.

use std::sync::Arc;

use crate::Result;
use crate::config::Provider;
use crate::cuda::Device;
use crate::provider::nccl::NcclMemory;
use crate::provider::vmm::{DeviceMemory, Vmm};

/// Memory of this rank on its device, not yet known to anybody else.
#[derive(Clone, Debug)]
pub(crate) enum AnyMemory {
    Vmm(Arc<DeviceMemory>),
    Nccl(Arc<NcclMemory>),
}

impl AnyMemory {
    /// Local: `bytes` zeroed bytes on `device`.
    pub(crate) fn alloc(provider: Provider, device: &Device, bytes: usize) -> Result<Self> {
        Ok(match provider {
            Provider::Vmm => Self::Vmm(Vmm::alloc(device, bytes)?),
            Provider::Nccl => Self::Nccl(NcclMemory::alloc(device, bytes)?),
        })
    }

    pub(crate) fn provider(&self) -> Provider {
        match self {
            Self::Vmm(_) => Provider::Vmm,
            Self::Nccl(_) => Provider::Nccl,
        }
    }

    /// First byte, as kernels see it.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Vmm(memory) => memory.address(),
            Self::Nccl(memory) => memory.address(),
        }
    }

    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Vmm(memory) => memory.bytes(),
            Self::Nccl(memory) => memory.bytes(),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Vmm(memory) => memory.device(),
            Self::Nccl(memory) => memory.device(),
        }
    }
}
