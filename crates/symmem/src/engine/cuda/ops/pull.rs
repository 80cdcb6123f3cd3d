//! Collectives in which every rank reads what it is due from its peers: those that move elements, and
//! reductions of which a rank keeps a portion. What is shared stays as it is until everybody has read it, and
//! no longer.

use super::all_reduce::mode_of;
use crate::cuda::Stream;
use crate::cuda::device::Bound;
use crate::cuda::owner::OwnedAddress;
use crate::device::control::IDLE;
use crate::engine::cuda::Region;
use crate::engine::cuda::kernels::Kernel;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::{Routine, dtype_index_of};
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// What a rank reads, from whom, and what becomes of it.
#[derive(Clone, Copy)]
pub(crate) struct DeviceRead<'a> {
    pub(crate) op: Op,
    pub(crate) dtype: DType,
    /// Of what everybody has; `None`: nothing is reduced.
    pub(crate) reduction: Option<ReduceOp>,
    pub(crate) root: Option<usize>,
    /// From which byte of a peer's memory on.
    pub(crate) start: usize,
    /// Elements of a peer's memory, or of a row of it, and their bytes.
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    /// Rows, of what is reduced.
    pub(crate) rows: usize,
    /// Rows of the matrix that it is part of, for products; else 0.
    pub(crate) matrix_rows: usize,
    pub(crate) output: OwnedAddress<'a>,
    /// Whether this rank reads at all.
    pub(crate) reads: bool,
}

/// How a kernel is told so; `count` and `peer` are as it understands them.
struct PullLaunch {
    routine: Routine,
    dtype_index: usize,
    count: usize,
    peer: usize,
    /// Bytes that this rank, if it reads, writes.
    bytes: usize,
    mode: u32,
    reduction: Option<(ReduceOp, DType)>,
}

impl Region {
    pub(super) fn read_by_kernel(&self, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        match self.reading_launch(reading)? {
            Some((kernel, call)) => self.engine.launch(stream, kernel, &call),
            None => self.meet_for_nothing(reading.op, stream),
        }
    }

    /// The same for who holds the order of the lane. There is something to read.
    pub(super) fn read_in_order(
        &self,
        reading: &DeviceRead<'_>,
        stream: (&Stream, &Bound<'_>),
    ) -> Result<()> {
        match self.reading_launch(reading)? {
            Some((kernel, call)) => self.engine.put_in_order(kernel, stream, &call),
            None => Ok(()),
        }
    }

    /// The kernel that reads, and what it is told; `None` if there is nothing to read.
    #[inline]
    fn reading_launch<'a>(
        &'a self,
        reading: &DeviceRead<'a>,
    ) -> Result<Option<(&'a Kernel, LaunchArguments<'a>)>> {
        let (engine, op) = (&self.engine, reading.op);
        let work = match reading.reduction {
            None => self.moved(reading),
            Some(reduce) => reduced(reading, reduce)?,
        };
        if work.bytes == 0 {
            return Ok(None);
        }
        let (routine, dtype_index) = (work.routine, work.dtype_index);
        let (grid, threads) = engine.inner.agreed.shape(routine, dtype_index, work.bytes, &engine.tune);
        tracing::trace!(op = op.name(), bytes = work.bytes, grid, threads, "collective on the device");
        let statement = LaunchTerms {
            reduction: work.reduction,
            bytes: work.bytes as u64,
            root: reading.root,
            rows: if op == Op::ReduceScatterColumns { work.peer } else { reading.matrix_rows },
            grid,
            ..LaunchTerms::plain(op, None, self.statement(), threads)
        };
        let call = LaunchArguments {
            count: work.count as u64,
            input: OwnedAddress::bare(reading.start as u64),
            output: reading.output,
            peer: work.peer,
            mode: work.mode | if reading.reads { 0 } else { IDLE },
            data: &self.data,
            memory: self.owner(),
            is_small: engine.inner.agreed.is_small(routine, dtype_index, (grid, threads)),
            ..LaunchArguments::plain(statement)
        };
        Ok(Some((engine.routine(routine, dtype_index)?, call)))
    }

    /// Elements as they are, of all ranks or of one.
    fn moved(&self, reading: &DeviceRead<'_>) -> PullLaunch {
        let world = self.data.len();
        let everybody = reading.root.is_none() || reading.op == Op::Gather;
        PullLaunch {
            routine: Routine::Pull,
            // Bytes have no type; the first one's kernel is everybody's.
            dtype_index: 0,
            count: reading.bytes,
            peer: reading.root.filter(|_| !everybody).unwrap_or(world),
            bytes: reading.bytes * if everybody { world } else { 1 },
            mode: 0,
            // For a product the ranks must agree on the type.
            reduction: (reading.op == Op::AllGatherMatmul).then_some((ReduceOp::Sum, reading.dtype)),
        }
    }
}

/// A portion of everybody's elements, reduced.
fn reduced(reading: &DeviceRead<'_>, reduce: ReduceOp) -> Result<PullLaunch> {
    let DeviceRead { op, dtype, count, bytes, rows, .. } = *reading;
    if u32::try_from(rows).is_err() {
        return Err(Error::invalid(op.name(), format!("{rows} rows are too many")));
    }
    Ok(PullLaunch {
        routine: Routine::Portion,
        dtype_index: dtype_index_of(dtype)?,
        count,
        peer: rows,
        bytes: bytes * rows,
        mode: mode_of(reduce, dtype)?,
        reduction: Some((reduce, dtype)),
    })
}
