//! `cargo xtask test`: everything the README promises, from a fresh clone.

mod examples;
mod native;
mod protocol;
mod python;
mod smoke;
mod tsan;

use anyhow::Result;

use crate::commands::kernels;
use crate::plan::{self, Job, Options, Outcome, Step};

const STEPS: [Step; 12] = [
    Step { name: "build", about: "every crate and target compiles", run: build },
    Step { name: "tests", about: "unit, integration and doc tests, with injected faults", run: tests },
    Step { name: "native", about: "numbers and copies, compiled for this very processor", run: native::run },
    Step { name: "loom", about: "models of the synchronisation protocols", run: loom },
    Step {
        name: "kernels",
        about: "the CUDA kernels compile, keep the memory model, and are what is embedded",
        run: kernels::check,
    },
    Step {
        name: "protocol",
        about: "the CUDA protocols as host threads, under ThreadSanitizer",
        run: protocol::run,
    },
    Step { name: "tsan", about: "the thread-rank suite under ThreadSanitizer", run: tsan::run },
    Step { name: "stress", about: "a minute of random collectives, optimised", run: stress },
    Step { name: "large", about: "collectives beyond 32 bits, and the memory they need", run: large },
    Step { name: "examples", about: "every example ends well within a minute", run: examples::run },
    Step {
        name: "python",
        about: "the wheel in an environment of its own: tests, types, examples, tutorial",
        run: python::run,
    },
    Step { name: "smoke", about: "a short bench whose every row is verified", run: smoke::run },
];

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    plan::run(&STEPS, options)
}

fn build(job: &Job) -> Result<Outcome> {
    // As the next step needs it, so that it is compiled once; without crash points it is what all builds
    // with optimisations are.
    let what = ["build", "--workspace", "--all-targets", "--features", "symmem/faults"];
    job.run(&mut job.workspace.cargo(what))?;
    Ok(Outcome::Passed)
}

fn tests(job: &Job) -> Result<Outcome> {
    let mut cargo = job.workspace.cargo(["test", "--workspace", "--features", "symmem/faults"]);
    // A run that fails says everything that is wrong, not only the first of it.
    cargo.arg("--no-fail-fast");
    job.run_tests(cargo.args(["--", "--show-output"]))?;
    Ok(Outcome::Passed)
}

fn loom(job: &Job) -> Result<Outcome> {
    let mut cargo = job.workspace.cargo(["test", "-p", "symmem-models", "--release", "--target-dir"]);
    // Its own target folder: the flag would rebuild everything else.
    cargo.arg(job.workspace.target("loom")).env("RUSTFLAGS", "--cfg loom");
    job.run(&mut cargo)?;
    Ok(Outcome::Passed)
}

fn stress(job: &Job) -> Result<Outcome> {
    let mut cargo = job.workspace.cargo(["test", "--release", "-p", "symmem", "--test", "stress"]);
    job.run_tests(cargo.env("SYMMEM_STRESS_SECONDS", "60").args(["--", "--nocapture"]))?;
    Ok(Outcome::Passed)
}

fn large(job: &Job) -> Result<Outcome> {
    let ask = ["--", "--nocapture", "--test-threads=1"];
    let mut cargo = job.workspace.cargo(["test", "--release", "-p", "symmem", "--test", "large"]);
    job.run_tests(cargo.args(ask))?;
    Ok(Outcome::Passed)
}
