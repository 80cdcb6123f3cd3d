//! Groups that lose ranks, and what the others make of it: `Group::survivors`.

use std::net::TcpListener;
use std::os::unix::process::parent_id;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symmem::fault::{self, Point};
use symmem::{CancelToken, Cause, Deadline, Error, Group, ProcessSpawner, Result};

/// Longer than anything here takes when all is well.
const LONG: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// Ends this process as `kill -9` does.
fn die() -> ! {
    // SAFETY: no memory is involved, and the process ends.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("SIGKILL cannot be survived");
}

/// Checks that a call failed because rank `culprit` is gone.
fn is_lost<T: std::fmt::Debug>(result: Result<T>, culprit: usize) {
    let error = result.unwrap_err();
    assert!(error.is_group_failure() && error.culprit() == Some(culprit), "{error}");
}

/// The new group does everything a group does. Returns this rank's place and the number of ranks.
fn is_whole(group: &Group) -> Result<(usize, usize)> {
    let (rank, ranks) = (group.rank(), group.size());
    assert_eq!(group.all_gather(&rank)?, (0..ranks).collect::<Vec<_>>());
    let mut memory = group.alloc::<u64>(1000)?;
    memory.fill(rank as u64)?;
    let memory = memory.rendezvous(group)?;
    memory.put_signal(group.next(), 0)?;
    memory.wait_signal(group.prev(), 0)?;
    memory.barrier(0)?;
    assert_eq!(memory.peer(group.next())?.read(999)?, group.next() as u64);
    memory.close()?;
    let backwards: Vec<usize> = (0..ranks).rev().collect();
    assert_eq!(group.subgroup(&backwards, "backwards")?.all_gather(&rank)?, backwards);
    Ok((rank, ranks))
}

/// What ranks returned, `None` for those that were killed.
fn outcomes<T: std::fmt::Debug>(results: Result<Vec<Result<T>>>) -> Vec<Option<T>> {
    let unless_killed = |result: Result<T>| match result {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("killed by signal 9") => None,
        Err(error) => panic!("{error}"),
    };
    results.unwrap().into_iter().map(unless_killed).collect()
}

fn processes(name: &str, ranks: usize) -> ProcessSpawner {
    ProcessSpawner::new(name, ranks).env("SYMMEM_TIMEOUT", 60)
}

#[test]
fn the_others_go_on_when_rank_0_dies_with_the_store_it_serves() {
    let name = "the_others_go_on_when_rank_0_dies_with_the_store_it_serves";
    // Below the ports that the kernel hands out by itself: it is still free when rank 0 takes it.
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let port = (first..32_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let ranks = processes(name, 4).env("TORCHELASTIC_USE_AGENT_STORE", 0).env("MASTER_PORT", port);
    let results = ranks.run_all(|group| {
        group.barrier()?;
        if group.rank() == 0 {
            die();
        }
        is_lost(group.barrier(), 0);
        is_whole(&group.survivors(soon())?)
    });
    assert_eq!(outcomes(results), [None, Some((0, 3)), Some((1, 3)), Some((2, 3))]);
}

#[test]
fn survivors_can_lose_another_one() {
    let results = processes("survivors_can_lose_another_one", 4).run_all(|world| {
        if world.rank() == 1 {
            die();
        }
        is_lost(world.barrier(), 1);
        let three = world.survivors(soon())?;
        assert_eq!(is_whole(&three)?.1, 3);
        if world.rank() == 3 {
            die();
        }
        is_lost(three.barrier(), 2);
        is_whole(&three.survivors(soon())?)
    });
    assert_eq!(outcomes(results), [Some((0, 2)), None, Some((1, 2)), None]);
}

#[test]
fn two_ranks_can_die_at_once() {
    let results = processes("two_ranks_can_die_at_once", 4).run_all(|group| {
        group.barrier()?;
        if group.rank() % 2 == 0 {
            die();
        }
        let error = group.barrier().unwrap_err();
        assert!(error.is_group_failure() && error.culprit().is_some_and(|rank| rank % 2 == 0), "{error}");
        is_whole(&group.survivors(soon())?)
    });
    assert_eq!(outcomes(results), [None, Some((0, 2)), None, Some((1, 2))]);
}

/// Rank 2 dies at once; `victim` dies at `point` of the join that makes the survivors' group.
fn regroup_without(name: &str, victim: usize, point: Point) -> Vec<Option<(usize, usize)>> {
    // It passes the point in the world's join first: once, or once for each peer.
    let passes = if point == Point::FdReceived { 3 } else { 1 };
    let ranks = processes(name, 4)
        .env("SYMMEM_CRASH_POINT", point.name())
        .env("SYMMEM_CRASH_RANK", victim)
        .env("SYMMEM_CRASH_AFTER", passes);
    let results = ranks.run_all(|group| {
        if group.rank() == 2 {
            die();
        }
        // The victim goes straight on, so that it is known how often it passes each point.
        if group.rank() != victim {
            is_lost(group.barrier(), 2);
        }
        let survivors = group.survivors(soon())?;
        if survivors.size() == 3 {
            // It came so far before it died: then the new group loses it.
            is_lost(survivors.barrier(), if victim < 2 { victim } else { victim - 1 });
            return is_whole(&survivors.survivors(soon())?);
        }
        is_whole(&survivors)
    });
    outcomes(results)
}

#[test]
fn survivors_agree_whether_one_that_dies_at_the_last_moment_is_in_their_group() {
    let name = "survivors_agree_whether_one_that_dies_at_the_last_moment_is_in_their_group";
    // Some may see all arrive where others see the death first, so once is not enough.
    for _ in 0..15 {
        let results = regroup_without(name, 3, Point::BarrierPublished);
        assert_eq!(results, [Some((0, 2)), Some((1, 2)), None, None]);
    }
}

#[test]
fn the_leader_can_die_while_the_survivors_regroup() {
    for &point in Point::JOIN {
        let results = regroup_without("the_leader_can_die_while_the_survivors_regroup", 0, point);
        assert_eq!(results, [None, Some((0, 2)), None, Some((1, 2))], "{point:?}");
    }
}

#[test]
fn another_rank_can_die_while_the_survivors_regroup() {
    for &point in Point::JOIN {
        let results = regroup_without("another_rank_can_die_while_the_survivors_regroup", 3, point);
        assert_eq!(results, [Some((0, 2)), Some((1, 2)), None, None], "{point:?}");
    }
}

/// The others have seen the next death, and given up the store that this rank was about to go to, when it
/// goes on.
#[test]
fn a_rank_that_is_slow_to_join_the_survivors_goes_to_their_next_election() {
    let name = "a_rank_that_is_slow_to_join_the_survivors_goes_to_their_next_election";
    let results = processes(name, 4).run_all(|group| {
        match group.rank() {
            1 => fault::arm(Point::Elected, || std::thread::sleep(Duration::from_millis(500))),
            2 => die(),
            3 => fault::arm(Point::Elected, || die()),
            _ => {}
        }
        is_lost(group.barrier(), 2);
        let start = Instant::now();
        let survivors = group.survivors(soon())?;
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        is_whole(&survivors)
    });
    assert_eq!(outcomes(results), [Some((0, 2)), Some((1, 2)), None, None]);
}

#[test]
fn a_live_rank_that_never_comes_is_named_by_the_timeout() {
    let results = processes("a_live_rank_that_never_comes_is_named_by_the_timeout", 3).run_all(|group| {
        group.barrier()?;
        match group.rank() {
            2 => die(),
            // Alive, and not in a call, for longer than the other one waits.
            1 => std::thread::sleep(Duration::from_secs(2)),
            _ => {
                is_lost(group.barrier(), 2);
                let start = Instant::now();
                match group.survivors(Deadline::after(Duration::from_millis(300))) {
                    Err(Error::Timeout { missing, .. }) => assert_eq!(missing, [1]),
                    other => panic!("{other:?}"),
                }
                assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            }
        }
        Ok(())
    });
    assert_eq!(outcomes(results), [Some(()), Some(()), None]);
}

#[test]
fn a_rank_that_comes_late_is_waited_for_and_a_timed_out_election_can_be_held_again() {
    let name = "a_rank_that_comes_late_is_waited_for_and_a_timed_out_election_can_be_held_again";
    // Not there before the election that rank 1 must be late for has ended, however slow the machine is.
    let ended = |parent: u32| std::env::temp_dir().join(format!("symmem-test-late-{parent}"));
    let results = processes(name, 3).run_all(|group| {
        group.barrier()?;
        if group.rank() == 2 {
            die();
        }
        is_lost(group.barrier(), 2);
        let ended = ended(parent_id());
        if group.rank() == 1 {
            let end = Instant::now() + LONG;
            while !ended.exists() {
                assert!(Instant::now() < end, "the early election does not end");
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            let early = group.survivors(Deadline::after(Duration::from_millis(100)));
            assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
            std::fs::write(&ended, "").unwrap();
        }
        is_whole(&group.survivors(soon())?)
    });
    let _ = std::fs::remove_file(ended(std::process::id()));
    assert_eq!(outcomes(results), [Some((0, 2)), Some((1, 2)), None]);
}

/// One rank aborts; all go on.
fn abort_and_regroup(group: &Group) -> Result<(usize, usize)> {
    group.barrier()?;
    if group.rank() == 1 {
        group.abort("enough");
    }
    match group.barrier() {
        Err(Error::GroupFailed { culprit: 1, cause: Cause::Aborted, reason, .. }) => {
            assert_eq!(reason, "enough");
        }
        other => panic!("{other:?}"),
    }
    is_whole(&group.survivors(soon())?)
}

#[test]
fn after_an_abort_all_threads_regroup() {
    let results = symmem::spawn(3, |group| abort_and_regroup(&group)).unwrap();
    assert_eq!(results, [(0, 3), (1, 3), (2, 3)]);
}

#[test]
fn after_an_abort_all_processes_regroup() {
    let ranks = processes("after_an_abort_all_processes_regroup", 3);
    assert_eq!(ranks.run(|group| abort_and_regroup(&group)).unwrap(), [(0, 3), (1, 3), (2, 3)]);
}

#[test]
fn threads_go_on_without_one_that_left() {
    for leaver in 0..3 {
        let results = symmem::spawn(3, |group| {
            group.barrier()?;
            if group.rank() == leaver {
                return Ok(None);
            }
            is_lost(group.barrier(), leaver);
            is_whole(&group.survivors(soon())?).map(Some)
        });
        let mut places = results.unwrap();
        assert_eq!(places.remove(leaver), None);
        assert_eq!(places, [Some((0, 2)), Some((1, 2))]);
    }
}

#[test]
fn threads_that_make_a_subgroup_with_one_that_left_are_told_at_once() {
    for leaver in 0..3 {
        let results = symmem::spawn(3, |group| {
            group.barrier()?;
            if group.rank() == leaver {
                return Ok(None);
            }
            let start = Instant::now();
            is_lost(group.try_clone(), leaver);
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            is_whole(&group.survivors(soon())?).map(Some)
        });
        let mut places = results.unwrap();
        assert_eq!(places.remove(leaver), None);
        assert_eq!(places, [Some((0, 2)), Some((1, 2))]);
    }
}

#[test]
fn threads_go_on_without_one_that_panicked() {
    for victim in 0..3 {
        let results = symmem::spawn(3, |group| {
            group.barrier()?;
            assert_ne!(group.rank(), victim, "on purpose");
            is_lost(group.barrier(), victim);
            assert_eq!(is_whole(&group.survivors(soon())?)?.1, 2);
            Ok(())
        });
        match results {
            Err(Error::Spawned { rank, message }) => {
                assert!(rank == victim && message.contains("on purpose"), "rank {rank}: {message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Rank 2 panics at once, and rank 3 at `point` while the others make the survivors' group.
fn threads_regroup_without(point: Point) {
    let done = Mutex::new(Vec::new());
    let results = symmem::spawn(4, |group| {
        group.barrier()?;
        assert_ne!(group.rank(), 2, "on purpose");
        is_lost(group.barrier(), 2);
        if group.rank() == 3 {
            fault::arm_panic(point);
        }
        let start = Instant::now();
        let mut survivors = group.survivors(soon())?;
        if survivors.size() == 3 {
            // It came so far before it panicked: then the new group loses it.
            is_lost(survivors.barrier(), 2);
            survivors = survivors.survivors(soon())?;
        }
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        let place = is_whole(&survivors)?;
        done.lock().unwrap().push(place);
        Ok(())
    });
    // The first panic is the one on purpose, so it does not say how the others ended.
    assert!(matches!(results, Err(Error::Spawned { rank: 2, .. })), "{}: {results:?}", point.name());
    let mut done = done.into_inner().unwrap();
    done.sort();
    assert_eq!(done, [(0, 2), (1, 2)], "{}", point.name());
}

#[test]
fn threads_go_on_without_one_that_panics_while_they_regroup() {
    threads_regroup_without(Point::Elected);
    Point::JOIN.iter().copied().for_each(threads_regroup_without);
}

#[test]
fn a_cancelled_election_ends_at_once_and_can_be_held_again() {
    let (token, ended) = (CancelToken::new(), AtomicBool::new(false));
    let results = symmem::spawn(3, |group| {
        group.barrier()?;
        match group.rank() {
            2 => return Ok(None),
            1 => {
                is_lost(group.barrier(), 2);
                token.cancel();
                let end = Instant::now() + LONG;
                while !ended.load(Ordering::Acquire) {
                    assert!(Instant::now() < end, "nobody came");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {
                is_lost(group.barrier(), 2);
                let start = Instant::now();
                let error = group.cancelled_by(&token).survivors(Deadline::after(LONG / 2)).unwrap_err();
                ended.store(true, Ordering::Release);
                assert!(matches!(error, Error::Cancelled { .. }), "{error}");
                assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
            }
        }
        is_whole(&group.survivors(soon())?).map(Some)
    });
    assert_eq!(results.unwrap(), [Some((0, 2)), Some((1, 2)), None]);
}

#[test]
fn a_death_outside_of_a_subgroup_ends_its_making() {
    let results = processes("a_death_outside_of_a_subgroup_ends_its_making", 3).run_all(|group| {
        group.barrier()?;
        match group.rank() {
            2 => die(),
            // It learns of the death before it comes to the subgroup, and never comes.
            0 => is_lost(group.barrier(), 2),
            _ => {
                let start = Instant::now();
                is_lost(group.subgroup(&[1, 0], "pair"), 2);
                assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
            }
        }
        is_whole(&group.survivors(soon())?)
    });
    assert_eq!(outcomes(results), [Some((0, 2)), Some((1, 2)), None]);
}

#[test]
fn a_last_survivor_is_a_group_of_one() {
    let results = processes("a_last_survivor_is_a_group_of_one", 3).run_all(|group| {
        group.barrier()?;
        if group.rank() != 1 {
            die();
        }
        assert!(group.barrier().unwrap_err().is_group_failure());
        is_whole(&group.survivors(soon())?)
    });
    assert_eq!(outcomes(results), [None, Some((0, 1)), None]);
}
