//! Every collective of a communicator, on values whose results are known to the bit in every type.

use std::fmt::Debug;

use symmem::cuda::{Buffer, Stream};
use symmem::nccl::{Communicator, GroupCall};
use symmem::{Element, ReduceOp, Result};

/// One rank: its communicator and stream.
pub(crate) struct Rank {
    pub(crate) nccl: Communicator,
    pub(crate) stream: Stream,
}

impl Rank {
    pub(crate) fn new(nccl: Communicator) -> Result<Self> {
        let stream = Stream::new(nccl.device())?;
        Ok(Self { nccl, stream })
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Buffer<T>> {
        Buffer::from_slice(self.nccl.device(), elements, &self.stream)
    }
}

/// Element `at` of rank `rank`: from 1 to 3, so that sums and products of a few are exact in every type.
fn number(rank: usize, at: usize) -> i32 {
    ((rank * 5 + at) % 3) as i32 + 1
}

fn numbers<T>(rank: usize, len: usize, from: fn(i32) -> T) -> Vec<T> {
    (0..len).map(|at| from(number(rank, at))).collect()
}

/// Collective. Tries everything that moves, `len` elements for each rank, that `from` makes of small
/// integers.
pub(crate) fn try_moves<T: Element + PartialEq + Debug>(
    rank: &Rank,
    len: usize,
    from: fn(i32) -> T,
) -> Result<()> {
    let (me, world) = (rank.nccl.rank(), rank.nccl.size());
    let (nccl, stream) = (&rank.nccl, &rank.stream);
    let whole = |rank: usize| numbers(rank, len * world, from);
    let part = |rank: usize, at: usize| whole(rank)[at * len..(at + 1) * len].to_vec();
    let input = rank.buffer(&whole(me))?;
    let mut small = rank.buffer(&part(me, 0))?;

    let mut out = Buffer::new(nccl.device(), len * world)?;
    nccl.all_gather(&small, &mut out, stream)?;
    let gathered: Vec<T> = (0..world).flat_map(|rank| part(rank, 0)).collect();
    assert!(out.read(stream)? == gathered, "all_gather");

    nccl.all_to_all(&input, &mut out, stream)?;
    let exchanged: Vec<T> = (0..world).flat_map(|rank| part(rank, me)).collect();
    assert!(out.read(stream)? == exchanged, "all_to_all");

    out.fill_bytes(0, stream)?;
    let root = world - 1;
    let is_root = me == root;
    nccl.gather(&small, is_root.then(|| out.as_slice_mut()), root, stream)?;
    assert_eq!(out.read(stream)? == gathered, is_root, "gather");

    nccl.scatter(is_root.then(|| input.as_slice()), &mut small, root, stream)?;
    assert!(small.read(stream)? == part(root, me), "scatter");

    nccl.broadcast(&mut small, 0, stream)?;
    assert!(small.read(stream)? == part(root, 0), "broadcast");

    let (next, last) = ((me + 1) % world, (me + world - 1) % world);
    let group = GroupCall::start()?;
    nccl.send(&input, next, stream)?;
    nccl.recv(&mut out, last, stream)?;
    group.end()?;
    assert!(out.read(stream)? == whole(last), "send and recv");
    Ok(())
}

/// Collective. Tries every reduction, `len` elements for each rank, that `from` makes of small integers.
pub(crate) fn try_reductions<T: Element + PartialEq + Debug>(
    rank: &Rank,
    len: usize,
    from: fn(i32) -> T,
) -> Result<()> {
    let world = rank.nccl.size();
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        let reduced = |at: usize| {
            let all = (0..world).map(|rank| number(rank, at));
            match op {
                ReduceOp::Sum => all.sum::<i32>(),
                ReduceOp::Prod => all.product(),
                ReduceOp::Max => all.max().unwrap_or_default(),
                _ => all.min().unwrap_or_default(),
            }
        };
        let input = numbers(rank.nccl.rank(), len * world, from);
        let expected: Vec<T> = (0..len * world).map(|at| from(reduced(at))).collect();
        try_reduction(rank, op, &input, &expected)?;
    }
    // Numbers whose average is whole, so exact in every type, and neither the largest nor the smallest of
    // them nor their sum.
    let turn = |rank: usize, at: usize| from((2 * ((rank + at) % world) + at % 3) as i32);
    let input: Vec<T> = (0..len * world).map(|at| turn(rank.nccl.rank(), at)).collect();
    let average: Vec<T> = (0..len * world).map(|at| from((world - 1 + at % 3) as i32)).collect();
    try_reduction(rank, ReduceOp::Avg, &input, &average)
}

fn try_reduction<T: Element + PartialEq + Debug>(
    rank: &Rank,
    op: ReduceOp,
    input: &[T],
    expected: &[T],
) -> Result<()> {
    let (me, nccl, stream) = (rank.nccl.rank(), &rank.nccl, &rank.stream);
    let len = input.len() / nccl.size();
    let mut data = rank.buffer(input)?;
    let mut out = Buffer::new(nccl.device(), input.len())?;
    nccl.all_reduce(&data, &mut out, op, stream)?;
    assert!(out.read(stream)? == expected, "all_reduce {op}");
    out.fill_bytes(0, stream)?;
    nccl.reduce(&data, Some(out.as_slice_mut()).filter(|_| me == 0), op, 0, stream)?;
    assert_eq!(out.read(stream)? == expected, me == 0, "reduce {op}");
    let mut part = Buffer::new(nccl.device(), len)?;
    nccl.reduce_scatter(&data, &mut part, op, stream)?;
    assert!(part.read(stream)? == expected[me * len..(me + 1) * len], "reduce_scatter {op}");
    nccl.all_reduce_in_place(&mut data, op, stream)?;
    assert!(data.read(stream)? == expected, "all_reduce_in_place {op}");
    Ok(())
}

/// Collective. Both, with this type.
pub(crate) fn try_all<T: Element + PartialEq + Debug>(
    rank: &Rank,
    len: usize,
    from: fn(i32) -> T,
) -> Result<()> {
    try_moves(rank, len, from)?;
    try_reductions(rank, len, from)
}
