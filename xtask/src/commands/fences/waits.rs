//! Waits go through the ladder or through `Wait::until`: nothing else sleeps, spins, yields, or loops on the
//! clock.
//!
//! `Wait::until` gives what it calls a *slice* of time, and whoever sleeps for no longer than that waits
//! through it.

use crate::source::{File, Token, closing};

/// Calls that wait, and the type whose calls do.
const WORDS: [&str; 9] = [
    "sleep",
    "park",
    "park_timeout",
    "spin_loop",
    "yield_now",
    "sched_yield",
    "give_way",
    "wait_timeout",
    "Condvar",
];

/// The first line that waits by itself.
pub(super) fn find(file: &File) -> Option<usize> {
    let tokens = &file.tokens;
    let at = (0..tokens.len()).find(|&at| calls(tokens, at) || loops_on_the_clock(tokens, at))?;
    Some(tokens[at].line)
}

fn calls(tokens: &[Token], at: usize) -> bool {
    let token = &tokens[at];
    if token.is("Condvar") {
        return true;
    }
    let is_open = tokens.get(at + 1).is_some_and(|next| next.is("("));
    let is_before = |text| at > 0 && tokens[at - 1].is(text);
    // `ladder.sleep(..)` and `bell.sleep(..)` are the ladder.
    let is_ladder = token.is("sleep") && (is_before(".") || is_before("fn"));
    let is_slice = || tokens[at..closing(tokens, at + 1)].iter().any(|token| token.is("slice"));
    WORDS.iter().any(|word| token.is(word)) && is_open && !is_ladder && !is_slice()
}

/// `while start.elapsed() < limit { .. }`, and a `loop` that asks for the time.
fn loops_on_the_clock(tokens: &[Token], at: usize) -> bool {
    if !tokens[at].is("while") && !tokens[at].is("loop") {
        return false;
    }
    let mut body = at + 1;
    while body < tokens.len() && !tokens[body].is("{") {
        body = closing(tokens, body) + 1;
    }
    let end = if body < tokens.len() { closing(tokens, body) } else { tokens.len() };
    let asks = |at: usize| {
        let word = &tokens[at];
        word.is("elapsed") || (word.is("now") && at > 1 && tokens[at - 2].is("Instant"))
    };
    (at..end).any(asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Option<usize> {
        find(&File::new("group/mod.rs", text.to_owned()).expect("Rust"))
    }

    #[test]
    fn whatever_waits_is_found() {
        for text in [
            "fn f() { std::thread::sleep(NAP) }",
            "use std::thread::sleep; fn f() { sleep(NAP) }",
            "fn f() { thread::park() }",
            "fn f() { std::hint::spin_loop() }",
            "fn f() { std::thread::yield_now() }",
            "struct S { c: Condvar }",
            "fn f() { x.wait_timeout(guard, time) }",
            "fn f() { while !done() && start.elapsed() < LIMIT { look() } }",
            "fn f() { loop { if Instant::now() > end { break } } }",
        ] {
            assert_eq!(found(text), Some(1), "{text}");
        }
    }

    #[test]
    fn what_goes_through_the_ladder_or_wait_is_fine() {
        for text in [
            "fn f() { inner.ladder.sleep(&bell, &terms, poll) }",
            "fn f() { wait.until(|slice| thread::sleep(slice.min(NAP))) }",
            "fn f() { let at = Instant::now(); loop { g() } at.elapsed() }",
            "#[cfg(test)] mod tests { fn f() { thread::sleep(NAP) } }",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
