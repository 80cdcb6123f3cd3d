//! Options of `symmem inspect`.

use std::time::Duration;

use clap::Args;

const EXAMPLES: &str = "Examples:
  symmem inspect                 every group of this user
  symmem inspect train           the groups called \"train\"
  symmem inspect 4711 --watch    the groups of process 4711, live; q ends it
  symmem inspect --json | jq '.groups[].explanation'";

/// Options of `symmem inspect`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// A group's name, a process (or one above it), or the beginning of a group's id [default: all groups].
    pub(crate) job: Option<String>,
    /// Print JSON instead of tables: the groups, how many processes could not be read, and how many ranks of
    /// other versions there are. With --watch a line for each look.
    #[arg(long)]
    pub(crate) json: bool,
    /// Look again and again, on a page of its own where there is a terminal. Comes after JOB.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it is not a number of seconds from 0.1 to 3600; JOB comes before --watch".to_owned())
}
