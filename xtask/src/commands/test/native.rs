//! What is written for certain processors, compiled as users compile who set `-C target-cpu=native`.
//!
//! The compiler then keeps values in wide registers where it does not elsewhere, which shows when assembly
//! does not say what it changes. Only a build with optimisations does that.

use anyhow::Result;

use crate::plan::{Job, Outcome};

/// Tests of the library, by the beginnings of their names.
const NAMES: [&str; 2] = ["numeric::", "sys::copy::"];

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let mut cargo = job.workspace.cargo(["test", "--release", "-p", "symmem", "--lib"]);
    // Its own target folder: the flag would rebuild everything else.
    cargo.arg("--target-dir").arg(job.workspace.target("native"));
    cargo.env("RUSTFLAGS", "-C target-cpu=native");
    job.run_tests(cargo.args(["--", "--show-output"]).args(NAMES))?;
    Ok(Outcome::Passed)
}
