//! Options of `symmem doctor`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, value_parser};
use symmem::cuda::Provider;

/// Options of `symmem doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// How many ranks on this machine the limits must be enough for [default: the cores, at least 2].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) ranks: Option<u32>,
    /// The Python to look at [default: that of SYMMEM_PYTHON, else of the program's own environment, else
    /// python3].
    #[arg(long, value_name = "PROG")]
    pub(crate) python: Option<PathBuf>,
    /// Do not start processes that try each provider.
    #[arg(long)]
    pub(crate) no_self_test: bool,
    /// Seconds to wait for a part that does not answer [default: 10, GPUs 60].
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..=3600))]
    timeout: Option<u32>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorArgs {
    /// How long a part may take that needs no GPU.
    pub(crate) fn limit(&self) -> Duration {
        self.limit_or(10)
    }

    /// How long a part may take that starts a GPU, and maybe compiles for it.
    pub(crate) fn gpu_limit(&self) -> Duration {
        self.limit_or(60)
    }

    fn limit_or(&self, seconds: u32) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(seconds).into())
    }
}

/// A part of `symmem doctor` that runs as a process of its own, because it may hang or crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoctorPart {
    /// What the GPUs are.
    Gpus,
    /// Try memory of a provider.
    Provider(Provider),
}

impl DoctorPart {
    const GPUS: &str = "gpus";

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gpus => Self::GPUS,
            Self::Provider(provider) => provider.name(),
        }
    }
}

impl FromStr for DoctorPart {
    type Err = symmem::Error;

    fn from_str(text: &str) -> symmem::Result<Self> {
        if text == Self::GPUS { Ok(Self::Gpus) } else { text.parse().map(Self::Provider) }
    }
}

/// Options of `symmem doctor-part`.
#[derive(Args)]
pub(crate) struct PartArgs {
    /// Which one.
    pub(crate) part: DoctorPart,
}
