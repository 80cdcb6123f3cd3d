//! Options of `symmem run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use symmem::Pin;

use super::address::{self, Address};

const EXAMPLES: &str = "\
Examples:
  symmem run -n 4 -- python train.py --epochs 3
  symmem run -n 8 --pin cores -- ./solver

  On two machines, after the file with the secret was copied to both:
  symmem run --new-secret job.secret
  SYMMEM_SECRET_FILE=job.secret symmem run -n 4 --nnodes 2 --node-rank 0 --master node0 -- ./solver
  SYMMEM_SECRET_FILE=job.secret symmem run -n 4 --nnodes 2 --node-rank 1 --master node0 -- ./solver

Ranks find each other as under torchrun: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and the
store at that address is served. Rank 0 reads this program's stdin, the others nothing. Signals are passed on to the ranks and
to what they have started; a second Ctrl-C ends the ranks, and a third kills them. When a rank fails, the others are ended, and a report on
stderr says which one failed first, and how.

Exit status: 0, or that of the rank that failed first (128 + number for a signal); 127 if there is no such program, 126 if it cannot be run.";

/// Options of `symmem run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Ranks on this machine [default: as many as this process has physical cores].
    #[arg(short = 'n', long, value_name = "N", visible_alias = "nproc-per-node", alias = "nproc_per_node")]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) ranks: Option<u32>,
    /// Machines of the job. This command is given on each of them; they may have different numbers of ranks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) nnodes: u32,
    /// Which of the machines this is, from 0. Its ranks follow those of the machines before it.
    #[arg(long, value_name = "R", default_value_t = 0, alias = "node_rank")]
    pub(crate) node_rank: u32,
    /// Where the ranks meet: an address of node 0, which serves the store there [default: any port of
    /// 127.0.0.1; for several nodes the port is 29500].
    #[arg(long, value_name = "HOST[:PORT]", value_parser = address::parse)]
    pub(crate) master: Option<Address>,
    /// Seconds that nodes wait for each other at the start.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) meet_within: Duration,
    /// Keep each rank on cores of its own, or on the cores of one NUMA node.
    #[arg(long, value_name = "WHERE", default_value = "no")]
    pub(crate) pin: PinTo,
    /// Begin each line of a rank with its number, also if there is only one rank.
    #[arg(long, overrides_with = "no_prefix")]
    pub(crate) prefix: bool,
    /// Let the ranks write to stdout and stderr themselves.
    #[arg(long, overrides_with = "prefix")]
    pub(crate) no_prefix: bool,
    /// Seconds between asking a rank to end (SIGTERM) and killing it (SIGKILL), once another rank has failed.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(crate) grace: Duration,
    /// Write how each rank ended as JSON to this file at the end; "-" is stderr.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Make a file with a new random secret, for jobs on several machines. With a program, its ranks use it;
    /// without one, only the file is made.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_secret: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(required_unless_present = "new_secret")]
    pub(crate) command: Vec<OsString>,
}

/// Where ranks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PinTo {
    /// Each rank on its own part of the physical cores
    Cores,
    /// Each rank on the cores of one NUMA node
    #[value(alias = "numa")]
    Nodes,
    /// Ranks run where the system puts them
    No,
}

impl PinTo {
    /// The library's word for it.
    pub(crate) fn pin(self) -> Option<Pin> {
        match self {
            Self::Cores => Some(Pin::Cores),
            Self::Nodes => Some(Pin::Numa),
            Self::No => None,
        }
    }
}

/// A number of seconds, with a fraction or without.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let read = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // A year is for ever, and can be added to any time.
    let most = Duration::from_secs(365 * 24 * 3600);
    read.map(|time| time.min(most)).ok_or_else(|| format!("{text:?} is not a number of seconds, such as 2.5"))
}
