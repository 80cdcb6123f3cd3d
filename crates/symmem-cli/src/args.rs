//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};

/// Symmetric memory over host shared memory.
#[derive(Parser)]
#[command(name = "symmem", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Verify and time barrier, signals and peer copies between processes on this machine.
    Bench(BenchArgs),
    /// Show every setting with its value, where it came from, and what it is for.
    Config(ConfigArgs),
}

/// Options of `symmem bench`.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Numbers of ranks to run with, one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4")]
    #[arg(value_parser = value_parser!(u16).range(2..=64))]
    pub(crate) ranks: Vec<u16>,
    /// What to measure.
    #[arg(long, value_name = "OP,...", value_delimiter = ',', default_value = "barrier,signal,copy")]
    pub(crate) ops: Vec<Op>,
    /// Also write the results as JSON; "-" is stdout, and the table then goes to stderr.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// A short run: shows that everything works, its times are rough.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Blocks of operations per measurement [default: 21, with --quick 3].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    blocks: Option<u32>,
    /// Operations in a block [default: 20000, with --quick 300].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    iters: Option<u32>,
    /// Pin rank r to the r-th core, modulo their number (the default).
    #[arg(long, overrides_with = "no_pin")]
    pin: bool,
    /// Let the ranks run on any core.
    #[arg(long)]
    no_pin: bool,
}

impl BenchArgs {
    /// Blocks per measurement.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.unwrap_or(if self.quick { 3 } else { 21 }) as usize
    }

    /// Operations in a block.
    pub(crate) fn iters(&self) -> usize {
        self.iters.unwrap_or(if self.quick { 300 } else { 20_000 }) as usize
    }

    /// Whether ranks are pinned to cores.
    pub(crate) fn pin(&self) -> bool {
        self.pin || !self.no_pin
    }
}

/// What `symmem bench` can measure.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// The handle's barrier, beside the barest possible one.
    Barrier,
    /// put_signal and wait_signal, there and back.
    Signal,
    /// Reading a peer's buffer.
    Copy,
}

/// Options of `symmem config`.
#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
