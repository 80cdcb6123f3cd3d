//! Atomic cells: every change counts once, whoever makes it, and what is wrong is told.

#[path = "common/mod.rs"]
mod common;

use std::time::Instant;

use common::{PATIENCE, assert_error};
use symmem::{Error, Group, ProcessSpawner, Result};

const ROUNDS: u64 = 2000;

/// Every rank changes every rank's cells.
fn change_all(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.size() as u64);
    let cells = group.atomics::<u64>(3)?;
    assert_eq!(
        (cells.rank(), cells.world_size(), cells.len(), cells.is_empty()),
        (rank, group.size(), 3, false)
    );
    let mut swapped = 0;
    for round in 0..ROUNDS {
        let peer = round as usize % group.size();
        cells.add(peer, 0, 2)?;
        // What is taken out of a cell is taken by one rank only.
        swapped += cells.swap(peer, 1, 1)?;
        // A sum by compare-and-swap.
        let mut seen = cells.load(peer, 2)?;
        loop {
            match cells.compare_swap(peer, 2, seen, seen + 3)? {
                found if found == seen => break,
                found => seen = found,
            }
        }
    }
    cells.barrier()?;
    let total = |index: usize| (0..group.size()).map(|rank| cells.load(rank, index)).sum::<Result<u64>>();
    assert_eq!((total(0)?, total(2)?), (2 * ROUNDS * world, 3 * ROUNDS * world));
    let left: u64 = total(1)?;
    let taken: u64 = group.all_gather(&swapped)?.iter().sum();
    assert_eq!(left + taken, ROUNDS * world);
    cells.close()
}

#[test]
fn every_change_of_threads_counts_once() {
    for world in [1, 2, 4] {
        symmem::spawn(world, |group| change_all(&group.within(PATIENCE))).unwrap();
    }
}

#[test]
fn every_change_of_processes_counts_once() {
    let spawner = ProcessSpawner::new("every_change_of_processes_counts_once", 3);
    spawner.run(|group| change_all(&group.within(PATIENCE))).unwrap();
}

#[test]
fn all_types_have_all_calls_and_sums_wrap() {
    macro_rules! check {
        ($group:ident, $($type:ty),*) => {
            $(
                let cells = $group.atomics::<$type>(2)?;
                if $group.rank() == 0 {
                    cells.store(1, 1, <$type>::MAX)?;
                    assert_eq!(cells.add(1, 1, 1)?, <$type>::MAX);
                    assert_eq!(cells.swap(1, 1, 7)?, <$type>::MIN);
                    assert_eq!(cells.compare_swap(1, 1, 8, 9)?, 7);
                    assert_eq!(cells.compare_swap(1, 1, 7, 9)?, 7);
                }
                cells.barrier()?;
                assert_eq!([cells.load(1, 1)?, cells.load(1, 0)?, cells.load(0, 1)?], [9, 0, 0]);
                cells.close()?;
            )*
        };
    }
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        check!(group, u32, i32, u64, i64);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_is_wrong_is_told_and_what_ranks_disagree_on_is_a_mismatch() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let cells = group.atomics::<i64>(4)?;
        assert_error!(cells.load(2, 0), Error::RankOutOfRange { rank: 2, world: 2, .. });
        assert_error!(cells.add(0, 4, 1), Error::OutOfBounds { .. });
        assert_error!(cells.swap(0, usize::MAX, 1), Error::OutOfBounds { .. });
        group.barrier()?;
        let told = group.atomics::<u32>(4 + group.rank()).map(drop);
        assert_error!(told, Error::Mismatch { .. });
        let told = if group.rank() == 0 {
            group.atomics::<u32>(4).map(drop)
        } else {
            group.atomics::<i32>(4).map(drop)
        };
        assert_error!(told, Error::Mismatch { .. });
        // Nobody has as plain memory what others have as cells.
        let told = match group.rank() {
            0 => group.atomics::<u64>(4).map(drop),
            _ => group.alloc::<u64>(4)?.rendezvous(&group).map(drop),
        };
        assert_error!(told, Error::Mismatch { .. });
        cells.close()
    })
    .unwrap();
}

#[test]
fn the_cells_of_a_rank_that_has_left_can_still_be_changed() {
    symmem::spawn(2, |group| {
        let cells = group.within(PATIENCE).atomics::<u64>(1)?;
        if group.rank() == 1 {
            cells.add(1, 0, 5)?;
            cells.add(0, 0, 1)?;
            return Ok(());
        }
        let end = std::time::Instant::now() + PATIENCE;
        while cells.load(0, 0)? == 0 {
            assert!(std::time::Instant::now() < end, "rank 1 changed nothing");
            std::thread::yield_now();
        }
        drop(group);
        assert_eq!(cells.add(1, 0, 1)?, 5);
        assert_eq!(cells.load(1, 0)?, 6);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_close_that_could_not_begin_is_repeated_and_closed_cells_are_refused() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let cells = group.atomics::<u32>(1)?;
        if group.rank() == 0 {
            let pending = group.start().barrier()?;
            assert_error!(cells.close(), Error::Busy { .. });
            assert_eq!(cells.add(1, 0, 5)?, 0);
            pending.wait()?;
        } else {
            // The other's close is refused for as long as the barrier lasts.
            let start = Instant::now();
            while cells.load(1, 0)? == 0 {
                assert!(start.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
            group.barrier()?;
        }
        cells.close()?;
        assert_error!(cells.load(1, 0), Error::Closed { .. });
        assert_error!(cells.close(), Error::Closed { .. });
        group.barrier()
    })
    .unwrap();
}
