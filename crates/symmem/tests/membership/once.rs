//! What a join and an election let happen once, and what they say where something cannot happen at all.

use std::thread;
use std::time::{Duration, Instant};

use symmem::{Deadline, Error, Group, ProcessSpawner, Result};

use super::{BOOT, join, memory, on_ranks};
use crate::common::{self, PATIENCE, assert_error, config};
use crate::hostile::{group_id, say_hello_as};

#[test]
fn a_rank_whose_own_part_fails_says_why_though_the_others_never_vote() {
    let store = memory();
    let (joined, took) = thread::scope(|scope| {
        scope.spawn(|| {
            // A process that lives, on this host, whose channel nobody listens on, and that never votes.
            say_hello_as(&*store, BOOT, 1, &[]);
            let id = group_id(&*store, BOOT).expect("rank 0 answers");
            let address = format!("{{\"Ok\":\"abstract:0:{:032x}\"}}", 7);
            store.set(&format!("{BOOT}/{id}/address/1"), address.as_bytes(), &common::patiently()).unwrap();
        });
        let start = Instant::now();
        (join(config(), &store, 0, 2), start.elapsed())
    });
    assert_error!(joined, Error::Channel { rank: 1, .. });
    assert!(took < PATIENCE / 2, "{took:?}");
}

#[test]
fn a_rank_that_cannot_listen_says_why_though_the_others_never_accept() {
    let store = memory();
    let (joined, took) = thread::scope(|scope| {
        scope.spawn(|| say_hello_as(&*store, BOOT, 1, &[]));
        let start = Instant::now();
        (join(config().socket_dir("/nonexistent"), &store, 0, 2), start.elapsed())
    });
    assert_error!(joined, Error::Sys { .. });
    assert!(took < PATIENCE / 2, "{took:?}");
}

#[test]
fn a_rank_that_cannot_listen_is_named_to_the_others() {
    let store = memory();
    let outcomes = on_ranks(2, |rank| {
        let config = if rank == 1 { config().socket_dir("/nonexistent") } else { config() };
        join(config, &store, rank, 2)
    });
    let [first, second] = outcomes.try_into().unwrap();
    assert_error!(first, Error::Rank { rank: 1, message, .. } if message.contains("bind"));
    assert_error!(second, Error::Sys { .. });
}

#[test]
fn survivors_from_a_second_thread_of_a_rank_is_refused() {
    let store = memory();
    on_ranks(2, |rank| {
        let group = join(config(), &store, rank, 2).unwrap();
        if rank == 1 {
            // The election of rank 0 waits for this rank, so its two calls are there together.
            thread::sleep(Duration::from_millis(500));
            assert_eq!(group.survivors(Deadline::after(PATIENCE)).unwrap().size(), 2);
            return;
        }
        let call = || group.survivors(Deadline::after(PATIENCE));
        let outcomes =
            thread::scope(|scope| [scope.spawn(call), scope.spawn(call)].map(|call| call.join().unwrap()));
        let (made, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        assert_eq!((made.len(), refused.len()), (1, 1), "{made:?} {refused:?}");
        for refused in refused {
            assert_error!(refused, Error::Busy { .. });
        }
    });
}

/// Joins a group in a forked child of this rank; whether it was refused before it published anything.
fn join_in_a_child(group: Group) -> Result<bool> {
    let server = common::serve();
    // SAFETY: the child only joins, with memory and sockets of its own, and ends below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let store = common::connect(server.port());
        let refused = join(config().timeout(Duration::from_secs(3)), &store, 1, 2);
        let forked = matches!(refused, Err(Error::Forked { .. }))
            && matches!(Group::from_env(), Err(Error::Forked { .. }));
        // SAFETY: ends the child at once: the rank's exit handlers are not the child's to run.
        unsafe { libc::_exit(i32::from(!forked)) }
    }
    let mut status = 0;
    // SAFETY: waits for our own child and writes to `status` only.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let store = common::connect(server.port());
    let published = store.check(&[&format!("{BOOT}/hello/1")], &common::patiently())?;
    group.barrier()?;
    Ok(status == 0 && !published)
}

#[test]
fn a_forked_child_is_refused_before_it_says_hello() {
    let spawner = ProcessSpawner::new("once::a_forked_child_is_refused_before_it_says_hello", 1);
    assert_eq!(spawner.env("SYMMEM_TIMEOUT", 30).run(join_in_a_child).unwrap(), [true]);
}
