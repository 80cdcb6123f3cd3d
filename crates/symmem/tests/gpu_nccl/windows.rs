//! Memory in windows that all ranks reach: the engine works on it as on the driver's.

use std::sync::atomic::{AtomicUsize, Ordering};

use symmem::cuda::cudarc::driver::CudaContext;
use symmem::cuda::{Algorithm, Allocation, Buffer, Provider, Settings, SymmetricMemory};
use symmem::{Element, ReduceOp, Result, bf16, f16};

use crate::stage::{Rank, alone, can_share, ranks};

/// Collective. The engine's all-reduce of small whole numbers, by every algorithm, in place and out of place.
fn try_engine<T: Element + PartialEq>(rank: &Rank, len: usize, from: fn(f32) -> T) -> Result<()> {
    let allocation = Allocation::<T>::with(rank.engine.device(), len, Provider::Nccl)?;
    let memory: SymmetricMemory<T> = allocation.rendezvous(&rank.engine)?;
    assert!(memory.is_direct(), "ranks of one GPU reach each other");
    let (me, world) = (memory.rank(), memory.world_size());
    let value = |rank: usize, at: usize| ((rank * 3 + at) % 5) as f32;
    let mine: Vec<T> = (0..len).map(|at| from(value(me, at))).collect();
    let sums: Vec<T> = (0..len).map(|at| from((0..world).map(|rank| value(rank, at)).sum::<f32>())).collect();
    let mut out = Buffer::new(rank.engine.device(), len)?;
    for algorithm in [None].into_iter().chain(Algorithm::ALL.map(Some)) {
        let memory = algorithm.map_or(memory.clone(), |algorithm| memory.using(algorithm));
        memory.write(&mine, &rank.stream)?;
        memory.group().barrier()?;
        if memory.all_reduce_out(ReduceOp::Sum, &mut out, &rank.stream).is_ok() {
            rank.sync()?;
            assert!(out.read(&rank.stream)? == sums, "{algorithm:?}");
        }
        memory.group().barrier()?;
        if memory.all_reduce(ReduceOp::Sum, &rank.stream).is_ok() {
            rank.sync()?;
            assert!(memory.read(&rank.stream)? == sums, "{algorithm:?}");
        }
        memory.group().barrier()?;
    }
    Ok(())
}

#[test]
fn the_engine_reduces_in_windows() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    for world in [2, 4] {
        ranks("windows::the_engine_reduces_in_windows", world)
            .run(|group| {
                let rank = Rank::new(&group, Settings::default())?;
                assert!(rank.engine.is_direct());
                for len in [24, 4096, 1 << 20] {
                    try_engine(&rank, len, |number| number)?;
                    try_engine(&rank, len, f16::from_f32)?;
                    try_engine(&rank, len, bf16::from_f32)?;
                }
                group.barrier()
            })
            .unwrap();
    }
}

#[test]
fn pads_signals_and_copies_work_on_windows() {
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("windows::pads_signals_and_copies_work_on_windows", 2)
        .run(|group| {
            let rank = Rank::new(&group, Settings::default())?;
            let memory = rank.engine.alloc::<i32>(1000)?.rendezvous(&rank.engine)?;
            let (next, prev) = (group.next(), group.prev());
            memory.write(&[group.rank() as i32; 1000], &rank.stream)?;
            memory.barrier(0, &rank.stream)?;
            let mut out = Buffer::<i32>::new(rank.engine.device(), 1000)?;
            memory.get(next, 0, &mut out, &rank.stream)?;
            assert_eq!(out.read(&rank.stream)?, [next as i32; 1000]);
            for channel in [0, 3] {
                memory.put_signal(next, channel, &rank.stream)?;
                memory.wait_signal(prev, channel, &rank.stream)?;
            }
            rank.sync()?;
            println!("multicast: {:?}, window {:?}", memory.multicast_ptr(), memory.nccl_window());
            group.barrier()
        })
        .unwrap();
}

/// Descriptors of this process, and free bytes of the device.
fn usage() -> (usize, usize) {
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let free = symmem::cuda::cudarc::driver::result::mem_get_info().unwrap().0;
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), free)
}

#[test]
fn windows_come_and_go_without_growth() {
    const TOLERANCE: usize = 64 << 20;
    if !can_share() {
        return;
    }
    let _alone = alone();
    for world in [1, 2] {
        ranks("windows::windows_come_and_go_without_growth", world)
            .run(|group| {
                let rank = Rank::new(&group, Settings::default())?;
                let mut before = (0, 0);
                for round in 0..110 {
                    let memory = rank.engine.alloc::<f32>(1 << 20)?.rendezvous(&rank.engine)?;
                    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
                    rank.sync()?;
                    group.barrier()?;
                    drop(memory);
                    group.barrier()?;
                    // What NCCL makes once is made by then.
                    if round == 9 {
                        before = usage();
                    }
                }
                group.barrier()?;
                let after = usage();
                println!("descriptors and free bytes: {before:?}, then {after:?}");
                assert!(after.0 <= before.0 + 2, "descriptors: {before:?}, {after:?}");
                assert!(after.1 + TOLERANCE >= before.1, "memory: {before:?}, {after:?}");
                group.barrier()
            })
            .unwrap();
    }
}

/// Makes and drops windows until `captures` are enough; how many there were.
fn make_windows(captures: &AtomicUsize, enough: usize) -> Result<usize> {
    let made = symmem::spawn(1, |group| {
        let rank = Rank::new(&group, Settings::default())?;
        let mut made = 0;
        while captures.load(Ordering::Acquire) < enough {
            let memory = rank.engine.alloc::<f32>(1 << 16)?.rendezvous(&rank.engine)?;
            memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            rank.sync()?;
            made += 1;
        }
        Ok(made)
    })?;
    Ok(made[0])
}

#[test]
fn windows_that_come_and_go_break_no_capture_of_another_thread() {
    const CAPTURES: usize = 40;
    if !can_share() {
        return;
    }
    let _alone = alone();
    ranks("windows::windows_that_come_and_go_break_no_capture_of_another_thread", 1)
        .run(|group| {
            let rank = Rank::new(&group, Settings::default())?;
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            rank.engine.prepare()?;
            let captures = AtomicUsize::new(0);
            let capture = || -> Result<()> {
                rank.stream.begin_capture()?;
                for _ in 0..50 {
                    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                rank.stream.end_capture()?.launch(&rank.stream)?;
                rank.sync()
            };
            let made = std::thread::scope(|scope| -> Result<usize> {
                let windows = scope.spawn(|| make_windows(&captures, CAPTURES));
                let all: Result<()> = (0..CAPTURES).try_for_each(|_| {
                    capture()?;
                    captures.fetch_add(1, Ordering::Release);
                    Ok(())
                });
                captures.store(CAPTURES, Ordering::Release);
                let made = windows.join().expect("a thread that makes windows")?;
                all.map(|()| made)
            })?;
            println!("{made} windows while {CAPTURES} graphs were captured");
            assert!(made > 1);
            group.barrier()
        })
        .unwrap();
}
