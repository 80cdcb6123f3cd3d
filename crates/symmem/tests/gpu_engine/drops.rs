//! Handles, memory and engine that are dropped while the device has yet to work on them: nobody waits in a
//! drop, the work is done on what it was given, and what comes after is right.

use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Device};
use symmem::{Group, ProcessSpawner, ReduceOp, Result};

use crate::failure::starts_again;
use crate::stage::{QUEUES, Rank, alone, device, settings};
use crate::tools::Tools;

/// How long the device is kept from the work. Drops take a small part of that.
const DELAY: Duration = Duration::from_millis(400);
/// Elements: sizes that change the algorithm. The larger one is read in the memory of peers.
const LENS: [usize; 2] = [3000, 1 << 20];

/// Collective. The sum of everybody's memory, by operations that run when everything of theirs was dropped.
fn reduce_and_drop(parent: &Group, tools: &Tools, len: usize) -> Result<()> {
    let rank = Rank::new(parent, settings())?;
    let (own, stream) = (rank.rank(), rank.stream.clone());
    let mut out = Buffer::<f32>::new(&rank.device, len)?;
    let mut got = Buffer::<f32>::new(&rank.device, len)?;
    let memory = rank.engine.alloc::<f32>(len)?.rendezvous(&rank.engine)?;
    memory.write(&vec![1.0 + own as f32; len], &stream)?;
    rank.ready()?;
    tools.hold_up(&stream, DELAY)?;
    for _ in 0..3 {
        memory.all_reduce_out(ReduceOp::Sum, &mut out, &stream)?;
        memory.barrier(0, &stream)?;
    }
    memory.get(rank.group.next(), 0, &mut got, &stream)?;
    // Everybody's work is queued, and nobody's has begun.
    rank.ready()?;
    let start = Instant::now();
    drop(memory);
    drop(rank);
    let elapsed = start.elapsed();
    assert!(!stream.query()?, "the work is still to come");
    assert!(elapsed < DELAY / 2, "the drops took {elapsed:?}");
    let world = parent.size();
    let sum = (1..=world).sum::<usize>() as f32;
    assert_eq!(out.read(&stream)?, vec![sum; len], "rank {own}, {len} elements");
    assert_eq!(got.read(&stream)?, vec![1.0 + ((own + 1) % world) as f32; len], "rank {own}");
    parent.barrier()
}

fn be_a_rank(parent: &Group) -> Result<()> {
    let tools = Tools::new(&Device::new(0)?)?;
    for len in LENS {
        reduce_and_drop(parent, &tools, len)?;
    }
    starts_again(parent)
}

#[test]
fn what_is_dropped_under_pending_work_stays_until_that_is_done_as_threads() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    symmem::spawn(2, |group| be_a_rank(&group)).unwrap();
}

#[test]
fn what_is_dropped_under_pending_work_stays_until_that_is_done_as_processes() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    let name = "drops::what_is_dropped_under_pending_work_stays_until_that_is_done_as_processes";
    ProcessSpawner::new(name, 2).env(QUEUES, 4).run(|group| be_a_rank(&group)).unwrap();
}
