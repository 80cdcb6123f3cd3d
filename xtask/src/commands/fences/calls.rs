//! System calls are made in `sys/` only.

use crate::source::File;

/// The crates that make them.
const CRATES: [&str; 2] = ["rustix", "libc"];

/// The first line that names such a crate, outside of `sys/`. Numbers of `libc` are no calls.
pub(super) fn find(file: &File) -> Option<usize> {
    if file.module.first().is_some_and(|room| room == "sys") {
        return None;
    }
    let tokens = &file.tokens;
    let is_number =
        |name: &str| name.chars().all(|letter| !letter.is_lowercase()) && name.contains(char::is_uppercase);
    let at = (0..tokens.len().saturating_sub(2)).find(|&at| {
        let names = CRATES.iter().any(|name| tokens[at].is(name)) && tokens[at + 1].is("::");
        let is_inner =
            at > 1 && tokens[at - 1].is("::") && tokens[at - 2].is_word() && !tokens[at - 2].is("use");
        names && !is_inner && !is_number(&tokens[at + 2].text)
    })?;
    Some(tokens[at].line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Option<usize> {
        find(&File::new(path, text.to_owned()).expect("Rust"))
    }

    #[test]
    fn calls_outside_of_sys_are_found() {
        for text in [
            "use rustix::fs::open;",
            "use ::rustix::fs;",
            "fn f() { unsafe { libc::fstat(1) } }",
            "use libc::{open, O_PATH};",
        ] {
            assert_eq!(found("group/mod.rs", text), Some(1), "{text}");
        }
    }

    #[test]
    fn sys_tests_and_numbers_are_fine() {
        assert_eq!(found("sys/futex.rs", "use rustix::fs::open;"), None);
        assert_eq!(found("group/mod.rs", "#[cfg(test)] mod tests { use rustix::fs::open; }"), None);
        assert_eq!(found("group/mod.rs", "fn f() -> i32 { libc::EMFILE }"), None);
        assert_eq!(found("group/mod.rs", "use crate::libc::open;"), None);
    }
}
