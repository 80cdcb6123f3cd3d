//! Every collective, on elements whose results are exact in every order, so that all who carry them agree to
//! the bit.

use symmem::cuda::{Buffer, DeviceSlice, DeviceSliceMut, SymmetricMemory};
use symmem::{Error, ReduceOp, Result, bf16, f16};

use crate::common::assert_error;
use crate::suite::device::rank::Rank;
use crate::suite::value::{Value, addend, assert_elements, elements, factor, number};

/// Lengths of messages: one element, odd ones, sizes that change the algorithm.
const LENS: [usize; 6] = [1, 5, 1000, 8 << 10, 100_003, 400_000];
/// Elements per rank, for what is cut into one part for each.
const CHUNKS: [usize; 5] = [1, 3, 16, 1021, 33_000];
/// Elements beside a message that must stay as they are.
const MARGIN: usize = 64;
/// What they are: no sum of any message.
const PAINT: usize = 100;

fn sum(rank: &Rank, at: usize) -> usize {
    (0..rank.world()).map(|rank| addend(rank, at)).sum()
}

/// This rank's elements for a sum.
fn addends<T: Value>(rank: &Rank, len: usize) -> Vec<T> {
    elements(len, |at| addend(rank.rank(), at))
}

/// One message in the three forms of all-reduce.
fn reduce_all<T: Value>(rank: &Rank, memory: &SymmetricMemory<T>) -> Result<()> {
    let (len, stream) = (memory.len(), &rank.stream);
    let mine = addends::<T>(rank, len);
    let input = Buffer::from_slice(&rank.device, &mine, stream)?;
    let mut out = rank.buffer::<T>(len)?;
    memory.write(&mine, stream)?;
    rank.ready()?;
    memory.all_reduce_out(ReduceOp::Sum, &mut out, stream)?;
    rank.sync()?;
    assert_elements("all_reduce_out", &out.read(stream)?, |at| sum(rank, at));
    assert!(memory.read(stream)? == mine, "all_reduce_out changed its input");
    out.fill_bytes(0, stream)?;
    rank.ready()?;
    memory.all_reduce_from(ReduceOp::Sum, &input, &mut out, stream)?;
    rank.sync()?;
    assert_elements("all_reduce_from", &out.read(stream)?, |at| sum(rank, at));
    assert!(input.read(stream)? == mine, "all_reduce_from changed its input");
    memory.write(&mine, stream)?;
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, stream)?;
    rank.sync()?;
    assert_elements("all_reduce", &memory.read(stream)?, |at| sum(rank, at));
    rank.end()
}

pub(crate) fn every_form_of_all_reduce_is_right(rank: &Rank) -> Result<()> {
    reduce_all(rank, &rank.memory::<bf16>(8196)?)?;
    reduce_all(rank, &rank.memory::<f16>(8196)?)?;
    reduce_all(rank, &rank.memory::<f32>(8196)?)
}

/// A message of a large allocation, at a place that may differ from rank to rank.
fn reduce_inside<T: Value>(rank: &Rank, len: usize, place: usize) -> Result<()> {
    let stream = &rank.stream;
    let x = rank.engine.alloc::<T>(len + MARGIN)?;
    let memory = x.rendezvous_at(&rank.engine, place)?.slice(..len)?;
    let inside = |at: usize| at.checked_sub(place).filter(|at| *at < len);
    let mine = |at: usize| inside(at).map_or(PAINT, |at| addend(rank.rank(), at));
    let reduced = |at: usize| inside(at).map_or(PAINT, |at| sum(rank, at));
    let mut out = rank.buffer::<T>(len + MARGIN)?;
    x.write(&elements(len + MARGIN, mine), stream)?;
    out.write(&elements(len + MARGIN, |_| PAINT), stream)?;
    rank.ready()?;
    memory.all_reduce_out(ReduceOp::Sum, out.as_slice_mut().slice_mut(place..place + len)?, stream)?;
    memory.all_reduce(ReduceOp::Sum, stream)?;
    rank.sync()?;
    assert_elements("all_reduce_out at an offset", &out.read(stream)?, reduced);
    assert_elements("all_reduce at an offset", &x.read(stream)?, reduced);
    rank.end()
}

pub(crate) fn all_reduce_changes_nothing_outside(rank: &Rank) -> Result<()> {
    for bytes in [4, 8192, 8196] {
        // All at the start, all beside it, and each somewhere else.
        for place in [0, 1, 16, 3 + 5 * rank.rank()] {
            reduce_inside::<f32>(rank, bytes / 4, place)?;
            reduce_inside::<bf16>(rank, bytes / 2, place)?;
        }
    }
    reduce_inside::<f16>(rank, 100_003.min(rank.most()), 1 + 2 * rank.rank())
}

pub(crate) fn all_reduce_is_right_at_every_size(rank: &Rank) -> Result<()> {
    let all = rank.memory::<f32>(LENS[LENS.len() - 1])?;
    LENS.into_iter()
        .filter(|len| *len <= rank.most())
        .try_for_each(|len| reduce_all(rank, &all.slice(..len)?))
}

pub(crate) fn private_memory_may_be_reduced_in_its_place(rank: &Rank) -> Result<()> {
    let (len, stream) = (70_001.min(rank.most()), &rank.stream);
    let memory = rank.memory::<f32>(len)?;
    let mut own = Buffer::from_slice(&rank.device, &addends::<f32>(rank, len), stream)?;
    rank.ready()?;
    // SAFETY: the buffer outlives the operation, and only it uses the buffer.
    let input = unsafe { DeviceSlice::from_raw(own.device_ptr(), len, &rank.device) }?;
    memory.all_reduce_from(ReduceOp::Sum, input, &mut own, stream)?;
    rank.sync()?;
    assert_elements("all_reduce_from", &own.read(stream)?, |at| sum(rank, at));
    rank.end()
}

fn average<T: Value>(rank: &Rank, chunk: usize) -> Result<()> {
    let (world, me, stream) = (rank.world(), rank.rank(), &rank.stream);
    let len = chunk * world;
    let memory = rank.memory::<T>(len)?;
    let (mut out, mut part) = (rank.buffer::<T>(len)?, rank.buffer::<T>(chunk)?);
    memory.write(&elements(len, |at| world * addend(me, at)), stream)?;
    rank.ready()?;
    memory.all_reduce_out(ReduceOp::Avg, &mut out, stream)?;
    memory.reduce_scatter(ReduceOp::Avg, &mut part, stream)?;
    memory.all_reduce(ReduceOp::Avg, stream)?;
    rank.sync()?;
    assert_elements("all_reduce_out to an average", &out.read(stream)?, |at| sum(rank, at));
    assert_elements("reduce_scatter to an average", &part.read(stream)?, |at| sum(rank, me * chunk + at));
    assert_elements("all_reduce to an average", &memory.read(stream)?, |at| sum(rank, at));
    rank.end()
}

pub(crate) fn averages_are_exact_where_they_can_be(rank: &Rank) -> Result<()> {
    for len in [7, 5000] {
        average::<f32>(rank, len)?;
        average::<f16>(rank, len)?;
        average::<bf16>(rank, len)?;
    }
    Ok(())
}

pub(crate) fn every_operation_is_reduced_or_refused(rank: &Rank) -> Result<()> {
    let (len, stream) = (501, &rank.stream);
    let memory = rank.memory::<f32>(len)?;
    for op in ReduceOp::ALL {
        let all = |at: usize| (0..rank.world()).map(move |rank| factor(rank, at));
        let expected: Option<Box<dyn Fn(usize) -> usize>> = match op {
            ReduceOp::Sum => Some(Box::new(|at| all(at).sum())),
            // Averages that come out even have a behaviour of their own.
            ReduceOp::Avg => continue,
            ReduceOp::Max if !rank.is_direct() => Some(Box::new(|at| all(at).max().unwrap_or(0))),
            ReduceOp::Min if !rank.is_direct() => Some(Box::new(|at| all(at).min().unwrap_or(0))),
            ReduceOp::Prod if !rank.is_direct() => Some(Box::new(|at| all(at).product())),
            _ => None,
        };
        memory.write(&elements(len, |at| factor(rank.rank(), at)), stream)?;
        rank.ready()?;
        let reduced = memory.all_reduce(op, stream);
        let Some(expected) = expected else {
            assert_error!(reduced, Error::Invalid { problem, .. } if problem.contains("Hint"));
            continue;
        };
        reduced?;
        rank.sync()?;
        assert_elements(&format!("all_reduce {op}"), &memory.read(stream)?, expected);
    }
    rank.end()
}

/// Everything that moves, of memory that is one chunk for each rank. `memory` may lie anywhere in its
/// allocation.
fn move_all<T: Value>(rank: &Rank, memory: &SymmetricMemory<T>) -> Result<()> {
    let (len, world, me, stream) = (memory.len(), rank.world(), rank.rank(), &rank.stream);
    let (chunk, root) = (len / world, world - 1);
    let mine = elements(len, |at| number(me, at));
    let (mut whole, mut same, mut part) =
        (rank.buffer::<T>(len * world)?, rank.buffer::<T>(len)?, rank.buffer::<T>(chunk)?);
    memory.write(&mine, stream)?;
    rank.ready()?;

    memory.all_gather(&mut whole, stream)?;
    memory.all_to_all(&mut same, stream)?;
    memory.scatter(root, &mut part, stream)?;
    rank.sync()?;
    assert_elements("all_gather", &whole.read(stream)?, |at| number(at / len, at % len));
    assert_elements("all_to_all", &same.read(stream)?, |at| number(at / chunk, me * chunk + at % chunk));
    assert_elements("scatter", &part.read(stream)?, |at| number(root, me * chunk + at));

    whole.fill_bytes(0, stream)?;
    rank.ready()?;
    memory.gather(root, (me == root).then(|| whole.as_slice_mut()), stream)?;
    rank.sync()?;
    if me == root {
        assert_elements("gather", &whole.read(stream)?, |at| number(at / len, at % len));
    }
    assert!(memory.read(stream)? == mine, "the memory changed");
    rank.ready()?;
    memory.broadcast(root, stream)?;
    rank.sync()?;
    assert_elements("broadcast", &memory.read(stream)?, |at| number(root, at));
    rank.end()
}

pub(crate) fn parts_are_right_at_every_size(rank: &Rank) -> Result<()> {
    let all = rank.memory::<u16>(CHUNKS[CHUNKS.len() - 1] * rank.world())?;
    CHUNKS
        .into_iter()
        .filter(|chunk| *chunk <= rank.most())
        .try_for_each(|chunk| move_all(rank, &all.slice(..chunk * rank.world())?))
}

pub(crate) fn parts_are_right_where_offsets_differ(rank: &Rank) -> Result<()> {
    let world = rank.world();
    for chunk in [5, 1021, 33_000.min(rank.most() / 4)] {
        let x = rank.engine.alloc::<u8>(chunk * world + MARGIN)?;
        let memory = x.rendezvous_at(&rank.engine, 1 + 3 * rank.rank())?.slice(..chunk * world)?;
        move_all(rank, &memory)?;
        let x = rank.engine.alloc::<f32>(chunk * world + MARGIN)?;
        let memory = x.rendezvous_at(&rank.engine, 3 + 5 * rank.rank())?.slice(..chunk * world)?;
        move_all(rank, &memory)?;
        reduce_portions(rank, &memory)?;
    }
    Ok(())
}

/// Reductions of which a rank keeps a part.
fn reduce_portions<T: Value>(rank: &Rank, memory: &SymmetricMemory<T>) -> Result<()> {
    let (len, world, me, stream) = (memory.len(), rank.world(), rank.rank(), &rank.stream);
    let (chunk, root) = (len / world, world / 2);
    let mine = addends::<T>(rank, len);
    let (mut part, mut whole) = (rank.buffer::<T>(chunk)?, rank.buffer::<T>(len)?);
    memory.write(&mine, stream)?;
    rank.ready()?;
    memory.reduce_scatter(ReduceOp::Sum, &mut part, stream)?;
    memory.reduce(ReduceOp::Sum, root, (me == root).then(|| whole.as_slice_mut()), stream)?;
    rank.sync()?;
    assert_elements("reduce_scatter", &part.read(stream)?, |at| sum(rank, me * chunk + at));
    if me == root {
        assert_elements("reduce", &whole.read(stream)?, |at| sum(rank, at));
    }
    assert!(memory.read(stream)? == mine, "the memory changed");
    rank.end()
}

pub(crate) fn portions_of_a_reduction_are_right(rank: &Rank) -> Result<()> {
    for chunk in CHUNKS.into_iter().filter(|chunk| *chunk <= rank.most()) {
        reduce_portions(rank, &rank.memory::<f32>(chunk * rank.world())?)?;
    }
    reduce_portions(rank, &rank.memory::<bf16>(1021 * rank.world())?)?;
    reduce_portions(rank, &rank.memory::<f16>(1021 * rank.world())?)
}

pub(crate) fn columns_are_reduced_or_refused(rank: &Rank) -> Result<()> {
    let (rows, width, world, stream) = (9, 16, rank.world(), &rank.stream);
    let memory = rank.memory::<f32>(rows * width * world)?;
    let mut out = rank.buffer::<f32>(rows * width)?;
    memory.write(&addends(rank, rows * width * world), stream)?;
    rank.ready()?;
    let reduced = memory.reduce_scatter_columns(ReduceOp::Sum, width * world, &mut out, stream);
    if !rank.is_direct() {
        assert_error!(reduced, Error::Invalid { problem, .. } if problem.contains("NCCL"));
        return rank.end();
    }
    reduced?;
    rank.sync()?;
    let place = |at: usize| (at / width * world + rank.rank()) * width + at % width;
    assert_elements("reduce_scatter_columns", &out.read(stream)?, |at| sum(rank, place(at)));
    rank.end()
}

pub(crate) fn nothing_can_be_moved_and_reduced(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<f32>(64)?.slice(64..)?;
    assert!(memory.is_empty());
    reduce_all(rank, &memory)?;
    reduce_portions(rank, &memory)?;
    let mut none = rank.buffer::<f32>(0)?;
    rank.ready()?;
    memory.all_gather(&mut none, &rank.stream)?;
    memory.all_to_all(&mut none, &rank.stream)?;
    memory.scatter(0, &mut none, &rank.stream)?;
    memory.gather(0, Some(none.as_slice_mut()), &rank.stream)?;
    memory.broadcast(0, &rank.stream)?;
    memory.barrier(0, &rank.stream)?;
    rank.end()
}

pub(crate) fn wrong_outputs_and_roots_are_told_before_anything_runs(rank: &Rank) -> Result<()> {
    let (world, stream, sum) = (rank.world(), &rank.stream, ReduceOp::Sum);
    let memory = rank.memory::<f32>(10 * world)?;
    let mut out = rank.buffer::<f32>(10 * world + 1)?;
    let (more, fewer) = (memory.slice(..10 * world)?, memory.slice(..10 * world - 1)?);
    rank.ready()?;
    let told = |result: Result<()>, words: &str| {
        let error = result.expect_err(words);
        assert!(error.to_string().contains(words), "{words} is not in: {error}");
    };
    told(more.all_reduce_out(sum, &mut out, stream), "Hint");
    told(more.all_gather(&mut out, stream), "are needed");
    told(more.all_to_all(&mut out, stream), "are needed");
    told(more.scatter(0, &mut out, stream), "are needed");
    told(more.reduce_scatter(sum, &mut out, stream), "are needed");
    told(more.broadcast(world, stream), "must be in [0");
    told(more.gather(world, None, stream), "must be in [0");
    told(more.reduce(sum, world, None, stream), "must be in [0");
    told(more.scatter(world, out.as_slice_mut().slice_mut(..10)?, stream), "must be in [0");
    told(more.gather(rank.rank(), None, stream), "needs an output");
    told(more.reduce_scatter_columns(sum, 10 * world + 1, &mut out, stream), "columns");
    if world > 1 {
        told(fewer.reduce_scatter(sum, &mut out, stream), "not divisible");
        told(fewer.all_to_all(out.as_slice_mut().slice_mut(..10 * world - 1)?, stream), "not divisible");
    }
    // SAFETY: the handle's own memory, which the operations refuse to write.
    let own =
        |len| unsafe { DeviceSliceMut::<f32>::from_raw(more.peer_ptr(rank.rank())?, len, &rank.device) };
    told(more.reduce_scatter(sum, own(10)?, stream), "overlaps");
    told(more.all_reduce_out(sum, own(10 * world)?, stream), "overlaps");
    more.barrier(0, stream)?;
    rank.end()
}
