//! Ranks that are threads share the queues of their process: operations on two streams each pass, or are
//! refused at once.

use std::process::Command;
use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Device, Stream};
use symmem::{ReduceOp, Result};

use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, settings};

/// How often each pattern runs with each setting, unless the variable says otherwise.
const REPETITIONS: usize = 10;
const REPETITIONS_ASKED: &str = "SYMMEM_TEST_REPETITIONS";
/// Settings of [`QUEUES`].
const SETTINGS: [Option<&str>; 4] = [None, Some("1"), Some("8"), Some("32")];
/// In a child: that it is one.
const CHILD: &str = "SYMMEM_TEST_QUEUES";
/// Longer than a repetition takes that passes or is refused.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Ranks, and what each does on its two streams.
type Pattern = (&'static str, usize, fn(&Rank, &Stream, &Stream) -> Result<()>);

/// Each rank has a third stream, which gets no work. So 8 queues are enough for two ranks, and not for four.
const PATTERNS: [Pattern; 3] =
    [("all_reduce", 4, all_reduces), ("barrier", 2, barriers), ("signal", 2, signals)];

fn all_reduces(rank: &Rank, first: &Stream, second: &Stream) -> Result<()> {
    let memory = rank.engine.alloc::<f32>(4096)?.rendezvous(&rank.engine)?;
    let mut outs = [Buffer::<f32>::new(&rank.device, 4096)?, Buffer::<f32>::new(&rank.device, 4096)?];
    rank.ready()?;
    for _ in 0..20 {
        memory.all_reduce_out(ReduceOp::Sum, &mut outs[0], first)?;
        memory.all_reduce_out(ReduceOp::Sum, &mut outs[1], second)?;
    }
    end(rank, first, second)
}

fn barriers(rank: &Rank, first: &Stream, second: &Stream) -> Result<()> {
    rank.ready()?;
    for _ in 0..20 {
        rank.engine.barrier(first)?;
        rank.engine.barrier(second)?;
    }
    end(rank, first, second)
}

fn signals(rank: &Rank, first: &Stream, second: &Stream) -> Result<()> {
    let memory = rank.engine.alloc::<u32>(256)?.rendezvous(&rank.engine)?;
    rank.ready()?;
    for stream in [first, second].into_iter().cycle().take(20) {
        memory.put_signal(rank.group.next(), 0, stream)?;
        memory.wait_signal(rank.group.prev(), 0, stream)?;
    }
    end(rank, first, second)
}

/// Memory is freed when nobody's kernel waits.
fn end(rank: &Rank, first: &Stream, second: &Stream) -> Result<()> {
    rank.engine.sync(first, PATIENCE)?;
    rank.engine.sync(second, PATIENCE)?;
    rank.group.barrier()
}

/// How a repetition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    /// Too many streams: one rank was told so, the others that it left.
    Refused,
}

/// One repetition.
fn repeat((name, world, pattern): Pattern, round: usize) -> Ended {
    let started = Instant::now();
    // Streams that never get work need no queue; they only move on whatever the driver counts.
    let device = Device::new(0).unwrap();
    let idle: Vec<_> = (0..(round * 7) % 40).map(|_| Stream::new(&device).unwrap()).collect();
    let ended = symmem::spawn(world, |group| {
        let rank = Rank::new(&group, settings())?;
        let (first, second) = (rank.engine.stream()?, rank.engine.stream()?);
        pattern(&rank, &first, &second)
    });
    drop(idle);
    assert!(started.elapsed() < AT_ONCE, "{name}, round {round}: {ended:?} after {:?}", started.elapsed());
    match ended.map_err(|error| error.to_string()) {
        Ok(_) => Ended::Passed,
        Err(error) if error.contains("they may use at most") && error.contains(QUEUES) => Ended::Refused,
        Err(error) => panic!("{name}, round {round}: {error}"),
    }
}

/// All repetitions, in a process whose driver was started with one setting.
fn repeat_all() {
    let setting = std::env::var(QUEUES).unwrap_or_else(|_| "unset".to_owned());
    let asked = std::env::var(REPETITIONS_ASKED).ok().and_then(|text| text.parse().ok());
    let repetitions: usize = asked.unwrap_or(REPETITIONS);
    // Else each repetition would make the context again.
    let _context = Device::new(0).unwrap();
    // Kernels may have to be compiled first.
    symmem::spawn(1, |group| Rank::new(&group, settings()).map(drop)).unwrap();
    for pattern in PATTERNS {
        let ended: Vec<_> = (0..repetitions).map(|round| repeat(pattern, round)).collect();
        let passed = ended.iter().filter(|ended| **ended == Ended::Passed).count();
        let name = pattern.0;
        println!("{name}, {QUEUES} {setting}: {passed} of {repetitions} passed, the others were refused");
        assert!(setting != "32" || passed == repetitions, "{name}: there are queues enough");
        assert!(setting != "1" || passed == 0, "{name}: one queue is not enough");
    }
}

#[test]
fn two_streams_pass_or_are_refused_whatever_the_number_of_queues() {
    if std::env::var_os(CHILD).is_some() {
        return repeat_all();
    }
    if device().is_none() {
        return;
    }
    let _alone = alone();
    let this = "queues::two_streams_pass_or_are_refused_whatever_the_number_of_queues";
    for setting in SETTINGS {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([this, "--exact", "--nocapture"]).env(CHILD, "1").env_remove(QUEUES);
        if let Some(setting) = setting {
            child.env(QUEUES, setting);
        }
        assert!(child.status().unwrap().success(), "{QUEUES} {setting:?}");
    }
}
