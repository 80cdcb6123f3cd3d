//! Collectives as data, on bytes: for callers that learn the type of elements, and which collective it is, when they run.
//!
//! The Python bindings call these; others have the methods that are called by their types. No part of the public interface. What they
//! do is what those methods do, with the same checks. The type is looked up here and nowhere above, so that what is above is compiled
//! once and not once for each type.

use std::ops::{Deref, DerefMut};

use super::Received;
use crate::group::{Group, Pending};
use crate::memory::{Allocation, SymmetricMemory};
use crate::numeric::{DType, Element, ReduceOp, with_type};
use crate::operation::Op;
use crate::{Error, Result};

/// A collective, and what its ranks must say alike besides the elements. Where it takes an output, that is passed beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
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
}

impl Call {
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
        }
    }

    /// What it is called, whatever the memory.
    pub fn name(self) -> &'static str {
        self.ops().1.name()
    }
}

/// Bytes that elements of every type may lie in.
#[derive(Debug, Default)]
pub struct Buffer {
    words: Vec<u64>,
    bytes: usize,
}

impl Buffer {
    fn zeroed(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(size_of::<u64>())], bytes }
    }

    fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// The elements in `bytes`. No bytes are none, wherever they are.
fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    if bytes.is_empty() {
        return Ok(&[]);
    }
    bytemuck::try_cast_slice(bytes).map_err(|_| no_elements(T::DTYPE))
}

fn elements_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
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
    pub fn run_as(&self, dtype: DType, call: Call, out: Option<&mut [u8]>) -> Result<()> {
        with_type!(dtype, T => self.cast::<T>()?.run_typed(call, out))
    }

    /// Starts what [`SymmetricMemory::run_as`] runs, with an output of so many bytes, which comes with the end.
    #[doc(hidden)]
    pub fn start_as(&self, dtype: DType, call: Call, out: Option<usize>) -> Result<Pending<Buffer>> {
        match call {
            Call::AllReduce(op) if out.is_none() => self.start_in_place(Op::AllReduce, move |memory| {
                with_type!(dtype, T => memory.cast::<T>()?.all_reduce_held(op)).map(|()| Buffer::default())
            }),
            Call::Broadcast(root) => self.start_in_place(Op::BroadcastMemory, move |memory| {
                with_type!(dtype, T => memory.cast::<T>()?.broadcast_held(root)).map(|()| Buffer::default())
            }),
            _ => {
                let out = Buffer::zeroed(out.unwrap_or(0));
                self.start_reading(call.ops().0, out, move |memory, out| {
                    memory.run_as(dtype, call, Some(out))
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
    fn run_typed(mut self, call: Call, out: Option<&mut [u8]>) -> Result<()> {
        let in_place = out.is_none();
        let out = elements_mut(out.unwrap_or_default())?;
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
        }
    }
}

impl Group {
    /// Runs `call` on private elements of `dtype`: from `input`, or in place, to `out`.
    #[doc(hidden)]
    pub fn run_as(&self, dtype: DType, call: Call, input: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        with_type!(dtype, T => self.run_typed::<T>(call, input, out))
    }

    fn run_typed<T: Element>(&self, call: Call, input: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        let in_place = input.is_none();
        let (input, out) = (elements::<T>(input.unwrap_or_default())?, elements_mut::<T>(out)?);
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
        }
    }

    /// Starts what [`Group::run_as`] runs, on copies of both; the output comes with the end.
    #[doc(hidden)]
    pub fn start_as(
        &self,
        dtype: DType,
        call: Call,
        input: Option<&[u8]>,
        out: &[u8],
    ) -> Result<Pending<Buffer>> {
        // What becomes as long as the input is reduced in its copy.
        let (input, out) = match call {
            Call::AllReduce(_) | Call::Reduce(..) => (None, input.unwrap_or(out)),
            _ => (input.map(Buffer::copy_of), out),
        };
        let work = move |group: &Self, out: &mut Buffer| group.run_as(dtype, call, input.as_deref(), out);
        self.start_private(call.ops().1, Buffer::copy_of(out), work)
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
    fn brought(rank: usize, world: usize) -> Buffer {
        let values: Vec<u32> = (0..2 * world as u32).map(|at| 100 * rank as u32 + at).collect();
        Buffer::copy_of(bytemuck::cast_slice(&values))
    }

    fn values(bytes: &[u8]) -> Vec<u32> {
        bytemuck::cast_slice(bytes).to_vec()
    }

    /// Each call that has an output here, and how many elements that has on rank `rank` of two, whose memory has four.
    fn calls(rank: usize) -> [(Call, usize); 7] {
        let at_root = |len| if rank == 1 { len } else { 0 };
        [
            (Call::AllReduce(ReduceOp::Sum), 4),
            (Call::Reduce(ReduceOp::Max, 1), at_root(4)),
            (Call::ReduceScatter(ReduceOp::Sum), 2),
            (Call::AllGather, 8),
            (Call::AllToAll, 4),
            (Call::Gather(1), at_root(8)),
            (Call::Scatter(1), 2),
        ]
    }

    #[test]
    fn memory_gives_the_same_private_started_or_not() {
        spawn(2, |group| {
            let mut own = group.alloc::<u8>(16)?;
            own.local_mut()?.copy_from_slice(&brought(group.rank(), 2));
            let memory = own.rendezvous_of(DType::U32, &group, 0, &[4])?;
            for (call, len) in calls(group.rank()) {
                let mut ran = Buffer::zeroed(4 * len);
                memory.run_as(DType::U32, call, Some(&mut ran))?;
                let started = memory.start_as(DType::U32, call, Some(4 * len))?.wait()?;
                assert_eq!(values(&started), values(&ran), "{call:?} started");
                let input = brought(group.rank(), 2);
                let mut private = Buffer::zeroed(4 * len);
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
