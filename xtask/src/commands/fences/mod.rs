//! `cargo xtask fences`: `unsafe` code, system calls, waits, and the question who carries an operation stay
//! in the files that are listed in `xtask/fences.txt`.
//!
//! Providers are known by name only where `providers.rs` says. The lists only shrink. `cargo xtask lint`
//! compares them with the code, and the block of CONTRIBUTING.md that counts the files with `unsafe` code by
//! room.

mod calls;
mod judge;
mod list;
mod page;
mod providers;
mod routes;
mod unsafe_code;
mod waits;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::plan::{Job, Outcome};
use crate::source::{self, Sources};
use crate::workspace::Workspace;
use list::Lists;

const SOURCES: &str = "crates/symmem/src";
const LISTS: &str = "xtask/fences.txt";
const PAGE: &str = "CONTRIBUTING.md";
const BLOCK: &str = "fences";

/// What to write.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Take out of the lists what is gone, write the opt-ins that files with `unsafe` code lack, take those
    /// away that are not needed, and write the block of CONTRIBUTING.md.
    #[arg(long)]
    write: bool,
    /// List files with `unsafe` code that are new: for files that were moved, since the lists only shrink
    /// otherwise.
    #[arg(long, requires = "write")]
    with_new: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    if options.write {
        write(&workspace, options.with_new)?;
    }
    let sources = Sources::read(&workspace.path(SOURCES))?;
    print!("{}", page::render(&sources));
    compare(&sources, &read(&workspace)?)
}

/// The step of `cargo xtask lint`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let sources = Sources::read(&job.workspace.path(SOURCES))?;
    compare(&sources, &read(job.workspace)?)?;
    providers::check(job.workspace)?;
    source::check_block(&job.workspace.path(PAGE), BLOCK, &page::render(&sources))?;
    Ok(Outcome::Passed)
}

fn compare(sources: &Sources, lists: &Lists) -> Result<()> {
    let wrong = judge::judge(sources, lists);
    if !wrong.is_empty() {
        bail!("the fences of {LISTS} have holes:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn read(workspace: &Workspace) -> Result<Lists> {
    let text =
        fs::read_to_string(workspace.path(LISTS)).with_context(|| format!("{LISTS} cannot be read"))?;
    Lists::parse(&text).context(LISTS)
}

fn write(workspace: &Workspace, with_new: bool) -> Result<()> {
    let lists = read(workspace)?;
    let folder = workspace.path(SOURCES);
    for file in &Sources::read(&folder)?.files {
        let text = match (unsafe_code::needs(file), unsafe_code::reason(file)) {
            (true, None) => {
                let reason = lists.reason(&file.path);
                let reason = reason.with_context(|| format!("{LISTS} has no reason for {}", file.path))?;
                unsafe_code::with_opt_in(&file.text, reason)
            }
            (false, Some(_)) => unsafe_code::without_opt_in(&file.text),
            _ => continue,
        };
        write_file(folder.join(&file.path), &text)?;
        println!("{}: opt-in written or taken away", file.path);
    }
    let sources = Sources::read(&folder)?;
    write_file(workspace.path(LISTS), &judge::shrunk(&sources, &lists, with_new).render())?;
    source::write_block(&workspace.path(PAGE), BLOCK, &page::render(&sources))
}

fn write_file(path: PathBuf, text: &str) -> Result<()> {
    fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
}
