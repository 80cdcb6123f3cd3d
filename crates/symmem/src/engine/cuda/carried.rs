//! Operations that NCCL carries: where some rank's memory is out of reach of another's, kernels of ours
//! cannot work.
//!
//! `route.rs` comes here with what kernels cannot do. It goes through the engine's communicator, in the same
//! order of lanes, captured or not. Numbers are then rounded as NCCL rounds them. Kernels of NCCL's have no
//! deadline, so the stream says when one of them begins and ends, and whoever watches the engine
//! (`status.rs`) fails the group when that takes too long; a graph cannot say it again with every replay, and
//! does not.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::carrier::Carrier;
use super::launch::Uses;
use super::launch_terms::LaunchTerms;
use super::ops::{AllReduce, DeviceRead, ProductToScatter, RowsToMultiply, RowsToNormalise};
use super::recorded::Recording;
use super::{Engine, Region};
use crate::cuda::Stream;
use crate::cuda::activity::Activity;
use crate::cuda::driver::check;
use crate::device::DeviceTable;
use crate::device::control::BY_NCCL;
use crate::device::status::Ending;
use crate::error::Halt;
use crate::group::Running;
use crate::nccl::{Carried, Communicator};
use crate::numeric::ReduceOp;
use crate::operation::Op;
use crate::provider::nccl;
use crate::table::moved;
use crate::{Error, Result};

/// NCCL carries operations wherever there is a communicator.
#[derive(Debug)]
pub(super) struct ByNccl;

impl Carrier for ByNccl {
    fn works(&self, _all_reach_all: bool) -> bool {
        true
    }

    fn is_direct(&self) -> bool {
        false
    }

    /// NCCL takes what lies in a window to be at the same place on every rank, and mixes up elements where it
    /// is not; so operations that it carries go by way of memory that it does not know.
    fn bind(&self, engine: &Engine, running: &Running<'_>, table: &DeviceTable) -> Result<()> {
        if table.column().registration.is_none() {
            return Ok(());
        }
        // This rank may have made it before, for an operation of its own; the vote is everybody's all the
        // same.
        running.conclude(running.next_tag()?, table.room().make(engine.device()).map_err(Halt::from))
    }

    fn all_reduce(&self, region: &Region, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        region.all_reduce_by_nccl(work, stream)
    }

    /// NCCL reduces, and a kernel of ours, which reads this rank's memory only, does the rest.
    fn all_reduce_rms_norm(
        &self,
        region: &Region,
        work: &RowsToNormalise<'_>,
        stream: &Stream,
    ) -> Result<()> {
        region.norm_in_steps(work, BY_NCCL, stream)
    }

    /// One after the other: NCCL's kernels say nothing of parts.
    fn all_gather_matmul(&self, region: &Region, work: &RowsToMultiply<'_>, stream: &Stream) -> Result<()> {
        region.gather_and_multiply(work, false, stream)
    }

    fn matmul_reduce_scatter(
        &self,
        region: &Region,
        work: &ProductToScatter<'_>,
        stream: &Stream,
    ) -> Result<()> {
        region.multiply_and_scatter(work, false, stream)
    }

    fn read(&self, region: &Region, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        region.read_by_nccl(reading, stream)
    }

    fn signal(&self, region: &Region, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        region.signal_by_nccl(op, rank, channel, stream)
    }

    fn meet(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        engine.meet_by_nccl(statement.op, stream)
    }

    /// Nobody can be told.
    fn refuse(&self, _: &Engine, _: LaunchTerms, _: &Stream) -> Result<()> {
        Ok(())
    }
}

/// The end of `communicator`: at once, or once `activity` is over, where kernels of ours are at work on its
/// windows.
pub(super) fn ending(communicator: &Communicator, activity: Option<&Arc<Activity>>) -> Ending {
    let communicator = communicator.clone();
    let is_idle = activity
        .cloned()
        .map(|activity| Box::new(move || activity.is_idle()) as Box<dyn Fn() -> bool + Send>);
    Ending { is_idle, end: Box::new(move || communicator.abort()) }
}

impl Engine {
    /// The communicator that windows are registered with, where there is one.
    pub fn communicator(&self) -> Option<&Communicator> {
        nccl::communicator_of(&*self.inner.body.joined)
    }

    /// [`Engine::communicator`], or the error for what cannot do without.
    pub(crate) fn need_communicator(&self, what: &'static str) -> Result<&Communicator> {
        self.communicator().ok_or_else(|| {
            let problem = "this engine has no NCCL communicator. Hint: set SYMMEM_PROVIDER=nccl, Config::provider or Settings::provider";
            Error::invalid(what, problem)
        })
    }

    /// Runs `give`, which gives `stream` work of NCCL's, on this handle's lane. What fails here leaves the
    /// other ranks waiting, so it fails the group.
    fn carry(
        &self,
        op: Op,
        stream: &Stream,
        uses: &Uses<'_>,
        give: impl FnOnce(&Communicator) -> Result<()>,
    ) -> Result<()> {
        let communicator = self.need_communicator(op.name())?;
        if crate::nccl::is_group_open() {
            let problem = "it goes through NCCL here, and cannot be part of a group of calls. Hint: end the GroupCall first";
            return Err(Error::invalid(op.name(), problem));
        }
        let lane = &self.inner.body.lanes[self.lane];
        let is_recorded = self.recording(&LaunchTerms::plain(op, None, (0, 0), 1)) != Recording::No;
        let kernels = &self.inner.body.kernels;
        let needs = || self.needs(uses);
        let given = lane.run(stream, op, &self.inner.watched, &needs, |bound, _| {
            let number = (lane.launches() as u32).wrapping_add(1).max(1);
            let is_captured = stream.capture_id_in(bound)?.is_some();
            let say = |number| if is_captured { Ok(()) } else { self.say(number, stream) };
            let note = |kernel| match is_recorded {
                false => Ok(()),
                true => self.note(op, kernel, (stream, bound)),
            };
            say(number)?;
            note(&kernels.begin_work)?;
            let given = give(communicator);
            // What was refused before NCCL was called is over as well.
            given.and(note(&kernels.end_work)).and(say(0))
        });
        match &given {
            Err(error @ (Error::Library { .. } | Error::Cuda { .. })) => {
                self.group().abort(&error.to_string())
            }
            // Aborted while this thread was in NCCL, which may wait for peers there: the group's failure is
            // what happened.
            Err(Error::Closed { .. }) => self.check(op, None, stream)?,
            // Done, or refused before anything was begun.
            _ => {}
        }
        given
    }

    /// In the order of `stream`: NCCL is at the operation with this number on this handle's lane; 0: at none.
    fn say(&self, number: u32, stream: &Stream) -> Result<()> {
        let word = self.inner.body.status.carried(self.lane);
        // SAFETY: a word of host memory that the device reaches as long as the engine lives, whose end waits
        // for the lane.
        check("cuMemsetD32Async", unsafe { sys::cuMemsetD32Async(word, number, 1, stream.raw()) })
    }

    /// A barrier by NCCL: a reduction of one byte that nobody looks at.
    fn meet_by_nccl(&self, op: Op, stream: &Stream) -> Result<()> {
        // A barrier by multicast that was asked for and cannot be had is an error here too.
        self.barrier_kernel()?;
        let at = self.inner.body.control.address() + self.inner.scratch as u64;
        // SAFETY: the scratch of this rank's control block, which the engine keeps; I8 and sum are 0.
        self.carry(op, stream, &[None; 3], |nccl| unsafe { nccl.all_reduce_raw(at, at, 1, 0, 0, stream) })
    }

    /// Fails the group if NCCL has failed beside the calls: another rank is gone, say. Never waits.
    pub(super) fn look_at_nccl(&self) {
        if let Some(Err(error @ Error::Library { .. })) = self.communicator().map(Communicator::poll) {
            self.group().abort(&error.to_string());
        }
    }
}

impl Region {
    /// NCCL's window of this memory (`ncclWindow_t`), for kernels of its device interface; `None` where it is
    /// not NCCL's.
    pub(crate) fn nccl_window(&self) -> Option<*mut c_void> {
        nccl::window_of(self.table.column().registration.as_ref())
    }

    fn all_reduce_by_nccl(&self, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        self.multicast_if_chosen()?;
        let AllReduce { form, reduce, dtype, count, input, output } = *work;
        let (op, from, to) = (form.op(), input.address, output.address);
        tracing::trace!(op = op.name(), bytes = self.bytes, "all_reduce by NCCL");
        self.engine.carry(op, stream, &[self.owner(), input.owner, output.owner], |nccl| {
            self.by_way_of_room(from, to, Some(reduce), stream, |from, to| {
                nccl.reduce_all(from, to, count, dtype, reduce, stream)
            })
        })
    }

    /// Runs `give` on the places that NCCL is to read and write for `from` and `to`: where it cannot be given
    /// this rank's memory, on the room instead, with a copy before and after.
    fn by_way_of_room(
        &self,
        from: u64,
        to: u64,
        reduction: Option<ReduceOp>,
        stream: &Stream,
        give: impl FnOnce(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let (own, bytes) = (self.own_address(), self.bytes);
        let is_own = |at: u64| at == own && bytes > 0;
        // For averages NCCL (2.30.7) has no kernel that works in windows, and takes it all the same: 'invalid
        // device function'.
        let is_missing = reduction == Some(ReduceOp::Avg) && self.nccl_window().is_some();
        let room = match self.table.room() {
            room if is_missing && (is_own(from) || is_own(to)) => room.need(stream)?,
            room if self.offsets_differ => room.address(),
            _ => 0,
        };
        let room = moved((room, &self.offset));
        let in_room = |at: u64| is_own(at) && room != 0;
        let place = |at: u64| if in_room(at) { room } else { at };
        let copy = |to: u64, from: u64| {
            // SAFETY: this rank's memory and as much of its room, both kept with the memory by who runs this.
            check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) })
        };
        if in_room(from) {
            copy(room, own)?;
        }
        give(place(from), place(to))?;
        if in_room(to) { copy(own, room) } else { Ok(()) }
    }

    /// Another collective by NCCL.
    fn read_by_nccl(&self, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        let DeviceRead { op, dtype, reduction, root, count, output, .. } = *reading;
        if op.row().is_some_and(|row| !row.carried) {
            let problem = "some ranks are out of reach, so NCCL carries this operation, and NCCL cannot do it. Hint: put the parts one after the other";
            return Err(Error::invalid(op.name(), problem));
        }
        if count == 0 {
            return Ok(());
        }
        tracing::trace!(op = op.name(), count, "collective by NCCL");
        let (from, to, root) = (self.own_address(), output.address, root.unwrap_or(0));
        self.engine.carry(op, stream, &[self.owner(), None, output.owner], |nccl| {
            self.by_way_of_room(from, to, reduction, stream, |from, to| {
                nccl.carry(&Carried { op, reduction, dtype, count, from, to, root }, stream)
            })
        })
    }

    /// A signal by NCCL, which has one channel.
    fn signal_by_nccl(&self, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        if channel != 0 {
            return Err(Error::ChannelOutOfRange { op: op.name(), channel, channels: 1 });
        }
        self.engine.carry(op, stream, &[self.owner(), None, None], |nccl| match op {
            Op::PutSignal => nccl.signal(rank, stream),
            _ => nccl.wait_signal(rank, stream),
        })
    }
}
