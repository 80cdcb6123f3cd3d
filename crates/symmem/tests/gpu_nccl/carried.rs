//! Ranks that are marked as out of reach, so that NCCL carries what they do; and a rank that does not come.

use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Settings, Status};
use symmem::{Cause, Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::stage::{PATIENCE, Rank, alone, can_share, ranks};

fn far(ranks: &[usize]) -> Settings {
    Settings { unreachable: ranks.to_vec(), ..Settings::default() }
}

#[test]
fn nccl_carries_what_kernels_cannot() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    for world in [2, 4] {
        ranks("carried::nccl_carries_what_kernels_cannot", world)
            .run(|group| {
                let rank = Rank::new(&group, far(&[1]))?;
                assert!(!rank.engine.is_direct());
                for len in [5, 1 << 20] {
                    try_carried(&rank, len)?;
                }
                rank.engine.barrier(&rank.stream)?;
                rank.sync()?;
                group.barrier()
            })
            .unwrap();
    }
}

/// Collective. The three forms of all-reduce, with a type that the engine does not have.
fn try_carried(rank: &Rank, len: usize) -> Result<()> {
    let memory = rank.engine.alloc::<i64>(len)?.rendezvous(&rank.engine)?;
    assert!(!memory.is_direct());
    let (me, world) = (memory.rank(), memory.world_size());
    let mine: Vec<i64> = (0..len).map(|at| (me + at) as i64).collect();
    let sums: Vec<i64> = (0..len).map(|at| (0..world).map(|rank| (rank + at) as i64).sum()).collect();
    let mut out = Buffer::<i64>::new(rank.engine.device(), len)?;
    memory.write(&mine, &rank.stream)?;
    memory.all_reduce_out(ReduceOp::Sum, &mut out, &rank.stream)?;
    assert!(out.read(&rank.stream)? == sums && memory.read(&rank.stream)? == mine);
    let input = Buffer::from_slice(rank.engine.device(), &mine, &rank.stream)?;
    memory.all_reduce_from(ReduceOp::Sum, &input, &mut out, &rank.stream)?;
    assert!(out.read(&rank.stream)? == sums);
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    memory.barrier(0, &rank.stream)?;
    rank.sync()?;
    assert!(memory.read(&rank.stream)? == sums);
    let far = if me == 1 { 0 } else { 1 };
    assert_error!(memory.get(far, 0, &mut out, &rank.stream), Error::NoPeerAccess { .. });
    memory.group().barrier()
}

#[test]
fn a_captured_operation_is_carried_in_its_graph() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("carried::a_captured_operation_is_carried_in_its_graph", 2)
        .run(|group| {
            let rank = Rank::new(&group, far(&[0]))?;
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            memory.write(&[1.0; 1000], &rank.stream)?;
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            rank.sync()?;
            rank.stream.begin_capture()?;
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            let graph = rank.stream.end_capture()?;
            graph.launch(&rank.stream)?;
            graph.launch(&rank.stream)?;
            rank.sync()?;
            assert_eq!(memory.read(&rank.stream)?, [8.0; 1000]);
            group.barrier()
        })
        .unwrap();
}

#[test]
fn signals_go_through_nccl() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("carried::signals_go_through_nccl", 2)
        .run(|group| {
            let rank = Rank::new(&group, far(&[0]))?;
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            for _ in 0..3 {
                memory.put_signal(group.next(), 0, &rank.stream)?;
                memory.wait_signal(group.prev(), 0, &rank.stream)?;
            }
            rank.sync()?;
            group.barrier()
        })
        .unwrap();
}

#[test]
fn a_rank_that_does_not_come_is_told_and_the_stream_ends() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("carried::a_rank_that_does_not_come_is_told_and_the_stream_ends", 2)
        .run(|group| {
            let rank = Rank::new(&group, far(&[0]))?;
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            rank.sync()?;
            group.barrier()?;
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_secs(2));
                group.abort("it was enough");
                return Ok(());
            }
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            let early = rank.engine.sync(&rank.stream, Duration::from_millis(300));
            assert_error!(early, Error::Timeout { .. });
            let start = Instant::now();
            let ended = rank.engine.sync(&rank.stream, PATIENCE);
            assert!(ended.is_err_and(|error| error.is_group_failure()));
            assert!(matches!(rank.engine.status(), Status::Failed { culprit: 1, .. }));
            // The communicator was aborted, so its kernel leaves.
            while !rank.stream.query().unwrap_or(true) {
                assert!(start.elapsed() < PATIENCE, "the kernel is still there");
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn an_operation_of_nccls_has_the_engines_deadline() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("carried::an_operation_of_nccls_has_the_engines_deadline", 2)
        .run(|group| {
            let rank = Rank::new(&group, far(&[0]))?;
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            rank.engine.set_deadline(Some(Duration::from_secs(1)))?;
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            rank.sync()?;
            // What is over does not count, however long ago it was.
            std::thread::sleep(Duration::from_millis(1500));
            assert_eq!(rank.engine.status(), Status::Whole);
            group.barrier()?;
            let start = Instant::now();
            if group.rank() == 0 {
                memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
                let ended = rank.sync().unwrap_err();
                assert!(ended.to_string().contains("waited for more than 1s in NCCL"), "{ended}");
            }
            while rank.engine.status() == Status::Whole {
                assert!(start.elapsed() < PATIENCE / 3, "nobody told");
                std::thread::sleep(Duration::from_millis(10));
            }
            let status = rank.engine.status();
            assert!(
                matches!(status, Status::Failed { culprit: 1, cause: Cause::TimedOut, .. }),
                "{status:?}"
            );
            while !rank.stream.query().unwrap_or(true) {
                assert!(start.elapsed() < PATIENCE, "the kernel is still there");
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })
        .unwrap();
}
