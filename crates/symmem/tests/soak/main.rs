//! A soak: random operations of random groups for a long time, every result checked bit by bit, and nothing
//! that grows.
//!
//! One episode after the other: 2 to 6 ranks, as threads or as processes, that make and drop subgroups,
//! memory, mailboxes and clones of their group while they call collectives of every kind, type and algorithm
//! at offsets that differ by rank. Descriptors, mappings and threads must be at the end of an episode what
//! they were at its start, and the memory of long-lived processes must stay flat. As a test it takes a few
//! seconds; `cargo xtask soak` takes longer.

mod arguments;
mod episode;
mod growth;
#[path = "../kill/traces.rs"]
mod traces;
#[path = "../trial/mod.rs"]
mod trial;

/// Under the name that the modules of the kill tests know.
mod random {
    pub(crate) use super::trial::{Random, entropy};
}

use std::process::ExitCode;
use std::time::{Duration, Instant};

use arguments::Arguments;
use episode::{Done, Episode};
use growth::Growth;
use random::Random;
use traces::Holdings;

/// The longest episode: short enough for many worlds in half an hour, long enough for a leak to show.
const LONGEST: Duration = Duration::from_secs(60);
/// Episodes of a run, if it is shorter than that.
const LEAST: u32 = 4;

fn main() -> ExitCode {
    if let Some(episode) = Episode::of_this_process() {
        // A rank of an episode: it does its part and ends there.
        let _ = episode.run();
        return ExitCode::FAILURE;
    }
    let Some(arguments) = Arguments::from_command_line() else { return ExitCode::SUCCESS };
    println!("soak: {:.1} minutes, --seed {}", arguments.time.as_secs_f64() / 60.0, arguments.seed);
    match soak(&arguments) {
        Ok(done) => {
            println!("soak: passed: {done}; --seed {}", arguments.seed);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("soak: FAILED: {problem}; --seed {}", arguments.seed);
            ExitCode::FAILURE
        }
    }
}

fn soak(arguments: &Arguments) -> Result<Done, String> {
    let mut random = Random::new(arguments.seed);
    let end = Instant::now() + arguments.time;
    let length = LONGEST.min(arguments.time / LEAST);
    let mut done = Done::default();
    let mut growth = Growth::default();
    let before = Holdings::now();
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        let episode = Episode::random(&mut random, length.min(left));
        let one = episode.run().map_err(|problem| format!("{}: {problem}", episode.name()))?;
        println!("{}: {one}", episode.name());
        done.add(&one);
        let after = Holdings::settled(before);
        if after != before {
            return Err(format!("{}: {before:?} became {after:?}", episode.name()));
        }
        // This process is every thread rank there was, and the launcher of every process.
        growth.look().map_err(|problem| format!("{}: {problem}", episode.name()))?;
    }
    growth.judge()?;
    done.saw(growth.peak());
    Ok(done)
}
