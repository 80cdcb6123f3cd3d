//! Order across streams and threads of a rank.

use std::time::Duration;

use symmem::cuda::{DeviceSliceMut, Event, Stream, SymmetricMemory};
use symmem::{ReduceOp, Result};

use crate::suite::device::rank::{PATIENCE, Rank};
use crate::suite::stage::Need;
use crate::suite::value::{assert_elements, elements};

/// Fills `memory` with what `values` has from `start` on. By a kernel: fills and copies of the driver share
/// queues, in which one that waits would hold up another rank's.
fn fill(
    rank: &Rank,
    memory: &SymmetricMemory<u32>,
    values: &SymmetricMemory<u32>,
    start: usize,
    stream: &Stream,
) -> Result<()> {
    let (me, address) = (rank.rank(), memory.peer_ptr(rank.rank())?);
    // SAFETY: this rank's own memory, which the caller keeps.
    let own = unsafe { DeviceSliceMut::from_raw(address, memory.len(), &rank.device) }?;
    match rank.stage.lacks(Need::Kernels, rank.world()).is_some() {
        true => values.get(me, start, own, stream),
        false => values.copy(me, start, own, stream),
    }
}

/// Lets one rank come late.
fn delay(rank: &Rank, late: usize) {
    if rank.rank() == late {
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn barriers_on_two_streams_come_one_after_the_other(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(256)?;
    let values = rank.memory::<u32>(512)?;
    let mut seen = rank.buffer::<u32>(256 * rank.world())?;
    let [first, second] = &rank.others;
    values.write(&elements(512, |at| 100 + at / 256 * 100 + rank.rank()), first)?;
    rank.ready()?;
    delay(rank, 0);
    fill(rank, &memory, &values, 0, first)?;
    memory.barrier(0, first)?;
    memory.barrier(0, second)?;
    fill(rank, &memory, &values, 256, second)?;
    memory.barrier(0, second)?;
    memory.all_gather(&mut seen, second)?;
    rank.engine.sync(second, PATIENCE)?;
    assert_elements("all_gather", &seen.read(second)?, |at| 200 + at / 256);
    rank.end_all()
}

pub(crate) fn signals_on_two_streams_come_one_after_the_other(rank: &Rank) -> Result<()> {
    let (next, prev) = (rank.group.next(), rank.group.prev());
    let memory = rank.memory::<u32>(4)?;
    let values = rank.memory::<u32>(4)?;
    let mut seen = rank.buffer::<u32>(1)?;
    let [first, second] = &rank.others;
    values.write(&[0, 10, 20, 30], first)?;
    rank.ready()?;
    delay(rank, 0);
    for (round, stream) in [first, second, first, second].into_iter().enumerate() {
        fill(rank, &memory.slice(round..round + 1)?, &values, round, stream)?;
        memory.put_signal(next, 0, stream)?;
        memory.wait_signal(prev, 0, stream)?;
    }
    if rank.reaches(prev) {
        memory.get(prev, 3, &mut seen, second)?;
        rank.engine.sync(second, PATIENCE)?;
        assert_eq!(seen.read(second)?, [30]);
    }
    rank.end_all()
}

pub(crate) fn all_reduces_on_two_streams_come_one_after_the_other(rank: &Rank) -> Result<()> {
    let len = 4096;
    let memory = rank.memory::<f32>(len)?;
    memory.write(&vec![1.0; len], &rank.stream)?;
    let mut outs = [rank.buffer::<f32>(len)?, rank.buffer::<f32>(len)?];
    let [first, second] = &rank.others;
    rank.ready()?;
    delay(rank, rank.world() / 2);
    for _ in 0..20 {
        memory.all_reduce_out(ReduceOp::Sum, &mut outs[0], first)?;
        memory.all_reduce_out(ReduceOp::Sum, &mut outs[1], second)?;
    }
    for (out, stream) in outs.iter().zip([first, second]) {
        rank.engine.sync(stream, PATIENCE)?;
        assert_elements("all_reduce_out", &out.read(stream)?, |_| rank.world());
    }
    rank.end_all()
}

/// Small kernels may be on the device before the one ahead of them has ended: each must still see all that it
/// did.
pub(crate) fn operations_behind_each_other_see_what_came_before(rank: &Rank) -> Result<()> {
    const TIMES: u32 = 4;
    let lens = [64, 1000, 4096, 40_000].map(|len: usize| len.min(rank.most()));
    let memories = lens.map(|len| rank.memory::<f32>(len));
    let memories = memories.into_iter().collect::<Result<Vec<_>>>()?;
    for _ in 0..5 {
        for memory in &memories {
            memory.write(&vec![1.0; memory.len()], &rank.stream)?;
        }
        rank.ready()?;
        for memory in &memories {
            for _ in 0..TIMES {
                memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
                rank.engine.barrier(&rank.stream)?;
                memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
                memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
            }
        }
        rank.sync()?;
        for memory in &memories {
            let expected = rank.world().pow(3 * TIMES);
            assert_elements("a chain of all_reduce", &memory.read(&rank.stream)?, |_| expected);
        }
    }
    rank.end()
}

/// The same behind work that is no operation: a graph, a copy by the driver, an event of another stream.
pub(crate) fn operations_see_what_other_work_of_the_stream_did(rank: &Rank) -> Result<()> {
    let (len, stream, [other, _]) = (1024, &rank.stream, &rank.others);
    let sums = rank.memory::<f32>(len)?;
    let mut own = rank.buffer::<f32>(len)?;
    let mut out = rank.buffer::<f32>(len)?;
    let event = Event::new(&rank.device)?;
    stream.begin_capture()?;
    let captured = sums.all_reduce(ReduceOp::Sum, stream);
    let graph = stream.end_capture()?;
    captured?;
    for _ in 0..5 {
        sums.write(&vec![1.0; len], stream)?;
        rank.ready()?;
        sums.all_reduce(ReduceOp::Sum, stream)?;
        graph.launch(stream)?;
        sums.all_reduce(ReduceOp::Sum, stream)?;
        sums.get(rank.rank(), 0, &mut own, stream)?;
        event.record(stream)?;
        other.wait(&event)?;
        event.record(other)?;
        stream.wait(&event)?;
        sums.all_reduce_from(ReduceOp::Sum, &own, &mut out, stream)?;
        rank.sync()?;
        assert_elements("all_reduce_from", &out.read(stream)?, |_| rank.world().pow(4));
        assert_elements("what was copied", &own.read(stream)?, |_| rank.world().pow(3));
    }
    rank.end_all()
}

pub(crate) fn only_the_last_kernel_is_waited_for(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(256)?;
    let [first, second] = &rank.others;
    rank.ready()?;
    memory.barrier(0, first)?;
    // Another lane: it holds up the first stream until the signal comes, and nothing else.
    memory.lane(1)?.wait_signal(rank.group.prev(), 5, first)?;
    memory.barrier(0, second)?;
    rank.engine.sync(second, PATIENCE)?;
    assert!(!first.query()?, "the first stream still waits");
    rank.group.barrier()?;
    memory.put_signal(rank.group.next(), 5, second)?;
    rank.end_all()
}

pub(crate) fn threads_of_a_rank_may_share_a_lane(rank: &Rank) -> Result<()> {
    rank.ready()?;
    std::thread::scope(|scope| {
        for stream in &rank.others {
            scope.spawn(move || {
                for _ in 0..50 {
                    rank.engine.barrier(stream).unwrap();
                }
                rank.engine.sync(stream, PATIENCE).unwrap();
            });
        }
    });
    rank.end_all()
}
