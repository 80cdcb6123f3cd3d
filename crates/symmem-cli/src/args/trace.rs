//! Options of `symmem trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

const EXAMPLES: &str = "Examples:
  symmem trace -o job.json -- symmem run -n 4 -- python train.py
  symmem trace --seconds 5           the groups that run here, for 5 seconds
  symmem trace train -o job.json     the group of this name, until it ends or Ctrl-C

Open the file at https://ui.perfetto.dev or in chrome://tracing.";

/// Options of `symmem trace`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Where the trace goes, in the JSON that Perfetto reads.
    #[arg(short, long, value_name = "FILE", default_value = "symmem-trace.json")]
    pub(crate) out: PathBuf,
    /// Print the summary as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds to trace a job that already runs [default: until it ends, or Ctrl-C].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "program")]
    pub(crate) seconds: Option<Duration>,
    /// A job that already runs: a group's name, the process of a rank, or how a group's id begins [default:
    /// all groups].
    #[arg(value_name = "JOB", conflicts_with = "program")]
    pub(crate) job: Option<String>,
    /// The program that starts the ranks, or is one, and its arguments.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("{text:?} is not a number of seconds above 0"))
}
