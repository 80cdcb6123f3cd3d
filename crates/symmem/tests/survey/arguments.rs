//! What the survey is asked for.

use std::time::Duration;

use super::random::entropy;

/// Kills of a run as a test.
const FEW: usize = 12;

#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) kills: usize,
    pub(crate) seed: u64,
    /// How soon the last survivor must know.
    pub(crate) bound: Duration,
    /// The only activity, if not all.
    pub(crate) only: Option<String>,
    pub(crate) json: bool,
}

impl Arguments {
    /// `None` for somebody who wants other tests.
    pub(crate) fn from_command_line() -> Option<Self> {
        let mut arguments =
            Self { kills: FEW, seed: entropy(), bound: Duration::from_secs(2), only: None, json: false };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            match word.as_str() {
                "--kills" => arguments.kills = value().parse().expect("a number of kills"),
                "--seed" => arguments.seed = value().parse().expect("a number"),
                "--bound-ms" => {
                    arguments.bound = Duration::from_millis(value().parse().expect("milliseconds"))
                }
                "--only" => arguments.only = Some(value()),
                "--json" => arguments.json = true,
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
