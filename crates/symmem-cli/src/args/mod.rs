//! What can be said on the command line.

mod address;
mod bench;
mod compare;
mod doctor;
mod examples;
mod gpu;
mod inspect;
mod pages;
mod preset;
mod program;
mod run;
mod size;
mod store;
mod terms;
mod trace;

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, FromArgMatches, Parser, Subcommand, value_parser};

pub(crate) use self::address::Address;
pub(crate) use self::bench::{BenchArgs, Collective, Op};
pub(crate) use self::compare::{BenchCommand, CompareArgs};
pub(crate) use self::doctor::{DoctorArgs, DoctorPart, PartArgs};
pub(crate) use self::gpu::Form;
pub(crate) use self::inspect::InspectArgs;
pub(crate) use self::pages::{CompletionsArgs, ManArgs};
use self::program::program;
pub(crate) use self::program::shown_program;
pub(crate) use self::run::RunArgs;
pub(crate) use self::size::short;
pub(crate) use self::store::{
    AddArgs, DeleteArgs, GetArgs, ListArgs, ServeArgs, SetArgs, StoreArgs, StoreCommand, Target, WaitArgs,
};
pub(crate) use self::terms::{Condition, Memory};
pub(crate) use self::trace::TraceArgs;

/// Symmetric memory for hosts and GPUs: run jobs, see what they do, measure them, and check the machine.
#[derive(Parser)]
#[command(name = "symmem", version, after_help = examples::PROGRAM)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What this program was told. A wrong word ends it, with the commands that may be meant, none of which
    /// is hidden.
    pub(crate) fn read() -> Self {
        let told = program().try_get_matches().and_then(|told| Self::from_arg_matches(&told));
        told.unwrap_or_else(|mut error| {
            if let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) {
                let program = program();
                let is_shown =
                    |name: &String| program.find_subcommand(name).is_some_and(|one| !one.is_hide_set());
                let shown: Vec<_> = names.into_iter().filter(is_shown).collect();
                if !shown.is_empty() {
                    error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
                }
            }
            error.exit()
        })
    }
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a program as the ranks of a job, on this machine or on several.
    Run(Box<RunArgs>),
    /// Serve, read and change the stores that ranks meet in, PyTorch's included.
    Store(StoreArgs),
    /// Verify and time symmetric memory between processes here: of the host, or of GPUs.
    Bench(Box<BenchArgs>),
    /// One launch of a comparison: the whole of symmem, or one rank of a peer.
    #[command(hide = true)]
    BenchRank(RankArgs),
    /// A busy loop, until it is killed.
    #[command(hide = true)]
    BenchLoad,
    /// One rank of a comparison on GPUs, led over stdin and stdout.
    #[command(hide = true)]
    BenchGpuRank,
    /// Compile the kernels in advance, for machines that have GPUs and no compiler.
    #[command(hide = true)]
    CompileKernels(CompileArgs),
    /// Measure up to which size each algorithm is the fastest here, and save that.
    ///
    /// Later groups on this machine with as many ranks choose by what was measured.
    #[command(after_help = examples::TUNE)]
    Tune(TuneArgs),
    /// Show the groups that run here: who waits for whom, and who is to blame.
    Inspect(InspectArgs),
    /// Run a job and record what its ranks do and whom they wait for, for Perfetto.
    Trace(TraceArgs),
    /// Check what this machine offers and what is missing, and try each provider.
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArgs),
    /// A part of the doctor's work that may hang or crash.
    #[command(hide = true)]
    DoctorPart(PartArgs),
    /// Show every setting with its value, where it came from, and what it is for.
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),
    /// Print a script that lets a shell complete commands and options.
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command, or write all of them.
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

/// What is compiled, and where it goes.
#[derive(Args)]
pub(crate) struct CompileArgs {
    /// Folder that `SYMMEM_CACHE_DIR` may name later
    pub(crate) folder: PathBuf,

    /// Compute capabilities of the GPUs
    #[arg(long, value_name = "MAJOR.MINOR,...", value_delimiter = ',', value_parser = capability, default_value = "9.0")]
    pub(crate) capability: Vec<(u32, u32)>,
}

fn capability(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.ok_or_else(|| format!("{text:?} is not a compute capability, such as 9.0"))
}

/// Options of `symmem bench-rank`.
#[derive(Args)]
pub(crate) struct RankArgs {
    /// Start ranks of our own and measure them.
    #[arg(long, conflicts_with = "shim")]
    pub(crate) symmem: bool,
    /// Be a rank of the system behind this library.
    #[arg(long, value_name = "FILE", required_unless_present = "symmem")]
    pub(crate) shim: Option<PathBuf>,
    /// What to measure.
    #[arg(long, value_name = "FILE")]
    pub(crate) job: PathBuf,
    /// Where the results go.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

/// Options of `symmem tune`.
#[derive(Args)]
pub(crate) struct TuneArgs {
    /// Numbers of ranks to measure with, one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4")]
    #[arg(value_parser = value_parser!(u16).range(2..=64))]
    pub(crate) ranks: Vec<u16>,
    /// Measure the algorithms of GPUs only, and fail if there are none [default: those of the host, and then
    /// those of GPUs if there are any].
    #[arg(long)]
    pub(crate) device: bool,
    /// Measure the algorithms of the host only.
    #[arg(long, conflicts_with = "device")]
    pub(crate) host: bool,
    /// The tuning file to write into [default: that of SYMMEM_TUNING, else the one in the user's cache
    /// folder].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print what was found, and keep nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Measure quickly: this shows that everything works, and finds rough bounds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `symmem config`.
#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
