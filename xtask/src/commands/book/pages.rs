//! The pages of the repository: those at its root and those of the book, and what holds of them together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::links;
use crate::workspace::Workspace;

/// The list of the book's pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Where pages are named whose Rust programs are doctests.
const LIBRARY: &str = "crates/symmem/src/lib.rs";

/// Every page by its path in the repository, and the library's front page.
pub(super) struct Pages {
    pub(super) texts: BTreeMap<String, String>,
    pub(super) library: String,
}

impl Pages {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let mut texts = BTreeMap::new();
        add(&mut texts, &workspace.path("."), "", false)?;
        add(&mut texts, &workspace.path("docs"), "docs/", true)?;
        let library = fs::read_to_string(workspace.path(LIBRARY)).context(LIBRARY)?;
        Ok(Self { texts, library })
    }

    pub(super) fn text(&self, page: &str) -> Option<&str> {
        self.texts.get(page).map(String::as_str)
    }

    /// The pages of the book, without the list of them.
    pub(super) fn of_the_book(&self) -> impl Iterator<Item = (&str, &str)> {
        let pages = self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        pages.filter(|(path, _)| path.starts_with("docs/") && *path != SUMMARY)
    }

    /// Pages that the summary lacks or has twice. That what it names exists is a matter of links.
    pub(super) fn summary_problems(&self) -> Vec<String> {
        let Some(summary) = self.text(SUMMARY) else { return vec![format!("there is no {SUMMARY}")] };
        let listed: Vec<_> =
            links::targets(summary).into_iter().map(|link| format!("docs/{}", link.target)).collect();
        let times = |page: &str| listed.iter().filter(|other| *other == page).count();
        let wrong = self.of_the_book().filter(|(page, _)| times(page) != 1);
        wrong.map(|(page, _)| format!("{SUMMARY} has {page} {} times, not once", times(page))).collect()
    }

    /// Pages with Rust programs that nobody runs.
    pub(super) fn doctest_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (page, text) in &self.texts {
            let mut fences = text.lines().filter(|line| line.starts_with("```rust")).peekable();
            if fences.peek().is_some()
                && !self.library.contains(&format!("include_str!(\"../../../{page}\")"))
            {
                problems
                    .push(format!("{page} has Rust programs, and {LIBRARY} does not make doctests of them"));
            }
            for fence in fences.filter(|fence| fence.contains("ignore") || fence.contains("text")) {
                problems.push(format!("{page} has a Rust program that is not compiled: {fence}"));
            }
        }
        problems
    }
}

/// Adds the pages in `folder`, whose paths begin with `prefix`.
fn add(texts: &mut BTreeMap<String, String>, folder: &Path, prefix: &str, deep: bool) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if deep && path.is_dir() {
            add(texts, &path, &format!("{prefix}{name}/"), true)?;
        } else if name.ends_with(".md") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            texts.insert(format!("{prefix}{name}"), text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)], library: &str) -> Pages {
        let texts = texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Pages { texts, library: library.to_owned() }
    }

    #[test]
    fn the_summary_has_every_page_once() {
        let both = [("docs/a.md", ""), ("docs/b/c.md", "")];
        let with = |summary| [&both[..], &[(SUMMARY, summary)]].concat();
        assert!(pages(&with("- [A](a.md)\n  - [C](b/c.md)"), "").summary_problems().is_empty());
        let lacking = pages(&with("- [A](a.md)"), "").summary_problems();
        assert_eq!(lacking, ["docs/SUMMARY.md has docs/b/c.md 0 times, not once"]);
        let twice = pages(&with("- [A](a.md)\n- [A](a.md)\n- [C](b/c.md)"), "").summary_problems();
        assert_eq!(twice, ["docs/SUMMARY.md has docs/a.md 2 times, not once"]);
        assert_eq!(pages(&both, "").summary_problems().len(), 1);
    }

    #[test]
    fn rust_programs_are_doctests() {
        let program = [("docs/a.md", "Text.\n```rust\nfn main() {}\n```\n")];
        assert!(pages(&program, "include_str!(\"../../../docs/a.md\")").doctest_problems().is_empty());
        assert_eq!(pages(&program, "").doctest_problems().len(), 1);
        let ignored = [("docs/a.md", "```rust,ignore\nfn main() {}\n```\n")];
        assert_eq!(pages(&ignored, "include_str!(\"../../../docs/a.md\")").doctest_problems().len(), 1);
        assert!(pages(&[("docs/a.md", "```sh\n```\n")], "").doctest_problems().is_empty());
    }
}
