//! The long run of random collectives, and the proof that it would notice if ranks did not wait for each
//! other.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bounded;
use crate::plan::{Job, Outcome};

/// How long the run takes.
const SECONDS: &str = "60";
/// How long the run has to notice that a wait is missing.
const MUTANT_SECONDS: &str = "30";

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let mut run = stress(job);
    run.env("SYMMEM_STRESS_SECONDS", SECONDS).args(["--", "--nocapture"]);
    job.run_tests(&mut run)?;
    job.run(mutant(job).arg("--no-run"))?;
    let mut mutant = mutant(job);
    mutant.env("SYMMEM_STRESS_SECONDS", MUTANT_SECONDS).stdout(Stdio::null()).stderr(Stdio::null());
    judge(job.run_within(Duration::from_secs(90), &mut mutant))?;
    println!("the run fails without the wait for consumed staging, as it must");
    Ok(Outcome::Passed)
}

fn stress(job: &Job) -> Command {
    job.workspace.cargo(["test", "--release", "-p", "symmem", "--test", "stress"])
}

/// The same without the wait, in its own target folder: the flag would rebuild everything else.
fn mutant(job: &Job) -> Command {
    let mut cargo = stress(job);
    cargo.arg("--target-dir").arg(job.workspace.target("mutant"));
    cargo.env("RUSTFLAGS", "--cfg symmem_mutant=\"no_consumed_wait\"");
    // It is to go wrong, not to be fast: half of the time went into compiling it.
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    cargo
}

/// A run of the mutant must end by itself, with tests that failed.
fn judge(result: Result<()>) -> Result<()> {
    match result {
        Ok(()) => bail!("the run passes without the wait for consumed staging: it is too weak"),
        Err(error) if bounded::is_interrupted() => Err(error),
        // What cargo exits with when a test failed.
        Err(error) if error.to_string().ends_with("failed (exit status: 101)") => Ok(()),
        Err(error) => Err(error.context("the run without the wait did not end in failed tests")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn only_failed_tests_are_a_mutant_that_was_caught() {
        judge(Err(anyhow!("`cargo test` failed (exit status: 101)"))).expect("caught");
        assert!(judge(Ok(())).expect_err("not caught").to_string().contains("too weak"));
        judge(Err(anyhow!("`cargo test` was killed after 90 s: its time was up"))).expect_err("hung");
    }
}
