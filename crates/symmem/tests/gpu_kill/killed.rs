//! A rank that is killed while the others wait for it on the device.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use symmem::cuda::Status;
use symmem::{Error, Group, ReduceOp, Result};

use crate::can_run;
use crate::common::{Launch, assert_error, is_rank_of, patiently, report, serve};
use crate::stage::{Rank, alone, settings};

const REPEATS: usize = 20;
const WORLD: usize = 3;
/// How long after the death survivors may take to know of it, and to be done with the operation.
const LIMIT: Duration = Duration::from_secs(1);
/// How long the others wait before the victim is killed.
const WAITING: Duration = Duration::from_millis(150);
/// Variables: which rank is killed, and whether a kernel of its own waits meanwhile.
const VICTIM: &str = "SYMMEM_TEST_VICTIM";
const AT_WORK: &str = "SYMMEM_TEST_AT_WORK";
/// What the victim says before it dies, and survivors at the end.
const DYING: &str = "dying";
const LOST: &str = "lost it";

#[test]
fn a_killed_rank_is_lost_for_all_survivors_within_a_second() {
    const TEST: &str = "killed::a_killed_rank_is_lost_for_all_survivors_within_a_second";
    if is_rank_of(TEST) {
        return be_a_rank().unwrap();
    }
    if !can_run() {
        return;
    }
    let _alone = alone();
    let server = serve();
    for repeat in 0..REPEATS {
        let victim = repeat % WORLD;
        let launch = Launch::new(TEST, WORLD, server.port()).attempt(repeat as u32);
        let ended = launch.env(VICTIM, victim).env(AT_WORK, repeat % 2).run();
        for (rank, ended) in ended.into_iter().enumerate() {
            if rank == victim {
                assert!(!ended.ok && ended.said == [DYING], "repeat {repeat}, the victim: {ended:?}");
            } else {
                assert_eq!(ended.expect(), [LOST], "repeat {repeat}, rank {rank}");
            }
        }
    }
}

/// A number that the launcher has set.
fn number(variable: &str) -> usize {
    std::env::var(variable).unwrap().parse().unwrap()
}

/// Since some moment that all processes of this machine agree on.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn be_a_rank() -> Result<()> {
    let group = Group::from_env()?;
    let rank = Rank::new(&group, settings())?;
    let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
    let beside = rank.engine.stream()?;
    let victim = number(VICTIM);
    let key = format!("death/{}", group.id());
    rank.ready()?;
    if rank.rank() == victim {
        if number(AT_WORK) != 0 {
            // Nobody answers it.
            memory.lane(1)?.wait_signal(rank.group.next(), 3, &beside)?;
        }
        std::thread::sleep(WAITING);
        report(DYING);
        group.store().set(&key, &(now().as_nanos() as u64).to_le_bytes(), &patiently())?;
        group.store().get(&key, &patiently())?;
        // SAFETY: a signal to this very process, which gets no chance to say goodbye.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    let result = rank.sync();
    let known = now();
    assert_error!(result, Error::PeerLost { rank, .. } if rank == victim);
    assert!(matches!(rank.engine.status(), Status::Failed { culprit, .. } if culprit == victim));
    // The kernel knows it as well, and leaves.
    let start = Instant::now();
    while !rank.stream.query()? {
        assert!(start.elapsed() < LIMIT, "the kernel still waits for a rank that is dead");
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = group.store().get(&key, &patiently())?;
    let died = Duration::from_nanos(u64::from_le_bytes(told.try_into().unwrap()));
    let took = known.saturating_sub(died);
    println!("rank {}: lost rank {victim} after {took:?}", rank.rank());
    assert!(known > died && took < LIMIT, "{took:?}");
    report(LOST);
    Ok(())
}
