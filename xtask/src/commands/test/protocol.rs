//! The protocols of the CUDA kernels, compiled for the host and run as threads under ThreadSanitizer; and the
//! proof that the run would notice if they were wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bounded;
use crate::plan::{Job, Outcome};

const SOURCE: &str = "crates/symmem/kernels/host/protocol.cpp";

/// Compilers in the order they are tried.
const COMPILERS: [&str; 2] = ["g++", "clang++"];

/// What the run may take; it needs less than a minute on two cores.
const LIMIT: Duration = Duration::from_secs(300);

/// What the program exits with when it found a wrong result, and what ThreadSanitizer does for a data race.
const WRONG: i32 = 1;
const RACE: i32 = 66;

/// Ways to break the protocols that the run must notice, and how it does.
const MUTANTS: [(&str, &str, i32); 4] = [
    ("SYMMEM_MUTANT_RELAXED_FLAGS", "flags are published without release", RACE),
    (
        "SYMMEM_MUTANT_RELAXED_EARLIER",
        "flags that stand for earlier kernels are relaxed between devices",
        RACE,
    ),
    ("SYMMEM_MUTANT_NEVER_SILENT", "a rank that has failed goes on to arrive", WRONG),
    ("SYMMEM_MUTANT_ONE_PARITY", "words of an epoch are overwritten by the next", WRONG),
];

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let folder = job.workspace.target("protocol");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let Some(compiler) = compiler(job, &folder) else {
        let names = COMPILERS.join(" nor ");
        return Ok(Outcome::Skipped(format!("neither {names} compiles C++20 with ThreadSanitizer")));
    };
    let program = compile(job, compiler, folder.join("protocol"), &[])?;
    run_within_limit(job, &program, "0")?;
    for (name, about, code) in MUTANTS {
        let mutant = compile(job, compiler, folder.join(name), &[name])?;
        // A mutant hangs where it loses a word: its kernels give up soon.
        judge(run_within_limit(job, &mutant, "2000"), about, code)?;
        println!("the run fails when {about}, as it must");
    }
    Ok(Outcome::Passed)
}

/// The first compiler that has the language and the sanitizer.
fn compiler(job: &Job, folder: &Path) -> Option<&'static str> {
    COMPILERS.into_iter().find(|name| {
        let mut command = command(job, name);
        command.args(["-include", "barrier", "-x", "c++", "/dev/null", "-shared", "-o"]);
        job.output(command.arg(folder.join("probe"))).is_ok()
    })
}

fn command(job: &Job, compiler: &str) -> Command {
    let mut command = job.workspace.program(compiler);
    command.args(["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread"]);
    command
}

fn compile(job: &Job, compiler: &str, program: PathBuf, macros: &[&str]) -> Result<PathBuf> {
    let mut command = command(job, compiler);
    // Loops are unrolled on the device only.
    command.args(["-DSYMMEM_HOST", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
    command.args(macros.iter().map(|name| format!("-D{name}")));
    job.run(command.arg(SOURCE).arg("-o").arg(&program))?;
    Ok(program)
}

/// Runs it; `deadline`: milliseconds that its kernels wait for each other, 0 for its default.
fn run_within_limit(job: &Job, program: &Path, deadline: &str) -> Result<()> {
    let mut command = job.workspace.program(program);
    command.arg(deadline).env("TSAN_OPTIONS", format!("halt_on_error=1 exitcode={RACE}"));
    if deadline != "0" {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    job.run_within(LIMIT, &mut command)
}

/// A run of a mutant must end by itself and report what is wrong.
fn judge(result: Result<()>, about: &str, code: i32) -> Result<()> {
    match result {
        Ok(()) => bail!("the run passes when {about}: it is too weak"),
        Err(error) if bounded::is_interrupted() => Err(error),
        Err(error) if error.to_string().ends_with(&format!("failed (exit status: {code})")) => Ok(()),
        Err(error) => Err(error.context(format!("when {about}, the run did not end as it should"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn only_the_expected_end_is_a_mutant_that_was_caught() {
        let ended = |how: &str| Err(anyhow!("`protocol 2000` {how}"));
        judge(ended("failed (exit status: 66)"), "x", RACE).expect("caught");
        judge(ended("failed (exit status: 1)"), "x", RACE).expect_err("something else");
        judge(ended("was killed after 300 s: its time was up"), "x", WRONG).expect_err("hung");
        assert!(judge(Ok(()), "x", WRONG).expect_err("not caught").to_string().contains("too weak"));
    }
}
