//! Started collectives: they return before the peers came, run in order, hold their memory, give what the
//! blocking ones give, and leave no thread behind.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use common::{AT_ONCE, PATIENCE, assert_error};
use symmem::{CancelToken, Error, Group, Pending, ProcessSpawner, ReduceOp, Result};

/// Waits until `ready`, and fails if it takes too long.
fn eventually(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_start_returns_before_a_slow_peer_came() {
    let checked = Barrier::new(2);
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut mem = group.alloc::<f32>(5000)?.rendezvous(&group)?;
        mem.fill(group.rank() as f32 + 1.0)?;
        if group.rank() == 1 {
            checked.wait();
        }
        let pending = mem.start().all_reduce(ReduceOp::Sum)?;
        if group.rank() == 0 {
            assert!(!pending.test());
            let busy = group.barrier().unwrap_err();
            assert!(matches!(busy, Error::Busy { started: true, .. }), "{busy:?}");
            assert!(busy.to_string().contains("Pending::wait"), "{busy}");
            assert_error!(mem.barrier(0), Error::Busy { started: true, .. });
            assert!(!pending.test());
            checked.wait();
        }
        pending.wait()?;
        assert!(mem.local()?.iter().all(|value| *value == 3.0));
        group.barrier()?;
        mem.close()
    })
    .unwrap();
}

#[test]
fn memory_is_borrowed_from_start_to_end() {
    let checked = Barrier::new(2);
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut mem = group.alloc::<u32>(100)?.rendezvous(&group)?;
        let guard = mem.local()?;
        let mut other = group.alloc::<u32>(100)?.rendezvous(&group)?;
        drop(guard);
        for in_place in [true, false] {
            if group.rank() == 1 {
                checked.wait();
            }
            let (pending, gathered) = match in_place {
                true => (Some(mem.start().broadcast(1)?), None),
                false => (None, Some(mem.start().all_gather(vec![0; 200])?)),
            };
            if group.rank() == 0 {
                assert_eq!(mem.local().is_err(), in_place);
                assert_error!(mem.local_mut(), Error::Borrowed { .. });
                // Other memory is free.
                other.fill(1)?;
            }
            // Memory that is borrowed at the start is this rank's error, and told to the other rank in its
            // turn.
            let refused = (group.rank() == 0).then(|| mem.start().all_reduce(ReduceOp::Sum)).transpose()?;
            if group.rank() == 0 {
                checked.wait();
            }
            pending.map(Pending::wait).transpose()?;
            gathered.map(Pending::wait).transpose()?;
            match refused {
                Some(refused) => assert_error!(refused.wait(), Error::Borrowed { .. }),
                None => {
                    let told = mem.start().all_reduce(ReduceOp::Sum)?.wait();
                    assert_error!(told, Error::Rank { rank: 0, message, .. } if message.contains("borrowed"));
                }
            }
            mem.local_mut()?.fill(2);
        }
        let guard = other.local()?;
        assert_eq!(guard[0], if group.rank() == 0 { 1 } else { 0 });
        assert_error!(other.start().all_reduce(ReduceOp::Sum)?.wait(), Error::Borrowed { .. });
        drop(guard);
        group.barrier()
    })
    .unwrap();
}

/// Every started form, compared with the blocking one.
fn compare_all(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.size());
    for len in [0, world, 60 * world, 50_000 * world] {
        let mut mem = group.alloc::<i32>(len)?.rendezvous(group)?;
        let fill = |values: &mut [i32]| {
            values.iter_mut().enumerate().for_each(|(at, value)| *value = (at * 7 + rank * 3) as i32);
        };
        fill(&mut mem.local_mut()?);
        let op = ReduceOp::Sum;
        let root = world - 1;
        let (mut whole, mut chunk, mut all) = (vec![0; len], vec![0; len / world], vec![0; len * world]);

        mem.all_reduce_out(op, &mut whole)?;
        assert_eq!(mem.start().all_reduce_out(op, vec![0; len])?.wait()?, whole);
        let private = group.start().all_reduce(op, mem.local()?.to_vec())?;
        assert_eq!(private.wait()?, whole);
        mem.reduce_scatter(op, &mut chunk)?;
        assert_eq!(mem.start().reduce_scatter(op, vec![0; len / world])?.wait()?, chunk);
        let mut prefix = vec![0; len];
        mem.scan(op, &mut prefix)?;
        assert_eq!(mem.start().scan(op, vec![0; len])?.wait()?, prefix);
        let mut before = vec![0; len];
        mem.exclusive_scan(op, &mut before)?;
        assert_eq!(mem.start().exclusive_scan(op, vec![0; len])?.wait()?, before);
        let counts: Vec<usize> = (0..world).map(|rank| len / (rank + 1)).collect();
        let mut packed = vec![0; counts.iter().sum()];
        mem.all_gather_v(&counts, &mut packed)?;
        assert_eq!(mem.start().all_gather_v(counts.clone(), vec![0; packed.len()])?.wait()?, packed);
        let at_root = if rank == root { packed.clone() } else { vec![0; packed.len()] };
        assert_eq!(mem.start().gather_v(root, counts.clone(), vec![0; packed.len()])?.wait()?, at_root);
        let parts: Vec<usize> =
            (0..world).map(|rank| if rank == root { len - len / 2 } else { len / 2 / world }).collect();
        let mut part = vec![0; parts[rank]];
        mem.scatter_v(root, &parts, &mut part)?;
        assert_eq!(mem.start().scatter_v(root, parts.clone(), vec![0; part.len()])?.wait()?, part);
        mem.all_gather(&mut all)?;
        assert_eq!(mem.start().all_gather(vec![0; len * world])?.wait()?, all);
        let reduced = mem.start().reduce(op, root, vec![0; len])?.wait()?;
        assert_eq!(reduced, if rank == root { whole.clone() } else { vec![0; len] });
        let mut exchanged = vec![0; len];
        mem.all_to_all(&mut exchanged)?;
        assert_eq!(mem.start().all_to_all(vec![0; len])?.wait()?, exchanged);
        group.start().barrier()?.wait()?;
        let own = mem.local()?.to_vec();
        let private = group.start().reduce_scatter(op, own.clone(), vec![0; len / world])?;
        assert_eq!(private.wait()?, chunk);
        assert_eq!(group.start().all_gather_into(own.clone(), vec![0; len * world])?.wait()?, all);
        let reduced = group.start().reduce(op, root, own.clone())?.wait()?;
        assert_eq!(reduced, if rank == root { whole.clone() } else { own.clone() });
        assert_eq!(group.start().scan(op, own.clone(), vec![0; len])?.wait()?, prefix);
        assert_eq!(group.start().exclusive_scan(op, own.clone(), vec![0; len])?.wait()?, before);
        let mine = own[..counts[rank]].to_vec();
        assert_eq!(group.start().all_gather_v(mine, counts.clone(), vec![0; packed.len()])?.wait()?, packed);
        let mine = own[..counts[rank]].to_vec();
        assert_eq!(
            group.start().gather_v(root, mine, counts.clone(), vec![0; packed.len()])?.wait()?,
            at_root
        );
        let given = own[..parts.iter().sum()].to_vec();
        assert_eq!(group.start().scatter_v(root, given, parts.clone(), vec![0; part.len()])?.wait()?, part);
        assert_eq!(group.start().all_to_all(own.clone(), vec![0; len])?.wait()?, exchanged);
        assert_eq!(group.start().broadcast_into(root, own)?.wait()?, all[root * len..]);

        mem.start().all_reduce(op)?.wait()?;
        assert_eq!(*mem.local()?, whole);
        fill(&mut mem.local_mut()?);
        mem.start().broadcast(root)?.wait()?;
        assert_eq!(*mem.local()?, all[root * len..]);
        mem.close()?;
    }
    Ok(())
}

#[test]
fn started_forms_give_what_the_blocking_ones_give() {
    for world in [1, 2, 5] {
        symmem::spawn(world, |group| compare_all(&group.within(PATIENCE))).unwrap();
    }
}

#[test]
fn started_forms_give_what_the_blocking_ones_give_between_processes() {
    let spawner = ProcessSpawner::new("started_forms_give_what_the_blocking_ones_give_between_processes", 3);
    spawner.run(|group| compare_all(&group.within(PATIENCE))).unwrap();
}

#[test]
fn many_run_in_the_order_they_were_started() {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let mem = group.alloc::<u64>(4)?.rendezvous(&group)?;
        // Operations of different kinds and lengths: out of order, ranks would disagree on them.
        let mut sums = Vec::new();
        let mut others = Vec::new();
        for step in 0..200usize {
            sums.push(group.start().all_reduce(ReduceOp::Sum, vec![(step + group.rank()) as u64; step])?);
            match step % 3 {
                0 => drop(group.start().barrier()?),
                1 => others.push(mem.start().all_gather(vec![1; 12])?),
                _ => {}
            }
        }
        for (step, sum) in sums.into_iter().enumerate().rev() {
            assert_eq!(sum.wait()?, vec![3 * step as u64 + 3; step]);
        }
        for other in others {
            assert_eq!(other.wait()?, [0; 12]);
        }
        // When the last one has ended, blocking ones run again.
        group.start().barrier()?.wait()?;
        mem.close()
    })
    .unwrap();
}

#[test]
fn a_dropped_one_runs_to_its_end() {
    let dropped = Barrier::new(2);
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut mem = group.alloc::<u32>(3000)?.rendezvous(&group)?;
        mem.fill(group.rank() as u32 + 1)?;
        let spare = group.alloc::<u32>(1)?;
        if group.rank() == 0 {
            drop(mem.start().all_reduce(ReduceOp::Prod)?);
            assert_error!(mem.local(), Error::Borrowed { .. });
            dropped.wait();
            eventually("the operation lets go of its memory", || mem.local().is_ok());
            assert_eq!(mem.local()?[2999], 2);
            // This one outlives every handle of the group.
            drop(group.start().barrier()?);
            drop((mem, group, spare));
            dropped.wait();
            return Ok(());
        }
        dropped.wait();
        mem.start().all_reduce(ReduceOp::Prod)?.wait()?;
        assert_eq!(mem.local()?[0], 2);
        dropped.wait();
        group.start().barrier()?.wait()
    })
    .unwrap();
}

#[test]
fn the_blocking_calls_errors_come_with_the_result() {
    let gone = Barrier::new(2);
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mem = group.alloc::<f32>(100)?.rendezvous(&group)?;
        assert_error!(mem.start().all_gather(vec![0.0; 3])?.wait(), Error::Invalid { .. });
        assert_error!(mem.start().all_reduce(ReduceOp::Xor)?.wait(), Error::Invalid { .. });
        assert_error!(mem.start().broadcast(2)?.wait(), Error::RankOutOfRange { rank: 2, .. });
        let op = if group.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        assert_error!(mem.start().all_reduce(op)?.wait(), Error::Mismatch { .. });
        // Nothing of that ended the group.
        mem.start().all_reduce(ReduceOp::Sum)?.wait()?;
        if group.rank() == 1 {
            drop((mem, group));
            gone.wait();
            return Ok(());
        }
        let pending = mem.start().all_reduce(ReduceOp::Sum)?;
        let next = group.start().barrier()?;
        gone.wait();
        assert_error!(pending.wait(), Error::PeerLeft { rank: 1, .. });
        assert_error!(next.wait(), Error::GroupFailed { culprit: 1, .. });
        assert_error!(mem.start().all_reduce(ReduceOp::Sum)?.wait(), Error::Poisoned { .. });
        assert_error!(group.start().barrier()?.wait(), Error::GroupFailed { culprit: 1, .. });
        Ok(())
    })
    .unwrap();
}

#[test]
fn terms_of_the_handle_hold() {
    let done = Barrier::new(2);
    for cancel in [false, true] {
        symmem::spawn(2, |group| {
            if group.rank() == 1 {
                done.wait();
                return Ok(());
            }
            let token = CancelToken::new();
            let pending = match cancel {
                true => group.within(PATIENCE).cancelled_by(&token).start().barrier()?,
                false => group.within(Duration::from_millis(50)).start().barrier()?,
            };
            if cancel {
                std::thread::sleep(Duration::from_millis(20));
                assert!(!pending.test());
                token.cancel();
            }
            let start = Instant::now();
            match pending.wait() {
                Err(Error::Cancelled { .. }) if cancel => {}
                Err(Error::Timeout { missing, .. }) if !cancel => assert_eq!(missing, [1]),
                other => panic!("{other:?}"),
            }
            assert!(start.elapsed() < AT_ONCE);
            done.wait();
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_blocking_operation_keeps_started_ones_out() {
    symmem::spawn(2, |group| {
        let group = &group.within(PATIENCE);
        if group.rank() == 0 {
            std::thread::scope(|scope| {
                let blocked = scope.spawn(|| group.barrier());
                eventually("the barrier begins", || group.counters().sleeps > 0 && group.counters().ops > 1);
                assert_error!(group.start().barrier(), Error::Busy { started: false, .. });
                // Lets the other rank come.
                group.store().set("tried", b"", &common::patiently())?;
                blocked.join().expect("no panic")
            })?;
        } else {
            group.store().get("tried", &common::patiently())?;
            group.barrier()?;
        }
        group.start().barrier()?.wait()
    })
    .unwrap();
}

/// An executor of one future that sleeps until it is woken; returns the result and how often it polled.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    struct Unpark(Thread, AtomicUsize);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::Release);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    let start = Instant::now();
    for polls in 1.. {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, polls);
        }
        while unpark.1.load(Ordering::Acquire) < polls {
            assert!(start.elapsed() < PATIENCE, "nobody wakes the executor");
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
    unreachable!()
}

#[test]
fn futures_wake_their_executor_and_are_not_polled_in_vain() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        for step in 0..300u64 {
            if step as usize % 2 == group.rank() && step % 30 < 2 {
                std::thread::sleep(Duration::from_millis(3));
            }
            let (sum, polls) = block_on(group.start().all_reduce(ReduceOp::Sum, vec![step; 9])?);
            assert_eq!(sum?, [2 * step; 9]);
            assert!(polls <= 2, "{polls} polls");
        }
        let (outcome, _) = block_on(async {
            let first = group.start().barrier()?;
            let second = group.start().all_reduce(ReduceOp::Max, vec![group.rank() as u8])?;
            first.await?;
            second.await
        });
        assert_eq!(outcome?, [1]);
        group.barrier()
    })
    .unwrap();
}

/// Helper threads of this process.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("rank ") && name.trim().ends_with("worker")).count()
}

/// In processes of their own, for other tests have helpers too.
#[test]
fn one_thread_per_group_that_ends_with_it() {
    let spawner = ProcessSpawner::new("one_thread_per_group_that_ends_with_it", 2);
    spawner
        .run(|group| {
            let clone = group.within(PATIENCE).try_clone()?;
            clone.barrier()?;
            assert_eq!(helpers(), 0);
            for _ in 0..3 {
                let (first, second) = (clone.start().barrier()?, clone.start().barrier()?);
                first.wait()?;
                second.wait()?;
                assert_eq!(helpers(), 1);
            }
            let mem = clone.alloc::<u8>(10)?.rendezvous(&clone)?;
            let gathered = mem.start().all_gather(vec![0; 20])?;
            drop((clone, mem));
            gathered.wait()?;
            eventually("the thread ends", || helpers() == 0);
            // Also when the last handle is the operation's own.
            let clone = group.try_clone()?;
            drop(clone.start().barrier()?);
            drop(clone);
            eventually("the thread ends", || helpers() == 0);
            group.barrier()
        })
        .unwrap();
}

#[test]
fn an_idle_thread_uses_no_processor() {
    let spawner = ProcessSpawner::new("an_idle_thread_uses_no_processor", 1);
    spawner
        .run(|group| {
            group.start().barrier()?.wait()?;
            let switches = || {
                let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
                let dirs = tasks.filter_map(|task| Some(task.ok()?.path()));
                let is_helper = |dir: &std::path::PathBuf| {
                    std::fs::read_to_string(dir.join("comm")).is_ok_and(|name| name.trim() == "rank 0 worker")
                };
                let status = std::fs::read_to_string(dirs.filter(is_helper).last().unwrap().join("status"));
                let lines: Vec<String> =
                    status.unwrap().lines().filter(|line| line.contains("ctxt")).map(str::to_owned).collect();
                assert_eq!(lines.len(), 2);
                lines
            };
            eventually("the thread sleeps", || {
                let before = switches();
                std::thread::sleep(Duration::from_millis(200));
                before == switches()
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_forked_child_can_neither_start_nor_wait() {
    let spawner = ProcessSpawner::new("a_forked_child_can_neither_start_nor_wait", 1);
    spawner
        .run(|group| {
            let mem = group.alloc::<u8>(10)?.rendezvous(&group)?;
            let pending = group.start().barrier()?;
            let awaited = group.start().barrier()?;
            // SAFETY: the child only makes calls that refuse to do anything, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let forked = |failed: bool| i32::from(!failed);
                let wrong = forked(matches!(group.start().barrier(), Err(Error::Forked { .. })))
                    | forked(matches!(mem.start().all_reduce(ReduceOp::Sum), Err(Error::Forked { .. }))) << 1
                    | forked(matches!(pending.wait(), Err(Error::Forked { .. }))) << 2
                    | forked(matches!(block_on(awaited).0, Err(Error::Forked { .. }))) << 3;
                drop((mem, group));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(wrong) }
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "status {status}");
            assert_eq!(libc::WEXITSTATUS(status), 0);
            pending.wait()?;
            awaited.wait()?;
            mem.close()
        })
        .unwrap();
}

#[test]
fn pending_can_change_threads() {
    fn is_send<T: Send + Unpin + 'static>(_: &T) {}
    symmem::spawn(2, |group| {
        let pending = group.start().all_reduce(ReduceOp::Sum, vec![1u8])?;
        is_send(&pending);
        assert!(format!("{pending:?}").contains("all_reduce"));
        let sum = std::thread::spawn(move || pending.wait()).join().expect("no panic")?;
        assert_eq!(sum, [2]);
        Ok(())
    })
    .unwrap();
}
