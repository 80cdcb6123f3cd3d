//! The thread-rank suite: everything that threads of one process do at once, as ranks and within a rank.
//!
//! It also runs under ThreadSanitizer (`cargo xtask test --only tsan`), and is written for it: plain memory
//! is written by one thread and read by another wherever the library promises an order. Each rank maps each
//! segment at an address of its own, so what the sanitizer sees of ranks is the state they share on the heap
//! (stores, results); what it sees of one rank's threads is all they share. The order between ranks is what
//! the loom models check.
//!
//! The sanitizer must see mappings end, or it takes an address that the kernel gives out again for the old
//! memory: the run needs `--cfg rustix_use_libc`, because it cannot see system calls that do not go through
//! libc.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use symmem::store::{HashStore, Store, StoreError, Wait};
use symmem::{CancelToken, Cause, Config, Deadline, Error, Group, RankContext, Result, SymmetricMemory};

/// How long anything may take before a test counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `f` on `n` ranks whose every wait is bounded.
fn spawn<R: Send>(n: usize, f: impl Fn(Group) -> Result<R> + Sync) -> Vec<R> {
    symmem::spawn(n, |group| f(group.within(PATIENCE))).expect("every rank ends well")
}

/// Symmetric memory of `len` elements, all of them this rank's number.
fn memory(group: &Group, len: usize) -> Result<SymmetricMemory<u64>> {
    let mut block = group.alloc::<u64>(len)?;
    block.fill(group.rank() as u64)?;
    block.rendezvous(group)
}

/// Runs `f` on `n` threads of this rank at once.
fn at_once<R: Send>(n: usize, f: impl Fn(usize) -> Result<R> + Sync) -> Result<Vec<R>> {
    let f = &f;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|index| scope.spawn(move || f(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn is_failed_by(error: &Error, who: usize, why: Cause) -> bool {
    matches!(error, Error::GroupFailed { culprit, cause, .. } if *culprit == who && *cause == why)
}

#[test]
fn ranks_meet() {
    let arrived = AtomicUsize::new(0);
    spawn(4, |group| {
        for round in 1..=200 {
            arrived.fetch_add(1, Ordering::Relaxed);
            group.barrier()?;
            // The counter is on the heap: this order is one that only the barrier gives.
            let seen = arrived.load(Ordering::Relaxed);
            assert!(seen >= 4 * round, "{seen} arrivals in round {round}");
            group.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn ranks_exchange() {
    let gathered = spawn(4, |group| {
        for round in 0..50u64 {
            let mine = [group.rank() as u64, round];
            let all = group.all_gather(&mine)?;
            assert!(all.iter().enumerate().all(|(rank, part)| *part == [rank as u64, round]));
            let root = round as usize % group.size();
            assert_eq!(group.broadcast(root, &mine)?, [root as u64, round]);
        }
        // Longer than one round of staging, and not the same length on every rank.
        group.all_gather_bytes(&vec![group.rank() as u8; 20_000 * group.rank()])
    });
    for parts in gathered {
        assert!(parts.iter().enumerate().all(|(rank, part)| *part == vec![rank as u8; 20_000 * rank]));
    }
}

#[test]
fn subgroups_overlap_and_some_ranks_sit_out() {
    spawn(4, |group| {
        let me = group.rank();
        for (name, members) in [("evens", vec![0, 2]), ("three", vec![3, 1, 0]), ("evens", vec![0, 2])] {
            if members.contains(&me) {
                let sub = group.subgroup(&members, name)?;
                let ranks: Vec<usize> =
                    sub.all_gather(&(me as u64))?.iter().map(|rank| *rank as usize).collect();
                assert_eq!(ranks, members);
            }
        }
        group.local()?.barrier()
    });
}

#[test]
fn several_threads_of_a_rank_clone_the_group_at_once() {
    spawn(2, |group| {
        // Clones pair up by number, not by thread, so all threads do the same.
        at_once(3, |_| {
            let clone = group.try_clone()?;
            for _ in 0..20 {
                clone.barrier()?;
            }
            assert_eq!(clone.all_gather(&clone.rank())?, [0, 1]);
            Ok(())
        })?;
        group.barrier()
    });
}

#[test]
fn several_threads_of_a_rank_make_rank_wide_state_at_once() {
    let context = RankContext::new(Config::from_env().expect("a configuration"));
    let pointers = at_once(4, |index| {
        let name = format!("block {index}");
        for _ in 0..20 {
            let mut block = context.alloc_persistent::<u32>(&name, 64)?;
            block.fill(index as u32)?;
            assert!(context.is_symmetric(block.as_ptr()));
            assert!(!context.has_group("none"));
            drop(context.alloc::<u8>(index)?);
        }
        Ok(context.release_persistent(&name))
    });
    assert_eq!(pointers.expect("no failure"), [true; 4]);
}

#[test]
fn signals_go_round() {
    spawn(3, |group| {
        let mem = memory(&group, 1)?;
        for _ in 0..300 {
            mem.put_signal(group.next(), 0)?;
            mem.wait_signal(group.prev(), 0)?;
        }
        assert!(!mem.try_wait_signal(group.prev(), 0)?);
        assert!(mem.try_put_signal(group.next(), 1)?);
        assert!(!mem.try_put_signal(group.next(), 1)?);
        // Nobody consumes a signal before everybody has seen that it is pending.
        mem.barrier(0)?;
        mem.wait_signal(group.prev(), 1)?;
        mem.close()
    });
}

#[test]
fn a_buffer_is_passed_on_by_signals() {
    spawn(2, |group| {
        let mut mem = memory(&group, 512)?;
        let (ready, read) = (0, 1);
        for round in 0..100 {
            if group.rank() == 0 {
                mem.fill(round)?;
                mem.put_signal(1, ready)?;
                mem.wait_signal(1, read)?;
            } else {
                mem.wait_signal(0, ready)?;
                assert_eq!(mem.peer(0)?.to_vec()?, vec![round; 512]);
                mem.put_signal(0, read)?;
            }
        }
        mem.close()
    });
}

#[test]
fn guarded_writes_are_seen_by_peers_after_a_barrier() {
    spawn(4, |group| {
        let mut mem = memory(&group, 1000)?;
        let value = |rank: usize, round: u64| rank as u64 * 1_000_000 + round;
        for round in 0..30 {
            mem.local_mut()?.fill(value(group.rank(), round));
            mem.barrier(0)?;
            for peer in 0..group.size() {
                assert_eq!(mem.peer(peer)?.to_vec()?, vec![value(peer, round); 1000]);
            }
            let mut some = [0; 10];
            mem.get(group.next(), 990, &mut some)?;
            assert_eq!(some, [value(group.next(), round); 10]);
            mem.barrier(1)?;
        }
        mem.close()
    });
}

#[test]
fn writes_into_a_peer_are_seen_by_its_owner_after_a_signal() {
    spawn(2, |group| {
        let mem = memory(&group, 100)?;
        let peer = group.next();
        for round in 0..50 {
            // SAFETY: the peer holds a guard only between its wait and its next barrier.
            unsafe { mem.peer(peer)?.write_from(0, &[round; 100])? };
            mem.put_signal(peer, 0)?;
            mem.wait_signal(peer, 0)?;
            assert_eq!(*mem.local()?, [round; 100]);
            mem.barrier(0)?;
        }
        mem.close()
    });
}

#[test]
fn unordered_reads_of_a_peer_are_no_race() {
    spawn(2, |group| {
        let mut mem = memory(&group, 256)?;
        mem.fill(0)?;
        mem.barrier(0)?;
        for round in 0..300 {
            if group.rank() == 0 {
                mem.local_mut()?.fill(round);
            } else {
                // May mix old and new elements; each is one that was written.
                assert!(mem.peer(0)?.to_vec()?.iter().all(|element| *element < 300));
            }
        }
        mem.close()
    });
}

#[test]
fn threads_of_a_rank_share_its_memory_by_guards() {
    spawn(2, |group| {
        let mut mem = memory(&group, 64)?;
        for round in 0..20 {
            // A plain write by this thread, plain reads by the others.
            mem.fill(round)?;
            let sums = at_once(3, |_| Ok(mem.local()?.iter().sum::<u64>()))?;
            assert_eq!(sums, [64 * round; 3]);
        }
        let other = mem.within(PATIENCE);
        let guard = mem.local_mut()?;
        assert!(matches!(other.local().map(drop), Err(Error::Borrowed { .. })));
        drop(guard);
        mem.close()
    });
}

#[test]
fn one_allocation_is_rendezvoused_on_two_groups_by_two_threads() {
    spawn(2, |group| {
        let groups = [group.try_clone()?, group.try_clone()?];
        let mut block = group.alloc::<u64>(16)?;
        block.fill(7)?;
        at_once(2, |index| {
            let mem = block.rendezvous(&groups[index])?;
            for _ in 0..50 {
                mem.barrier(0)?;
                assert_eq!(mem.peer(mem.group().next())?.read(3)?, 7);
            }
            mem.close()
        })?;
        group.barrier()
    });
}

#[test]
fn views_outlive_the_handle_and_end_in_another_thread() {
    let views = spawn(2, |group| {
        let mem = memory(&group, 32)?;
        let view = mem.peer(group.next())?;
        mem.close()?;
        Ok(view)
    });
    let read = views.into_iter().map(|view| thread::spawn(move || view.to_vec()));
    let read: Vec<_> = read.map(|thread| thread.join().expect("no panic").expect("a view")).collect();
    assert_eq!(read, [vec![1; 32], vec![0; 32]]);
}

#[test]
fn memory_comes_and_goes() {
    spawn(3, |group| {
        for round in 0..10 {
            let mut mem = memory(&group, 1 << round)?;
            mem.fill(round)?;
            mem.barrier(0)?;
            assert_eq!(mem.peer(group.prev())?.read(0)?, round);
            // Every other handle just goes; peers must not mind.
            if round % 2 == 0 {
                mem.close()?;
            }
        }
        group.barrier()
    });
}

#[test]
fn a_second_thread_of_a_rank_is_busy() {
    spawn(2, |group| {
        if group.rank() == 1 {
            // Let both threads of rank 0 try while this rank is missing.
            thread::sleep(Duration::from_millis(100));
            return group.barrier();
        }
        let outcomes = at_once(2, |_| Ok(group.barrier()))?;
        let busy = |outcome: &&Result<()>| matches!(outcome, Err(Error::Busy { .. }));
        assert_eq!(outcomes.iter().filter(busy).count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        Ok(())
    });
}

#[test]
fn an_abort_from_another_thread_ends_everybodys_wait() {
    spawn(3, |group| {
        let mem = memory(&group, 8)?;
        let outcome = thread::scope(|scope| {
            if group.rank() == 1 {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(50));
                    group.abort("enough");
                });
            }
            mem.wait_signal(group.prev(), 0)
        });
        let error = outcome.expect_err("nobody sends a signal");
        assert!(is_failed_by(&error, 1, Cause::Aborted), "{error}");
        assert!(error.to_string().contains("enough"), "{error}");
        assert_eq!(group.failure(), Some((1, Cause::Aborted)));
        assert_eq!(mem.salvage(), [group.rank() as u64; 8]);
        Ok(())
    });
}

#[test]
fn everybody_may_abort_at_once() {
    let culprits = spawn(4, |group| {
        at_once(2, |_| {
            group.abort("me first");
            Ok(())
        })?;
        Ok(group.failure().map(|(culprit, _)| culprit))
    });
    assert!(culprits.iter().all(|culprit| culprit.is_some() && *culprit == culprits[0]), "{culprits:?}");
}

#[test]
fn a_cancel_from_another_thread_ends_a_wait() {
    spawn(2, |group| {
        let mem = memory(&group, 1)?;
        let token = CancelToken::new();
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                token.cancel();
            });
            mem.cancelled_by(&token).wait_signal(group.prev(), 0)
        });
        assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
        // Nothing happened, so the wait can be repeated, once nobody is in the first one.
        mem.barrier(0)?;
        mem.put_signal(group.next(), 0)?;
        mem.wait_signal(group.prev(), 0)?;
        mem.close()
    });
}

#[test]
fn a_wait_that_timed_out_can_be_repeated() {
    spawn(2, |group| {
        let mem = memory(&group, 1)?;
        let outcome = mem.within(Duration::from_millis(30)).wait_signal(group.prev(), 0);
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        mem.barrier(0)?;
        mem.put_signal(group.next(), 0)?;
        mem.wait_signal(group.prev(), 0)?;
        mem.close()
    });
}

#[test]
fn a_rank_that_panics_is_named() {
    let outcome = symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        assert!(group.rank() != 2, "on purpose");
        let error = group.barrier().expect_err("rank 2 never comes");
        assert!(is_failed_by(&error, 2, Cause::Panicked), "{error}");
        Err::<(), _>(error)
    });
    assert!(matches!(&outcome, Err(Error::Spawned { rank: 2, message }) if message.contains("on purpose")));
}

#[test]
fn whoever_is_left_goes_on() {
    spawn(3, |group| {
        if group.rank() == 0 {
            return Ok(());
        }
        let error = group.barrier().expect_err("rank 0 is gone");
        assert_eq!(error.culprit(), Some(0), "{error}");
        let rest = group.survivors(Deadline::after(PATIENCE))?;
        assert_eq!(rest.all_gather(&group.rank())?, [1, 2]);
        let mem = memory(&rest, 4)?;
        mem.barrier(0)?;
        assert_eq!(mem.peer(rest.next())?.read(0)?, rest.next() as u64);
        mem.close()
    });
}

#[test]
fn counters_and_failure_are_read_while_the_rank_works() {
    spawn(2, |group| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(group.failure(), None);
                    assert!(group.counters().ops <= 201);
                    thread::yield_now();
                }
            });
            let met: Result<()> = (0..200).try_for_each(|_| group.barrier());
            done.store(true, Ordering::Relaxed);
            met
        })
    });
}

#[test]
fn several_groups_run_in_one_process() {
    at_once(3, |index| {
        spawn(2, |group| {
            let mem = memory(&group, 16)?;
            for round in 0..30 {
                let sum: usize = group.all_gather(&(index * round))?.iter().sum();
                assert_eq!(sum, 2 * index * round);
                mem.barrier(0)?;
            }
            mem.close()
        });
        Ok(())
    })
    .expect("no failure");
}

#[test]
fn several_groups_join_in_one_store() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let context = || RankContext::new(Config::from_env().expect("a configuration").timeout(PATIENCE));
    // Six threads: ranks 0 and 1 of three groups.
    at_once(6, |index| {
        let (rank, name) = (index % 2, format!("group {}", index / 2));
        let group = Group::from_store_in(&context(), Arc::clone(&store), rank, 2, &name)?;
        assert_eq!(group.all_gather(&index)?, [index - rank, index - rank + 1]);
        group.barrier()
    })
    .expect("no failure");
}

#[test]
fn many_threads_share_a_store() {
    const THREADS: usize = 8;
    const ROUNDS: i64 = 50;
    let store = HashStore::new();
    at_once(THREADS, |index| {
        let wait = Wait::for_at_most(PATIENCE);
        let next = (index + 1) % THREADS;
        for round in 0..ROUNDS {
            store.add("sum", 1, &wait)?;
            store.append("log", b".", &wait)?;
            store.set(&format!("{index}/{round}"), &[index as u8], &wait)?;
            // The value is plain memory that another thread wrote.
            assert_eq!(store.get(&format!("{next}/{round}"), &wait)?, [next as u8]);
            store.queue_push(&format!("queue {next}"), &round.to_le_bytes(), &wait)?;
            assert_eq!(store.queue_pop(&format!("queue {index}"), true, &wait)?, round.to_le_bytes());
            store.barrier(&format!("round {round}"), THREADS, &wait)?;
        }
        assert!(!store.compare_set("winner", b"", &[index as u8], &wait)?.is_empty());
        Ok(())
    })
    .expect("no failure");
    let wait = Wait::for_at_most(PATIENCE);
    let turns = THREADS as i64 * ROUNDS;
    assert_eq!(store.add("sum", 0, &wait).expect("a number"), turns);
    assert_eq!(store.get("log", &wait).expect("a value").len() as i64, turns);
}

#[test]
fn store_waits_end_by_cancel_and_by_deadline() {
    let store = HashStore::new();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| store.get("never", &Wait::for_at_most(PATIENCE).with_cancel(&token)));
        let expired = scope.spawn(|| store.get("never", &Wait::for_at_most(Duration::from_millis(30))));
        thread::sleep(Duration::from_millis(50));
        token.cancel();
        assert!(matches!(cancelled.join().expect("no panic"), Err(StoreError::Cancelled { .. })));
        assert!(matches!(expired.join().expect("no panic"), Err(StoreError::Timeout { .. })));
    });
}
