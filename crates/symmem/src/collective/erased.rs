//! Collectives as data, on bytes: for callers that learn the type of elements, and which collective it is,
//! when they run.
//!
//! The Python bindings call these; others have the methods that are called by their types. No part of the
//! public interface. What they do is what those methods do, with the same checks. The type is looked up here
//! and nowhere above, so that what is above is compiled once and not once for each type.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use super::Received;
use crate::group::{Group, Pending};
use crate::memory::{Allocation, SymmetricMemory};
use crate::numeric::{DType, Element, ReduceOp, with_type};
use crate::operation::{CollectiveRow, Op};
use crate::{Error, Result};

/// How many rows of `row` elements each rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<'a> {
    /// By rank.
    pub counts: &'a [usize],
    /// Elements of a row.
    pub row: usize,
}

impl Rows<'_> {
    /// How many elements each rank has.
    fn elements(&self) -> Cow<'_, [usize]> {
        match self.row {
            1 => Cow::Borrowed(self.counts),
            row => self.counts.iter().map(|count| count.saturating_mul(row)).collect(),
        }
    }
}

/// A collective, and what its ranks must say alike besides the elements. Where it takes an output, that is
/// passed beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call<'a> {
    /// In place without an output.
    AllReduce(ReduceOp),
    /// The output is at the root only.
    Reduce(ReduceOp, usize),
    /// Each rank gets its part.
    ReduceScatter(ReduceOp),
    /// Of a matrix with so many columns: each rank gets a part of every row. In symmetric memory only.
    ReduceScatterColumns(ReduceOp, usize),
    /// Each rank gets everybody's elements.
    AllGather,
    /// In place, from this root.
    Broadcast(usize),
    /// Each rank gets its part of everybody's elements.
    AllToAll,
    /// The output is at the root only.
    Gather(usize),
    /// From this root.
    Scatter(usize),
    /// Each rank gets the reduction of those up to it.
    Scan(ReduceOp),
    /// Each rank gets the reduction of those before it.
    ExclusiveScan(ReduceOp),
    /// Each rank gets everybody's rows.
    AllGatherV(Rows<'a>),
    /// The output is at the root only.
    GatherV(usize, Rows<'a>),
    /// From this root.
    ScatterV(usize, Rows<'a>),
}

impl<'a> Call<'a> {
    /// What it is in symmetric memory, into an output where it has one, and in private memory.
    fn ops(self) -> (Op, Op) {
        match self {
            Self::AllReduce(_) => (Op::AllReduceOut, Op::PrivateAllReduce),
            Self::Reduce(..) => (Op::Reduce, Op::PrivateReduce),
            Self::ReduceScatter(_) => (Op::ReduceScatter, Op::PrivateReduceScatter),
            Self::ReduceScatterColumns(..) => (Op::ReduceScatterColumns, Op::PrivateReduceScatter),
            Self::AllGather => (Op::AllGatherMemory, Op::PrivateAllGather),
            Self::Broadcast(_) => (Op::BroadcastMemory, Op::PrivateBroadcast),
            Self::AllToAll => (Op::AllToAll, Op::PrivateAllToAll),
            Self::Gather(_) => (Op::Gather, Op::PrivateGather),
            Self::Scatter(_) => (Op::Scatter, Op::PrivateScatter),
            Self::Scan(_) => (Op::Scan, Op::PrivateScan),
            Self::ExclusiveScan(_) => (Op::ExclusiveScan, Op::PrivateExclusiveScan),
            Self::AllGatherV(_) => (Op::AllGatherV, Op::PrivateAllGatherV),
            Self::GatherV(..) => (Op::GatherV, Op::PrivateGatherV),
            Self::ScatterV(..) => (Op::ScatterV, Op::PrivateScatterV),
        }
    }

    /// The call of the collective `row`, by `op`, with `root` and with `counts` where it has them. Of a
    /// matrix it is one with a column for each rank. `None` for those that have methods of their own.
    pub fn of(row: &CollectiveRow, op: ReduceOp, root: usize, counts: &'a [usize]) -> Option<Self> {
        let (world, rows) = (counts.len(), Rows { counts, row: 1 });
        Some(match row.name {
            "all_reduce" | "all_reduce_out" => Self::AllReduce(op),
            "reduce" => Self::Reduce(op, root),
            "reduce_scatter" => Self::ReduceScatter(op),
            "reduce_scatter_columns" => Self::ReduceScatterColumns(op, world),
            "all_gather" => Self::AllGather,
            "broadcast" => Self::Broadcast(root),
            "all_to_all" => Self::AllToAll,
            "gather" => Self::Gather(root),
            "scatter" => Self::Scatter(root),
            "scan" => Self::Scan(op),
            "exclusive_scan" => Self::ExclusiveScan(op),
            "all_gather_v" => Self::AllGatherV(rows),
            "gather_v" => Self::GatherV(root, rows),
            "scatter_v" => Self::ScatterV(root, rows),
            _ => return None,
        })
    }

    /// How elements become one, where they do.
    pub fn reduction(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(op)
            | Self::Reduce(op, _)
            | Self::ReduceScatter(op)
            | Self::Scan(op)
            | Self::ExclusiveScan(op)
            | Self::ReduceScatterColumns(op, _) => Some(op),
            _ => None,
        }
    }

    /// Its root, where it has one.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Reduce(_, root)
            | Self::Broadcast(root)
            | Self::Gather(root)
            | Self::Scatter(root)
            | Self::GatherV(root, _)
            | Self::ScatterV(root, _) => Some(root),
            _ => None,
        }
    }

    /// The rows of each rank, where it has counts.
    pub fn rows(self) -> Option<Rows<'a>> {
        match self {
            Self::AllGatherV(rows) | Self::GatherV(_, rows) | Self::ScatterV(_, rows) => Some(rows),
            _ => None,
        }
    }

    /// The same, with other rows where it has any.
    pub fn with_rows<'b>(self, rows: Rows<'b>) -> Call<'b> {
        match self {
            Self::AllReduce(op) => Call::AllReduce(op),
            Self::Reduce(op, root) => Call::Reduce(op, root),
            Self::ReduceScatter(op) => Call::ReduceScatter(op),
            Self::ReduceScatterColumns(op, columns) => Call::ReduceScatterColumns(op, columns),
            Self::AllGather => Call::AllGather,
            Self::Broadcast(root) => Call::Broadcast(root),
            Self::AllToAll => Call::AllToAll,
            Self::Gather(root) => Call::Gather(root),
            Self::Scatter(root) => Call::Scatter(root),
            Self::Scan(op) => Call::Scan(op),
            Self::ExclusiveScan(op) => Call::ExclusiveScan(op),
            Self::AllGatherV(_) => Call::AllGatherV(rows),
            Self::GatherV(root, _) => Call::GatherV(root, rows),
            Self::ScatterV(root, _) => Call::ScatterV(root, rows),
        }
    }

    /// What the table of collectives says of it, into an output where it has one.
    pub fn row(self) -> &'static CollectiveRow {
        // Every one of these operations is in the table.
        self.ops().0.row().unwrap_or(crate::operation::ROWS[0])
    }

    /// What it is called, whatever the memory.
    pub fn name(self) -> &'static str {
        self.ops().1.name()
    }
}

/// Rows that outlive who gave them.
struct OwnedRows {
    counts: Vec<usize>,
    row: usize,
}

impl OwnedRows {
    fn rows(&self) -> Rows<'_> {
        Rows { counts: &self.counts, row: self.row }
    }
}

impl Call<'_> {
    /// The call without its rows, and these.
    fn kept(self) -> (Call<'static>, OwnedRows) {
        let rows = self.rows().unwrap_or(Rows { counts: &[], row: 1 });
        let kept = OwnedRows { counts: rows.counts.to_vec(), row: rows.row };
        (self.with_rows(Rows { counts: &[], row: 1 }), kept)
    }
}

/// Bytes that elements of every type may lie in.
#[derive(Debug, Default)]
pub struct ErasedBuffer {
    words: Vec<u64>,
    bytes: usize,
}

impl ErasedBuffer {
    fn zeroed(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(size_of::<u64>())], bytes }
    }

    fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for ErasedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

impl DerefMut for ErasedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// The elements in `bytes`. No bytes are none, wherever they are.
pub(super) fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    if bytes.is_empty() {
        return Ok(&[]);
    }
    bytemuck::try_cast_slice(bytes).map_err(|_| no_elements(T::DTYPE))
}

pub(super) fn elements_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    if bytes.is_empty() {
        return Ok(&mut []);
    }
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| no_elements(T::DTYPE))
}

#[cold]
fn no_elements(dtype: DType) -> Error {
    Error::invalid(
        "bytes",
        format!("they are not aligned for elements of {dtype}, or no whole number of them"),
    )
}

impl Allocation<u8> {
    /// [`Allocation::rendezvous_shaped`] with elements of `dtype`.
    #[doc(hidden)]
    pub fn rendezvous_of(
        &self,
        dtype: DType,
        group: &Group,
        start: usize,
        shape: &[usize],
    ) -> Result<SymmetricMemory<u8>> {
        with_type!(dtype, T => self.rendezvous_shaped::<T>(group, start, shape)?.cast())
    }
}

impl SymmetricMemory<u8> {
    /// Runs `call` on elements of `dtype`, into `out` where it has an output.
    #[doc(hidden)]
    pub fn run_as(&self, dtype: DType, call: Call<'_>, out: Option<&mut [u8]>) -> Result<()> {
        with_type!(dtype, T => self.cast::<T>()?.run_call(call, out.map(elements_mut).transpose()?))
    }

    /// Starts what [`SymmetricMemory::run_as`] runs, with an output of so many bytes, which comes with the
    /// end.
    #[doc(hidden)]
    pub fn start_as(
        &self,
        dtype: DType,
        call: Call<'_>,
        out: Option<usize>,
    ) -> Result<Pending<ErasedBuffer>> {
        let (call, kept) = call.kept();
        match call {
            Call::AllReduce(op) if out.is_none() => self.start().in_place(Op::AllReduce, move |memory| {
                with_type!(dtype, T => memory.cast::<T>()?.all_reduce_held(op))
                    .map(|()| ErasedBuffer::default())
            }),
            Call::Broadcast(root) => self.start().in_place(Op::BroadcastMemory, move |memory| {
                with_type!(dtype, T => memory.cast::<T>()?.broadcast_held(root))
                    .map(|()| ErasedBuffer::default())
            }),
            _ => {
                let out = ErasedBuffer::zeroed(out.unwrap_or(0));
                self.start().fill(call.ops().0, out, move |memory, out| {
                    memory.run_as(dtype, call.with_rows(kept.rows()), Some(out))
                })
            }
        }
    }

    /// [`SymmetricMemory::all_to_all_v`] of elements of `dtype`.
    #[doc(hidden)]
    pub fn all_to_all_v_as(
        &self,
        dtype: DType,
        row: usize,
        splits: &[usize],
        out: &mut [u8],
    ) -> Result<Received> {
        with_type!(dtype, T => self.cast::<T>()?.all_to_all_v(row, splits, elements_mut(out)?))
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Runs `call`, into `out` where it has an output.
    #[doc(hidden)]
    #[inline]
    pub fn run_call(&mut self, call: Call<'_>, out: Option<&mut [T]>) -> Result<()> {
        let in_place = out.is_none();
        let out = out.unwrap_or_default();
        match call {
            Call::AllReduce(op) if in_place => self.all_reduce(op),
            Call::AllReduce(op) => self.all_reduce_out(op, out),
            Call::Reduce(op, root) => self.reduce(op, root, out),
            Call::ReduceScatter(op) => self.reduce_scatter(op, out),
            Call::ReduceScatterColumns(op, columns) => self.reduce_scatter_columns(op, columns, out),
            Call::AllGather => self.all_gather(out),
            Call::Broadcast(root) => self.broadcast(root),
            Call::AllToAll => self.all_to_all(out),
            Call::Gather(root) => self.gather(root, out),
            Call::Scatter(root) => self.scatter(root, out),
            Call::Scan(op) => self.scan(op, out),
            Call::ExclusiveScan(op) => self.exclusive_scan(op, out),
            Call::AllGatherV(rows) => self.all_gather_v(&rows.elements(), out),
            Call::GatherV(root, rows) => self.gather_v(root, &rows.elements(), out),
            Call::ScatterV(root, rows) => self.scatter_v(root, &rows.elements(), out),
        }
    }
}

impl Group {
    /// Runs `call` on private elements of `dtype`: from `input`, or in place, to `out`.
    #[doc(hidden)]
    pub fn run_as(&self, dtype: DType, call: Call<'_>, input: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        with_type!(dtype, T => {
            self.run_call::<T>(call, input.map(elements).transpose()?, elements_mut(out)?)
        })
    }

    /// Runs `call` on private elements: from `input`, or in place, to `out`.
    #[doc(hidden)]
    #[inline]
    pub fn run_call<T: Element>(&self, call: Call<'_>, input: Option<&[T]>, out: &mut [T]) -> Result<()> {
        let in_place = input.is_none();
        let input = input.unwrap_or_default();
        match call {
            Call::AllReduce(op) if in_place => self.all_reduce(op, out),
            Call::AllReduce(op) => self.all_reduce_out(op, input, out),
            Call::Reduce(op, root) if in_place => self.reduce(op, root, out),
            Call::Reduce(op, root) => self.reduce_out(op, root, input, out),
            Call::ReduceScatter(op) | Call::ReduceScatterColumns(op, _) => {
                self.reduce_scatter(op, input, out)
            }
            Call::AllGather => self.all_gather_into(input, out),
            Call::Broadcast(root) => self.broadcast_into(root, out),
            Call::AllToAll => self.all_to_all(input, out),
            Call::Gather(root) => self.gather(root, input, out),
            Call::Scatter(root) => self.scatter(root, input, out),
            Call::Scan(op) => self.scan(op, input, out),
            Call::ExclusiveScan(op) => self.exclusive_scan(op, input, out),
            Call::AllGatherV(rows) => self.all_gather_v(input, &rows.elements(), out),
            Call::GatherV(root, rows) => self.gather_v(root, input, &rows.elements(), out),
            Call::ScatterV(root, rows) => self.scatter_v(root, input, &rows.elements(), out),
        }
    }

    /// Starts what [`Group::run_as`] runs, on copies of both; the output comes with the end.
    #[doc(hidden)]
    pub fn start_as(
        &self,
        dtype: DType,
        call: Call<'_>,
        input: Option<&[u8]>,
        out: &[u8],
    ) -> Result<Pending<ErasedBuffer>> {
        let (call, kept) = call.kept();
        // What becomes as long as the input is reduced in its copy.
        let (input, out) = match call {
            Call::AllReduce(_) | Call::Reduce(..) => (None, input.unwrap_or(out)),
            _ => (input.map(ErasedBuffer::copy_of), out),
        };
        let work = move |group: &Self, out: &mut ErasedBuffer| {
            group.run_as(dtype, call.with_rows(kept.rows()), input.as_deref(), out)
        };
        self.start().fill(call.ops().1, ErasedBuffer::copy_of(out), work)
    }

    /// [`Group::all_to_all_v`] of elements of `dtype`.
    #[doc(hidden)]
    pub fn all_to_all_v_as(
        &self,
        dtype: DType,
        (input, sends): (&[u8], &[usize]),
        (out, receives): (&mut [u8], &[usize]),
    ) -> Result<()> {
        with_type!(dtype, T => self.all_to_all_v::<T>(elements(input)?, sends, elements_mut(out)?, receives))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::spawn;

    /// The bytes of rank `rank`'s two elements per rank, in a group of `world`.
    fn brought(rank: usize, world: usize) -> ErasedBuffer {
        let values: Vec<u32> = (0..2 * world as u32).map(|at| 100 * rank as u32 + at).collect();
        ErasedBuffer::copy_of(bytemuck::cast_slice(&values))
    }

    fn values(bytes: &[u8]) -> Vec<u32> {
        bytemuck::cast_slice(bytes).to_vec()
    }

    /// Each call that has an output here, and how many elements that has on rank `rank` of two, whose memory
    /// has four.
    fn calls(rank: usize) -> [(Call<'static>, usize); 12] {
        let at_root = |len| if rank == 1 { len } else { 0 };
        [
            (Call::AllReduce(ReduceOp::Sum), 4),
            (Call::Reduce(ReduceOp::Max, 1), at_root(4)),
            (Call::ReduceScatter(ReduceOp::Sum), 2),
            (Call::AllGather, 8),
            (Call::AllToAll, 4),
            (Call::Gather(1), at_root(8)),
            (Call::Scatter(1), 2),
            (Call::Scan(ReduceOp::Sum), 4),
            (Call::ExclusiveScan(ReduceOp::Max), 4),
            (Call::AllGatherV(Rows { counts: &[2, 2], row: 2 }), 8),
            (Call::GatherV(1, Rows { counts: &[2, 2], row: 2 }), at_root(8)),
            (Call::ScatterV(1, Rows { counts: &[3, 1], row: 1 }), [3, 1][rank]),
        ]
    }

    #[test]
    fn memory_gives_the_same_private_started_or_not() {
        spawn(2, |group| {
            let mut own = group.alloc::<u8>(16)?;
            own.local_mut()?.copy_from_slice(&brought(group.rank(), 2));
            let memory = own.rendezvous_of(DType::U32, &group, 0, &[4])?;
            for (call, len) in calls(group.rank()) {
                let mut ran = ErasedBuffer::zeroed(4 * len);
                memory.run_as(DType::U32, call, Some(&mut ran))?;
                let started = memory.start_as(DType::U32, call, Some(4 * len))?.wait()?;
                assert_eq!(values(&started), values(&ran), "{call:?} started");
                let input = brought(group.rank(), 2);
                let mut private = ErasedBuffer::zeroed(4 * len);
                group.run_as(DType::U32, call, Some(&input), &mut private)?;
                assert_eq!(values(&private), values(&ran), "{call:?} of private memory");
                let started = group.start_as(DType::U32, call, Some(&input), &private)?.wait()?;
                // What is no root's is its own business.
                if len > 0 {
                    assert_eq!(values(&started), values(&ran), "{call:?} of private memory, started");
                }
            }
            memory.close()
        })
        .unwrap();
    }

    #[test]
    fn what_has_no_output_is_done_in_place() {
        spawn(2, |group| {
            let mut own = group.alloc::<u8>(16)?;
            own.local_mut()?.copy_from_slice(&brought(group.rank(), 2));
            let memory = own.rendezvous_of(DType::U32, &group, 0, &[4])?;
            memory.run_as(DType::U32, Call::AllReduce(ReduceOp::Sum), None)?;
            assert_eq!(values(&memory.local()?), [100, 102, 104, 106]);
            memory.start_as(DType::U32, Call::AllReduce(ReduceOp::Sum), None)?.wait()?;
            assert_eq!(values(&memory.local()?), [200, 204, 208, 212]);
            let mut data = brought(group.rank(), 2);
            group.run_as(DType::U32, Call::Broadcast(1), None, &mut data)?;
            assert_eq!(values(&data), [100, 101, 102, 103]);
            assert_eq!(
                values(&group.start_as(DType::U32, Call::Broadcast(0), None, &data)?.wait()?),
                values(&data)
            );
            memory.close()
        })
        .unwrap();
    }

    #[test]
    fn bytes_that_are_no_elements_are_refused() {
        spawn(1, |group| {
            let mut three = [0; 3];
            let wrong = group.run_as(DType::F32, Call::Broadcast(0), None, &mut three);
            assert!(matches!(wrong, Err(Error::Invalid { .. })), "{wrong:?}");
            Ok(())
        })
        .unwrap();
    }
}
