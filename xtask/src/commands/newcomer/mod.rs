//! `cargo xtask newcomer`: the path of somebody who has just found the README, in a fresh clone, with a clock
//! beside it.
//!
//! What is run is what the README says: its first command, its lines of Python and of Rust. Where it leads to
//! the answer of "a rank died, what now?" is looked up, too. Nothing of the developer's builds is used; the
//! cache of downloaded crates is, unless `--fresh-home` is given.

mod path;
mod readme;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use self::path::{Newcomer, Step};
use crate::plan::Job;
use crate::workspace::Workspace;

/// Where to do it, and with what.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A folder that does not exist yet; it stays. Without it: one in the folder for temporary files, which
    /// goes at the end.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Download every crate again, as on a machine that has never seen cargo.
    #[arg(long)]
    fresh_home: bool,
    /// Print one JSON object on stdout, and the table on stderr.
    #[arg(long)]
    json: bool,
    /// Minutes after which it is given up.
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, Duration::from_secs(options.limit * 60));
    let folder = match &options.folder {
        Some(folder) => std::path::absolute(folder).context("the folder has no path")?,
        None => std::env::temp_dir().join(format!("symmem-newcomer-{}", std::process::id())),
    };
    // Never one that is there: it may be somebody's.
    fs::create_dir(&folder)
        .with_context(|| format!("{} cannot be made: name a folder that does not exist", folder.display()))?;
    let steps = Newcomer { job: &job, folder: &folder, fresh_home: options.fresh_home }.go();
    if options.folder.is_none() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    print(&steps?, options, &folder);
    Ok(())
}

fn print(steps: &[Step], options: &Options, folder: &Path) {
    let crates = if options.fresh_home { "downloaded" } else { "from cargo's cache" };
    let table = table(steps, crates);
    if !options.json {
        print!("{table}");
        return;
    }
    eprint!("{table}");
    let rows: Vec<_> = steps
        .iter()
        .map(|step| json!({"step": step.name, "seconds": step.seconds, "processor_seconds": step.processor, "about": step.about}))
        .collect();
    let total: f64 = steps.iter().map(|step| step.seconds).sum();
    println!("{:#}", json!({"folder": folder, "crates": crates, "seconds": total, "steps": rows}));
}

fn table(steps: &[Step], crates: &str) -> String {
    let all = Step {
        name: "in all",
        seconds: steps.iter().map(|step| step.seconds).sum(),
        processor: steps.iter().map(|step| step.processor).sum(),
        about: format!("crates {crates}"),
    };
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or_default().max(all.name.len());
    let mut text = format!("{:<width$} {:>8} {:>8}  about\n", "step", "s", "CPU s");
    for step in steps.iter().chain([&all]) {
        let _ = writeln!(
            text,
            "{:<width$} {:>8.1} {:>8.1}  {}",
            step.name, step.seconds, step.processor, step.about
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_adds_up() {
        let step =
            |name: &'static str, seconds| Step { name, seconds, processor: 1.0, about: "x".to_owned() };
        let text = table(&[step("clone", 0.5), step("bench", 2.0)], "downloaded");
        assert_eq!(text.lines().count(), 4);
        assert!(text.ends_with("2.5      2.0  crates downloaded\n"), "{text}");
    }
}
