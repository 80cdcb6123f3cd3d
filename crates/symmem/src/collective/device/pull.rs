//! Collectives in which every rank reads what it is due from its peers: those that move elements, and
//! reductions of which a rank keeps a portion. What is shared stays as it is until everybody has read it, and
//! no longer.

use crate::cuda::owner::OwnedAddress;
use crate::cuda::{DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::ops::DeviceRead;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. `out` becomes everybody's memory, in rank order.
    pub fn all_gather<'a>(&self, out: impl Into<DeviceSliceMut<'a, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let output = self.output(Op::AllGatherMemory, &out.into(), self.len() * self.world_size())?;
            self.region().read(&self.reading(Op::AllGatherMemory, self.len(), output), stream)
        };
        self.told(Op::AllGatherMemory, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is one chunk per rank; `out` becomes everybody's
    /// chunk for this rank, in rank order.
    pub fn all_to_all<'a>(&self, out: impl Into<DeviceSliceMut<'a, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let output = self.output(Op::AllToAll, &out.into(), self.len())?;
            let chunk = self.chunk(Op::AllToAll, self.len())?;
            self.region().read(&self.own_part(Op::AllToAll, chunk, output), stream)
        };
        self.told(Op::AllToAll, stream, launch)
    }

    /// Collective, in the order of `stream`. Everybody's memory becomes that of rank `root`.
    pub fn broadcast(&self, root: usize, stream: &Stream) -> Result<()> {
        let launch = || {
            let (output, reads) = (self.region().own_place(), self.rank() != root);
            let whole = self.reading(Op::BroadcastMemory, self.len(), output);
            self.region().read(&DeviceRead { root: Some(root), reads, ..whole }, stream)
        };
        self.told(Op::BroadcastMemory, stream, launch)
    }

    /// Collective, in the order of `stream`. `out` of rank `root` becomes everybody's memory, in rank order;
    /// the others give `None`.
    pub fn gather(&self, root: usize, out: Option<DeviceSliceMut<'_, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let (op, reads) = (Op::Gather, self.rank() == root);
            let output = self.rooted_output(op, reads, out, self.len() * self.world_size())?;
            let whole = self.reading(op, self.len(), output);
            self.region().read(&DeviceRead { root: Some(root), reads, ..whole }, stream)
        };
        self.told(Op::Gather, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory of rank `root` is one chunk per rank; `out` becomes
    /// this rank's.
    pub fn scatter<'a>(
        &self,
        root: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let chunk = self.chunk(Op::Scatter, self.len())?;
            let output = self.output(Op::Scatter, &out.into(), chunk)?;
            let part = self.own_part(Op::Scatter, chunk, output);
            self.region().read(&DeviceRead { root: Some(root), ..part }, stream)
        };
        self.told(Op::Scatter, stream, launch)
    }

    /// Collective, in the order of `stream`. `out` of rank `root` becomes the reduction of everybody's
    /// memory; the others give `None`. Element types and operations as for [`SymmetricMemory::all_reduce`].
    pub fn reduce(
        &self,
        reduce: ReduceOp,
        root: usize,
        out: Option<DeviceSliceMut<'_, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let (op, reads) = (Op::Reduce, self.rank() == root);
            let output = self.rooted_output(op, reads, out, self.len())?;
            let whole = self.reading(op, self.len(), output);
            let reading = DeviceRead { reduction: Some(reduce), root: Some(root), reads, ..whole };
            self.region().read(&reading, stream)
        };
        self.told(Op::Reduce, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is one chunk per rank; `out` becomes the reduction of
    /// everybody's chunk for this rank. Element types and operations as for [`SymmetricMemory::all_reduce`].
    pub fn reduce_scatter<'a>(
        &self,
        reduce: ReduceOp,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let chunk = self.chunk(Op::ReduceScatter, self.len())?;
            let output = self.output(Op::ReduceScatter, &out.into(), chunk)?;
            let part = self.own_part(Op::ReduceScatter, chunk, output);
            self.region().read(&DeviceRead { reduction: Some(reduce), ..part }, stream)
        };
        self.told(Op::ReduceScatter, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is a matrix of `columns` columns, row after row, and
    /// the columns are divided among the ranks; `out` becomes the reduction of everybody's matrix in this
    /// rank's columns, row after row.
    pub fn reduce_scatter_columns<'a>(
        &self,
        reduce: ReduceOp,
        columns: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::ReduceScatterColumns;
        let launch = || {
            if columns == 0 || !self.len().is_multiple_of(columns) {
                let problem = format!("{} elements are not divisible by {columns} columns", self.len());
                return Err(Error::invalid(OP.name(), problem));
            }
            let (rows, width) = (self.len() / columns, self.chunk(OP, columns)?);
            let output = self.output(OP, &out.into(), rows * width)?;
            let part = self.own_part(OP, width, output);
            self.region().read(&DeviceRead { reduction: Some(reduce), rows, ..part }, stream)
        };
        self.told(OP, stream, launch)
    }

    /// The first `count` elements of everybody's memory, read into `output` as they are.
    fn reading<'a>(&self, op: Op, count: usize, output: OwnedAddress<'a>) -> DeviceRead<'a> {
        let bytes = count * size_of::<T>();
        let (reduction, root, dtype) = (None, None, T::DTYPE);
        DeviceRead {
            op,
            dtype,
            reduction,
            root,
            start: 0,
            count,
            bytes,
            rows: 1,
            matrix_rows: 0,
            output,
            reads: true,
        }
    }

    /// The same for the `count` elements that are for this rank.
    fn own_part<'a>(&self, op: Op, count: usize, output: OwnedAddress<'a>) -> DeviceRead<'a> {
        let part = self.reading(op, count, output);
        DeviceRead { start: part.bytes * self.rank(), ..part }
    }

    /// Elements per rank, if they come out even.
    fn chunk(&self, op: Op, len: usize) -> Result<usize> {
        let world = self.world_size();
        if len.is_multiple_of(world) {
            return Ok(len / world);
        }
        Err(Error::invalid(op.name(), format!("{len} elements are not divisible by {world} ranks")))
    }

    /// Where `out` is, which must have `len` elements, on this device, outside this memory.
    pub(super) fn output<'a>(
        &self,
        op: Op,
        out: &DeviceSliceMut<'a, T>,
        len: usize,
    ) -> Result<OwnedAddress<'a>> {
        if out.len() != len {
            let problem = format!("the output has {} elements, but {len} are needed", out.len());
            return Err(Error::invalid(op.name(), problem));
        }
        self.engine().check_memory("out", out.device())?;
        if !self.overlaps(&out.as_slice()) {
            return Ok(out.place());
        }
        Err(Error::invalid("out", "it overlaps the symmetric memory, which peers read meanwhile"))
    }

    /// Whether `other` has elements of this rank's memory.
    pub(super) fn overlaps(&self, other: &DeviceSlice<'_, T>) -> bool {
        let (own, at) = (self.region().own_address(), other.device_ptr());
        let end = at + (other.len() * size_of::<T>()) as u64;
        !other.is_empty() && own < end && at < own + self.region().bytes as u64
    }

    /// The same where only the root has one.
    fn rooted_output<'a>(
        &self,
        op: Op,
        is_root: bool,
        out: Option<DeviceSliceMut<'a, T>>,
        len: usize,
    ) -> Result<OwnedAddress<'a>> {
        match out {
            Some(out) if is_root => self.output(op, &out, len),
            None if is_root => Err(Error::invalid(op.name(), "the root needs an output")),
            _ => Ok(OwnedAddress::bare(0)),
        }
    }
}
