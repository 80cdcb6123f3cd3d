//! Parts of the toolchain that a plain installation leaves out.

use anyhow::{Context, Result};

use crate::plan::Job;

/// Adds `component` through rustup unless `cargo SUBCOMMAND` already works.
pub(crate) fn for_subcommand(job: &Job, component: &str, subcommand: &str) -> Result<()> {
    let works = job.output(&mut job.workspace.cargo([subcommand, "--version"])).is_ok();
    if works { Ok(()) } else { add(job, component) }
}

/// Adds the source of the standard library through rustup unless it is there.
pub(crate) fn for_building_std(job: &Job) -> Result<()> {
    let sysroot = job.output(job.workspace.rustc().args(["--print", "sysroot"]))?;
    let source = job.workspace.path(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    if source.is_file() { Ok(()) } else { add(job, "rust-src") }
}

fn add(job: &Job, component: &str) -> Result<()> {
    println!("adding {component} to the toolchain");
    let mut rustup = job.workspace.program("rustup");
    job.run(rustup.args(["component", "add", component]))
        .with_context(|| format!("the toolchain lacks {component} and it could not be added"))
}
