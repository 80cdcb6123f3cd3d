//! A type's name is its own: a library defines it once, but for those that CONTRIBUTING.md lists. Tests may
//! do as they like. No crate has a type whose whole name is one of those that say too little.

use std::collections::BTreeMap;

use super::PAGE;
use super::tables::Tables;
use crate::source::{File, Sources, Token};

/// What is wrong: names of several types of a library, each with its folder, and rows of the table whose type
/// has one definition.
pub(super) fn judge(libraries: &[(&str, Sources)], tables: &Tables) -> Vec<String> {
    let mut types: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (folder, sources) in libraries {
        for file in &sources.files {
            for (name, line) in defined(file) {
                types.entry((name, folder)).or_default().push(format!("{folder}/{}:{line}", file.path));
            }
        }
    }
    types.retain(|_, places| places.len() > 1);
    let is_listed = |name: &str| tables.several.iter().any(|listed| listed == name);
    let several = types.iter().filter(|((name, _), _)| !is_listed(name));
    let once = |listed: &&String| !types.keys().any(|(name, _)| name == listed);
    several
        .map(|((name, _), places)| format!("`{name}` names several types: {}", places.join(", ")))
        .chain(
            tables.several.iter().filter(once).map(|name| {
                format!("{PAGE}: `{name}` is not defined more than once; take it out of the table")
            }),
        )
        .collect()
}

/// Types whose whole name is one that says too little.
pub(super) fn bare(crates: &[(&str, Sources)], tables: &Tables) -> Vec<String> {
    let mut wrong = Vec::new();
    for (folder, sources) in crates {
        for file in &sources.files {
            for (name, line) in defined(file).filter(|(name, _)| tables.bare.iter().any(|bare| bare == name))
            {
                let path = &file.path;
                wrong.push(format!(
                    "{folder}/{path}:{line}: `{name}` alone says too little for a type ({PAGE})"
                ));
            }
        }
    }
    wrong
}

/// The types that a file defines, without its tests. Types of traits and their implementations are none.
fn defined(file: &File) -> impl Iterator<Item = (&str, usize)> {
    let mut depth = 0usize;
    let of = move |pair: &'_ [Token]| {
        match pair[0].text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        let begins = match pair[0].text.as_str() {
            "struct" | "enum" | "trait" | "union" => true,
            "type" => depth == 0,
            _ => false,
        };
        begins && pair[1].is_word() && pair[1].text.starts_with(char::is_uppercase)
    };
    let mut of = of;
    file.tokens.windows(2).filter(move |pair| of(pair)).map(|pair| (pair[1].text.as_str(), pair[1].line))
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::PAGE as TABLES;
    use super::*;

    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        let read = |(path, text): &(&str, &str)| File::new(path, (*text).to_owned()).expect("Rust");
        let tables = Tables::parse(TABLES).expect("tables");
        judge(&[("src", Sources::of(files.iter().map(read).collect()))], &tables)
    }

    const TWICE: [(&str, &str); 2] = [("a.rs", "pub enum Algorithm {}"), ("b.rs", "struct Algorithm;")];

    #[test]
    fn a_second_type_of_a_name_is_found_with_both_places() {
        let files =
            [TWICE[0], TWICE[1], ("c.rs", "struct Table;"), ("d.rs", "\npub(crate) type Table = u8;")];
        assert_eq!(wrong(&files), ["`Table` names several types: src/c.rs:1, src/d.rs:2"]);
        let files = [TWICE[0], TWICE[1], ("c.rs", "named! { pub enum Way { A } } trait Way {}")];
        assert_eq!(wrong(&files).len(), 1);
    }

    #[test]
    fn a_name_that_says_too_little_is_found_where_it_is_the_whole_name() {
        let of = |text: &str| {
            let file = File::new("a.rs", text.to_owned()).expect("Rust");
            bare(&[("src", Sources::of(vec![file]))], &Tables::parse(TABLES).expect("tables"))
        };
        assert_eq!(
            of("\nstruct Inner;"),
            ["src/a.rs:2: `Inner` alone says too little for a type (CONTRIBUTING.md)"]
        );
        assert_eq!(of("enum Lump {} type Inner = u8;").len(), 2);
        for text in ["struct InnerTube;", "enum X { Inner }", "#[cfg(test)] mod tests { struct Inner; }"] {
            assert!(of(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn tests_and_types_of_traits_are_no_second_definitions() {
        let files = [
            TWICE[0],
            TWICE[1],
            ("c.rs", "struct Item; impl Iterator for X { type Item = u8; }"),
            ("d.rs", "#[cfg(test)] mod tests { struct Item; }"),
            ("e/tests.rs", "struct Item;"),
        ];
        assert!(wrong(&files).is_empty(), "{:?}", wrong(&files));
    }

    #[test]
    fn two_libraries_may_have_a_type_each() {
        let of = |files: &[(&str, &str)]| {
            let read = |(path, text): &(&str, &str)| File::new(path, (*text).to_owned()).expect("Rust");
            Sources::of(files.iter().map(read).collect())
        };
        let tables = Tables::parse(TABLES).expect("tables");
        let libraries = [
            ("a", of(&[TWICE[0], TWICE[1], ("c.rs", "struct Table;")])),
            ("b", of(&[("c.rs", "struct Table;")])),
        ];
        assert!(judge(&libraries, &tables).is_empty());
    }

    #[test]
    fn a_row_of_a_type_that_is_defined_once_is_found() {
        let found = wrong(&TWICE[..1]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`Algorithm` is not defined more than once"), "{found:?}");
    }
}
