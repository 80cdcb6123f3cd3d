//! Collectives on trial: random calls on random data, judged bit by bit by a reference that shares no code
//! with the library.
//!
//! A [`Case`] is one call, the same on all ranks; a [`Stage`] is one rank's group and memory, on which it
//! acts.

// Every test program uses a part of it.
#![allow(dead_code, unused_imports)]

mod case;
mod number;
mod pattern;
#[path = "../kill/random.rs"]
mod random;
mod stage;

use std::thread;
use std::time::Duration;

pub(crate) use self::case::{Case, Kind};
pub(crate) use self::number::Number;
pub(crate) use self::pattern::Pattern;
pub(crate) use self::random::{Random, entropy};
pub(crate) use self::stage::{Stage, Trouble};

/// The seed of a test: what the environment says under `variable`, else one that nobody can foresee. It is
/// printed, so that a failure can be repeated.
pub(crate) fn seed(variable: &str) -> u64 {
    let seed = std::env::var(variable).map_or_else(|_| entropy(), |seed| seed.parse().expect("a number"));
    println!("{variable}={seed}");
    seed
}

/// Comes late, in one of the ways there are.
pub(crate) fn dawdle(random: &mut Random) {
    match random.below(100) {
        0 => thread::sleep(Duration::from_micros(random.below(3000) as u64)),
        1..6 => thread::sleep(Duration::from_micros(random.below(200) as u64)),
        6..16 => (0..random.below(5)).for_each(|_| thread::yield_now()),
        16..40 => (0..random.below(3000)).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}
