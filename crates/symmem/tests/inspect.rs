//! What `symmem::inspect` says of ranks that wait, are stopped, are dead, or are at work, and that they do
//! not notice.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, connect, serve};
use symmem::inspect::{self, GroupState, Life, RankState};
use symmem::{Group, Mailbox, ProcessSpawner, ReduceOp, Result};

/// The group with this id, if it can be seen.
fn seen(id: &str) -> Option<GroupState> {
    inspect::groups().expect("/proc can be read").into_iter().find(|group| group.id == id)
}

/// The first state of the group that is as `wanted`.
fn until(id: &str, wanted: impl Fn(&GroupState) -> bool) -> GroupState {
    let start = Instant::now();
    loop {
        let group = seen(id);
        match group {
            Some(group) if wanted(&group) => return group,
            other => assert!(start.elapsed() < PATIENCE, "it never came: {other:#?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ranks that are threads, in `work` beside `look`, which is given the group's id and ends before they do.
fn beside<R>(
    world: usize,
    work: impl Fn(&Group, &AtomicBool) -> Result<()> + Sync,
    look: impl FnOnce(&str) -> R,
) -> R {
    let (id, over) = (std::sync::Mutex::new(None), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            symmem::spawn(world, |group| {
                let group = group.within(PATIENCE);
                if group.rank() == 0 {
                    *id.lock().unwrap() = Some(group.id().to_owned());
                }
                work(&group, &over)
            })
        });
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = End(&over);
        let start = Instant::now();
        let id = loop {
            if let Some(id) = id.lock().unwrap().take() {
                break id;
            }
            assert!(start.elapsed() < PATIENCE, "no group was made");
            std::thread::sleep(Duration::from_millis(5));
        };
        let looked = look(&id);
        drop(end);
        ranks.join().expect("the ranks").expect("ranks that end well");
        looked
    })
}

fn sleep_until(over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether these ranks wait for `culprit` alone, who waits for nobody.
fn all_wait_for(group: &GroupState, culprit: usize) -> bool {
    group.ranks.iter().all(|rank| match rank.rank == culprit {
        true => rank.waiting.is_none(),
        false => rank.waiting.as_ref().is_some_and(|wait| wait.ranks == [culprit]),
    })
}

#[test]
fn a_rank_in_its_own_code_is_the_one_that_the_others_wait_for() {
    let work = |group: &Group, over: &AtomicBool| {
        let mut x = group.alloc::<f32>(16 << 10)?;
        x.fill(1.0)?;
        let mut memory = x.rendezvous(group)?;
        if group.rank() == 2 {
            sleep_until(over);
        }
        memory.all_reduce(ReduceOp::Sum)?;
        memory.close()
    };
    beside(4, work, |id| {
        // Stuck is who has one rank that waited for a second; the one that is looked at may have come a
        // little later.
        let has_waited = |group: &GroupState| {
            let wait = group.ranks[0].waiting.as_ref();
            wait.is_some_and(|wait| wait.since >= Duration::from_secs(1))
        };
        let group = until(id, |group| all_wait_for(group, 2) && group.is_stuck() && has_waited(group));
        assert_eq!((&group.culprits[..], &group.cycle[..], group.world), (&[2][..], &[][..], 4));
        let waits = &group.ranks[0];
        let operation = waits.operation.as_ref().expect("it is in one");
        assert_eq!((operation.name, operation.bytes), ("all_reduce", Some(64 << 10)));
        assert_eq!(operation.sequence, Some(waits.last[0].sequence));
        assert_eq!(operation.reduce, Some(ReduceOp::Sum));
        assert_eq!(operation.dtype, Some(symmem::DType::F32));
        assert!(operation.algorithm.is_some(), "{operation:?}");
        let wait = waits.waiting.as_ref().expect("it waits");
        assert!(wait.since >= Duration::from_secs(1) && wait.since < group.made, "{wait:?}");
        assert_eq!((wait.operation, wait.lane), ("all_reduce", None));
        assert!(group.ranks.iter().all(|rank| rank.pid == Some(std::process::id())), "{group:?}");
        assert!(group.ranks[2].operation.as_ref().is_some_and(|last| last.name == "rendezvous"), "{group:?}");
        let sentence = group.explain();
        assert!(
            sentence.starts_with("ranks 0, 1, 3 have waited for rank 2 in all_reduce (64 KB, operation ")
        );
        assert!(sentence.contains("in its own code, after rendezvous"), "{sentence}");
    });
}

#[test]
fn whom_others_wait_for_in_turn_is_followed_to_its_end() {
    let work = |group: &Group, over: &AtomicBool| {
        let memory = group.alloc::<u8>(64)?.rendezvous(group)?;
        match group.rank() {
            0 => memory.wait_signal(1, 0)?,
            1 => {
                memory.wait_signal(2, 3)?;
                memory.put_signal(0, 0)?;
            }
            _ => {
                sleep_until(over);
                memory.put_signal(1, 3)?;
            }
        }
        memory.close()
    };
    beside(3, work, |id| {
        // In the rendezvous, too, ranks may wait for each other for a moment.
        let waits = |rank: &RankState| rank.waiting.as_ref().map(|wait| wait.operation);
        let group = until(id, |group| {
            group.ranks.iter().map(waits).eq([Some("wait_signal"), Some("wait_signal"), None])
        });
        assert_eq!(group.culprits, [2]);
        assert_eq!(group.ranks[0].waiting.as_ref().expect("it waits").ranks, [1]);
        let operation = group.ranks[1].operation.as_ref().expect("it is in one");
        assert_eq!((operation.name, operation.channel), ("wait_signal", Some(3)));
    });
}

#[test]
fn ranks_that_wait_for_each_others_mail_are_a_cycle() {
    let work = |group: &Group, over: &AtomicBool| {
        let mail = Mailbox::new(group)?;
        let peer = 1 - group.rank();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep_until(over);
                mail.send(peer, 7, &[1]).expect("the peer receives");
            });
            let mut got = [0u8];
            mail.receive(peer, 7, &mut got).map(drop)
        })?;
        group.barrier()
    };
    beside(2, work, |id| {
        let group = until(id, |group| !group.cycle.is_empty() && group.is_stuck());
        assert_eq!((group.cycle.len(), group.culprits.len()), (2, 0), "{group:?}");
        assert!(
            group.ranks.iter().all(|rank| rank.operation.as_ref().is_some_and(|op| op.name == "receive"))
        );
    });
}

#[test]
fn two_groups_of_one_name_are_told_apart_and_so_is_a_subgroup() {
    let (together, server) = (Barrier::new(4), serve());
    std::thread::scope(|scope| {
        for job in 0..2 {
            for rank in 0..2 {
                let (together, port) = (&together, server.port());
                scope.spawn(move || {
                    let store = symmem::store::PrefixStore::new(format!("job {job}"), connect(port));
                    let group =
                        Group::from_store(std::sync::Arc::new(store), rank, 2, "twins").expect("a group");
                    let pair = (job == 1).then(|| group.subgroup(&[1, 0], "turned").expect("a subgroup"));
                    together.wait();
                    if (job, rank) == (0, 0) {
                        let groups = inspect::groups().expect("/proc can be read");
                        let twins: Vec<_> = groups.iter().filter(|group| group.name == "twins").collect();
                        assert_eq!(twins.len(), 2, "{groups:#?}");
                        assert_ne!(twins[0].id, twins[1].id);
                        assert!(twins.iter().all(|twin| twin.ranks.len() == 2));
                        assert_eq!(groups.iter().filter(|group| group.name == "turned").count(), 1);
                    }
                    together.wait();
                    drop(pair);
                });
            }
        }
    });
}

#[test]
fn a_group_that_ended_is_not_seen_and_a_rank_that_left_is() {
    let ranks = symmem::spawn(2, |group| Ok((group.rank() == 0).then_some(group))).expect("two ranks");
    let group = ranks.into_iter().flatten().next().expect("rank 0 keeps its group");
    let id = group.id().to_owned();
    let state = seen(&id).expect("rank 0 is there");
    assert_eq!(state.ranks[1].life, Life::Left);
    assert_ne!(state.ranks[0].life, Life::Left);
    group.barrier().expect_err("rank 1 has left");
    let state = seen(&id).expect("rank 0 is there");
    assert_eq!(state.failure.as_ref().map(|failure| failure.culprit), Some(1), "{state:?}");
    assert!(state.explain().starts_with("failed: rank 1"), "{}", state.explain());
    drop(group);
    assert!(seen(&id).is_none());
}

#[test]
fn a_job_goes_on_while_it_is_looked_at() {
    let work = |group: &Group, over: &AtomicBool| {
        let mut x = group.alloc::<u64>(100)?;
        x.fill(1)?;
        let mut memory = x.rendezvous(group)?;
        let mut rounds = 0u32;
        loop {
            memory.local_mut()?.fill(1);
            memory.all_reduce(ReduceOp::Sum)?;
            assert_eq!(memory.local()?[99], 2);
            rounds += 1;
            let ends = u8::from(over.load(Ordering::Relaxed));
            if group.all_gather(&ends)?.contains(&1) {
                break;
            }
        }
        assert!(rounds > 10, "only {rounds} rounds");
        memory.close()
    };
    beside(2, work, |id| {
        let ops = |group: &GroupState| group.ranks[1].counters.expect("it lives").ops;
        let first = ops(&until(id, |_| true));
        let last = until(id, |group| {
            looks_like_a_group(group);
            ops(group) > first + 200
        });
        assert!(last.failure.is_none(), "{last:?}");
    });
}

fn looks_like_a_group(group: &GroupState) {
    assert_eq!((group.world, group.ranks.len()), (2, 2));
    assert!(group.culprits.iter().chain(&group.cycle).all(|rank| *rank < 2));
    assert!(!group.explain().is_empty());
}

#[test]
fn a_dead_rank_is_known_by_what_it_told_the_others() {
    const NAME: &str = "a_dead_rank_is_known_by_what_it_told_the_others";
    let outcomes = ProcessSpawner::new(NAME, 3).env("SYMMEM_TIMEOUT", 30).run_all(|group: Group| {
        let mut x = group.alloc::<f64>(512)?;
        x.fill(0.5)?;
        let mut memory = x.rendezvous(&group)?;
        memory.all_reduce(ReduceOp::Max)?;
        let pids = group.pids();
        if group.rank() == 2 {
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let error = group.barrier().expect_err("rank 2 is dead");
        let job = inspect::groups_of(&[pids[2]])?;
        let state = job.into_iter().find(|state| state.id == group.id()).expect("survivors are there");
        let dead = &state.ranks[2];
        assert_eq!(
            (dead.life, dead.pid, &state.culprits[..]),
            (Life::Dead, Some(pids[2]), &[2][..]),
            "{error}"
        );
        let last = dead.operation.as_ref().expect("it told the others");
        assert_eq!((last.name, last.bytes), ("all_reduce", Some(4096)), "{state:?}");
        assert_eq!(last.reduce, Some(ReduceOp::Max));
        assert!(state.explain().contains(&format!("rank 2 (pid {}) died", pids[2])), "{}", state.explain());
        // The other one looks as well.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    });
    let outcomes = outcomes.expect("ranks start");
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok() && outcomes[2].is_err(), "{outcomes:?}");
}
