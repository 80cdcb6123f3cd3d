//! Collectives on trial: random calls on random data, judged bit by bit by a reference that shares no code with the
//! library.
//!
//! A [`Case`] is one call, the same on all ranks; a [`Stage`] is one rank's group and memory, on which it acts.

// Every test program uses a part of it.
#![allow(dead_code, unused_imports)]

mod case;
mod number;
mod pattern;
#[path = "../kill/random.rs"]
mod random;
mod stage;

pub(crate) use self::case::{Case, Kind};
pub(crate) use self::number::Number;
pub(crate) use self::pattern::Pattern;
pub(crate) use self::random::{Random, entropy};
pub(crate) use self::stage::Stage;

/// The seed of a test: what the environment says under `variable`, else one that nobody can foresee. It is printed, so
/// that a failure can be repeated.
pub(crate) fn seed(variable: &str) -> u64 {
    let seed = std::env::var(variable).map_or_else(|_| entropy(), |seed| seed.parse().expect("a number"));
    println!("{variable}={seed}");
    seed
}
