//! The lines with `unsafe`, per file. Their number may only shrink.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

pub(super) const FILE: &str = "unsafe.txt";

const HEAD: &str = "# Lines of crates/*/src with the word `unsafe`: written by `cargo xtask listings --write`, which does not raise the total.\n";
const TOTAL: &str = "total ";

/// Files with such lines: number and path, in order of the paths.
pub(super) struct Listing(Vec<(usize, String)>);

impl Listing {
    pub(super) fn of(workspace: &Workspace) -> Result<Self> {
        let root = workspace.path("");
        let mut found = Vec::new();
        for folder in entries(&workspace.path("crates"))? {
            let sources = folder.join("src");
            if sources.is_dir() {
                collect(&root, &sources, &mut found)?;
            }
        }
        found.sort_by(|(_, one), (_, other)| one.cmp(other));
        Ok(Self(found))
    }

    pub(super) fn total(&self) -> usize {
        self.0.iter().map(|(count, _)| count).sum()
    }

    pub(super) fn text(&self) -> String {
        let head = format!("{HEAD}{TOTAL}{}\n", self.total());
        self.0.iter().fold(head, |text, (count, path)| text + &format!("{count:>5} {path}\n"))
    }

    /// An error if there are more lines than `stored` has.
    pub(super) fn check_total(&self, stored: &str) -> Result<()> {
        let most = stored.lines().find_map(|line| line.strip_prefix(TOTAL)?.parse().ok());
        let most: usize = most.with_context(|| format!("{FILE} has no line `{TOTAL}<number>`"))?;
        ensure!(
            self.total() <= most,
            "there are {} lines with `unsafe`, and {FILE} allows {most}: write them in safe code, or raise its total by hand and say why \
             in the commit",
            self.total()
        );
        Ok(())
    }
}

fn entries(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let context = || format!("{} cannot be read", folder.display());
    let entries = fs::read_dir(folder).with_context(context)?;
    entries.map(|entry| Ok(entry.with_context(context)?.path())).collect()
}

/// Adds what is below `folder`; paths are those below `root`.
fn collect(root: &Path, folder: &Path, found: &mut Vec<(usize, String)>) -> Result<()> {
    for path in entries(folder)? {
        if path.is_dir() {
            collect(root, &path, found)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            let count = text.lines().filter(|line| is_unsafe(line)).count();
            if count > 0 {
                found.push((count, path.strip_prefix(root)?.display().to_string()));
            }
        }
    }
    Ok(())
}

/// Whether the code of a line, without strings and remarks, has the word.
fn is_unsafe(line: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    code(line).split(|letter| !is_word(letter)).any(|word| word == "unsafe")
}

/// A line up to its remark, and without what its strings hold. What a string of several lines holds counts as
/// code.
fn code(line: &str) -> String {
    let mut kept = String::new();
    let mut letters = line.chars().peekable();
    let mut in_string = false;
    while let Some(letter) = letters.next() {
        match letter {
            // What comes after it ends no string.
            '\\' if in_string => drop(letters.next()),
            // As a character of its own it begins none.
            '"' if in_string || !kept.ends_with('\'') => in_string = !in_string,
            _ if in_string => {}
            '/' if letters.peek() == Some(&'/') => break,
            _ => kept.push(letter),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_counts_in_code_only() {
        for line in
            ["unsafe { f() }", "pub unsafe fn f() {", "let a = \"x\"; unsafe {", "unsafe impl Send for A {}"]
        {
            assert!(is_unsafe(line), "{line}");
        }
        for line in [
            "// unsafe",
            "f(); // unsafe",
            "#![allow(unsafe_code)]",
            "say(\"unsafe\")",
            r#"say("a \" unsafe")"#,
            "not_unsafe()",
        ] {
            assert!(!is_unsafe(line), "{line}");
        }
        assert!(is_unsafe("if letter == '\"' { unsafe { f() } }"));
        assert!(is_unsafe("let url = \"a://b\"; unsafe { f() }"));
    }

    #[test]
    fn the_total_may_shrink_and_not_grow() {
        let listing = Listing(vec![(2, "a.rs".to_owned()), (3, "b.rs".to_owned())]);
        assert_eq!(listing.total(), 5);
        assert!(listing.text().ends_with("total 5\n    2 a.rs\n    3 b.rs\n"));
        listing.check_total("# about\ntotal 5\n").expect("as many");
        listing.check_total("total 6\n").expect("fewer");
        let error = listing.check_total("total 4\n").expect_err("more").to_string();
        assert!(error.contains("5 lines") && error.contains("allows 4"), "{error}");
        assert!(listing.check_total("").is_err());
    }
}
