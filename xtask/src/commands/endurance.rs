//! Long runs outside CI: `cargo xtask fuzz`, `survey` and `soak`. CI runs a few seconds of each as tests.

use std::ffi::OsString;
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::plan::Job;
use crate::workspace::Workspace;

/// Ignored by git; kept between runs.
const TOOLS: &str = ".tools";
const CARGO_FUZZ: &str = "0.13.2";
/// How long building, and ending, may take beyond the run itself.
const SLACK: Duration = Duration::from_secs(1800);

/// Which targets to feed, and for how long.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// Only these targets; all of them otherwise.
    targets: Vec<String>,
    /// Seconds per target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// How many kills.
#[derive(clap::Args)]
pub(crate) struct Survey {
    /// Kills in all.
    #[arg(long, default_value_t = 3000)]
    kills: u64,
    /// Repeats a survey.
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object at the end.
    #[arg(long)]
    json: bool,
}

/// How long.
#[derive(clap::Args)]
pub(crate) struct Soak {
    /// Minutes.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Repeats a soak.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn survey(options: &Survey) -> Result<()> {
    let workspace = Workspace::find()?;
    // A second for a kill is five times what one takes.
    let job = Job::new(&workspace, SLACK + Duration::from_secs(options.kills));
    let mut program = program(&workspace, "survey", options.seed);
    program.args(["--kills", &options.kills.to_string()]);
    if options.json {
        program.arg("--json");
    }
    job.run(&mut program)
}

pub(crate) fn soak(options: &Soak) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, SLACK + Duration::from_secs_f64(options.minutes * 60.0));
    job.run(program(&workspace, "soak", options.seed).args(["--minutes", &options.minutes.to_string()]))
}

/// A test program of the library, as a program.
fn program(workspace: &Workspace, name: &str, seed: Option<u64>) -> Command {
    let mut cargo = workspace.cargo(["test", "--release", "-p", "symmem", "--test", name, "--"]);
    cargo.args(seed.map(|seed| format!("--seed={seed}")).iter().flat_map(|seed| seed.split('=')));
    cargo
}

pub(crate) fn fuzz(options: &Fuzz) -> Result<()> {
    let workspace = Workspace::find()?;
    let known = targets(&workspace)?;
    if let Some(unknown) = options.targets.iter().find(|target| !known.contains(target)) {
        bail!("there is no target `{unknown}`; the targets are {}", known.join(", "));
    }
    let chosen = if options.targets.is_empty() { &known } else { &options.targets };
    let limit = SLACK + Duration::from_secs(options.seconds + 60) * chosen.len() as u32;
    let job = Job::new(&workspace, limit);
    let cargo_fuzz = find_or_install(&job)?;
    write_seeds(&job)?;
    let mut total = 0;
    for target in chosen {
        let [inputs, bytes] = feed(&job, &cargo_fuzz, target, options.seconds)?;
        println!("{target:>20}: {inputs:>12} inputs, {bytes:>14} bytes");
        total += bytes;
    }
    println!("fuzz: passed: {} targets, {total} bytes fed", chosen.len());
    Ok(())
}

/// The targets, by their files.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace.path("fuzz/fuzz_targets"))? {
        names.extend(entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn find_or_install(job: &Job) -> Result<OsString> {
    let ours = job.workspace.path(TOOLS).join("bin/cargo-fuzz").into_os_string();
    let works =
        |program: &OsString| job.output(job.workspace.program(program).args(["fuzz", "--version"])).is_ok();
    if let Some(found) = [ours.clone(), "cargo-fuzz".into()].into_iter().find(works) {
        return Ok(found);
    }
    println!("installing cargo-fuzz {CARGO_FUZZ} into {TOOLS}");
    let install = ["install", "cargo-fuzz", "--version", CARGO_FUZZ, "--locked", "--root", TOOLS];
    job.run(&mut job.workspace.cargo(install)).context("cargo-fuzz could not be installed")?;
    Ok(ours)
}

/// Lets the tests write the inputs that libFuzzer starts from.
fn write_seeds(job: &Job) -> Result<()> {
    let arguments = ["test", "-p", "symmem", "--features", "fuzzing", "--test", "fuzz", "--"];
    let mut cargo = job.workspace.cargo(arguments);
    cargo.args(["--ignored", "--exact", "seeds_are_written"]);
    job.run(cargo.env("SYMMEM_FUZZ_SEEDS", job.workspace.path("fuzz/corpus")))
}

/// Feeds one target; inputs and bytes.
fn feed(job: &Job, cargo_fuzz: &OsString, target: &str, seconds: u64) -> Result<[u64; 2]> {
    let log = job.workspace.path("fuzz/artifacts").join(format!("{target}.log"));
    fs::create_dir_all(job.workspace.path("fuzz/artifacts"))?;
    let said = File::create(&log)?;
    let mut command = job.workspace.program(cargo_fuzz);
    command.args(["fuzz", "run", target, "--target-dir"]).arg(job.workspace.target("fuzz"));
    command.args(["--", &format!("-max_total_time={seconds}"), "-timeout=60", "-print_final_stats=1"]);
    // libFuzzer's flags are for a nightly compiler; the stable one knows them too.
    command.env("RUSTC_BOOTSTRAP", "1").stdout(said.try_clone()?).stderr(said);
    let words = || format!("{target}; {} says why, and fuzz/artifacts/{target} has the input", log.display());
    job.run(&mut command).with_context(words)?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    fed(&text).with_context(|| format!("{} does not say how much was fed", log.display()))
}

/// What a target said at its end.
fn fed(text: &str) -> Option<[u64; 2]> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("fed "))?;
    let (inputs, bytes) = line.strip_suffix(" bytes")?.split_once(" inputs, ")?;
    Some([inputs.parse().ok()?, bytes.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fed_is_found_in_what_a_target_says() {
        assert_eq!(fed("#1 INIT\nfed 1 inputs, 2 bytes\nfed 3 inputs, 40 bytes\n"), Some([3, 40]));
        assert_eq!(fed("==1== ERROR: libFuzzer: deadly signal"), None);
    }

    #[test]
    fn every_target_has_a_file() {
        let targets = targets(&Workspace::find().expect("a workspace")).expect("a folder of targets");
        assert!(targets.contains(&"store_parser".to_owned()), "{targets:?}");
    }
}
