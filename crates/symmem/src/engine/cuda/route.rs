//! Who carries an operation: kernels of this crate where every rank reaches every other, else NCCL, where it
//! can.
//!
//! The only place that asks, which `cargo xtask lint --only fences` keeps: operations come here, and go on to
//! `ops` or to `carried.rs`. What it guarantees: the answer is the same on every rank, since the ranks have
//! agreed on who reaches whom.

use std::sync::Arc;

use super::launch_terms::LaunchTerms;
use super::ops::{AllReduce, DeviceRead, meeting_threads};
use super::{Engine, Region, carried};
use crate::cuda::Stream;
use crate::cuda::activity::Activity;
use crate::device::DeviceTable;
use crate::device::status::Ending;
use crate::error::Halt;
use crate::group::Running;
use crate::nccl::Communicator;
use crate::operation::Op;
use crate::provider::Joined;
use crate::table::Column;
use crate::{Error, Result};

/// Who carries operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Kernels of this crate.
    Kernels,
    /// NCCL.
    Nccl,
}

impl Route {
    /// By whether every rank reaches every other.
    fn of(reaches_all: bool) -> Self {
        if reaches_all { Self::Kernels } else { Self::Nccl }
    }
}

/// Who carries operations of an engine whose control blocks are `column`.
pub(super) fn of_column(column: &Column) -> Route {
    Route::of(column.reaches_all)
}

/// The end of `communicator`, which waits for `activity` where kernels of ours will be at work on its
/// windows: `base` is what control blocks are from, and `far` the ranks that count as out of reach.
pub(super) fn ending(
    communicator: &Communicator,
    (base, far): (&dyn Joined, &[usize]),
    activity: &Arc<Activity>,
) -> Ending {
    let route = Route::of(base.reaches_all() == Some(true) && far.is_empty());
    carried::ending(communicator, (route == Route::Kernels).then_some(activity))
}

impl Engine {
    /// Whether every rank's device reaches the memory of every other's, so that kernels of this crate do the
    /// work. Else NCCL does, where it can.
    pub fn is_direct(&self) -> bool {
        self.inner.route == Route::Kernels
    }

    /// Who carries operations on the memory of `table`.
    pub(super) fn route_on(&self, table: &DeviceTable) -> Route {
        Route::of(self.is_direct() && table.column().reaches_all)
    }

    /// An error where operations may wait for other ranks on the host, as what NCCL carries does.
    pub(crate) fn check_never_waits(&self) -> Result<()> {
        if self.is_direct() {
            return Ok(());
        }
        let problem = "some do not reach each other, and what NCCL carries waits for all ranks. Hint: give each rank a thread (spawn)";
        Err(Error::invalid("devices", problem))
    }

    /// Collective, for handles whose offsets differ. NCCL takes what lies in a window to be at the same place
    /// on every rank, and mixes up elements where it is not; so operations that it carries go by way of
    /// memory that it does not know.
    pub(crate) fn bind(&self, running: &Running<'_>, table: &DeviceTable) -> Result<()> {
        if self.route_on(table) == Route::Kernels || table.column().registration.is_none() {
            return Ok(());
        }
        // This rank may have made it before, for an operation of its own; the vote is everybody's all the
        // same.
        running.conclude(running.next_tag()?, table.room().make(self.device()).map_err(Halt::from))
    }

    /// Collective, in the order of `stream`, in place of an operation that this rank cannot launch: the
    /// others, who do, fail at once as ranks that disagree do, instead of at their deadline. If all ranks
    /// refuse, nothing happens. For callers who check more than this crate does before they call it. Where
    /// NCCL does the work the others wait all the same.
    pub fn refuse(&self, stream: &Stream) -> Result<()> {
        let threads = meeting_threads(self.group().size());
        match self.inner.route {
            Route::Kernels => self.meet(LaunchTerms::plain(Op::Refusal, None, (0, 0), threads), stream),
            Route::Nccl => Ok(()),
        }
    }

    /// A barrier, as `statement` calls it.
    pub(crate) fn meet(&self, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        self.check(statement.op, statement.channel, stream)?;
        let kernel = self.barrier_kernel()?;
        match self.inner.route {
            Route::Kernels => self.meet_by_kernel(kernel, statement, stream),
            Route::Nccl => self.meet_by_nccl(statement.op, stream),
        }
    }
}

impl Region {
    /// Whether kernels of this crate do the work.
    pub(crate) fn is_direct(&self) -> bool {
        self.route == Route::Kernels
    }

    /// Collective: an all-reduce of checked arguments.
    pub(crate) fn all_reduce(&self, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        self.engine.check(work.form.op(), None, stream)?;
        let multicast = self.multicast_if_chosen()?;
        match self.route {
            Route::Kernels => self.all_reduce_by_kernel(work, multicast, stream),
            Route::Nccl => self.all_reduce_by_nccl(work, stream),
        }
    }

    /// Collective: every rank reads what it is due from its peers. The arguments are checked but for the
    /// root.
    pub(crate) fn read(&self, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        let op = reading.op;
        if let Some(root) = reading.root {
            self.engine.group().check_rank(op.name(), root)?;
        }
        self.engine.check(op, None, stream)?;
        match self.route {
            _ if op == Op::Reduce && self.engine.uses_multimem() => self.reduce_by_multimem(reading, stream),
            Route::Kernels => self.read_by_kernel(reading, stream),
            Route::Nccl if op.row().is_some_and(|row| !row.carried) => {
                let problem = "some ranks are out of reach, so NCCL carries this operation, and NCCL cannot do it. Hint: put the parts one after the other";
                Err(Error::invalid(op.name(), problem))
            }
            Route::Nccl => self.read_by_nccl(reading, stream),
        }
    }

    /// A signal to or from `rank`, on the pads, which are the engine's to reach. The arguments are checked.
    pub(crate) fn signal(&self, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        self.engine.check(op, Some(channel), stream)?;
        match self.engine.inner.route {
            Route::Kernels => self.signal_by_kernel(op, rank, channel, stream),
            Route::Nccl => self.signal_by_nccl(op, rank, channel, stream),
        }
    }
}
