//! What a handle on a device knows and does: shared by the handle that `memory` wraps, and by `DeviceMemory`,
//! the short way of those who have addresses already.
//!
//! Operations are put on a stream and return. What they guarantee: an argument is checked before anything is
//! launched, and after [`DeviceMemoryEnd::leave`] everything that would touch memory is `Closed`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use symmem::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream};
use symmem::erased::Call;
use symmem::{DType, Error, Group, ReduceOp, Result};

use super::engine::{Engines, Whole};
use super::moved;
use super::norm::DeviceNorm;
use super::parts::{Range, ReducedParts};
use super::private::Private;
use super::reduced::{Choice, Reduced, ReducedElements};
use super::stream::ordinal_of;
use crate::array::Keep;
use crate::dtype::dispatch;
use crate::fused::NORM;
use crate::memory::{MemoryFacts, Span};
use crate::registry::{AllocatedBlock, Registered};

/// One rank's end of symmetric memory on devices.
pub(crate) struct DeviceMemoryEnd {
    pub(crate) span: Span,
    pub(crate) device: Device,
    pub(crate) rank: usize,
    pub(crate) facts: MemoryFacts,
    /// Until it is closed.
    live: Mutex<Option<Arc<Live>>>,
}

/// What needs the membership in the group.
pub(crate) struct Live {
    pub(crate) whole: Arc<Whole>,
    engines: Engines,
    /// The bytes of the span.
    span: ReducedParts,
}

impl Live {
    /// What holds `range`: the span, or else all of the allocation.
    #[inline]
    fn parts(&self, range: Range) -> Result<&ReducedParts> {
        let whole = &self.whole.parts;
        let parts = [&self.span, whole].into_iter().find(|parts| parts.hold(range));
        parts.ok_or_else(|| out_of_bounds(range, whole.memory.len()))
    }
}

impl DeviceMemoryEnd {
    /// Collective for a new pair of allocation and group, else local.
    pub(crate) fn rendezvous(
        group: &Group,
        engines: &Engines,
        block: &Arc<AllocatedBlock>,
        span: Span,
    ) -> Result<Self> {
        let (whole, memory) = engines.attach(group, block, &span)?;
        let numbers = |addresses: &[u64]| addresses.iter().map(|address| *address as usize).collect();
        let live = Live { whole, engines: engines.share(), span: ReducedParts::new(memory) };
        let memory = &live.span.memory;
        let facts = MemoryFacts {
            buffer_size: memory.buffer_size(),
            signal_pad_size: memory.signal_pad_size(),
            buffers: numbers(memory.base_ptrs()),
            buffers_dev: memory.base_ptrs_dev()? as usize,
            pads: numbers(memory.pad_ptrs()),
            pads_dev: memory.pad_ptrs_dev()? as usize,
            multicast: memory.multicast_ptr().unwrap_or(0) as usize,
        };
        let (device, rank) = (memory.device().clone(), memory.rank());
        Ok(Self { span, device, rank, facts, live: Mutex::new(Some(Arc::new(live))) })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there until it is closed.
    #[inline]
    pub(crate) fn live(&self, op: &'static str) -> Result<Arc<Live>> {
        let live = self.slot().clone();
        live.filter(|live| !live.whole.is_closed()).ok_or(Error::Closed { op })
    }

    /// Collective: ends the use of the allocation on the group, by this handle and by all others.
    pub(crate) fn close(&self) -> Result<()> {
        let live = self.live("close")?;
        let met = live.span.memory.clone().close();
        // A group that failed does not meet any more; the handle is closed all the same.
        live.whole.close();
        live.engines.forget(&live.whole);
        self.leave();
        met
    }

    /// Ends the use; never blocks. Work that is under way goes on, and keeps what it needs.
    pub(crate) fn leave(&self) {
        let gone = self.slot().take();
        drop(gone);
    }

    pub(crate) fn ordinal(&self) -> i32 {
        ordinal_of(&self.device)
    }

    /// The byte of rank `rank`'s allocation at which its part of the span starts; where this rank's does, if
    /// that is out of reach.
    pub(crate) fn start_of(&self, rank: usize) -> usize {
        let there = self.live("get_buffer").and_then(|live| live.span.memory.peer_ptr(rank));
        there.map_or(self.span.offset, |there| there as usize - self.facts.buffers[rank])
    }

    /// `bytes` of rank `rank` from byte `start` of its allocation on.
    pub(crate) fn view(&self, rank: usize, start: usize, bytes: usize) -> Result<(usize, Keep)> {
        let live = self.live("get_buffer")?;
        live.span.memory.peer_ptr(rank)?;
        check_range("get_buffer", start, bytes, self.facts.buffer_size)?;
        Ok((self.facts.buffers[rank] + start, live.span.memory.mappings()))
    }

    /// `bytes` of rank `rank`'s signal pad from byte `start` on.
    pub(crate) fn pad_view(&self, rank: usize, start: usize, bytes: usize) -> Result<(usize, Keep)> {
        let live = self.live("get_signal_pad")?;
        live.span.memory.pad_ptr(rank)?;
        check_range("get_signal_pad", start, bytes, self.facts.signal_pad_size)?;
        Ok((self.facts.pads[rank] + start, live.span.memory.mappings()))
    }

    /// In place of a collective that this rank cannot launch.
    pub(crate) fn refuse(&self, stream: &Stream) -> Result<()> {
        self.live("refusal")?.span.memory.engine().refuse(stream)
    }

    pub(crate) fn barrier(&self, channel: usize, within: Option<Duration>, stream: &Stream) -> Result<()> {
        let live = self.enter("barrier", within, stream)?;
        live.span.memory.barrier(channel, stream)
    }

    pub(crate) fn order_behind(&self, stream: &Stream) -> Result<()> {
        self.enter("order_behind", None, stream)?.span.memory.order_behind(stream)
    }

    pub(crate) fn put_signal(
        &self,
        rank: usize,
        channel: usize,
        within: Option<Duration>,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("put_signal", within, stream)?;
        live.span.memory.put_signal(rank, channel, stream)
    }

    pub(crate) fn wait_signal(
        &self,
        rank: usize,
        channel: usize,
        within: Option<Duration>,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("wait_signal", within, stream)?;
        live.span.memory.wait_signal(rank, channel, stream)
    }

    /// Copies `bytes` at `from` to rank `rank`'s span, from byte `start` of it on, by the copy engine.
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw`] of `bytes` at `from` on this device.
    pub(crate) unsafe fn put(
        &self,
        rank: usize,
        start: usize,
        from: u64,
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("put", None, stream)?;
        let owner = Registered(from);
        // SAFETY: as the caller promises.
        let input = unsafe { DeviceSlice::<u8>::from_owner(from, bytes, &self.device, &owner) }?;
        live.span.memory.put(rank, start, input, stream)
    }

    /// Copies rank `rank`'s span, from byte `start` of it on, to `bytes` at `to`: by the copy engine, or by
    /// threads.
    ///
    /// # Safety
    /// As for [`DeviceSliceMut::from_raw`] of `bytes` at `to` on this device.
    pub(crate) unsafe fn get(
        &self,
        rank: usize,
        start: usize,
        to: u64,
        bytes: usize,
        by_threads: bool,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("get", None, stream)?;
        let owner = Registered(to);
        // SAFETY: as the caller promises.
        let out = unsafe { DeviceSliceMut::<u8>::from_owner(to, bytes, &self.device, &owner) }?;
        match by_threads {
            true => live.span.memory.copy(rank, start, out, stream),
            false => live.span.memory.get(rank, start, out, stream),
        }
    }

    /// Reduces a range of everybody's allocation: a part of the span, or else of what is around it, which
    /// must be in the same place on all ranks.
    ///
    /// # Safety
    /// As for [`ReducedParts::all_reduce`].
    #[inline]
    pub(crate) unsafe fn all_reduce(
        &self,
        range: Range,
        op: ReduceOp,
        elements: ReducedElements,
        choice: Choice,
        within: Option<Duration>,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("all_reduce", within, stream)?;
        // SAFETY: as the caller promises.
        unsafe { live.parts(range)?.all_reduce(range, op, elements, choice, stream) }
    }

    /// The same with a rank's part of the reduction, into the address and number of elements `out`.
    ///
    /// # Safety
    /// As for [`DeviceMemoryEnd::run`].
    #[inline]
    pub(crate) unsafe fn reduce_scatter(
        &self,
        range: Range,
        op: ReduceOp,
        out: (u64, usize),
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter("reduce_scatter", None, stream)?;
        // SAFETY: as the caller promises.
        unsafe { live.parts(range)?.run(range, Call::ReduceScatter(op), Some(out), stream) }
    }

    /// The range of `len` elements at the address `at`, of this rank's allocation if it is in it.
    pub(crate) fn range(&self, at: usize, len: usize, dtype: DType) -> Range {
        (at.wrapping_sub(self.facts.buffers[self.rank]), len, dtype)
    }

    /// Puts another collective of the span on `stream`; `out` is the address and the number of elements of
    /// its output.
    ///
    /// # Safety
    /// As for [`DeviceSliceMut::from_raw`] of `out` on this device.
    pub(crate) unsafe fn run(
        &self,
        call: Call<'_>,
        out: Option<(u64, usize)>,
        within: Option<Duration>,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter(call.name(), within, stream)?;
        if Reduced::is_there(self.span.dtype) {
            let range = (self.span.offset, self.span.len, self.span.dtype);
            // SAFETY: as the caller promises.
            return unsafe { live.span.run(range, call, out, stream) };
        }
        let bytes = &live.span.memory;
        // SAFETY: as the caller promises.
        dispatch!(self.span.dtype, T => unsafe { moved::run(&bytes.cast::<T>()?, call, out, stream) })
    }

    /// Puts a collective of `len` private elements on `stream`, by way of the first ones of the allocation.
    ///
    /// # Safety
    /// As for [`Private::run`](super::Private::run).
    pub(crate) unsafe fn run_private(
        &self,
        asked: &Private<'_>,
        len: usize,
        within: Option<Duration>,
        stream: &Stream,
    ) -> Result<()> {
        let live = self.enter(asked.call.name(), within, stream)?;
        let whole = &live.whole.parts;
        // What is wrong with this rank's part before the library sees it: the others may wait already.
        let refused = |error: Error| self.refuse(stream).map_or_else(|earlier| earlier, |()| error);
        asked.check(len).map_err(refused)?;
        if let (Call::AllReduce(op), Some((out, _))) = (asked.call, asked.out) {
            let input = asked.input.map_or(out, |(input, _)| input);
            let (range, elements) = ((0, len, asked.dtype), ReducedElements::Private(input, out));
            // SAFETY: as the caller promises, and as long as each other.
            return unsafe { whole.all_reduce(range, op, elements, Choice::Table, stream) };
        }
        let bytes = whole.memory.slice(0..len * asked.dtype.size()).map_err(refused)?;
        let size = |(address, len): (u64, usize)| (address, len * asked.dtype.size());
        let (brought, taken) = match asked.call {
            Call::Broadcast(root) if root == self.rank => (asked.out, None),
            Call::Broadcast(_) => (None, asked.out),
            _ => (asked.input, None),
        };
        if let Some((from, len)) = brought.map(size) {
            let owner = Registered(from);
            // SAFETY: as the caller promises.
            let input = unsafe { DeviceSlice::<u8>::from_owner(from, len, &self.device, &owner) };
            input.and_then(|input| bytes.copy_in(0, input, stream)).map_err(refused)?;
        }
        let out = asked.out.filter(|_| !matches!(asked.call, Call::Broadcast(_)));
        // SAFETY: as the caller promises.
        dispatch!(asked.dtype, T => unsafe { moved::run(&bytes.cast::<T>()?, asked.call, out, stream) })?;
        if let Some((to, len)) = taken.map(size) {
            let owner = Registered(to);
            // SAFETY: as the caller promises.
            let out = unsafe { DeviceSliceMut::<u8>::from_owner(to, len, &self.device, &owner) }?;
            bytes.copy_out(0, out, stream)?;
        }
        Ok(())
    }

    /// Puts a norm on `stream`: of the span, or, in a room, of as many of its first bytes as it needs.
    pub(super) fn norm(&self, norm: &DeviceNorm, within: Option<Duration>, stream: &Stream) -> Result<()> {
        let live = self.enter(NORM, within, stream)?;
        // The others wait already, and the library has not seen it yet.
        let refused = |error: Error| self.refuse(stream).map_or_else(|earlier| earlier, |()| error);
        let memory = norm.check().and_then(|()| live.span.memory.slice(0..norm.bytes()));
        norm.run(&memory.map_err(refused)?, stream)
    }

    /// The start of every operation.
    #[inline]
    fn enter(&self, op: &'static str, within: Option<Duration>, stream: &Stream) -> Result<Arc<Live>> {
        let live = self.live(op)?;
        if let Some(within) = within {
            live.whole.shared.within(within, stream)?;
        }
        Ok(live)
    }
}

#[cold]
fn out_of_bounds((start, len, dtype): Range, size: usize) -> Error {
    let bytes = (len as u64).saturating_mul(dtype.size() as u64);
    Error::OutOfBounds { op: "all_reduce", offset: start as u64, bytes, size: size as u64 }
}

fn check_range(op: &'static str, start: usize, bytes: usize, size: usize) -> Result<()> {
    if start.checked_add(bytes).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::OutOfBounds { op, offset: start as u64, bytes: bytes as u64, size: size as u64 })
}
