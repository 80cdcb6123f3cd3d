//! `cargo xtask lint`: format, layers, fences, pages, packages, words, clippy, docs, licences and dependency
//! sources, and what is listed of the code.

mod deny;

use anyhow::Result;

use crate::commands::{book, fences, layers, listings, package, words};
use crate::component;
use crate::plan::{self, Job, Options, Outcome, Step};

const STEPS: [Step; 10] = [
    Step { name: "fmt", about: "the code is formatted", run: fmt },
    Step { name: "layers", about: "rooms import only from the rooms below", run: layers::check },
    Step {
        name: "fences",
        about: "unsafe code, system calls, waits and the route are where they may be",
        run: fences::check,
    },
    Step {
        name: "book",
        about: "pages are in the book, links lead somewhere, the README is short",
        run: book::check,
    },
    Step {
        name: "packages",
        about: "what would be published is complete, and has one version",
        run: package::check,
    },
    Step {
        name: "words",
        about: "words, names of types and the width of comments are as CONTRIBUTING.md has them",
        run: words::check,
    },
    Step { name: "clippy", about: "clippy has nothing to say", run: clippy },
    Step { name: "doc", about: "the docs build without a warning", run: doc },
    Step { name: "deny", about: "licences, bans and sources of the dependencies", run: deny::run },
    Step { name: "listings", about: "the public interface and `unsafe` are as listed", run: listings::check },
];

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    plan::run(&STEPS, options)
}

fn fmt(job: &Job) -> Result<Outcome> {
    component::for_subcommand(job, "rustfmt", "fmt")?;
    job.run(&mut job.workspace.cargo(["fmt", "--all", "--check"]))?;
    Ok(Outcome::Passed)
}

fn clippy(job: &Job) -> Result<Outcome> {
    component::for_subcommand(job, "clippy", "clippy")?;
    let what = ["clippy", "--workspace", "--all-targets", "--features", "symmem/faults"];
    job.run(job.workspace.cargo(what).args(["--", "-D", "warnings"]))?;
    Ok(Outcome::Passed)
}

fn doc(job: &Job) -> Result<Outcome> {
    let mut cargo = job.workspace.cargo(["doc", "--no-deps", "--workspace"]);
    job.run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Passed)
}
