//! Whether kernels or NCCL carry an operation of devices is asked in one place, the route: nothing else may
//! know.
//!
//! Providers find out who reaches whom, and say so in a table; those are not looked at.

use crate::source::{File, Token};

/// Who finds out: rooms, and the table.
const SOURCES: [&str; 2] = ["provider", "table"];

/// The first line that asks who carries an operation, or whether every rank reaches every other.
pub(super) fn find(file: &File) -> Option<usize> {
    if file.module.first().is_some_and(|room| SOURCES.contains(&room.as_str())) {
        return None;
    }
    let tokens = &file.tokens;
    let at = (0..tokens.len()).find(|&at| asks(tokens, at))?;
    Some(tokens[at].line)
}

fn asks(tokens: &[Token], at: usize) -> bool {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
    let is_asked = is(at, ".") && ["is_direct", "reaches_all", "works"].iter().any(|asked| is(at + 1, asked));
    let is_ability = is(at, "row") && is(at + 1, ".") && is(at + 2, "carried");
    is_asked || is_ability
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Option<usize> {
        find(&File::new(path, text.to_owned()).expect("Rust"))
    }

    #[test]
    fn who_asks_is_found() {
        for text in [
            "fn f(e: &Engine) { if !e.is_direct() { g() } }",
            "fn f(c: &Column) -> bool { c.reaches_all }",
            "fn f(c: &dyn Carrier) -> bool { c.works(true) }",
            "fn f(op: Op) -> bool { op.row().is_some_and(|row| !row.carried) }",
            "fn f(e: &EngineInner) { match e.carrier.is_direct() { true => g(), _ => h() } }",
        ] {
            assert_eq!(found("engine/cuda/ops/pull.rs", text), Some(1), "{text}");
            assert_eq!(found("collective/device/pull.rs", text), Some(1), "{text}");
        }
    }

    #[test]
    fn who_finds_out_tests_and_other_words_are_fine() {
        assert_eq!(found("provider/vmm/join.rs", "fn f(c: &Column) -> bool { c.reaches_all }"), None);
        assert_eq!(found("table.rs", "struct Column { reaches_all: bool }"), None);
        assert_eq!(found("engine/cuda/mod.rs", "struct Inner { carrier: &'static dyn Carrier }"), None);
        assert_eq!(found("engine/cuda/ops/mod.rs", "fn is_direct(&self) -> bool { true }"), None);
        assert_eq!(found("device/status.rs", "fn f(w: &Words) -> u32 { w.carried(0) }"), None);
        assert_eq!(found("engine/cuda/mod.rs", "#[cfg(test)] mod tests { fn f() { e.is_direct() } }"), None);
    }
}
