//! A rank that comes long after the others gave up: all know the same first cause, its graph drains at once
//! and touches nothing, not even memory that the others have made since, and a new group on the same contexts
//! is right.

use std::time::{Duration, Instant};

use symmem::cuda::{Device, Event, Graph, Settings, SymmetricMemory};
use symmem::{Cause, Error, Group, ProcessSpawner, ReduceOp, Result};

use crate::common::AT_ONCE;
use crate::failure::{failed, starts_again};
use crate::stage::{QUEUES, Rank, alone, device, settings};
use crate::tools::Tools;

const DEADLINE: Duration = Duration::from_secs(1);
/// How long after the deadline the late rank comes.
const LATE: Duration = Duration::from_secs(2);
/// The rank that comes late. Rank 0 waits for it, rank 2 launches nothing.
const LATE_RANK: usize = 1;
const OPERATIONS: usize = 20;
const LEN: usize = 3000;
/// What is in the memory of the group that fails, and in that of the one that comes after it.
const OLD: f32 = 7.25;
const NEW: f32 = -3.5;
/// Milliseconds in which a graph of a failed group drains.
const DRAIN: f32 = 1.0;

/// Collective over the ranks of `parent`. Culprit and cause of the failure, as this rank knows them.
fn be_a_rank(parent: &Group) -> Result<(usize, String)> {
    let tools = Tools::new(&Device::new(0)?)?;
    let rank = Rank::new(parent, Settings { deadline: Some(DEADLINE), ..settings() })?;
    let memory = rank.engine.alloc::<f32>(LEN)?.rendezvous(&rank.engine)?;
    memory.write(&[OLD; LEN], &rank.stream)?;
    rank.engine.prepare()?;
    // What another thread makes meanwhile may break a capture.
    rank.ready()?;
    let graph = capture(&rank, &memory)?;
    rank.ready()?;
    let (culprit, cause) = match rank.rank() {
        LATE_RANK => come_late(parent, &tools, &rank, &memory, &graph)?,
        _ => give_up(parent, &tools, rank, memory, graph)?,
    };
    parent.barrier()?;
    starts_again(parent)?;
    Ok((culprit, format!("{cause:?}")))
}

fn capture(rank: &Rank, memory: &SymmetricMemory<f32>) -> Result<Graph> {
    rank.stream.begin_capture()?;
    for _ in 0..OPERATIONS {
        memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    }
    let graph = rank.stream.end_capture()?;
    assert_eq!(graph.kernel_count(), OPERATIONS);
    Ok(graph)
}

/// Rank 0 waits for its peers until the deadline. Then it and rank 2 let go of everything of the failed
/// group, and use a new one while the late rank's graph runs.
fn give_up(
    parent: &Group,
    tools: &Tools,
    rank: Rank,
    memory: SymmetricMemory<f32>,
    graph: Graph,
) -> Result<(usize, Cause)> {
    if rank.rank() == 0 {
        let start = Instant::now();
        graph.launch(&rank.stream)?;
        assert_timed_out(rank.sync());
        let elapsed = start.elapsed();
        assert!(elapsed > DEADLINE * 9 / 10 && elapsed < DEADLINE + AT_ONCE, "{elapsed:?}");
    }
    let cause = failed(&rank);
    let refused = memory.all_reduce(ReduceOp::Sum, &rank.stream).unwrap_err();
    assert_eq!(refused.culprit(), Some(cause.0), "{refused}");
    drop((graph, memory, rank));

    let again = Rank::new(&parent.subgroup(&[0, 2], "again")?, settings())?;
    let memory = again.engine.alloc::<f32>(LEN)?.rendezvous(&again.engine)?;
    memory.write(&[NEW; LEN], &again.stream)?;
    parent.barrier()?;
    // Here the late graph runs.
    parent.barrier()?;
    for rank in 0..2 {
        // SAFETY: both ranks hold their memory until the end.
        let changed = unsafe { tools.differing(memory.peer_ptr(rank)?, LEN, NEW, &again.stream) }?;
        assert_eq!(changed, 0, "elements of rank {rank} in the new group");
    }
    again.ready()?;
    memory.all_reduce(ReduceOp::Sum, &again.stream)?;
    again.sync()?;
    assert_eq!(memory.read(&again.stream)?, [2.0 * NEW; LEN]);
    again.end()?;
    Ok(cause)
}

fn come_late(
    parent: &Group,
    tools: &Tools,
    rank: &Rank,
    memory: &SymmetricMemory<f32>,
    graph: &Graph,
) -> Result<(usize, Cause)> {
    let (start, end) = (Event::timed(&rank.device)?, Event::timed(&rank.device)?);
    let cause = failed(rank);
    std::thread::sleep(LATE);
    parent.barrier()?;
    // All is queued before the first event happens: what is between the two is the device's time alone.
    tools.hold_up(&rank.stream, Duration::from_millis(20))?;
    start.record(&rank.stream)?;
    graph.launch(&rank.stream)?;
    end.record(&rank.stream)?;
    assert_timed_out(rank.sync());
    end.synchronize()?;
    let drained = end.elapsed_ms_since(&start)?;
    println!("{OPERATIONS} late operations drained in {:.0} us", drained * 1e3);
    assert!(drained < DRAIN, "{OPERATIONS} late operations took {drained} ms");
    // The memory of the failed group is as it was: this rank's, and that of rank 0, which has let go of it.
    assert_eq!(memory.salvage(&rank.stream)?, [OLD; LEN]);
    // SAFETY: this rank's mapping of it is kept by the handle.
    let changed = unsafe { tools.differing(memory.peer_ptr(0)?, LEN, OLD, &rank.stream) }?;
    assert_eq!(changed, 0, "elements of rank 0 in the failed group");
    assert_eq!(failed(rank), cause, "the first cause stands");
    parent.barrier()?;
    Ok(cause)
}

fn assert_timed_out(result: Result<()>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Device { cause: Cause::TimedOut, .. }), "{error}");
}

/// All know the same cause: whoever rank 0 looked at first did not come in time.
fn check(causes: &[(usize, String)]) {
    assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
    assert_eq!(causes[0].1, format!("{:?}", Cause::TimedOut), "{causes:?}");
    assert!([1, 2].contains(&causes[0].0), "{causes:?}");
}

#[test]
fn a_late_rank_finds_the_group_failed_and_harms_nobody_as_threads() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    check(&symmem::spawn(3, |group| be_a_rank(&group)).unwrap());
}

#[test]
fn a_late_rank_finds_the_group_failed_and_harms_nobody_as_processes() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    let name = "late::a_late_rank_finds_the_group_failed_and_harms_nobody_as_processes";
    check(&ProcessSpawner::new(name, 3).env(QUEUES, 4).run(|group| be_a_rank(&group)).unwrap());
}
