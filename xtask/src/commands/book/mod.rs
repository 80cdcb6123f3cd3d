//! `cargo xtask book`: the pages of `docs/` as a book, by mdBook; and the lint `book`, which checks pages,
//! links and the README without it.
//!
//! The lint reads files only. Building the book installs mdBook, which takes minutes, so that is no step of a
//! plan.

mod front;
mod links;
mod pages;
mod stage;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::pages::Pages;
use crate::plan::{Job, Outcome};
use crate::workspace::Workspace;

const VERSION: &str = "0.4.52";

/// Ignored by git; kept between runs.
const TOOLS: &str = ".tools";

/// The sources of the book, which are its pages too.
const DOCS: &str = "docs";

/// Building mdBook from its source is most of it.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The book needs no options yet.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Builds the book, after what the lint checks.
pub(crate) fn run(_: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, LIMIT);
    check(&job)?;
    let (source, book) = (workspace.target("book/source"), workspace.target("book/html"));
    stage::write(&Pages::read(&workspace)?, &workspace.path(DOCS), &source)?;
    let program = match find(&job) {
        Some(program) => program,
        None => install(&job)?,
    };
    job.run(workspace.program(program).arg("build").arg(&source).arg("--dest-dir").arg(&book))?;
    println!("the book is {}", book.join("index.html").display());
    Ok(())
}

/// The step of the lint: an error that lists everything that is wrong.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let pages = Pages::read(job.workspace)?;
    let mut problems = links::problems(&pages, |path| job.workspace.path(path).exists());
    problems.extend(pages.summary_problems());
    problems.extend(pages.doctest_problems());
    problems.extend(front::problems(pages.text("README.md").context("there is no README.md")?));
    if problems.is_empty() {
        return Ok(Outcome::Passed);
    }
    problems.iter().for_each(|problem| println!("{problem}"));
    bail!("{} problems in the pages", problems.len())
}

fn find(job: &Job) -> Option<OsString> {
    let ours = installed(job.workspace);
    [ours, "mdbook".into()].into_iter().find(|program| {
        let version = job.output(job.workspace.program(program).arg("--version"));
        version.is_ok_and(|text| text.trim() == format!("mdbook v{VERSION}"))
    })
}

fn install(job: &Job) -> Result<OsString> {
    println!("installing mdbook {VERSION} into {TOOLS}");
    let install = ["install", "mdbook", "--version", VERSION, "--locked", "--root", TOOLS];
    let features = ["--no-default-features", "--features", "search"];
    job.run(job.workspace.cargo(install).args(features)).context("mdbook could not be installed")?;
    Ok(installed(job.workspace))
}

fn installed(workspace: &Workspace) -> OsString {
    workspace.path(TOOLS).join("bin/mdbook").into()
}
