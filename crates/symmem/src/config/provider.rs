//! The name of a provider of device memory, as settings have it. `provider` has what is behind the names.

use std::fmt;
use std::str::FromStr;

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
            Self::Vmm => "vmm",
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
