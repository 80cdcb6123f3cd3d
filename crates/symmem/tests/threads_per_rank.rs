//! Several threads per rank: the same bits as with one, threads only where they are worth it, and none left
//! behind.

mod common;

use std::time::Instant;

use common::{PATIENCE, config, same_ranks_with};
use symmem::{Element, Group, ProcessSpawner, ReduceOp, Result, bf16, f16};

/// The bytes of every split collective's result on `len` elements from `rank` on.
fn results<T: Element>(group: &Group, len: usize, op: ReduceOp) -> Result<Vec<Vec<u8>>> {
    let (rank, world) = (group.rank(), group.size());
    let mut x = group.alloc::<T>(len + world)?;
    let mut state = 0x9e37_79b9_u32.wrapping_mul(rank as u32 + 1);
    let noise = |byte: &mut u8| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    };
    bytemuck::cast_slice_mut::<T, u8>(&mut x.local_mut()?).iter_mut().for_each(noise);
    // Offsets differ by rank, so that nothing is aligned alike.
    x.rendezvous(group)?;
    let mut mem = x.rendezvous_at(group, rank)?.slice(..len)?;
    let own = mem.local()?.to_vec();
    let mut results = Vec::new();
    let mut keep = |out: &[T]| results.push(bytemuck::cast_slice::<T, u8>(out).to_vec());
    let mut out = vec![T::zeroed(); len * world];
    mem.all_gather(&mut out)?;
    keep(&out);
    out.truncate(len);
    mem.all_reduce_out(op, &mut out)?;
    keep(&out);
    mem.all_to_all(&mut out)?;
    keep(&out);
    mem.reduce(op, world - 1, &mut out)?;
    keep(&out);
    out.truncate(len / world);
    mem.reduce_scatter(op, &mut out)?;
    keep(&out);
    mem.all_reduce(op)?;
    keep(&mem.local()?);
    mem.local_mut()?.copy_from_slice(&own);
    mem.broadcast(world - 1)?;
    keep(&mem.local()?);
    mem.close()?;
    Ok(results)
}

fn compare<T: Element>(single: &Group, several: &Group, ops: &[ReduceOp]) -> Result<()> {
    let world = single.size();
    // About 1 MiB and more, whole lines and not.
    let elements = [1_500_007 / size_of::<T>(), (1 << 20) / size_of::<T>()];
    for (op, elements) in ops.iter().zip(elements) {
        let len = elements / world * world;
        let (one, many) = (results::<T>(single, len, *op)?, results::<T>(several, len, *op)?);
        let differ: Vec<usize> = (0..one.len()).filter(|index| one[*index] != many[*index]).collect();
        assert!(differ.is_empty(), "{} {op} of {len} elements: results {differ:?} differ", T::DTYPE);
    }
    Ok(())
}

fn with_threads(group: &Group, threads: usize) -> Result<Group> {
    same_ranks_with(group, config().threads_per_rank(threads))
}

#[test]
fn the_number_of_threads_never_changes_a_bit() {
    for world in [2, 3] {
        symmem::spawn(world, |group| {
            let single = with_threads(&group, 1)?;
            // Ranks may differ.
            let several = with_threads(&group, 3 - group.rank() % 2)?;
            compare::<f32>(&single, &several, &[ReduceOp::Sum, ReduceOp::Max])?;
            compare::<bf16>(&single, &several, &[ReduceOp::Avg])?;
            compare::<f16>(&single, &several, &[ReduceOp::Prod])?;
            compare::<f64>(&single, &several, &[ReduceOp::Sum])?;
            compare::<u8>(&single, &several, &[ReduceOp::Xor, ReduceOp::Min])?;
            compare::<i64>(&single, &several, &[ReduceOp::Sum])
        })
        .unwrap();
    }
}

/// Threads of this process that share a rank's work.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("rank ") && name.contains(" part ")).count()
}

fn wait_for_helpers(count: usize) {
    let start = Instant::now();
    while helpers() != count {
        assert!(start.elapsed() < PATIENCE, "{} threads, not {count}", helpers());
        std::thread::yield_now();
    }
}

#[test]
fn threads_are_made_for_large_work_and_end_with_the_group() {
    let spawner = ProcessSpawner::new("threads_are_made_for_large_work_and_end_with_the_group", 2);
    spawner
        .run(|group| {
            let single = with_threads(&group, 1)?;
            results::<f32>(&single, 1 << 20, ReduceOp::Sum)?;
            let several = with_threads(&group, 3)?;
            results::<f32>(&several, 1 << 10, ReduceOp::Sum)?;
            assert_eq!(helpers(), 0);
            for _ in 0..3 {
                results::<f32>(&several, 1 << 20, ReduceOp::Sum)?;
                wait_for_helpers(2);
            }
            drop(several);
            wait_for_helpers(0);
            group.barrier()
        })
        .unwrap();
}
