//! What the soak is asked for.

use std::time::Duration;

use super::random::entropy;

/// The time of a run as a test.
const SHORT: Duration = Duration::from_secs(6);

#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
}

impl Arguments {
    /// `None` for somebody who wants other tests.
    pub(crate) fn from_command_line() -> Option<Self> {
        let mut arguments = Self { time: SHORT, seed: entropy() };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            match word.as_str() {
                "--minutes" => {
                    let minutes: f64 = value().parse().expect("a number of minutes");
                    arguments.time = Duration::from_secs_f64(minutes * 60.0);
                }
                "--seed" => arguments.seed = value().parse().expect("a number"),
                // What `cargo test` hands to every test program: a filter, or a wish to see the names.
                "--nocapture" | "--test-threads=1" | "--quiet" | "-q" | "--exact" => {}
                other => {
                    println!("skipped: {other} is for other tests");
                    return None;
                }
            }
        }
        Some(arguments)
    }
}
