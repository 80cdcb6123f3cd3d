//! Exchange of plain data between all ranks, and what happens when they do not do the same.

use std::thread;

use symmem::{Error, Group, Result};

use crate::common::assert_error;

pub(crate) fn all_gather_gives_every_ranks_value_in_rank_order(group: &Group) -> Result<()> {
    for round in 0..20u64 {
        let expected: Vec<[u64; 2]> = (0..group.size() as u64).map(|rank| [rank, round]).collect();
        assert_eq!(group.all_gather(&[group.rank() as u64, round])?, expected);
    }
    Ok(())
}

/// What rank `rank` brings: `length` bytes that tell rank and place.
fn part(rank: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (rank * 31 + at * 7 + at / 256) as u8).collect()
}

pub(crate) fn parts_may_be_empty_longer_than_a_round_and_of_different_lengths(group: &Group) -> Result<()> {
    const ROUND: usize = 16 * 1024;
    let lengths = [0, 1, ROUND - 9, ROUND - 8, ROUND - 7, ROUND, 3 * ROUND + 5, 100_000];
    for shift in 0..lengths.len() {
        let length = |rank: usize| lengths[(rank + shift) % lengths.len()];
        let expected: Vec<Vec<u8>> = (0..group.size()).map(|rank| part(rank, length(rank))).collect();
        assert_eq!(group.all_gather_bytes(&expected[group.rank()])?, expected);
    }
    assert_eq!(group.all_gather_bytes(&[])?, vec![Vec::<u8>::new(); group.size()]);
    Ok(())
}

pub(crate) fn broadcast_works_from_every_root(group: &Group) -> Result<()> {
    for root in 0..group.size() {
        assert_eq!(group.broadcast(root, &(group.rank() as u32 + 7))?, root as u32 + 7);
        for length in [0, 5, 40_000] {
            let got = group.broadcast_bytes(root, &part(group.rank(), length + group.rank()))?;
            assert_eq!(got, part(root, length + root));
        }
    }
    assert_error!(group.broadcast(group.size(), &0u8), Error::RankOutOfRange { .. });
    Ok(())
}

/// Every rank made a call of its own: all must have got the very same mismatch, and the group still works.
fn assert_same_mismatch<T: std::fmt::Debug>(group: &Group, outcome: Result<T>) -> Result<()> {
    if group.size() == 1 {
        return outcome.map(drop);
    }
    let Err(Error::Mismatch { what, values, .. }) = outcome else { panic!("no mismatch: {outcome:?}") };
    assert_eq!(values.len(), group.size());
    let words = group.all_gather_bytes(format!("{what}: {values:?}").as_bytes())?;
    assert!(words.iter().all(|theirs| *theirs == words[0]), "{words:?}");
    group.barrier()
}

/// Rank 0 does the first of two things, the others the second.
fn odd_one_out<T>(
    group: &Group,
    odd: impl FnOnce() -> Result<T>,
    rest: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if group.rank() == 0 { odd() } else { rest() }
}

pub(crate) fn different_operations_are_the_same_mismatch_on_every_rank(group: &Group) -> Result<()> {
    let gather = || group.all_gather(&0u64).map(drop);
    let long = || group.all_gather_bytes(&[1; 50_000]).map(drop);
    let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
    let other = group.alloc::<u8>(8)?;
    let rendezvous = || other.rendezvous(group).map(drop);
    assert_same_mismatch(group, odd_one_out(group, || group.barrier(), gather))?;
    assert_same_mismatch(group, odd_one_out(group, long, || group.barrier()))?;
    assert_same_mismatch(group, odd_one_out(group, || group.broadcast(0, &0u64).map(drop), gather))?;
    assert_same_mismatch(group, odd_one_out(group, || mem.barrier(0), || group.barrier()))?;
    assert_same_mismatch(group, odd_one_out(group, rendezvous, || mem.barrier(0)))?;
    if group.size() > 1 {
        other.rendezvous(group)?.close()?;
    }
    mem.close()
}

pub(crate) fn different_roots_sizes_and_channels_are_the_same_mismatch_on_every_rank(
    group: &Group,
) -> Result<()> {
    let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
    let root = |root: usize| move || group.broadcast(root, &0u8).map(drop);
    let gather4 = || group.all_gather(&0u32).map(drop);
    let gather8 = || group.all_gather(&0u64).map(drop);
    assert_same_mismatch(group, odd_one_out(group, root(0), root(group.size() - 1)))?;
    assert_same_mismatch(group, odd_one_out(group, gather4, gather8))?;
    assert_same_mismatch(group, odd_one_out(group, || mem.barrier(0), || mem.barrier(1)))?;
    mem.close()
}

/// Waits until another thread of this rank is inside an operation of `group`.
fn until_an_operation_runs(group: &Group, before: u64) {
    while group.counters().ops == before {
        thread::yield_now();
    }
}

pub(crate) fn a_second_thread_is_told_that_the_group_is_busy(group: &Group) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let shared = group.try_clone()?;
    let before = shared.counters().ops;
    thread::scope(|scope| {
        // Rank 0's first thread waits in here for the others, who wait for its second thread.
        let first = scope.spawn(|| {
            if group.rank() != 0 {
                group.barrier()?;
            }
            shared.barrier()
        });
        if group.rank() == 0 {
            until_an_operation_runs(&shared, before);
            assert_error!(shared.barrier(), Error::Busy { .. });
            assert_error!(shared.all_gather(&0u8), Error::Busy { .. });
            group.barrier()?;
        }
        first.join().expect("the first thread")
    })?;
    shared.barrier()
}

pub(crate) fn clones_run_side_by_side(group: &Group) -> Result<()> {
    let clones = [group.try_clone()?, group.try_clone()?];
    assert_ne!(clones[0].id(), clones[1].id());
    let count = |clone: &Group| {
        (0..50u64).try_for_each(|round| {
            assert_eq!(clone.all_gather(&round)?, vec![round; clone.size()]);
            Ok(())
        })
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| count(&clones[1]));
        count(&clones[0]).and(other.join().expect("the other thread"))
    })
}

pub(crate) fn counters_count_operations_and_bytes(group: &Group) -> Result<()> {
    let mem = group.alloc::<u32>(100)?.rendezvous(group)?;
    let before = group.counters();
    (0..10).try_for_each(|_| group.barrier())?;
    group.all_gather_bytes(&[0; 1000])?;
    mem.get(group.next(), 0, &mut [0; 100])?;
    let after = group.counters();
    assert_eq!(after.ops - before.ops, 12);
    assert_eq!(after.bytes - before.bytes, 1400);
    mem.close()
}
