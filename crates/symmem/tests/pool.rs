//! Pools: where arrays are, when their memory is used again, and what ranks that disagree get.

mod common;

use std::time::{Duration, Instant};

use common::PATIENCE;
use symmem::{Error, Group, Pool, ReduceOp, Result, SymmetricMemory};

const BLOCK: usize = 256 << 10;

/// On three ranks, with a pool of small blocks.
fn with_pool(work: impl Fn(&Group, &Pool) -> Result<()> + Send + Sync) -> Result<()> {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let pool = Pool::with_blocks(&group, BLOCK)?;
        work(&group, &pool)
    })
    .map(drop)
}

/// Where this rank's elements are.
fn address<T: symmem::Element>(array: &SymmetricMemory<T>) -> usize {
    array.base_ptrs()[array.rank()] as usize
}

/// The bytes from the first array of the block to this one: the same on all ranks, by whichever rank's eyes.
fn distances<T: symmem::Element, U: symmem::Element>(
    first: &SymmetricMemory<T>,
    other: &SymmetricMemory<U>,
) -> Vec<usize> {
    let bases = other.base_ptrs().into_iter().zip(first.base_ptrs());
    bases.map(|(other, first)| (other as usize).wrapping_sub(first as usize)).collect()
}

#[test]
fn arrays_are_apart_and_in_the_same_place_on_all_ranks() -> Result<()> {
    with_pool(|group, pool| {
        let first = pool.alloc::<u8>(1)?;
        let mut floats = pool.alloc::<f32>(1000)?;
        let mut words = pool.alloc::<u64>(77)?;
        let empty = pool.alloc::<f64>(0)?;
        assert_eq!((floats.len(), words.len(), empty.len(), floats.offset()), (1000, 77, 0, 0));
        for distances in [distances(&first, &floats), distances(&first, &words), distances(&first, &empty)] {
            assert!(distances[0].is_multiple_of(128));
            let everybodys = group.all_gather(&distances[group.rank()])?;
            assert!(everybodys.iter().chain(&distances).all(|there| *there == distances[0]), "{distances:?}");
        }
        floats.fill(1.0 + group.rank() as f32)?;
        words.fill(1 << group.rank())?;
        floats.all_reduce(ReduceOp::Sum)?;
        words.all_reduce(ReduceOp::Sum)?;
        assert!(floats.local()?.iter().all(|x| *x == 6.0) && words.local()?.iter().all(|x| *x == 7));
        assert_eq!(*first.local()?, [0]);
        first.barrier(0)?;
        let next = floats.peer(group.next())?;
        assert_eq!((next.len(), next.read(999)?), (1000, 6.0));
        assert!(matches!(next.read(1000), Err(Error::OutOfBounds { .. })));
        assert!(matches!(floats.buffer::<u8>(0, &[4001], 0), Err(Error::OutOfBounds { .. })));
        assert_eq!((pool.usage().blocks, pool.usage().arrays), (1, 4));
        first.barrier(0)
    })
}

#[test]
fn each_array_has_borrows_and_signals_of_its_own() -> Result<()> {
    with_pool(|group, pool| {
        let mut one = pool.alloc::<u32>(8)?;
        let mut other = pool.alloc::<u32>(8)?;
        {
            let mut guard = one.local_mut()?;
            let mut beside = other.local_mut()?;
            guard.fill(1);
            beside.fill(2);
            assert_eq!((guard[7], beside[0]), (1, 2));
        }
        one.put_signal(group.next(), 0)?;
        assert!(!other.try_wait_signal(group.prev(), 0)?);
        other.barrier(0)?;
        one.wait_signal(group.prev(), 0)?;
        assert_eq!(one.signal_pad(group.rank())?.to_vec()?.iter().sum::<u32>(), 0);
        one.barrier(0)
    })
}

#[test]
fn memory_is_used_again_and_starts_with_zeros() -> Result<()> {
    with_pool(|group, pool| {
        let anchor = pool.alloc::<u8>(1)?;
        let mut place = 0;
        for round in 0..50u32 {
            let mut x = pool.alloc::<u32>(300)?;
            assert!(x.local()?.iter().all(|x| *x == 0), "round {round}");
            assert!(x.signal_pad(group.rank())?.to_vec()?.iter().all(|word| *word == 0), "round {round}");
            assert!(round == 0 || address(&x) == place, "round {round}");
            place = address(&x);
            group.barrier()?;
            x.fill(round + 1)?;
            // Left pending: the next array of this place must not see it.
            x.put_signal(group.next(), 3)?;
            x.barrier(0)?;
            assert_eq!(x.peer(group.prev())?.read(299)?, round + 1);
        }
        assert_eq!(pool.usage().blocks, 1);
        anchor.barrier(0)
    })
}

#[test]
fn memory_waits_for_the_slowest_rank_and_for_views() -> Result<()> {
    with_pool(|group, pool| {
        let mut x = pool.alloc::<u64>(64)?;
        x.fill(42 + group.rank() as u64)?;
        x.barrier(0)?;
        let place = address(&x);
        // Rank 1 keeps a view of rank 0's; the others drop all they have.
        let view = (group.rank() == 1).then(|| x.peer(0)).transpose()?;
        let pad = (group.rank() == 2).then(|| x.signal_pad(0)).transpose()?;
        drop(x);
        for _ in 0..3 {
            let mut y = pool.alloc::<u64>(64)?;
            assert_ne!(address(&y), place);
            y.fill(7)?;
            y.barrier(0)?;
            if let Some(view) = &view {
                assert_eq!(view.to_vec()?, [42; 64]);
            }
            y.barrier(0)?;
        }
        drop(view);
        assert_ne!(address(&pool.alloc::<u64>(64)?), place, "rank 2 still has a view of the pad");
        drop(pad);
        assert_eq!(address(&pool.alloc::<u64>(64)?), place);
        Ok(())
    })
}

#[test]
fn started_operations_keep_what_they_work_on() -> Result<()> {
    with_pool(|group, pool| {
        for round in 0..20u64 {
            let mut x = pool.alloc::<u64>(500)?;
            x.fill(round)?;
            let pending = x.start().all_reduce(ReduceOp::Sum)?;
            drop(x);
            pending.wait()?;
            let y = pool.alloc::<u64>(500)?;
            assert_eq!(y.local()?.iter().sum::<u64>(), 0);
        }
        group.barrier()
    })
}

#[test]
fn fragments_become_one_again() -> Result<()> {
    with_pool(|_, pool| {
        let mut many: Vec<SymmetricMemory<u8>> = (0..15).map(|_| pool.alloc(4000)).collect::<Result<_>>()?;
        let (start, blocks) = (address(&many[0]), pool.usage().blocks);
        assert_eq!(blocks, 1);
        // Every second one: holes of the old size are filled before anything else.
        let holes: Vec<usize> = (0..15).step_by(2).rev().map(|at| address(&many.swap_remove(at))).collect();
        let filled: Vec<SymmetricMemory<u8>> =
            (0..holes.len()).map(|_| pool.alloc(4000)).collect::<Result<_>>()?;
        let mut places: Vec<usize> = filled.iter().map(address).collect();
        places.sort_unstable();
        let mut expected = holes.clone();
        expected.sort_unstable();
        assert_eq!(places, expected);
        drop((many, filled));
        // All of them together: one that needs the room of four.
        let large = pool.alloc::<u8>(50_000)?;
        assert_eq!((address(&large), pool.usage().blocks), (start, 1));
        assert_eq!(pool.usage().arrays, 1);
        Ok(())
    })
}

#[test]
fn large_arrays_get_memory_of_their_own_and_blocks_are_added() -> Result<()> {
    with_pool(|group, pool| {
        let mut large = pool.alloc::<u32>(1 << 20)?;
        assert_eq!(pool.usage().blocks, 0);
        large.fill(1)?;
        large.all_reduce(ReduceOp::Sum)?;
        assert_eq!(large.local()?[(1 << 20) - 1], 3);
        let small: Vec<SymmetricMemory<u8>> = (0..40).map(|_| pool.alloc(20_000)).collect::<Result<_>>()?;
        let usage = pool.usage();
        assert!(usage.blocks >= 3 && usage.bytes == usage.blocks * BLOCK, "{usage:?}");
        assert!(usage.used >= 40 * 20_000 && usage.used <= usage.bytes, "{usage:?}");
        drop(small);
        let one = pool.alloc::<u8>(1)?;
        assert_eq!((pool.usage().blocks, pool.usage().arrays), (usage.blocks, 1));
        // Arrays outlive their pool, and memory of its own its handle's.
        let view = large.peer(group.next())?;
        drop(large);
        assert_eq!(view.read(5)?, 3);
        one.barrier(0)
    })
}

/// Processes map the blocks at addresses of their own.
#[test]
fn ranks_may_be_processes() {
    let sums = symmem::spawn_processes("ranks_may_be_processes", 3, |group| {
        let group = group.within(PATIENCE);
        let pool = Pool::with_blocks(&group, BLOCK)?;
        let mut sum = 0;
        for round in 0..30usize {
            let len = 100 + round * 37 % 11 * 150;
            let (mut x, mut y) = (pool.alloc::<u64>(len)?, pool.alloc::<u32>(3)?);
            assert!(x.local()?.iter().all(|x| *x == 0) && *y.local()? == [0; 3]);
            x.fill(group.rank() as u64 + 1)?;
            y.fill(round as u32)?;
            x.all_reduce(ReduceOp::Sum)?;
            assert_eq!(y.peer(group.rank())?.to_vec()?, [round as u32; 3]);
            y.barrier(0)?;
            assert_eq!(y.peer(group.next())?.to_vec()?, [round as u32; 3]);
            sum += x.peer(group.prev())?.read(len - 1)?;
            x.barrier(0)?;
        }
        assert_eq!(pool.usage().blocks, 1);
        group.barrier()?;
        Ok(sum)
    });
    assert_eq!(sums.unwrap(), [180; 3]);
}

#[test]
fn arrays_outlive_their_pool() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let pool = group.pool();
        let mut x = pool.alloc::<u16>(100)?;
        drop(pool);
        x.fill(3)?;
        x.all_reduce(ReduceOp::Prod)?;
        assert_eq!(x.local()?[99], 9);
        // Closed as any symmetric memory: on all ranks, and views stay.
        let view = x.peer(group.next())?;
        let same = x.slice(..10)?;
        x.close()?;
        assert!(matches!(same.barrier(0), Err(Error::Closed { .. })));
        assert_eq!(view.read(0)?, 9);
        group.barrier()
    })
    .map(drop)
}

/// What all ranks got, which must be an error with these words, and the pool goes on.
fn refused(pool: &Pool, made: Result<SymmetricMemory<u8>>, words: &str) -> Result<()> {
    let error = made.unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. } | Error::Rank { .. }), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
    // Behind who says it and when.
    let said = error.to_string().split_once("): ").map(|(_, said)| said.to_owned()).unwrap_or_default();
    let everybodys = pool.group().all_gather_bytes(said.as_bytes())?;
    assert!(!said.is_empty() && everybodys.iter().all(|theirs| *theirs == said.as_bytes()), "{said}");
    pool.alloc::<u8>(10).map(drop)
}

#[test]
fn ranks_that_disagree_get_the_same_error_and_go_on() -> Result<()> {
    with_pool(|group, pool| {
        let kept = pool.alloc::<u32>(5)?;
        let before = pool.usage();
        let odd = group.rank() == 1;
        // Lengths, element types, and what no machine has.
        refused(pool, pool.alloc::<u8>(if odd { 101 } else { 100 }), "rank 1: 101 x u8")?;
        let made = if odd { pool.alloc::<i8>(9).map(|_| unreachable!()) } else { pool.alloc::<u8>(9) };
        refused(pool, made, "rank 1: 9 x i8")?;
        let made =
            if odd { pool.alloc::<u64>(usize::MAX / 4).map(|_| unreachable!()) } else { pool.alloc::<u8>(9) };
        refused(pool, made, "rank 1")?;
        // Another pool, which has no arrays yet, and a plain rendezvous.
        let other = Pool::with_blocks(group, BLOCK)?;
        let made = if odd { other.alloc::<u8>(9) } else { pool.alloc::<u8>(9) };
        refused(pool, made, "in blocks")?;
        let made = if odd { group.alloc::<u8>(9)?.rendezvous(group) } else { pool.alloc::<u8>(9) };
        refused(pool, made, "rank 1: rendezvous")?;
        let wrong_size = Pool::with_blocks(group, if odd { BLOCK } else { 2 * BLOCK })?;
        refused(pool, wrong_size.alloc::<u8>(9), "blocks [] of")?;
        // What was refused took nothing.
        let last = pool.alloc::<u32>(5)?;
        assert_eq!(pool.usage().used, 2 * before.used);
        assert_eq!(*kept.local()?, [0; 5]);
        last.barrier(0)
    })
}

#[test]
fn a_block_that_one_rank_cannot_make_is_an_error_on_all() -> Result<()> {
    with_pool(|group, _| {
        assert!(Pool::with_blocks(group, 1000).is_err());
        // More than a machine has address space for, on all ranks alike.
        let pool = Pool::with_blocks(group, 1 << 60)?;
        let error = pool.alloc::<u8>(1).unwrap_err();
        assert!(matches!(error, Error::Rank { .. }), "{error:?}");
        assert_eq!(pool.usage().blocks, 0);
        group.barrier()
    })
}

#[test]
fn a_rank_that_leaves_fails_the_others() {
    let started = Instant::now();
    let result = symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let pool = group.pool();
        let x = pool.alloc::<u8>(1)?;
        if group.rank() == 1 {
            return Ok(());
        }
        drop(x);
        let error = pool.alloc::<u8>(1).unwrap_err();
        assert!(matches!(error, Error::PeerLeft { .. }), "{error:?}");
        Ok(())
    });
    result.unwrap();
    assert!(started.elapsed() < PATIENCE);
}

/// Prints what an array costs from a pool and by itself.
/// `cargo test --release --test pool -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn what_an_array_costs() -> Result<()> {
    const TIMES: u32 = 2000;
    for world in [2, 4] {
        symmem::spawn(world, |group| {
            let group = group.within(Duration::from_secs(60));
            let pool = group.pool();
            let timed = |make: &dyn Fn() -> Result<()>| -> Result<Duration> {
                make()?;
                group.barrier()?;
                let started = Instant::now();
                (0..TIMES).try_for_each(|_| make())?;
                Ok(started.elapsed() / TIMES)
            };
            for len in [64usize, 4096, 100_000] {
                let pooled = timed(&|| pool.alloc::<f32>(len).map(drop))?;
                let plain = timed(&|| group.alloc::<f32>(len)?.rendezvous(&group).map(drop))?;
                if group.rank() == 0 {
                    println!("{world} ranks, {len} x f32: from a pool {pooled:?}, by itself {plain:?}");
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
