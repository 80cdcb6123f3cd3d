//! Who carries an operation: kernels of this crate where every rank reaches every other, else NCCL, where it
//! can.
//!
//! The only place that asks, which `cargo xtask lint --only fences` keeps: operations come here, and go on to
//! the first [`Carrier`] that works for the ranks. What it guarantees: the answer is the same on every rank,
//! since the ranks have agreed on who reaches whom.

use std::sync::Arc;

use super::carried::{self, ByNccl};
use super::carrier::Carrier;
use super::launch_terms::LaunchTerms;
use super::ops::{
    AllReduce, ByKernels, DeviceRead, ProductToScatter, RowsToMultiply, RowsToNormalise, meeting_threads,
};
use super::{Engine, Region};
use crate::cuda::Stream;
use crate::cuda::activity::Activity;
use crate::device::DeviceTable;
use crate::device::status::Ending;
use crate::group::Running;
use crate::nccl::Communicator;
use crate::operation::Op;
use crate::provider::Joined;
use crate::table::Column;
use crate::{Error, Result};

/// All of them: the first that works is taken. NCCL works everywhere.
const CARRIERS: &[&dyn Carrier] = &[
    #[cfg(feature = "faults")]
    &super::recorder::RecordingCarrier,
    &ByKernels,
    &ByNccl,
];

/// By whether every rank reaches every other.
fn first(all_reach_all: bool) -> &'static dyn Carrier {
    CARRIERS.iter().copied().find(|carrier| carrier.works(all_reach_all)).unwrap_or(&ByNccl)
}

/// Who carries operations of an engine whose control blocks are `column`.
pub(super) fn of_column(column: &Column) -> &'static dyn Carrier {
    first(column.reaches_all)
}

/// The end of `communicator`, which waits for `activity` where kernels of ours will be at work on its
/// windows: `base` is what control blocks are from, and `far` the ranks that count as out of reach.
pub(super) fn ending(
    communicator: &Communicator,
    (base, far): (&dyn Joined, &[usize]),
    activity: &Arc<Activity>,
) -> Ending {
    let carrier = first(base.reaches_all() == Some(true) && far.is_empty());
    carried::ending(communicator, carrier.is_direct().then_some(activity))
}

impl Engine {
    /// Whether every rank's device reaches the memory of every other's, so that kernels of this crate do the
    /// work. Else NCCL does, where it can.
    pub fn is_direct(&self) -> bool {
        self.inner.carrier.is_direct()
    }

    /// Who carries operations on the memory of `table`.
    pub(super) fn carrier_on(&self, table: &DeviceTable) -> &'static dyn Carrier {
        first(self.is_direct() && table.column().reaches_all)
    }

    /// An error where operations may wait for other ranks on the host, as what NCCL carries does.
    pub(crate) fn check_never_waits(&self) -> Result<()> {
        if self.is_direct() {
            return Ok(());
        }
        let problem = "some do not reach each other, and what NCCL carries waits for all ranks. Hint: give each rank a thread (spawn)";
        Err(Error::invalid("devices", problem))
    }

    /// Collective, for handles whose offsets differ.
    pub(crate) fn bind(&self, running: &Running<'_>, table: &DeviceTable) -> Result<()> {
        self.carrier_on(table).bind(self, running, table)
    }

    /// Collective, in the order of `stream`, in place of an operation that this rank cannot launch: the
    /// others, who do, fail at once as ranks that disagree do, instead of at their deadline. If all ranks
    /// refuse, nothing happens. For callers who check more than this crate does before they call it. Where
    /// NCCL does the work the others wait all the same.
    pub fn refuse(&self, stream: &Stream) -> Result<()> {
        let threads = meeting_threads(self.group().size());
        let statement = LaunchTerms::plain(Op::Refusal, None, (0, 0), threads);
        self.inner.carrier.refuse(self, statement, stream)
    }

    /// A barrier, as `statement` calls it.
    pub(crate) fn meet(&self, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        self.check(statement.op, statement.channel, stream)?;
        self.inner.carrier.meet(self, statement, stream)
    }
}

impl Region {
    /// Whether kernels of this crate do the work.
    pub(crate) fn is_direct(&self) -> bool {
        self.carrier.is_direct()
    }

    /// Collective: an all-reduce of checked arguments.
    pub(crate) fn all_reduce(&self, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        self.engine.check(work.form.op(), None, stream)?;
        self.carrier.all_reduce(self, work, stream)
    }

    /// Collective: an all-reduce of rows, and what follows it. The arguments are checked but for their type
    /// and the reduction.
    pub(crate) fn all_reduce_rms_norm(&self, work: &RowsToNormalise<'_>, stream: &Stream) -> Result<()> {
        work.check()?;
        self.engine.check(Op::AllReduceRmsNorm, None, stream)?;
        self.carrier.all_reduce_rms_norm(self, work, stream)
    }

    /// Collective: everybody's rows are gathered and multiplied. The arguments are checked.
    pub(crate) fn all_gather_matmul(&self, work: &RowsToMultiply<'_>, stream: &Stream) -> Result<()> {
        self.engine.check(Op::AllGatherMatmul, None, stream)?;
        self.carrier.all_gather_matmul(self, work, stream)
    }

    /// Collective: a product is made, reduced and scattered. The arguments are checked.
    pub(crate) fn matmul_reduce_scatter(&self, work: &ProductToScatter<'_>, stream: &Stream) -> Result<()> {
        self.engine.check(Op::MatmulReduceScatter, None, stream)?;
        self.carrier.matmul_reduce_scatter(self, work, stream)
    }

    /// Collective: every rank reads what it is due from its peers. The arguments are checked but for the
    /// root.
    pub(crate) fn read(&self, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        let op = reading.op;
        if let Some(root) = reading.root {
            self.engine.group().check_rank(op.name(), root)?;
        }
        self.engine.check(op, None, stream)?;
        if op == Op::Reduce && self.engine.uses_multimem() {
            return self.reduce_by_multimem(reading, stream);
        }
        self.carrier.read(self, reading, stream)
    }

    /// A signal to or from `rank`, on the pads, which are the engine's to reach. The arguments are checked.
    pub(crate) fn signal(&self, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        self.engine.check(op, Some(channel), stream)?;
        self.engine.inner.carrier.signal(self, op, rank, channel, stream)
    }
}
