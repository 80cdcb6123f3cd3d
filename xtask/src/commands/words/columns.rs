//! Comments are as wide as code: rustfmt keeps code within `max_width`, and leaves comments alone.
//!
//! Rows of tables and programs in docs are as they are, and so is a line that cannot be broken.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use crate::source::{File, Token};

/// The width that rustfmt's settings have.
pub(super) fn width(settings: &str) -> Result<usize> {
    let value =
        settings.lines().find_map(|line| line.strip_prefix("max_width")).context("it has no max_width")?;
    value.trim_start_matches([' ', '=']).trim().parse().context("max_width is not a number")
}

/// Comments that are wider.
pub(super) fn too_wide(file: &File, width: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let inside = in_literals(file);
    let mut in_program = false;
    for (at, line) in file.text.lines().enumerate() {
        let number = at + 1;
        let Some(text) = comment(line).filter(|_| !inside.contains(&number)) else {
            in_program = false;
            continue;
        };
        if text.starts_with("```") {
            in_program = !in_program;
            continue;
        }
        let columns = line.chars().count();
        if columns > width && !in_program && !text.starts_with('|') && text.contains(' ') {
            let path = &file.path;
            wrong.push(format!("{path}:{number}: a comment of {columns} columns, of at most {width}"));
        }
    }
    wrong
}

/// What a line says that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}

/// The lines that begin inside of a text that goes over several lines.
fn in_literals(file: &File) -> BTreeSet<usize> {
    let more = |token: &Token| token.text.matches('\n').count();
    file.all.iter().flat_map(|token| token.line + 1..=token.line + more(token)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        too_wide(&File::new("a.rs", text.to_owned()).expect("Rust"), 20)
    }

    #[test]
    fn the_width_is_that_of_rustfmt() {
        assert_eq!(width("a = 1\nmax_width = 110\n").expect("a width"), 110);
        assert!(width("a = 1").is_err());
    }

    #[test]
    fn a_wide_comment_is_found() {
        assert!(wrong("// of twenty columns\nfn f() {}").is_empty());
        assert_eq!(wrong("\n// of some more columns"), ["a.rs:2: a comment of 23 columns, of at most 20"]);
        assert_eq!(wrong("/// of some more columns\nfn f() {}").len(), 1);
        assert_eq!(wrong("//! of some more columns").len(), 1);
        assert_eq!(wrong("fn f() {\n    // of some more\n}").len(), 0);
        assert_eq!(wrong("fn f() {\n    // of some more c\n}").len(), 1);
    }

    #[test]
    fn tables_programs_texts_and_what_cannot_be_broken_are_left_alone() {
        for text in [
            "//! | a row | of a table |",
            "/// ```\n/// let a = \"a program\";\n/// ```\nfn f() {}",
            "// https://an.address.of/a/page",
            "const X: &str = \"\n// a text with many columns\";",
        ] {
            assert!(wrong(text).is_empty(), "{text}");
        }
        assert_eq!(wrong("/// ```\n/// a\n/// ```\n/// of some more columns\nfn f() {}").len(), 1);
    }
}
