//! Bad input and injected failures: a clear typed error on every rank it concerns, and the ranks can go on.

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{PATIENCE, assert_error, config, patiently};
use symmem::store::{HashStore, Store};
use symmem::{Deadline, Error, Group, RankContext, Result};

/// What every rank of `group` says, which must be the same.
fn assert_all_say(group: &Group, words: &str) -> Result<()> {
    let all = group.all_gather_bytes(words.as_bytes())?;
    assert!(all.iter().all(|theirs| *theirs == words.as_bytes()), "{all:?} differ from {words:?}");
    Ok(())
}

/// Runs `f` on threads as ranks, with bounded waits.
fn on_threads(ranks: usize, f: impl Fn(&Group) -> Result<()> + Sync) {
    symmem::spawn(ranks, |group| f(&group.within(PATIENCE))).unwrap();
}

mod rendezvous {
    use super::*;

    /// The disagreement's values, the same on all ranks.
    fn mismatch<T: std::fmt::Debug>(group: &Group, outcome: Result<T>) -> Result<String> {
        let Err(Error::Mismatch { values, what: "the allocation", .. }) = outcome else {
            panic!("no mismatch: {outcome:?}")
        };
        assert_all_say(group, &values.join("; "))?;
        Ok(values.join("; "))
    }

    #[test]
    fn a_wrong_size_on_one_rank_is_the_same_mismatch_on_all_and_can_be_mended() {
        on_threads(3, |group| {
            let x = group.alloc::<u32>(if group.rank() == 1 { 11 } else { 10 })?;
            for _ in 0..2 {
                let words = mismatch(group, x.rendezvous(group))?;
                assert!(words.contains("rank 0: 10 x u32") && words.contains("rank 1: 11 x u32"), "{words}");
            }
            let x = if group.rank() == 1 { group.alloc::<u32>(10)? } else { x };
            x.rendezvous(group)?.close()
        });
    }

    #[test]
    fn a_wrong_element_type_or_pad_size_is_a_mismatch() {
        on_threads(2, |group| {
            let outcome = match group.rank() {
                0 => group.alloc::<u32>(8)?.rendezvous(group).map(drop),
                _ => group.alloc::<f32>(8)?.rendezvous(group).map(drop),
            };
            mismatch(group, outcome)?;
            if group.rank() == 1 {
                group.context().set_signal_pad_size(64)?;
            }
            let words = mismatch(group, group.alloc::<u32>(8)?.rendezvous(group))?;
            assert!(words.contains("pad of 64 bytes"), "{words}");
            group.context().set_signal_pad_size(64)?;
            group.alloc::<u32>(8)?.rendezvous(group)?.close()
        });
    }

    /// A rank whose own arguments are wrong must not leave the others waiting.
    #[test]
    fn an_offset_beyond_the_end_on_one_rank_fails_on_all_and_can_be_mended() {
        on_threads(3, |group| {
            let x = group.alloc::<u32>(8)?;
            let offset = if group.rank() == 2 { 9 } else { 0 };
            assert_error!(x.rendezvous_at(group, offset), Error::Rank { rank: 2, message, .. } if message.contains("exceeds"));
            x.rendezvous_at(group, offset.min(8))?.close()
        });
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let context = RankContext::new(config());
        assert_error!(context.alloc::<u64>(usize::MAX), Error::Invalid { .. });
        assert_error!(context.alloc::<u8>(usize::MAX), Error::Invalid { .. });
        assert_error!(context.alloc::<u8>(isize::MAX as usize), Error::OutOfMemory { .. });
        assert_error!(context.alloc::<u64>(1 << 47), Error::OutOfMemory { asked, left, .. } if asked == 1 << 50 && left < asked);
        assert_error!(context.alloc_persistent::<u8>("too much", 1 << 50), Error::OutOfMemory { .. });
        // The id is not taken by what failed.
        context.alloc_persistent::<u8>("too much", 8).unwrap();
    }
}

mod joining {
    use super::*;

    /// Ranks that think `(rank, world)`, each once the hello of the rank before in the list is in the store.
    fn join_in_turn(ranks: &[(usize, usize)]) -> Vec<Result<Group>> {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let context = RankContext::new(config());
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (rank, world) in ranks.iter().copied() {
                let (store, context) = (Arc::clone(&store), &context);
                let hello = format!("symmem/odd/hello/{rank}");
                let said = Arc::clone(&store);
                threads.push(scope.spawn(move || Group::from_store_in(context, store, rank, world, "odd")));
                said.wait(&[&hello], &patiently()).unwrap();
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn assert_same_mismatch(ranks: &[(usize, usize)]) {
        let outcomes = join_in_turn(ranks);
        let words = |outcome: &Result<Group>| match outcome {
            Err(Error::Mismatch { values, .. }) => values.join("; "),
            other => panic!("{ranks:?}: no mismatch: {other:?}"),
        };
        let words: Vec<String> = outcomes.iter().map(words).collect();
        assert!(words.iter().all(|theirs| *theirs == words[0]), "{words:?}");
        for (rank, world) in ranks {
            assert!(words[0].contains(&format!("rank {rank}: world size {world}")), "{words:?}");
        }
    }

    #[test]
    fn a_rank_that_thinks_the_world_larger_fails_all_alike() {
        assert_same_mismatch(&[(0, 2), (1, 3), (2, 3)]);
        assert_same_mismatch(&[(1, 3), (2, 3), (0, 2)]);
    }

    #[test]
    fn a_rank_that_thinks_the_world_smaller_fails_all_alike() {
        assert_same_mismatch(&[(0, 3), (1, 2), (2, 3)]);
        assert_same_mismatch(&[(2, 3), (1, 2), (0, 3)]);
    }

    #[test]
    fn a_rank_too_many_fails_all_alike() {
        assert_same_mismatch(&[(2, 3), (1, 2), (0, 2)]);
    }

    #[test]
    fn ranks_that_never_come_do_not_hide_the_disagreement() {
        assert_same_mismatch(&[(0, 4), (1, 3)]);
    }

    #[test]
    fn ranks_and_worlds_out_of_range_are_refused() {
        let join = |rank, world| {
            let store = Arc::new(HashStore::new());
            Group::from_store_in(&RankContext::new(config()), store, rank, world, "odd")
        };
        assert_error!(join(0, 0), Error::Invalid { .. });
        assert_error!(join(0, 1 << 20), Error::Invalid { .. });
        assert_error!(join(2, 2), Error::RankOutOfRange { rank: 2, world: 2, .. });
    }
}

mod deadlines {
    use super::*;

    #[test]
    fn an_expired_one_is_a_timeout_that_names_the_missing() {
        on_threads(2, |group| {
            let (a, b) = (group.try_clone()?, group.try_clone()?);
            let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
            if group.rank() == 0 {
                assert_error!(a.within(Duration::ZERO).barrier(), Error::Timeout { missing, .. } if missing == [1]);
                assert_error!(b.within(Duration::ZERO).try_clone(), Error::Timeout { .. });
                assert_error!(mem.within(Duration::ZERO).wait_signal(1, 0), Error::Timeout { missing, .. } if missing == [1]);
                let survivors = b.survivors(Deadline::after(Duration::ZERO));
                assert_error!(survivors, Error::Timeout { .. });
            }
            mem.close()
        });
    }

    /// The first rank's hello stays in the store, so the second goes on and waits for more of it.
    #[test]
    fn a_rank_that_gave_up_joining_is_named() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let join = |rank, milliseconds| {
            let context = RankContext::new(config().timeout(Duration::from_millis(milliseconds)));
            Group::from_store_in(&context, Arc::clone(&store), rank, 2, "late")
        };
        assert_error!(join(1, 20), Error::Timeout { missing, .. } if missing == [0]);
        assert_error!(join(0, 200), Error::Timeout { missing, .. } if missing == [1]);
    }

    /// What is there already needs no time.
    #[test]
    fn one_in_the_past_does_not_fail_what_is_done() {
        on_threads(2, |group| {
            let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
            mem.put_signal(group.next(), 0)?;
            group.barrier()?;
            mem.within(Duration::ZERO).wait_signal(group.prev(), 0)?;
            mem.close()
        });
    }

    #[test]
    fn what_was_made_in_a_hurry_may_wait_on_the_terms_of_another_group() {
        on_threads(2, |group| {
            let (mem, none) = (group.alloc::<u8>(8)?.rendezvous(group)?, group.within(Duration::ZERO));
            assert_error!(mem.on_terms_of(&none).wait_signal(group.prev(), 0), Error::Timeout { .. });
            group.barrier()?;
            let (mem, same) = (mem.on_terms_of(&none).on_terms_of(group), none.on_terms_of(group));
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(50));
            }
            mem.put_signal(group.next(), 0)?;
            mem.wait_signal(group.prev(), 0)?;
            same.barrier()
        });
    }

    #[test]
    fn one_beyond_the_clock_is_never() {
        on_threads(2, |group| {
            let forever = group.within(Duration::MAX).try_clone()?;
            forever.barrier()?;
            forever.alloc::<u8>(8)?.rendezvous(&forever)?.close()
        });
    }
}

/// A rank that has less memory than the others.
mod memory {
    use super::*;
    use symmem::ProcessSpawner;

    /// The largest file, and so the largest segment, that this process may make.
    fn limit_segments(bytes: u64) {
        let limit = rustix::process::Rlimit { current: Some(bytes), maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    }

    #[test]
    fn too_much_on_one_rank_is_that_ranks_error_on_all() {
        let ranks = ProcessSpawner::new("memory::too_much_on_one_rank_is_that_ranks_error_on_all", 2);
        ranks.env("SYMMEM_TIMEOUT", 30).run(short_of_memory).unwrap();
    }

    fn short_of_memory(group: Group) -> Result<()> {
        group.context().set_signal_pad_size(1 << 20)?;
        let x = group.alloc::<u32>(8)?;
        if group.rank() == 1 {
            limit_segments(1 << 16);
            assert_error!(group.alloc::<u8>(1 << 17), Error::OutOfMemory { asked: 131_072, left: 65_536, limit } if limit.contains("ulimit"));
        }
        // The allocation is there, but there is no room for rank 1's pad.
        assert_error!(x.rendezvous(&group), Error::Rank { rank: 1, message, .. } if message.contains("out of memory"));
        if group.rank() == 1 {
            limit_segments(1 << 30);
        }
        x.rendezvous(&group)?.close()
    }
}

#[cfg(feature = "faults")]
mod injected {
    use super::*;
    use std::io;
    use symmem::ProcessSpawner;
    use symmem::fault::{FailingCall, inject};

    const KINDS: [(FailingCall, i32); 3] = [
        (FailingCall::Map, libc::EMFILE),
        (FailingCall::Map, libc::ENOMEM),
        (FailingCall::Socket, libc::EMFILE),
    ];

    fn words(errno: i32) -> String {
        io::Error::from_raw_os_error(errno).to_string()
    }

    /// Every rank in turn fails to map or to connect: all get its error, and then the very same allocations
    /// meet.
    fn fail_in_rendezvous(group: &Group) -> Result<()> {
        for (failure, errno) in KINDS {
            for victim in 0..group.size() {
                let mut x = group.alloc::<u32>(8)?;
                x.fill(group.rank() as u32)?;
                // Connections stay open, so that only a new group makes new ones.
                let group = group.try_clone()?;
                if group.rank() == victim {
                    inject(failure, errno);
                }
                let outcome = x.rendezvous(&group);
                assert_error!(outcome, Error::Rank { rank, message, .. } if rank == victim && message.contains(&words(errno)));
                let mem = x.rendezvous(&group)?;
                mem.barrier(0)?;
                assert_eq!(mem.peer(group.next())?.read(7)?, group.next() as u32);
                mem.close()?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_failure_in_a_rendezvous_of_threads_is_the_same_on_all_and_passes() {
        on_threads(3, fail_in_rendezvous);
    }

    #[test]
    fn a_failure_in_a_rendezvous_of_processes_is_the_same_on_all_and_passes() {
        let name = "injected::a_failure_in_a_rendezvous_of_processes_is_the_same_on_all_and_passes";
        ProcessSpawner::new(name, 3).run(|group| fail_in_rendezvous(&group.within(PATIENCE))).unwrap();
    }

    #[test]
    fn a_failure_in_making_a_subgroup_is_the_same_on_all_and_passes() {
        on_threads(3, |group| {
            for (failure, errno) in KINDS {
                for victim in 0..group.size() {
                    if group.rank() == victim {
                        inject(failure, errno);
                    }
                    let outcome = group.try_clone();
                    assert_error!(outcome, Error::Rank { rank, message, .. } if rank == victim && message.contains(&words(errno)));
                    group.try_clone()?.barrier()?;
                }
            }
            Ok(())
        });
    }

    #[test]
    fn a_failure_in_joining_is_the_same_on_all_processes() {
        let name = "injected::a_failure_in_joining_is_the_same_on_all_processes";
        let spawner = ProcessSpawner::new(name, 3).env("SYMMEM_TIMEOUT", 30).env("SYMMEM_FAIL", "map:ENOMEM");
        let outcomes = spawner.env("SYMMEM_FAIL_RANK", 1).run_all(|_| Ok(())).unwrap();
        let expected = format!("rank 1 failed: mmap of a peer's segment: {}", words(libc::ENOMEM));
        for outcome in outcomes {
            assert_error!(outcome, Error::Spawned { message, .. } if message.contains(&expected));
        }
    }

    #[test]
    fn ranks_can_join_again_under_the_same_name() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let context = RankContext::new(config());
        let join = |rank| Group::from_store_in(&context, Arc::clone(&store), rank, 2, "again");
        let rank = |rank| {
            if rank == 0 {
                inject(FailingCall::Map, libc::EMFILE);
            }
            assert_error!(join(rank), Error::Rank { rank: 0, .. });
            join(rank).unwrap().barrier().unwrap();
        };
        thread::scope(|scope| {
            [scope.spawn(|| rank(0)), scope.spawn(|| rank(1))].map(|rank| rank.join().unwrap())
        });
    }
}

/// A forked child shares the rank's memory and must not act as the rank.
mod fork {
    use super::*;
    use symmem::{ProcessSpawner, SymmetricMemory};

    /// Runs `f` in a forked child; how it ended.
    fn in_child(f: impl FnOnce()) -> i32 {
        // SAFETY: the process has one thread here, so the child may do what it likes; it ends below.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_ok();
            // SAFETY: ends the child at once: the rank's exit handlers are not the child's to run.
            unsafe { libc::_exit(i32::from(!ok)) }
        }
        let mut status = 0;
        // SAFETY: waits for our own child and writes to `status` only.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    fn assert_no_rank(group: &Group, mem: &mut SymmetricMemory<u32>) {
        assert_error!(group.barrier(), Error::Forked { .. });
        assert_error!(group.all_gather(&0u8), Error::Forked { .. });
        assert_error!(group.broadcast_bytes(0, &[]), Error::Forked { .. });
        assert_error!(group.try_clone(), Error::Forked { .. });
        assert_error!(group.survivors(Deadline::never()), Error::Forked { .. });
        assert_error!(mem.barrier(0), Error::Forked { .. });
        assert_error!(mem.put_signal(0, 0), Error::Forked { .. });
        assert_error!(mem.try_wait_signal(0, 0), Error::Forked { .. });
        assert_error!(mem.get(group.next(), 0, &mut [0]), Error::Forked { .. });
        assert_error!(mem.peer(0), Error::Forked { .. });
        assert_error!(mem.signal_pad(0), Error::Forked { .. });
        assert_error!(mem.local(), Error::Forked { .. });
        assert_error!(mem.fill(9), Error::Forked { .. });
        group.abort("not mine to say");
    }

    fn fork_and_go_on(group: Group) -> Result<i32> {
        let mut x = group.alloc::<u32>(8)?;
        x.fill(group.rank() as u32)?;
        let mut mem = Some(x.rendezvous(&group)?);
        let views = mem.as_ref().map(|mem| Ok::<_, Error>((mem.peer(group.next())?, mem.signal_pad(0)?)));
        let (view, pad) = views.unwrap()?;
        let (pool, cells) = (group.pool(), group.atomics::<u64>(1)?);
        pool.alloc::<u8>(1)?;
        let mut owned = Some(group);
        let status = in_child(|| {
            let (group, mut mem) = (owned.take().unwrap(), mem.take().unwrap());
            assert_no_rank(&group, &mut mem);
            // Nor do views that its parent had made: their memory may be another's by now.
            assert_error!(view.read(0), Error::Forked { .. });
            assert_error!(pad.read(0), Error::Forked { .. });
            assert_error!(pad.to_vec(), Error::Forked { .. });
            assert_error!(pad.write(0, 1), Error::Forked { .. });
            assert_error!(pad.fill(1), Error::Forked { .. });
            assert_error!(cells.add(0, 0, 1), Error::Forked { .. });
            assert_error!(pool.alloc::<u8>(1), Error::Forked { .. });
            assert_eq!(pool.usage().blocks, 1);
            assert_error!(x.rendezvous(&group), Error::Forked { .. });
            // Dropping the last handles must not look like leaving.
            drop((mem, group));
        });
        let (group, mem) = (owned.unwrap(), mem.unwrap());
        mem.barrier(0)?;
        assert_eq!(mem.peer(group.next())?.to_vec()?, [group.next() as u32; 8]);
        assert_eq!(group.failure(), None);
        mem.close()?;
        Ok(status)
    }

    #[test]
    fn a_child_is_no_rank_and_harms_none() {
        let spawner = ProcessSpawner::new("fork::a_child_is_no_rank_and_harms_none", 2);
        let ended = spawner.env("SYMMEM_TIMEOUT", 30).run(fork_and_go_on).unwrap();
        assert_eq!(ended, [0, 0]);
    }
}
