//! Files that the code of a crate has the compiler read: `include_str!`, `include_bytes!`, `include!` and
//! `#[path = ".."]`.
//!
//! Tests and doctests are left out: they run in the repository, and a package has none of them.

use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::source::{File, Sources, Token, closing};

/// Macros whose argument is a path from the file they stand in.
const MACROS: [&str; 3] = ["include_str", "include_bytes", "include"];

/// A file that is needed to build the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Include {
    /// Who needs it: file and line, in the crate.
    pub(super) from: String,
    pub(super) what: What,
}

/// What is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A file, by its path in the crate.
    File(String),
    /// Some files of this folder of the crate: `concat!` makes their names.
    Folder(String),
    /// A file outside of the crate, as the code names it.
    Outside(String),
    /// Where the crate was built: another place, on another machine.
    BuildFolder,
}

/// What the crate in `folder` needs.
pub(super) fn of(folder: &Path) -> Result<Vec<Include>> {
    let sources = Sources::read(&folder.join("src"))?;
    Ok(sources.files.iter().flat_map(of_file).collect())
}

fn of_file(file: &File) -> Vec<Include> {
    let tokens = &file.tokens;
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_doctest(&tokens[at..]) {
            at = closing(tokens, at + 1);
        }
        if let Some(what) = what(&file.path, &tokens[at..]) {
            found.push(Include { from: format!("src/{}:{}", file.path, tokens[at].line), what });
        }
        at += 1;
    }
    found
}

/// `cfg_attr(doctest, ..)`.
fn is_doctest(tokens: &[Token]) -> bool {
    matches!(tokens, [name, open, condition, ..] if name.is("cfg_attr") && open.is("(") && condition.is("doctest"))
}

fn what(file: &str, tokens: &[Token]) -> Option<What> {
    match tokens {
        [name, bang, open, rest @ ..] if bang.is("!") && open.is("(") => {
            if name.is("env") && rest.first().is_some_and(|first| first.is("\"CARGO_MANIFEST_DIR\"")) {
                return Some(What::BuildFolder);
            }
            MACROS.contains(&name.text.as_str()).then(|| argument(file, rest))?
        }
        [bracket, name, equals, path, ..] if bracket.is("[") && name.is("path") && equals.is("=") => {
            Some(resolved(file, literal(path)?, What::File))
        }
        _ => None,
    }
}

/// A literal, or a `concat!` that begins with the literal of a folder.
fn argument(file: &str, tokens: &[Token]) -> Option<What> {
    match tokens {
        [name, bang, open, first, ..] if name.is("concat") && bang.is("!") && open.is("(") => {
            let prefix = literal(first)?;
            let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
            Some(resolved(file, folder, What::Folder))
        }
        [path, ..] => Some(resolved(file, literal(path)?, What::File)),
        [] => None,
    }
}

fn literal(token: &Token) -> Option<&str> {
    token.text.strip_prefix('"')?.strip_suffix('"')
}

/// `path`, as seen from a file below `src`, in the crate.
fn resolved(file: &str, path: &str, inside: impl Fn(String) -> What) -> What {
    let from = Path::new("src").join(file);
    let mut place = from.parent().map(Path::to_owned).unwrap_or_default();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir if place != PathBuf::new() => {
                place.pop();
            }
            _ => return What::Outside(path.to_owned()),
        }
    }
    inside(place.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<What> {
        let sources = Sources::of(vec![File::new(path, text.to_owned()).expect("Rust")]);
        sources.files.iter().flat_map(of_file).map(|include| include.what).collect()
    }

    #[test]
    fn what_is_read_is_found_where_it_is() {
        let file = |path: &str| vec![What::File(path.to_owned())];
        assert_eq!(found("a/b.rs", "const X: &str = include_str!(\"c.txt\");"), file("src/a/c.txt"));
        assert_eq!(found("a.rs", "f(include_bytes!(\"../k/p.bin\"))"), file("k/p.bin"));
        assert_eq!(found("a.rs", "#[path = \"../x.rs\"] mod x;"), file("x.rs"));
        assert_eq!(found("a.rs", "include_str!(concat!(\"../k/\", $n))"), [What::Folder("k".to_owned())]);
        assert_eq!(found("a.rs", "env!(\"CARGO_MANIFEST_DIR\")"), [What::BuildFolder]);
    }

    #[test]
    fn a_file_outside_of_the_crate_is_seen() {
        let outside = What::Outside("../../README.md".to_owned());
        assert_eq!(found("a.rs", "include_str!(\"../../README.md\")"), [outside]);
    }

    #[test]
    fn tests_and_doctests_may_read_anything() {
        for text in [
            "#[cfg(test)] mod tests { const X: &str = include_str!(\"../../../x\"); }",
            "#![cfg_attr(doctest, doc = include_str!(\"../../../x\"))]",
            "#[cfg(doctest)] #[doc = include_str!(\"../../../x\")] struct Readme;",
        ] {
            assert!(found("a.rs", text).is_empty(), "{text}");
        }
        assert_eq!(found("a.rs", "#[doc = include_str!(\"../../../x\")] struct Readme;").len(), 1);
    }
}
