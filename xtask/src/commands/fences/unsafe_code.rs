//! `unsafe` is denied at the root of the library; a file that needs it says so at its head, with a reason.
//!
//! The compiler does not keep this fence alone: what a `mod.rs` allows holds for the files below it, too.

use crate::source::{File, Token, closing};

/// The line a file says it by, up to its reason.
const OPT_IN: &str = "#![allow(unsafe_code, reason = \"";

/// What the root has.
const FENCE: [&str; 8] = ["#", "!", "[", "deny", "(", "unsafe_code", ")", "]"];

/// Whether the root denies `unsafe`.
pub(super) fn is_fenced(root: &File) -> bool {
    root.tokens
        .windows(FENCE.len())
        .any(|window| window.iter().zip(FENCE).all(|(token, text)| token.is(text)))
}

/// Whether a file has `unsafe` code that needs an opt-in at its head: outside of tests, or anywhere if all of
/// it is a test.
pub(super) fn needs(file: &File) -> bool {
    let tokens = if file.is_test() { &file.all } else { &file.tokens };
    (0..tokens.len()).any(|at| tokens[at].is("unsafe") && !is_type(&tokens[at..]))
}

/// The type of a foreign function, which can be named without `unsafe` code: `unsafe extern "C" fn(u8)`.
fn is_type(tokens: &[Token]) -> bool {
    let function = tokens.iter().take(4).position(|token| token.is("fn"));
    function.is_some_and(|at| tokens.get(at + 1).is_some_and(|token| token.is("(")))
}

/// The reason a file gives at its head; none if it has not opted in.
pub(super) fn reason(file: &File) -> Option<&str> {
    let line = file.text.lines().find_map(|line| line.strip_prefix(OPT_IN))?;
    line.strip_suffix("\")]").filter(|reason| !reason.is_empty())
}

/// Where code that is no test allows `unsafe` in another way; the line.
pub(super) fn other_opt_in(file: &File) -> Option<usize> {
    let tokens = &file.tokens;
    let allowing = (0..tokens.len()).filter(|&at| ["allow", "expect"].iter().any(|word| tokens[at].is(word)));
    let of_unsafe = allowing.filter(|&at| {
        let is_list = tokens.get(at + 1).is_some_and(|token| token.is("("));
        is_list && tokens[at..closing(tokens, at + 1)].iter().any(|token| token.is("unsafe_code"))
    });
    let lines = of_unsafe.map(|at| tokens[at].line);
    let is_ours = |line: &usize| file.text.lines().nth(line - 1).is_some_and(|text| text.starts_with(OPT_IN));
    lines.into_iter().find(|line| !is_ours(line))
}

/// The file's text with an opt-in after its module docs.
pub(super) fn with_opt_in(text: &str, reason: &str) -> String {
    let docs = text.lines().take_while(|line| line.starts_with("//!")).count();
    let end: usize = text.split_inclusive('\n').take(docs).map(str::len).sum();
    let (docs, code) = text.split_at(end);
    let before = if docs.is_empty() { "" } else { "\n" };
    let after = if code.starts_with('\n') { "" } else { "\n" };
    format!("{docs}{before}{OPT_IN}{reason}\")]\n{after}{code}")
}

/// The file's text without its opt-in.
pub(super) fn without_opt_in(text: &str) -> String {
    let Some(at) = text.find(OPT_IN) else { return text.to_owned() };
    let (before, rest) = text.split_at(at);
    let rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    before.to_owned() + rest.strip_prefix('\n').unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path, text.to_owned()).expect("Rust")
    }

    #[test]
    fn unsafe_code_outside_of_tests_needs_an_opt_in() {
        for text in ["fn f() { unsafe { g() } }", "unsafe impl Send for S {}", "m!(unsafe { g() });"] {
            assert!(needs(&file("a.rs", text)), "{text}");
        }
        for text in [
            "// unsafe",
            "fn g() {}\n#[cfg(test)]\nmod t { unsafe fn f() {} }",
            "type F = unsafe extern \"C\" fn(u8);",
        ] {
            assert!(!needs(&file("a.rs", text)), "{text}");
        }
        assert!(needs(&file("a.rs", "unsafe extern \"C\" fn f() {}")));
        assert!(needs(&file("tests.rs", "fn f() { unsafe { g() } }")));
    }

    #[test]
    fn an_opt_in_has_a_reason_and_is_at_the_head() {
        assert_eq!(reason(&file("a.rs", "//! A.\n\n#![allow(unsafe_code, reason = \"x\")]\n")), Some("x"));
        assert_eq!(reason(&file("a.rs", "#![allow(unsafe_code)]\n")), None);
        assert_eq!(reason(&file("a.rs", "#![allow(unsafe_code, reason = \"\")]\n")), None);
    }

    #[test]
    fn other_ways_to_opt_in_are_found() {
        for text in [
            "#![allow(unsafe_code)]",
            "mod a;\n#[allow(dead_code, unsafe_code)] mod b {}",
            "#[expect(unsafe_code)] fn f() {}",
        ] {
            assert!(other_opt_in(&file("a.rs", text)).is_some(), "{text}");
        }
        for text in
            ["#![allow(unsafe_code, reason = \"x\")]", "#[cfg(test)]\n#[allow(unsafe_code)] mod tests {}"]
        {
            assert_eq!(other_opt_in(&file("a.rs", text)), None, "{text}");
        }
    }

    #[test]
    fn an_opt_in_goes_after_the_docs_and_away_again() {
        for text in ["//! A.\n//!\n//! B.\n\nuse c;\n", "use c;\n"] {
            let with = with_opt_in(text, "x");
            assert_eq!(reason(&file("a.rs", &with)), Some("x"), "{with}");
            assert_eq!(without_opt_in(&with).trim_start(), text);
        }
        assert_eq!(
            with_opt_in("//! A.\n\nuse c;\n", "x"),
            "//! A.\n\n#![allow(unsafe_code, reason = \"x\")]\n\nuse c;\n"
        );
    }

    #[test]
    fn the_root_denies_it() {
        assert!(is_fenced(&file("lib.rs", "//! A.\n#![deny(unsafe_code)]\nmod a;")));
        assert!(!is_fenced(&file("lib.rs", "//! #![deny(unsafe_code)]\nmod a;")));
    }
}
