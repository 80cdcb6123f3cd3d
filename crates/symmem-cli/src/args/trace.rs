//! Options of `symmem trace`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "Examples:
  symmem trace -o job.json -- torchrun --nproc-per-node 4 train.py
  symmem trace --json -- ./my_ranks | jq .operations

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
    /// The program that starts the ranks, or is one, and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}
