//! Options of `symmem bench compare`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What `symmem bench` can do with reports.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Show what got slower or faster from one report to another. Exit status 1: something is slower beyond
    /// the threshold.
    Compare(CompareArgs),
}

/// Two reports, and how much slower is too slow.
#[derive(Args)]
#[command(after_help = "\
Examples:
  symmem bench --json old.json && make changes && symmem bench --json new.json
  symmem bench compare old.json new.json
  symmem bench compare old.json new.json --threshold 10% --json

A row is slower if the whole interval of its change lies beyond the threshold, and beyond what the bare loop beside it
(the limit) got slower by. With 95 % confidence all intervals hold, given the noise within the two runs. What makes a
whole run slower, such as a machine with other work, is in no interval: repeat a run that matters.")]
pub(crate) struct CompareArgs {
    /// The report to compare with, from `symmem bench --json OLD`.
    pub(crate) old: PathBuf,
    /// The report to judge.
    pub(crate) new: PathBuf,
    /// How much more time is accepted.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub(crate) threshold: f64,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The share that "5%" or "5" is.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim().parse::<f64>().ok();
    let share = number.filter(|number| (0.0..=1000.0).contains(number)).map(|number| number / 100.0);
    share.ok_or_else(|| "a threshold is a percentage from 0 to 1000, such as 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_percentages() {
        for (text, share) in [("5%", 0.05), ("5", 0.05), ("2.5 %", 0.025), ("0", 0.0)] {
            assert_eq!(percent(text), Ok(share), "{text}");
        }
        for wrong in ["", "%", "-1", "x", "nan", "inf", "1001%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
