//! Checks the dependencies with cargo-deny, in the version the rules of `deny.toml` were written for.

use std::ffi::OsString;

use anyhow::{Context, Result};

use crate::plan::{Job, Outcome};
use crate::workspace::Workspace;

const VERSION: &str = "0.20.2";

/// Ignored by git; kept between runs.
const TOOLS: &str = ".tools";

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let program = match find(job) {
        Some(program) => program,
        None => install(job)?,
    };
    // No `advisories`: that one depends on the day it runs, not on this tree.
    job.run(job.workspace.program(program).args(["check", "licenses", "bans", "sources"]))?;
    Ok(Outcome::Passed)
}

fn find(job: &Job) -> Option<OsString> {
    let ours = installed(job.workspace);
    [ours, "cargo-deny".into()].into_iter().find(|program| {
        let version = job.output(job.workspace.program(program).arg("--version"));
        version.is_ok_and(|text| is_wanted(&text))
    })
}

fn is_wanted(version: &str) -> bool {
    version.split_whitespace().eq(["cargo-deny", VERSION])
}

fn install(job: &Job) -> Result<OsString> {
    println!("installing cargo-deny {VERSION} into {TOOLS}");
    let install = ["install", "cargo-deny", "--version", VERSION, "--locked", "--root", TOOLS];
    job.run(&mut job.workspace.cargo(install)).context("cargo-deny could not be installed")?;
    Ok(installed(job.workspace))
}

fn installed(workspace: &Workspace) -> OsString {
    workspace.path(TOOLS).join("bin/cargo-deny").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wanted_version_is_used() {
        assert!(is_wanted(&format!("cargo-deny {VERSION}\n")));
        assert!(!is_wanted("cargo-deny 0.19.0\n"));
        assert!(!is_wanted(""));
    }
}
