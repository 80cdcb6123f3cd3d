//! NCCL's operations by address, for bindings that have checked by themselves: of other languages, and of the
//! engine.
//!
//! Types and reductions are NCCL's numbers, counts its elements. Nothing is checked but that the communicator
//! lives and the stream is of its device.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ffi::c_int;

use super::bindings::{SIGNALS, WaitSignal};
use super::communicator::Communicator;
use super::group_call::GroupCall;
use super::shared::number;
use crate::cuda::Stream;
use crate::{Error, Result};

impl Communicator {
    /// In the order of `stream`: `ncclAllReduce`.
    ///
    /// # Safety
    /// The memory is mapped on the device, as long as the counts say, until the work is done: in a capture,
    /// until no graph is left that was made of it. Type and op are NCCL's.
    pub unsafe fn all_reduce_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        op: c_int,
        stream: &Stream,
    ) -> Result<()> {
        self.check_stream(stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclAllReduce", stream, |f, comm| unsafe {
            (f.all_reduce)(from, to, count, dtype, op, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclReduce`; `to` is looked at on the root only.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn reduce_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        op: c_int,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let root = self.peer("ncclReduce", root, stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclReduce", stream, |f, comm| unsafe {
            (f.reduce)(from, to, count, dtype, op, root, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclReduceScatter`; `count` elements for each rank.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn reduce_scatter_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        op: c_int,
        stream: &Stream,
    ) -> Result<()> {
        self.check_stream(stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclReduceScatter", stream, |f, comm| unsafe {
            (f.reduce_scatter)(from, to, count, dtype, op, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclBroadcast`.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn broadcast_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let root = self.peer("ncclBroadcast", root, stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclBroadcast", stream, |f, comm| unsafe {
            (f.broadcast)(from, to, count, dtype, root, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclAllGather`; `count` elements of each rank.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn all_gather_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        stream: &Stream,
    ) -> Result<()> {
        self.check_stream(stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclAllGather", stream, |f, comm| unsafe {
            (f.all_gather)(from, to, count, dtype, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclSend`.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn send_raw(
        &self,
        from: u64,
        count: usize,
        dtype: c_int,
        rank: usize,
        stream: &Stream,
    ) -> Result<()> {
        let peer = self.peer("ncclSend", rank, stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclSend", stream, |f, comm| unsafe {
            (f.send)(from, count, dtype, peer, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: `ncclRecv`.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn recv_raw(
        &self,
        to: u64,
        count: usize,
        dtype: c_int,
        rank: usize,
        stream: &Stream,
    ) -> Result<()> {
        let peer = self.peer("ncclRecv", rank, stream)?;
        // SAFETY: as promised by the caller.
        self.inner.work("ncclRecv", stream, |f, comm| unsafe {
            (f.recv)(to, count, dtype, peer, comm, stream.raw().cast())
        })
    }

    /// In the order of `stream`: part `r` of `from` goes to rank `r`, whose part of `to` it becomes; `count`
    /// elements of `size` bytes in each part. By NCCL's own operation where it has one, else by sends and
    /// receives.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    pub unsafe fn all_to_all_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        size: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.check_stream(stream)?;
        if let Some(native) = self.inner.nccl.functions.all_to_all {
            // SAFETY: as promised by the caller.
            return self.inner.work("ncclAlltoAll", stream, |_, comm| unsafe {
                native(from, to, count, dtype, comm, stream.raw().cast())
            });
        }
        let part = (count * size) as u64;
        let group = GroupCall::start()?;
        for rank in 0..self.size() {
            // SAFETY: as promised by the caller; parts are `count` elements each.
            unsafe {
                self.send_raw(from + rank as u64 * part, count, dtype, rank, stream)?;
                self.recv_raw(to + rank as u64 * part, count, dtype, rank, stream)?;
            }
        }
        group.end()
    }

    /// In the order of `stream`: `from` of every rank becomes its part of `to` on the root. As
    /// [`Communicator::all_to_all_raw`].
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn gather_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        size: usize,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let raw_root = self.peer("ncclGather", root, stream)?;
        if let Some(native) = self.inner.nccl.functions.gather {
            // SAFETY: as promised by the caller.
            return self.inner.work("ncclGather", stream, |_, comm| unsafe {
                native(from, to, count, dtype, raw_root, comm, stream.raw().cast())
            });
        }
        let part = (count * size) as u64;
        let group = GroupCall::start()?;
        // SAFETY: as promised by the caller; parts are `count` elements each.
        unsafe {
            for rank in (0..self.size()).filter(|_| self.rank() == root) {
                self.recv_raw(to + rank as u64 * part, count, dtype, rank, stream)?;
            }
            self.send_raw(from, count, dtype, root, stream)?;
        }
        group.end()
    }

    /// In the order of `stream`: part `r` of the root's `from` becomes `to` of rank `r`. As
    /// [`Communicator::all_to_all_raw`].
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn scatter_raw(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: c_int,
        size: usize,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let raw_root = self.peer("ncclScatter", root, stream)?;
        if let Some(native) = self.inner.nccl.functions.scatter {
            // SAFETY: as promised by the caller.
            return self.inner.work("ncclScatter", stream, |_, comm| unsafe {
                native(from, to, count, dtype, raw_root, comm, stream.raw().cast())
            });
        }
        let part = (count * size) as u64;
        let group = GroupCall::start()?;
        // SAFETY: as promised by the caller; parts are `count` elements each.
        unsafe {
            for rank in (0..self.size()).filter(|_| self.rank() == root) {
                self.send_raw(from + rank as u64 * part, count, dtype, rank, stream)?;
            }
            self.recv_raw(to, count, dtype, root, stream)?;
        }
        group.end()
    }

    /// In the order of `stream`: raises a signal at rank `rank`. What this rank's stream wrote before is
    /// visible to `rank`'s stream after it has waited for the signal.
    pub fn signal(&self, rank: usize, stream: &Stream) -> Result<()> {
        let peer = self.peer("ncclSignal", rank, stream)?;
        let signal = self.inner.nccl.need(SIGNALS, self.inner.nccl.functions.signal)?;
        // SAFETY: signal, context and flags 0 are there on every communicator.
        self.inner
            .work("ncclSignal", stream, |_, comm| unsafe { signal(peer, 0, 0, 0, comm, stream.raw().cast()) })
    }

    /// In the order of `stream`: consumes one signal from rank `rank`, once it is there.
    pub fn wait_signal(&self, rank: usize, stream: &Stream) -> Result<()> {
        let peer = self.peer("ncclWaitSignal", rank, stream)?;
        let wait = self.inner.nccl.need(SIGNALS, self.inner.nccl.functions.wait_signal)?;
        let mut what = WaitSignal { count: 1, peer, signal: 0, context: 0 };
        // SAFETY: reads one description during the call.
        self.inner.work("ncclWaitSignal", stream, |_, comm| unsafe {
            wait(1, &mut what, comm, stream.raw().cast())
        })
    }

    pub(super) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if stream.device() == self.device() {
            return Ok(());
        }
        let problem = format!("it is on {}, the communicator on {}", stream.device(), self.device());
        Err(Error::invalid("stream", problem))
    }

    /// `rank` as NCCL takes it, if there is one, and the stream is right.
    fn peer(&self, op: &'static str, rank: usize, stream: &Stream) -> Result<c_int> {
        self.check_stream(stream)?;
        if rank >= self.size() {
            return Err(Error::RankOutOfRange { op, rank, world: self.size() });
        }
        number("rank", rank)
    }
}
