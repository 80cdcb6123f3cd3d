//! A long run of random calls in which ranks come early and late: on two groups and a subgroup in turn, by
//! every algorithm, every result checked bit by bit.
//!
//! All ranks take the same script from one seed; each waits as chance has it before every call. Where a rank
//! need not hear from the others it runs ahead of them, as far as the library lets it: without the wait for
//! consumed staging this must fail, and a test sees that it does.

#[path = "../common/mod.rs"]
mod common;
#[path = "../trial/mod.rs"]
mod trial;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use symmem::{Group, ProcessSpawner, Result};

use common::{config, same_ranks_with};
use trial::{Case, Random, Stage, dawdle};

/// How long all of it takes, unless the environment says otherwise.
const SECONDS: f64 = 3.0;
const SECONDS_VARIABLE: &str = "SYMMEM_STRESS_SECONDS";
/// Seeds the script, if set.
const SEED: &str = "SYMMEM_STRESS_SEED";
/// Worlds of two, three and four ranks, as threads and as processes.
const RUNS: u32 = 6;
/// Most bytes of a call: staging and a little more.
const BYTES: usize = 280 << 10;
/// Calls between two looks at the clock.
const BATCH: usize = 100;

/// Each takes its share of the time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The time of one run.
fn share() -> Duration {
    let seconds =
        std::env::var(SECONDS_VARIABLE).map_or(SECONDS, |seconds| seconds.parse().expect("seconds"));
    Duration::from_secs_f64(seconds) / RUNS
}

/// A group as one rank sees it.
struct Place {
    ranks: usize,
    /// None for a rank that is no member.
    stage: Option<Stage>,
}

impl Place {
    fn new(group: &Group) -> Result<Self> {
        Ok(Self { ranks: group.size(), stage: Some(Stage::new(group, BYTES)?) })
    }
}

/// Two groups of everybody, one of them with what the tuning never chooses here, and one of all but one in
/// reverse.
fn places(group: &Group) -> Result<[Place; 3]> {
    let forced = same_ranks_with(group, config().algorithm("staged,private=push")?)?;
    let left_out = group.size() / 2;
    let members: Vec<usize> = (0..group.size()).rev().filter(|rank| *rank != left_out).collect();
    let part = match members.contains(&group.rank()) {
        true => Place::new(&group.subgroup(&members, "part")?)?,
        false => Place { ranks: members.len(), stage: None },
    };
    Ok([Place::new(group)?, Place::new(&forced)?, part])
}

/// Runs the script until rank 0 says that the time is up; returns the number of calls.
fn run(group: &Group, seed: u64, time: Duration) -> Result<usize> {
    let mut places = places(group)?;
    let end = Instant::now() + time;
    let mut script = Random::new(seed ^ group.size() as u64);
    let mut own = Random::new(seed ^ (group.rank() as u64 + 1) << 32);
    let mut last: Option<(usize, Case)> = None;
    let mut calls = 0;
    while group.broadcast(0, &u8::from(Instant::now() < end))? == 1 {
        for _ in 0..BATCH {
            // Often the same call on other data, many times over: then ranks can be furthest apart.
            let (at, case) = match last {
                Some((at, case)) if script.below(5) > 0 => (at, case.again(&mut script)),
                _ => {
                    let at = script.below(places.len());
                    (at, Case::random(&mut script, places[at].ranks, BYTES))
                }
            };
            last = Some((at, case));
            dawdle(&mut own);
            if let Some(stage) = &mut places[at].stage {
                stage.act(&case);
            }
        }
        calls += BATCH;
    }
    places.into_iter().filter_map(|place| place.stage).try_for_each(Stage::close)?;
    Ok(calls)
}

/// What a rank finds if another lays out its next but one operation too early: wrong elements, or what that
/// rank announces for a later call in place of what it announced for this one.
#[cfg(feature = "faults")]
const OVERTAKEN: [&str; 2] = [": expected bytes", "the ranks disagree"];

/// It would be noticed if ranks did not wait for each other.
#[cfg(feature = "faults")]
#[test]
fn a_run_without_the_wait_for_consumed_staging_fails() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let vars = [("SYMMEM_LEAVE_OUT", "consumed-wait"), (SECONDS_VARIABLE, "30")];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let test = "ranks_as_threads_that_come_early_and_late_get_the_right_bits";
    let ended = common::start(test, &vars);
    let found = OVERTAKEN.iter().any(|words| ended.has_failed_with(words));
    assert!(found, "no rank was overtaken: {ended:?}");
}

#[test]
fn ranks_as_threads_that_come_early_and_late_get_the_right_bits() {
    let seed = trial::seed(SEED);
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for ranks in 2..=4 {
        let calls = symmem::spawn(ranks, |group| run(&group, seed, share())).unwrap();
        println!("{ranks} threads: {} calls", calls[0]);
    }
}

#[test]
fn ranks_as_processes_that_come_early_and_late_get_the_right_bits() {
    let seed = trial::seed(SEED);
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for ranks in 2..=4 {
        let name = "ranks_as_processes_that_come_early_and_late_get_the_right_bits";
        let spawner = ProcessSpawner::new(name, ranks).env(SEED, seed);
        let calls = spawner.run(|group| run(&group, seed, share())).unwrap();
        println!("{ranks} processes: {} calls", calls[0]);
    }
}
