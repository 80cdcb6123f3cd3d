//! A context that is lost, by a kernel of ours that was told to trap and by a kernel of the user's: errors
//! have a type, the cause can be asked for, and everything can be dropped.

use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Event, OnError, Settings, Status};
use symmem::{Cause, Error, Group, ReduceOp, Result};

use crate::can_run;
use crate::common::{AT_ONCE, is_rank_of, report, start};
use crate::stage::{PATIENCE, Rank, alone, settings};
use crate::tools::Tools;

/// Seconds after which the child is killed, wherever it hangs.
const HANGS: u32 = 60;
const DONE: &str = "done";

/// Runs `body` on two ranks in a process of its own, which must end by itself, and well.
fn in_child(test: &str, body: fn(Group) -> Result<()>) {
    if is_rank_of(test) {
        // SAFETY: the system ends the process by a signal if it is still there by then, also in its last
        // drops.
        unsafe { libc::alarm(HANGS) };
        let _enough_queues = crate::stage::device();
        symmem::spawn(2, body).unwrap();
        return report(DONE);
    }
    if !can_run() {
        return;
    }
    let _alone = alone();
    assert_eq!(start(test, &[]).expect(), [DONE]);
}

/// Waits until the driver says that the context is lost.
fn wait_for_loss(rank: &Rank) {
    let start = Instant::now();
    while rank.stream.query().is_ok() {
        assert!(start.elapsed() < PATIENCE, "the context is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The driver's error of a lost context, from whatever is called next.
fn assert_lost<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Cuda { code, hint, .. }) => {
            assert!((700..=719).contains(&code) && hint.contains("context is lost"), "{code}: {hint}");
        }
        other => panic!("in a lost context: {other:?}"),
    }
}

fn trap(group: Group) -> Result<()> {
    let deadline = Some(Duration::from_millis(300));
    let rank = Rank::new(&group, Settings { deadline, on_error: OnError::Trap, ..settings() })?;
    let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
    rank.ready()?;
    if rank.rank() == 0 {
        memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    }
    // Both ranks are in the context that is lost.
    wait_for_loss(&rank);
    let timed_out = |error: &Error| matches!(error, Error::Device { culprit: 1, cause: Cause::TimedOut, .. });
    // Which of the two comes first is the driver's to say: it may refuse the question whether the stream is
    // captured.
    match rank.sync() {
        Err(error) if timed_out(&error) => {}
        other => assert_lost(other),
    }
    let error = memory.all_reduce(ReduceOp::Sum, &rank.stream).unwrap_err();
    assert!(timed_out(&error), "{error}");
    assert_lost(Buffer::<u8>::new(&rank.device, 1 << 20).map(drop));
    assert!(matches!(memory.read(&rank.stream), Err(Error::Poisoned { .. })));
    assert_lost(memory.salvage(&rank.stream));
    assert_lost(rank.stream.synchronize());
    let status = rank.engine.status();
    assert!(matches!(status, Status::Failed { culprit: 1, cause: Cause::TimedOut, .. }), "{status:?}");
    // What is on the host goes on.
    group.barrier()?;
    drop_all(memory, rank)
}

/// Drops what a rank has, without a panic and without waiting for anything.
fn drop_all(what: impl Sized, rank: Rank) -> Result<()> {
    let start = Instant::now();
    drop(what);
    drop(rank);
    assert!(start.elapsed() < AT_ONCE, "the drops took {:?}", start.elapsed());
    Ok(())
}

#[test]
fn a_kernel_that_traps_leaves_the_cause_and_a_process_that_can_end() {
    in_child("lost_context::a_kernel_that_traps_leaves_the_cause_and_a_process_that_can_end", trap);
}

fn lose(group: Group) -> Result<()> {
    let rank = Rank::new(&group, settings())?;
    let tools = Tools::new(&rank.device)?;
    let allocation = rank.engine.alloc::<f32>(1 << 20)?;
    let memory = allocation.rendezvous(&rank.engine)?;
    let slice = memory.slice(10..)?;
    let mut out = Buffer::<f32>::new(&rank.device, 1 << 20)?;
    let event = Event::new(&rank.device)?;
    rank.engine.prepare()?;
    rank.ready()?;
    rank.stream.begin_capture()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    let graph = rank.stream.end_capture()?;
    rank.ready()?;
    graph.launch(&rank.stream)?;
    rank.sync()?;
    rank.ready()?;
    if rank.rank() == 0 {
        // Rank 1 waits in a kernel when the context goes.
        std::thread::sleep(Duration::from_millis(50));
        tools.lose_context(&rank.stream)?;
    } else {
        memory.all_reduce_out(ReduceOp::Sum, &mut out, &rank.stream)?;
    }
    wait_for_loss(&rank);
    assert_lost(rank.sync());
    assert_lost(event.record(&rank.stream));
    assert_lost(rank.engine.alloc::<f32>(10).map(drop));
    group.barrier()?;
    drop_all((tools, slice, memory, allocation, out, graph, event), rank)
}

#[test]
fn everything_can_be_dropped_after_the_context_was_lost() {
    in_child("lost_context::everything_can_be_dropped_after_the_context_was_lost", lose);
}
