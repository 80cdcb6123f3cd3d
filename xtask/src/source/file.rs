//! The files of a crate, each with its place in the tree of modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::tests_cut::{Cut, cut};
use super::token::{Token, tokens};

/// One file, read.
#[derive(Debug)]
pub(crate) struct File {
    /// Below the crate's `src`.
    pub(crate) path: String,
    /// The module it is: `group/join/mod.rs` and `group/join.rs` are both `group`, `join`.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
    /// All of it.
    pub(crate) all: Vec<Token>,
    /// Without test code; empty if the whole file is a test.
    pub(crate) tokens: Vec<Token>,
    /// Lines that are no tests.
    pub(crate) lines: usize,
    /// Modules in files of their own that are tests.
    tests: Vec<String>,
}

/// Every file of a crate, by path.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) files: Vec<File>,
}

/// Files that hold tests, or what tests need, by their names.
const TESTS: [&str; 2] = ["tests", "testing"];

impl File {
    /// A file that is at `path` below `src`.
    pub(crate) fn new(path: &str, text: String) -> Result<Self> {
        let module = module(path);
        let all = tokens(&text).with_context(|| path.to_owned())?;
        let is_test = module.iter().any(|name| TESTS.contains(&name.as_str()));
        let Cut { tokens, modules, lines } = if is_test { Cut::default() } else { cut(&all) };
        let lines = if is_test { 0 } else { text.lines().count().saturating_sub(lines.len()) };
        Ok(Self { path: path.to_owned(), module, text, all, tokens, lines, tests: modules })
    }

    /// Whether all of it is for tests.
    pub(crate) fn is_test(&self) -> bool {
        self.lines == 0
    }

    fn cut_whole(&mut self) {
        self.tokens.clear();
        self.lines = 0;
    }
}

impl Sources {
    /// Reads every Rust file below `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(folder, "", &mut files)?;
        Ok(Self::of(files))
    }

    /// The same of files that are read.
    pub(crate) fn of(mut files: Vec<File>) -> Self {
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let with = |file: &File, name: &String| [file.module.as_slice(), std::slice::from_ref(name)].concat();
        let tests: BTreeSet<Vec<String>> =
            files.iter().flat_map(|file| file.tests.iter().map(|name| with(file, name))).collect();
        for file in &mut files {
            if (1..=file.module.len()).any(|end| tests.contains(&file.module[..end])) {
                file.cut_whole();
            }
        }
        Self { files }
    }
}

fn collect(folder: &Path, inside: &str, files: &mut Vec<File>) -> Result<()> {
    let unreadable = || format!("{} cannot be read", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if inside.is_empty() { name.clone() } else { format!("{inside}/{name}") };
        if entry.path().is_dir() {
            collect(&entry.path(), &path, files)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(entry.path()).with_context(|| format!("{path} cannot be read"))?;
            files.push(File::new(&path, text)?);
        }
    }
    Ok(())
}

fn module(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        Sources::of(
            files.iter().map(|(path, text)| File::new(path, (*text).to_owned()).expect("Rust")).collect(),
        )
    }

    #[test]
    fn a_path_is_a_module() {
        assert_eq!(module("group/join/mod.rs"), ["group", "join"]);
        assert_eq!(module("group/join.rs"), ["group", "join"]);
        assert!(module("lib.rs").is_empty());
    }

    #[test]
    fn files_of_tests_have_no_tokens_and_no_lines() {
        let sources = sources(&[
            ("a/mod.rs", "#[cfg(test)]\nmod reference;\nuse b;\n"),
            ("a/reference/mod.rs", "use c;\n"),
            ("a/reference/more.rs", "use c;\n"),
            ("a/tests.rs", "use d;\n"),
            ("a/testing.rs", "use d;\n"),
        ]);
        let lines: Vec<_> = sources.files.iter().map(|file| (file.tokens.len(), file.lines)).collect();
        assert_eq!(lines, [(3, 1), (0, 0), (0, 0), (0, 0), (0, 0)]);
    }

    #[test]
    fn a_file_that_is_no_rust_is_named() {
        let error = File::new("a/b.rs", "fn (".to_owned()).expect_err("no Rust");
        assert!(format!("{error:#}").starts_with("a/b.rs: it is no Rust"), "{error:#}");
    }
}
