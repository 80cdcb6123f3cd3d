//! `cargo xtask listings`: what the crates offer and what they cost, as files that a change of the code must
//! change too.
//!
//! The step `listings` of `cargo xtask lint` compares them, and the step `python` of `cargo xtask test` the
//! size, because it has the wheel.

mod api;
mod hazards;
mod size;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::plan::{self, Job, Outcome};
use crate::workspace::Workspace;
pub(crate) use size::check as check_size;

const FOLDER: &str = "xtask/listings";
const HINT: &str = "if it is meant, run `cargo xtask listings --write` and commit what it wrote";

/// What to do with the files.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Write the files instead of comparing them.
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    plan::write_or_check(options.write, write, check)
}

/// The step of `cargo xtask lint`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let hazards = hazards::Listing::of(job.workspace)?;
    println!("{} lines with `unsafe`", hazards.total());
    let listing = Listing::of(job.workspace, hazards::FILE);
    hazards.check_total(&listing.read()?)?;
    listing.compare(&hazards.text())?;
    for package in api::PACKAGES {
        match api::text(job, package)? {
            Ok(text) => Listing::of(job.workspace, &api::file(package)).compare(&text)?,
            Err(reason) => return Ok(Outcome::Skipped(reason)),
        }
    }
    Ok(Outcome::Passed)
}

fn write(job: &Job) -> Result<()> {
    let hazards = hazards::Listing::of(job.workspace)?;
    let listing = Listing::of(job.workspace, hazards::FILE);
    if listing.path.exists() {
        hazards.check_total(&listing.read()?)?;
    }
    listing.write(&hazards.text())?;
    for package in api::PACKAGES {
        let text = api::text(job, package)?.map_err(anyhow::Error::msg)?;
        Listing::of(job.workspace, &api::file(package)).write(&text)?;
    }
    size::write(job.workspace)
}

/// One of the files.
struct Listing {
    /// Inside the workspace, for people.
    name: String,
    path: PathBuf,
}

impl Listing {
    fn of(workspace: &Workspace, file: &str) -> Self {
        let name = format!("{FOLDER}/{file}");
        Self { path: workspace.path(&name), name }
    }

    fn read(&self) -> Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("{} cannot be read", self.name))
    }

    fn write(&self, text: &str) -> Result<()> {
        fs::write(&self.path, text).with_context(|| format!("{} cannot be written", self.name))?;
        println!("{}: {} lines", self.name, text.lines().count());
        Ok(())
    }

    /// An error with every line that differs, unless the file holds `text`.
    fn compare(&self, text: &str) -> Result<()> {
        let stored = self.read()?;
        let changes = changes(&stored, text);
        ensure!(
            stored == text,
            "{} is not what the code has; {HINT}. The lines that differ:\n{}",
            self.name,
            changes.join("\n")
        );
        Ok(())
    }
}

/// Lines that are only in one of two texts, in order of the alphabet: `-` where they are gone, `+` where they
/// are new.
fn changes(old: &str, new: &str) -> Vec<String> {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.lines().collect(), new.lines().collect());
    let sign = |line: &&str| if old.contains(line) { '-' } else { '+' };
    old.symmetric_difference(&new).map(|line| format!("{} {line}", sign(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_went_and_lines_that_came_are_shown() {
        assert_eq!(changes("a\nb\nc\n", "a\nbb\nc\nd\n"), ["- b", "+ bb", "+ d"]);
        assert!(changes("a\n", "a\n").is_empty());
    }

    #[test]
    fn a_file_that_differs_is_named_with_the_way_out() {
        let path = std::env::temp_dir().join(format!("xtask-listing-{}", std::process::id()));
        let listing = Listing { name: "listings/some.txt".to_owned(), path: path.clone() };
        listing.write("one\n").expect("a new file");
        let (same, other) = (listing.compare("one\n"), listing.compare("two\n"));
        fs::remove_file(&path).expect("the file is ours");
        same.expect("the same text");
        let text = other.expect_err("another text").to_string();
        assert!(text.starts_with("listings/some.txt is not what the code has"), "{text}");
        assert!(text.contains("listings --write") && text.ends_with("- one\n+ two"), "{text}");
        assert!(listing.compare("one\n").expect_err("no file").to_string().contains("cannot be read"));
    }
}
