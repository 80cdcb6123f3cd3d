//! The files with `unsafe` code as CONTRIBUTING.md shows them: by room, with the reasons they give.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::unsafe_code;
use crate::source::Sources;

/// A room's files, those of them with `unsafe` code, and why.
#[derive(Default)]
struct Room<'a> {
    all: usize,
    opted_in: usize,
    reasons: BTreeSet<&'a str>,
}

/// The block of the page; files of tests are left out.
pub(super) fn render(sources: &Sources) -> String {
    let mut rooms = BTreeMap::<&str, Room<'_>>::new();
    let files = sources.files.iter().filter(|file| !file.is_test());
    for file in files {
        let Some(name) = file.module.first() else { continue };
        let room = rooms.entry(name).or_default();
        room.all += 1;
        if let Some(reason) = unsafe_code::reason(file) {
            room.opted_in += 1;
            room.reasons.insert(reason);
        }
    }
    let mut text = "| room | files with `unsafe` code | because of |\n|---|---|---|\n".to_owned();
    for (name, room) in rooms.iter().filter(|(_, room)| room.opted_in > 0) {
        let reasons: Vec<_> = room.reasons.iter().copied().collect();
        _ = writeln!(text, "| `{name}` | {} of {} | {} |", room.opted_in, room.all, reasons.join("; "));
    }
    let sum = |count: fn(&Room<'_>) -> usize| rooms.values().map(count).sum::<usize>();
    _ = writeln!(text, "| all rooms | {} of {} | |", sum(|room| room.opted_in), sum(|room| room.all));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::File;

    #[test]
    fn rooms_are_counted_with_their_reasons() {
        let file = |path, text: &str| File::new(path, text.to_owned()).expect("Rust");
        let opted_in = "#![allow(unsafe_code, reason = \"calls\")]\nfn f() { unsafe { g() } }\n";
        let files =
            vec![file("sys/a.rs", opted_in), file("sys/b.rs", "mod c;\n"), file("sys/tests.rs", opted_in)];
        let page = render(&Sources::of(files));
        assert!(page.ends_with("| `sys` | 1 of 2 | calls |\n| all rooms | 1 of 2 | |\n"), "{page}");
    }
}
