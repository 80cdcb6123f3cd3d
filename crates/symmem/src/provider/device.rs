//! Which provider device memory comes from, and such memory whatever it came from.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::vmm::{DeviceMemory, Vmm};
use crate::cuda::Device;
use crate::nccl::window::NcclMemory;
use crate::{Error, Result};

/// Where the memory of devices comes from, and how peers reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// The driver's virtual memory management: ranks of one host, or of one NVLink domain, map each other's memory.
    #[default]
    Vmm,
    /// NCCL: memory in windows that are registered with all ranks, wherever they are. Those in reach map each other's memory;
    /// where some are not, NCCL carries the operations.
    Nccl,
}

impl Provider {
    /// Its name in messages, variables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmm => Vmm::NAME,
            Self::Nccl => "nccl",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Vmm, Self::Nccl]
            .into_iter()
            .find(|provider| provider.name() == text)
            .ok_or_else(|| Error::invalid("provider", format!("{text:?} is neither vmm nor nccl")))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_have_names() {
        for provider in [Provider::Vmm, Provider::Nccl] {
            assert_eq!(provider.name().parse::<Provider>().unwrap(), provider);
        }
        assert!("shm".parse::<Provider>().unwrap_err().to_string().contains("neither vmm nor nccl"));
    }
}
