//! Options of `symmem bench --provider vmm` and `--provider nccl`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use symmem::cuda::Algorithm;

/// What a bench on GPUs can be told more.
#[derive(Args)]
#[command(next_help_heading = "GPU options (--provider vmm or nccl)")]
pub(crate) struct GpuArgs {
    /// Forms of the all-reduce.
    #[arg(long, value_name = "FORM,...", value_delimiter = ',')]
    #[arg(default_values_t = [Form::InPlace, Form::Out, Form::Private], hide_default_value = true)]
    pub(crate) forms: Vec<Form>,
    /// Also measure memory that is in no cache.
    #[arg(long)]
    pub(crate) cold: bool,
    /// Shares of the multiprocessors that MPS gives every rank: unset, 100/n or a percentage.
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',', default_value = "unset")]
    pub(crate) share: Vec<Share>,
    /// Algorithms of ours: auto (the dispatcher's choice), or names of algorithms.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "auto", value_parser = algorithm)]
    pub(crate) algorithm: Vec<String>,
    /// Most thread blocks of a launch of ours, to compare [default: the engine's].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) grid: Vec<u32>,
    /// Threads in a block of ours, to compare [default: the engine's].
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) threads: Vec<u32>,
    /// On the host: also measure what calls cost from Python, by this one, which has the package. On GPUs:
    /// the Python with PyTorch [default: SYMMEM_PYTHON, else that of the program's own environment, else
    /// python3].
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "python3")]
    pub(crate) python: Option<PathBuf>,
}

/// Where an all-reduce has its input and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Form {
    /// Symmetric memory becomes the sum.
    InPlace,
    /// From symmetric memory to memory of one's own.
    Out,
    /// From memory of one's own to memory of one's own.
    Private,
}

impl From<Form> for symmem::cuda::Form {
    fn from(form: Form) -> Self {
        match form {
            Form::InPlace => Self::InPlace,
            Form::Out => Self::Out,
            Form::Private => Self::Private,
        }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(symmem::cuda::Form::from(*self).name())
    }
}

/// How much of the multiprocessors MPS gives every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Nothing is said to MPS.
    Unset,
    /// 100 over the number of ranks.
    Equal,
    /// As many per cent.
    Percent(u32),
}

impl Share {
    /// Per cent for each of `ranks` ranks.
    pub(crate) fn percent(self, ranks: usize) -> Option<u32> {
        match self {
            Self::Unset => None,
            Self::Equal => Some(100 / ranks.max(1) as u32),
            Self::Percent(percent) => Some(percent),
        }
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "unset" => Ok(Self::Unset),
            "100/n" => Ok(Self::Equal),
            number => match number.parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err("a share is unset, 100/n, or a percentage from 1 to 100".to_owned()),
            },
        }
    }
}

fn algorithm(name: &str) -> Result<String, String> {
    let known: Vec<_> = Algorithm::EVERY.iter().map(|algorithm| algorithm.name()).collect();
    match name == "auto" || known.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("algorithms are auto, {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        gpu: GpuArgs,
    }

    #[test]
    fn every_algorithm_of_the_library_is_known_by_its_name() {
        let algorithms = |name: &str| {
            let only = Only::try_parse_from(["symmem", "--algorithm", name]);
            only.map(|only| only.gpu.algorithm).map_err(|error| error.to_string())
        };
        let all: Vec<_> = Algorithm::EVERY.iter().map(|algorithm| algorithm.to_string()).collect();
        assert!(all.iter().all(|name| algorithms(name).unwrap() == [name.clone()]));
        assert_eq!(algorithms("auto").unwrap(), ["auto"]);
        let wrong = algorithms("ring").unwrap_err();
        assert!(all.iter().all(|name| wrong.contains(name)), "{wrong}");
    }

    #[test]
    fn shares_are_per_rank() {
        assert_eq!("unset".parse::<Share>().map(|share| share.percent(4)), Ok(None));
        assert_eq!("100/n".parse::<Share>().map(|share| share.percent(8)), Ok(Some(12)));
        assert_eq!("40".parse::<Share>().map(|share| share.percent(8)), Ok(Some(40)));
        for wrong in ["", "0", "101", "100/4", "-1"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
