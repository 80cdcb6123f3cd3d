//! Operations that NCCL carries: where some rank's memory is out of reach of another's, kernels of ours cannot work.
//!
//! An engine is *direct* when every rank reaches every other, and memory when its pointers to all are there; what is not both
//! goes through the engine's communicator, in the same order of lanes, captured or not. Numbers are then rounded as NCCL
//! rounds them.

use std::ffi::c_void;
use std::sync::Arc;

use super::lane::Keep;
use super::{Engine, EngineInner};
use crate::cuda::{Stream, SymmetricMemory};
use crate::memory::Element;
use crate::nccl::{Carried, Communicator};
use crate::op::Op;
use crate::{Error, ReduceOp, Result};

impl Engine {
    /// Whether every rank's device reaches the memory of every other's, so that kernels of this crate do the work. Else NCCL
    /// does, where it can.
    pub fn is_direct(&self) -> bool {
        self.inner.is_direct
    }

    /// The communicator that windows are registered with, where there is one.
    pub fn communicator(&self) -> Option<&Communicator> {
        self.inner.body.communicator.as_ref()
    }

    /// [`Engine::communicator`], or the error for what cannot do without.
    pub(crate) fn need_communicator(&self, what: &'static str) -> Result<&Communicator> {
        self.communicator().ok_or_else(|| {
            let problem = "this engine has no NCCL communicator. Hint: set SYMMEM_PROVIDER=nccl, Config::provider or Settings::provider";
            Error::invalid(what, problem)
        })
    }

    /// Runs `give`, which gives `stream` work of NCCL's, on this handle's lane. What fails here leaves the other ranks waiting,
    /// so it fails the group.
    pub(super) fn carry(
        &self,
        op: Op,
        stream: &Stream,
        keep: Option<&dyn Fn() -> Keep>,
        give: impl FnOnce(&Communicator) -> Result<()>,
    ) -> Result<()> {
        let communicator = self.need_communicator(op.name())?;
        if crate::nccl::is_group_open() {
            let problem = "it goes through NCCL here, and cannot be part of a group of calls. Hint: end the GroupCall first";
            return Err(Error::invalid(op.name(), problem));
        }
        let lane = &self.inner.body.lanes[self.lane];
        let engine: Keep = Arc::<EngineInner>::clone(&self.inner);
        let needs = || [Arc::clone(&engine), keep.map_or_else(|| Arc::clone(&engine), |keep| keep())];
        let given = lane.run(stream, &self.inner.watched, &needs, || give(communicator));
        if let Err(error @ Error::Nccl { .. }) = &given {
            self.group().abort(&error.to_string());
        }
        given
    }

    /// A barrier by NCCL: a reduction of one byte that nobody looks at.
    pub(super) fn meet_carried(&self, op: Op, stream: &Stream) -> Result<()> {
        let at = self.inner.body.control.address() + self.inner.scratch as u64;
        // SAFETY: the scratch of this rank's control block, which the engine keeps; I8 and sum are 0.
        self.carry(op, stream, None, |nccl| unsafe { nccl.all_reduce_raw(at, at, 1, 0, 0, stream) })
    }

    /// Fails the group if NCCL has failed beside the calls: another rank is gone, say.
    pub(super) fn look_at_nccl(&self) {
        if let Some(Err(error @ Error::Nccl { .. })) = self.communicator().map(Communicator::poll) {
            self.group().abort(&error.to_string());
        }
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Whether kernels reach everybody's memory; else operations go through NCCL, where it has them.
    pub fn is_direct(&self) -> bool {
        self.engine.is_direct() && self.keep.is_direct()
    }

    /// NCCL's window of this memory (`ncclWindow_t`), for kernels of its device interface; `None` where it is not NCCL's.
    pub fn nccl_window(&self) -> Option<*mut c_void> {
        self.keep.window()
    }

    /// Bytes from the start of the window to the handle's first element of this rank.
    pub fn window_offset(&self) -> usize {
        self.offset
    }

    /// The error for loads and stores between this rank and `peer`, who do not reach each other.
    #[cold]
    pub(crate) fn out_of_reach(&self, peer: usize) -> Error {
        Error::NoPeerAccess {
            rank: self.rank(),
            peer,
            problem:
                "they are not in one load and store domain; all_reduce, barrier and signals go through NCCL"
                    .to_owned(),
        }
    }

    /// An all-reduce by NCCL.
    pub(super) fn reduce_carried(
        &self,
        op: Op,
        reduction: ReduceOp,
        from: u64,
        to: u64,
        stream: &Stream,
    ) -> Result<()> {
        tracing::trace!(op = op.name(), bytes = self.len * size_of::<T>(), "all_reduce by NCCL");
        self.engine.carry(op, stream, Some(&self.keeper()), |nccl| {
            nccl.reduce_all(from, to, self.len, T::DTYPE, reduction, stream)
        })
    }

    /// Another collective by NCCL, which has all but those of columns.
    pub(super) fn carry_part(&self, work: &Carried, stream: &Stream) -> Result<()> {
        let op = work.op;
        if op == Op::ReduceScatterColumns {
            let problem = "NCCL, which carries what ranks out of reach do, has no such thing. Hint: lay the parts out one after the other";
            return Err(Error::invalid(op.name(), problem));
        }
        tracing::trace!(op = op.name(), count = work.count, "collective by NCCL");
        self.engine.carry(op, stream, Some(&self.keeper()), |nccl| nccl.carry(work, stream))
    }

    /// A signal by NCCL, which has one channel.
    pub(super) fn signal_carried(&self, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        if channel != 0 {
            return Err(Error::ChannelOutOfRange { op: op.name(), channel, channels: 1 });
        }
        self.engine.carry(op, stream, Some(&self.keeper()), |nccl| match op {
            Op::PutSignal => nccl.signal(rank, stream),
            _ => nccl.wait_signal(rank, stream),
        })
    }
}
