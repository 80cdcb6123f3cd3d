//! Options of the commands that write what shells and `man` read.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Options of `symmem completions`.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to write the script for.
    pub(crate) shell: Shell,
}

/// Options of `symmem man`.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed, with the words below it, as in "symmem man bench" [default: the
    /// program].
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    pub(crate) command: Vec<String>,
    /// Write all pages into this folder instead; it is created if needed.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
