//! `cargo xtask compare`: benches two builds of the library in turns, and says which rows differ by more than
//! chance.
//!
//! Both are built from copies of the repository, with one small program (`xtask/examples/compare_probe.rs`)
//! that uses what every revision has. Every turn launches the old build twice and the new one once; what the
//! old build differs from itself is what a difference is measured by. Instructions are counted besides.
//!
//! Results of a machine with a GPU are judged the same way: `cargo xtask gpu-bundle --old REV` takes both
//! programs there.

mod count;
mod judge;
mod report;
mod results;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::report::Report;
use self::results::{Build, Results};
use crate::checkout::{Checkout, WORKTREE};
use crate::plan::Job;
use crate::workspace::Workspace;

/// Where copies, builds and results lie, in the folder of build output.
const FOLDER: &str = "compare";
const PROBE: &str = include_str!("../../../examples/compare_probe.rs");
const NAME: &str = "symmem-compare-probe";
/// The crate of the probe: the glob of the workspace's members finds it, whatever the revision.
const CRATE: &str = "crates/symmem-compare-probe";
const MANIFEST: &str = r#"[package]
name = "symmem-compare-probe"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
# Its own way to the auxiliary vector reads memory that valgrind has not mapped.
rustix = { workspace = true, features = ["use-libc-auxv"] }
symmem.workspace = true
"#;
/// A launch takes a second, and half a minute on a busy machine.
const LAUNCH: Duration = Duration::from_secs(180);

/// What to compare.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The revision that is the measure.
    #[arg(long, value_name = "REV", required_unless_present = "judge")]
    old: Option<String>,
    /// The revision to judge; "worktree" is the files as they are.
    #[arg(long, value_name = "REV", default_value = WORKTREE)]
    new: String,
    /// Turns; each launches the old build twice and the new one once.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    launches: u32,
    /// Do not count instructions.
    #[arg(long)]
    no_count: bool,
    /// Only count instructions.
    #[arg(long, conflicts_with = "no_count")]
    only_count: bool,
    /// Launch nothing; judge the results in this folder, from `run.sh compare` of a bundle with
    /// `gpu-bundle --old`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["old", "only_count"])]
    judge: Option<PathBuf>,
    /// Also write what was found as JSON; "-" is stdout, and the table then goes to stderr.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Minutes after which it is given up.
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Runs the command; an error if something got slower.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, Duration::from_secs(options.limit * 60));
    let report = match (&options.judge, &options.old) {
        (Some(folder), _) => judge_folder(folder)?,
        (None, Some(old)) => compare(&job, old, options)?,
        (None, None) => bail!("--old or --judge is needed"),
    };
    report.print(options.json.as_deref())?;
    let slower = report.slower();
    ensure!(slower.is_empty(), "new is slower than old: {}", slower.join(", "));
    Ok(())
}

fn judge_folder(folder: &Path) -> Result<Report> {
    let mut report = Report { old: "old".to_owned(), new: "new".to_owned(), ..Report::default() };
    judge_rows(&mut report, &Results::of(folder)?);
    Ok(report)
}

fn compare(job: &Job, old: &str, options: &Options) -> Result<Report> {
    // Two comparisons at a time would launch each other's programs, and disturb each other anyway.
    let folder = job.workspace.target(FOLDER);
    let old = Probe::build(job, &folder.join("old"), old)?;
    let new = Probe::build(job, &folder.join("new"), &options.new)?;
    let mut report = Report { old: old.name.clone(), new: new.name.clone(), ..Report::default() };
    if !options.only_count {
        judge_rows(&mut report, &launch(job, &old, &new, &folder, options.launches)?);
    }
    match (options.no_count, count::missing(job)) {
        (true, _) => {}
        (false, Some(reason)) => report.notes.push(reason),
        (false, None) => report.counts = count::run(job, &old.path, &new.path, &folder)?,
    }
    Ok(report)
}

fn judge_rows(report: &mut Report, results: &Results) {
    report.turns = results.rows.iter().map(|(_, times)| times.old.len()).max().unwrap_or_default();
    let judged = results.rows.iter().map(|(name, times)| Some((name.clone(), judge::judge(times)?)));
    report.rows = judged.flatten().collect();
}

/// Launches both builds in turns.
fn launch(job: &Job, old: &Probe, new: &Probe, folder: &Path, turns: u32) -> Result<Results> {
    let file = folder.join(format!("result-{}.json", std::process::id()));
    let started = Instant::now();
    let mut results = Results::default();
    for turn in 0..turns as usize {
        let mut found = [const { Vec::new() }; 3];
        // Whoever comes second finds a warmer or a more tired machine, so that changes with every turn.
        for at in (0..3).map(|at| (at + turn) % 3) {
            let probe = if Build::ALL[at] == Build::New { new } else { old };
            let mut command = job.workspace.program(&probe.path);
            job.run_within(LAUNCH, command.arg("bench").arg(&file))?;
            found[at] = results::read(&file)?;
        }
        results.add(found);
        eprintln!("turn {}/{turns}, {:.0} s", turn + 1, started.elapsed().as_secs_f64());
    }
    let _ = fs::remove_file(&file);
    Ok(results)
}

/// The probe, built with a revision's library.
struct Probe {
    name: String,
    path: PathBuf,
}

impl Probe {
    fn build(job: &Job, folder: &Path, revision: &str) -> Result<Self> {
        let copy = Checkout::new(job.workspace, folder, revision, job.deadline())?;
        copy.add(&format!("{CRATE}/Cargo.toml"), MANIFEST)?;
        copy.add(&format!("{CRATE}/src/main.rs"), PROBE)?;
        eprintln!("building {}", copy.name);
        // One folder each: for cargo the crates of both copies are the same ones, and what it built last of
        // the other copy counts as fresh where this copy's files are older.
        let target = folder.join("target");
        let mut cargo = job.workspace.cargo(["build", "--release", "-p", NAME, "--target-dir"]);
        // Incremental builds cut the library into more pieces, between which nothing is inlined: they count
        // other instructions than users run.
        job.run(cargo.arg(&target).current_dir(copy.path("")).env("CARGO_INCREMENTAL", "0"))
            .with_context(|| format!("{} does not build", copy.name))?;
        let path = folder.join(NAME);
        fs::copy(target.join("release").join(NAME), &path)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self { name: copy.name, path })
    }
}
