//! Collectives in which every rank reads what it is due from its peers: those that move elements, and reductions of which a rank keeps a
//! portion. What is shared stays as it is until everybody has read it, and no longer.

use super::all_reduce::mode_of;
use crate::cuda::owner::Place;
use crate::cuda::{DeviceSliceMut, Stream};
use crate::engine::cuda::control::IDLE;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::{Routine, number_of};
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::nccl::Carried;
use crate::numeric::{DType, Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// What a rank reads, and from whom.
struct Reading<'a> {
    op: Op,
    root: Option<usize>,
    /// From which byte of a peer's memory on.
    start: usize,
    /// Bytes of a peer's memory, or of a row of it.
    bytes: usize,
    output: Place<'a>,
    /// Whether this rank reads at all.
    reads: bool,
}

/// How a kernel is told so; `count` and `peer` are as it understands them.
struct Work {
    routine: Routine,
    number: usize,
    count: usize,
    peer: usize,
    /// Bytes that this rank, if it reads, writes.
    bytes: usize,
    mode: u32,
    reduction: Option<(ReduceOp, DType)>,
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. `out` becomes everybody's memory, in rank order.
    pub fn all_gather<'a>(&self, out: impl Into<DeviceSliceMut<'a, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let output = self.output(Op::AllGatherMemory, out.into(), self.len * self.world_size())?;
            let (op, bytes) = (Op::AllGatherMemory, self.bytes());
            self.pull(&Reading { op, root: None, start: 0, bytes, output, reads: true }, stream)
        };
        self.told(Op::AllGatherMemory, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is one chunk per rank; `out` becomes everybody's chunk for this rank, in rank
    /// order.
    pub fn all_to_all<'a>(&self, out: impl Into<DeviceSliceMut<'a, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let output = self.output(Op::AllToAll, out.into(), self.len)?;
            let bytes = self.chunk(Op::AllToAll, self.len)? * size_of::<T>();
            let (op, start) = (Op::AllToAll, bytes * self.rank());
            self.pull(&Reading { op, root: None, start, bytes, output, reads: true }, stream)
        };
        self.told(Op::AllToAll, stream, launch)
    }

    /// Collective, in the order of `stream`. Everybody's memory becomes that of rank `root`.
    pub fn broadcast(&self, root: usize, stream: &Stream) -> Result<()> {
        let launch = || {
            let (op, output, reads) = (Op::BroadcastMemory, self.own_place(), self.rank() != root);
            let bytes = self.bytes();
            self.pull(&Reading { op, root: Some(root), start: 0, bytes, output, reads }, stream)
        };
        self.told(Op::BroadcastMemory, stream, launch)
    }

    /// Collective, in the order of `stream`. `out` of rank `root` becomes everybody's memory, in rank order; the others give `None`.
    pub fn gather(&self, root: usize, out: Option<DeviceSliceMut<'_, T>>, stream: &Stream) -> Result<()> {
        let launch = || {
            let (op, reads) = (Op::Gather, self.rank() == root);
            let output = self.rooted_output(op, reads, out, self.len * self.world_size())?;
            let (root, bytes) = (Some(root), self.bytes());
            self.pull(&Reading { op, root, start: 0, bytes, output, reads }, stream)
        };
        self.told(Op::Gather, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory of rank `root` is one chunk per rank; `out` becomes this rank's.
    pub fn scatter<'a>(
        &self,
        root: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let chunk = self.chunk(Op::Scatter, self.len)?;
            let output = self.output(Op::Scatter, out.into(), chunk)?;
            let (op, root, bytes) = (Op::Scatter, Some(root), chunk * size_of::<T>());
            let start = bytes * self.rank();
            self.pull(&Reading { op, root, start, bytes, output, reads: true }, stream)
        };
        self.told(Op::Scatter, stream, launch)
    }

    /// Collective, in the order of `stream`. `out` of rank `root` becomes the reduction of everybody's memory; the others give `None`. Element
    /// types and operations as for [`SymmetricMemory::all_reduce`].
    pub fn reduce(
        &self,
        reduce: ReduceOp,
        root: usize,
        out: Option<DeviceSliceMut<'_, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let (op, reads) = (Op::Reduce, self.rank() == root);
            let output = self.rooted_output(op, reads, out, self.len)?;
            if self.engine.uses_multimem() {
                return self.reduce_by_multimem(reduce, root, output, stream);
            }
            let (root, bytes) = (Some(root), self.bytes());
            self.reduce_portion(reduce, &Reading { op, root, start: 0, bytes, output, reads }, 1, stream)
        };
        self.told(Op::Reduce, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is one chunk per rank; `out` becomes the reduction of everybody's chunk for this
    /// rank. Element types and operations as for [`SymmetricMemory::all_reduce`].
    pub fn reduce_scatter<'a>(
        &self,
        reduce: ReduceOp,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let launch = || {
            let chunk = self.chunk(Op::ReduceScatter, self.len)?;
            let output = self.output(Op::ReduceScatter, out.into(), chunk)?;
            let (op, bytes) = (Op::ReduceScatter, chunk * size_of::<T>());
            let start = bytes * self.rank();
            self.reduce_portion(
                reduce,
                &Reading { op, root: None, start, bytes, output, reads: true },
                1,
                stream,
            )
        };
        self.told(Op::ReduceScatter, stream, launch)
    }

    /// Collective, in the order of `stream`. The memory is a matrix of `columns` columns, row after row, and the columns are divided among
    /// the ranks; `out` becomes the reduction of everybody's matrix in this rank's columns, row after row.
    pub fn reduce_scatter_columns<'a>(
        &self,
        reduce: ReduceOp,
        columns: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::ReduceScatterColumns;
        let launch = || {
            if columns == 0 || !self.len.is_multiple_of(columns) {
                let problem = format!("{} elements are not divisible by {columns} columns", self.len);
                return Err(Error::invalid(OP.name(), problem));
            }
            let (rows, width) = (self.len / columns, self.chunk(OP, columns)?);
            let output = self.output(OP, out.into(), rows * width)?;
            let bytes = width * size_of::<T>();
            let reading =
                Reading { op: OP, root: None, start: bytes * self.rank(), bytes, output, reads: true };
            self.reduce_portion(reduce, &reading, rows, stream)
        };
        self.told(OP, stream, launch)
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
    fn output<'a>(&self, op: Op, out: DeviceSliceMut<'a, T>, len: usize) -> Result<Place<'a>> {
        if out.len() != len {
            let problem = format!("the output has {} elements, but {len} are needed", out.len());
            return Err(Error::invalid(op.name(), problem));
        }
        self.engine.check_memory("out", out.device())?;
        let (own, to) = (self.own_address(), out.device_ptr());
        let apart = to + (len * size_of::<T>()) as u64 <= own || own + self.bytes() as u64 <= to;
        if apart || len == 0 {
            return Ok(out.place());
        }
        Err(Error::invalid("out", "it overlaps the symmetric memory, which peers read meanwhile"))
    }

    /// The same where only the root has one.
    fn rooted_output<'a>(
        &self,
        op: Op,
        is_root: bool,
        out: Option<DeviceSliceMut<'a, T>>,
        len: usize,
    ) -> Result<Place<'a>> {
        match out {
            Some(out) if is_root => self.output(op, out, len),
            None if is_root => Err(Error::invalid(op.name(), "the root needs an output")),
            _ => Ok(Place::bare(0)),
        }
    }

    /// The same by NCCL, for ranks that do not all reach each other.
    fn carry_reading(
        &self,
        reading: &Reading<'_>,
        reduction: Option<ReduceOp>,
        stream: &Stream,
    ) -> Result<()> {
        let Reading { op, output, bytes, .. } = *reading;
        self.engine.check(op, None, stream)?;
        let root = reading.root.unwrap_or(0);
        self.group().check_rank(op.name(), root)?;
        if bytes == 0 {
            return Ok(());
        }
        let (from, count) = (self.own_address(), bytes / size_of::<T>());
        let work = Carried { op, reduction, dtype: T::DTYPE, count, from, to: output.address, root };
        self.carry_part(&work, output.owner, stream)
    }

    fn pull(&self, reading: &Reading<'_>, stream: &Stream) -> Result<()> {
        if !self.is_direct() {
            return self.carry_reading(reading, None, stream);
        }
        let everybody = reading.root.is_none() || reading.op == Op::Gather;
        let sources = if everybody { self.world_size() } else { 1 };
        let work = Work {
            routine: Routine::Pull,
            // Bytes have no type; the first one's kernel is everybody's.
            number: 0,
            count: reading.bytes,
            peer: reading.root.filter(|_| !everybody).unwrap_or(self.world_size()),
            bytes: reading.bytes * sources,
            mode: 0,
            reduction: None,
        };
        self.read_peers(reading, &work, stream)
    }

    fn reduce_portion(
        &self,
        reduce: ReduceOp,
        reading: &Reading<'_>,
        rows: usize,
        stream: &Stream,
    ) -> Result<()> {
        if !self.is_direct() {
            return self.carry_reading(reading, Some(reduce), stream);
        }
        if u32::try_from(rows).is_err() {
            return Err(Error::invalid(reading.op.name(), format!("{rows} rows are too many")));
        }
        let work = Work {
            routine: Routine::Portion,
            number: number_of(T::DTYPE)?,
            count: reading.bytes / size_of::<T>(),
            peer: rows,
            bytes: reading.bytes * rows,
            mode: mode_of(reduce, T::DTYPE)?,
            reduction: Some((reduce, T::DTYPE)),
        };
        self.read_peers(reading, &work, stream)
    }

    fn read_peers(&self, reading: &Reading<'_>, work: &Work, stream: &Stream) -> Result<()> {
        let (engine, op) = (&self.engine, reading.op);
        if let Some(root) = reading.root {
            self.group().check_rank(op.name(), root)?;
        }
        engine.check(op, None, stream)?;
        if work.bytes == 0 {
            return self.meet_for_nothing(op, stream);
        }
        let (routine, number) = (work.routine, work.number);
        let (grid, threads) = engine.inner.agreed.shape(routine, number, work.bytes, &engine.tune);
        tracing::trace!(op = op.name(), bytes = work.bytes, grid, threads, "collective on the device");
        let statement = Statement {
            reduction: work.reduction,
            bytes: work.bytes as u64,
            root: reading.root,
            rows: if op == Op::ReduceScatterColumns { work.peer } else { 0 },
            grid,
            ..Statement::plain(op, None, self.statement(), threads)
        };
        let call = Call {
            count: work.count as u64,
            input: Place::bare(reading.start as u64),
            output: reading.output,
            peer: work.peer,
            mode: work.mode | if reading.reads { 0 } else { IDLE },
            data: &self.data,
            memory: self.owner(),
            is_small: engine.inner.agreed.is_small(routine, number, (grid, threads)),
            ..Call::plain(statement)
        };
        engine.launch(stream, engine.routine(routine, number)?, &call)
    }
}
