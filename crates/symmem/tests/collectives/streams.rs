//! Several groups at once, each used by a thread of its own on every rank.

use std::thread;

use symmem::{Group, ProcessSpawner, Result};

use crate::SEED;
use crate::trial::{self, Case, Random, Stage};

const STREAMS: usize = 3;
const CALLS: usize = 60;
const BYTES: usize = 40 << 10;

/// A script of its own on every stream: a clone of the group, the ranks in reverse, and all but the last.
fn run_streams(group: &Group, seed: u64) -> Result<()> {
    let clone = group.try_clone()?;
    let everybody: Vec<usize> = (0..group.size()).collect();
    let backwards: Vec<usize> = everybody.iter().copied().rev().collect();
    let most = &everybody[..everybody.len() - 1];
    let mut groups = vec![clone, group.subgroup(&backwards, "backwards")?];
    if most.contains(&group.rank()) {
        groups.push(group.subgroup(most, "most")?);
    }
    assert!(groups.len() <= STREAMS);
    let run = |stream: usize, group: Group| {
        let mut random = Random::new(seed ^ stream as u64);
        let mut stage = Stage::new(&group, BYTES)?;
        for _ in 0..CALLS {
            stage.act(&Case::random(&mut random, group.size(), BYTES));
        }
        stage.close()
    };
    let run = &run;
    thread::scope(|scope| {
        let start = |(stream, group)| scope.spawn(move || run(stream, group));
        let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("the calls come out right"))
    })
}

#[test]
fn groups_used_by_several_threads_at_once_do_not_meet() {
    let seed = trial::seed(SEED);
    symmem::spawn(3, |group| run_streams(&group, seed)).unwrap();
}

#[test]
fn groups_used_by_several_threads_of_processes_do_not_meet() {
    let seed = trial::seed(SEED);
    ProcessSpawner::new("streams::groups_used_by_several_threads_of_processes_do_not_meet", 2)
        .env(SEED, seed)
        .run(|group| run_streams(&group, seed))
        .unwrap();
}
