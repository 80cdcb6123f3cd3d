//! Ranks as processes on one device, with or without MPS.

use std::time::{Duration, Instant};

use symmem::cuda::Status;
use symmem::{Error, Group, ProcessSpawner, ReduceOp};

use crate::common::{Launch, assert_error, is_rank_of, report, serve};
use crate::numerics::try_types;
use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, settings};

#[test]
fn processes_reduce_as_threads_do() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for world in [2, 3, 4] {
        ProcessSpawner::new("processes::processes_reduce_as_threads_do", world)
            .env(QUEUES, 4)
            .run(|group| {
                let rank = Rank::new(&group, settings())?;
                try_types(&rank, &[22, 8196, (1 << 20) + 6])
            })
            .unwrap();
    }
}

#[test]
fn a_killed_rank_is_lost_for_all_survivors() {
    const TEST: &str = "processes::a_killed_rank_is_lost_for_all_survivors";
    if is_rank_of(TEST) {
        return be_a_rank_that_may_be_killed();
    }
    let Some(device) = device() else { return };
    if device.has_mps() {
        println!("skipped: what happens when a client of MPS is killed at work is not defined");
        return;
    }
    let _alone = alone();
    let server = serve();
    let ended = Launch::new(TEST, 3, server.port()).run();
    assert!(!ended[2].ok, "rank 2 was killed");
    for survivor in ended.into_iter().take(2) {
        assert_eq!(survivor.expect(), ["lost rank 2"]);
    }
}

/// Rank 2 kills itself while the others wait for it on the device.
fn be_a_rank_that_may_be_killed() {
    if device().is_none() {
        return;
    }
    let group = Group::from_env().unwrap();
    let rank = Rank::new(&group, settings()).unwrap();
    let memory = rank.engine.alloc::<f32>(1000).unwrap().rendezvous(&rank.engine).unwrap();
    rank.ready().unwrap();
    if rank.rank() == 2 {
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: a signal to this very process, which gets no chance to say goodbye.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    memory.all_reduce(ReduceOp::Sum, &rank.stream).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let result = rank.engine.sync(&rank.stream, PATIENCE);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_error!(result, Error::PeerLost { rank: 2, .. });
    assert!(matches!(rank.engine.status(), Status::Failed { culprit: 2, .. }));
    report("lost rank 2");
}
