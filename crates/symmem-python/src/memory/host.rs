//! Handles of host memory.
//!
//! The handle is prepared once, with the token that makes waits end on Ctrl-C, so that a call costs no more
//! than the Rust call and giving up the interpreter around it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use symmem::{Allocation, CancelToken, Error, Group, Received};

use super::{Handle, MemoryFacts, Span, Terms};
use crate::array::Keep;
use crate::collectives::Plan;
use crate::error::raise;
use crate::interrupt::blocking;
use crate::operand::{Operand, Place};
use crate::pending::Pending;
use crate::refusal;

/// The memory as bytes; operations on elements cast it.
pub(crate) type Bytes = symmem::SymmetricMemory<u8>;

/// A handle of host memory.
pub(crate) struct Host {
    /// `None` once closed, or once the group was.
    memory: Mutex<Option<Arc<Bytes>>>,
    span: Span,
    /// Made when somebody asks, or at the latest when the memory goes: `group.all_reduce(x)` makes a handle
    /// for every call.
    facts: OnceLock<MemoryFacts>,
    without: Vec<usize>,
}

fn facts_of(memory: &Bytes) -> MemoryFacts {
    let numbers = |pointers: Vec<*mut u8>| pointers.iter().map(|pointer| *pointer as usize).collect();
    let (buffers, pads): (Vec<_>, Vec<_>) = (numbers(memory.base_ptrs()), numbers(memory.pad_ptrs()));
    MemoryFacts {
        buffer_size: memory.buffer_size(),
        signal_pad_size: memory.signal_pad_size(),
        buffers_dev: buffers.as_ptr() as usize,
        buffers,
        pads_dev: pads.as_ptr() as usize,
        pads,
        multicast: 0,
    }
}

impl Host {
    /// Collective, but local where the allocation is `known` on the group: then all ranks are taken to have
    /// their span at the same place, as far as they look into each other's memory. Later calls wait as
    /// `lasting` says, if that differs.
    pub(super) fn rendezvous(
        py: Python<'_>,
        (group, lasting): (&Group, Option<&Group>),
        (allocation, known): (&Allocation<u8>, bool),
        span: &Span,
    ) -> PyResult<Self> {
        let memory = blocking(py, || match known {
            true => allocation.rendezvous(group)?.slice(span.offset..span.offset + span.bytes()),
            false => allocation.rendezvous_of(span.dtype, group, span.offset, &span.shape),
        })?;
        Ok(Self::new(on_lasting_terms(memory, lasting), span.clone()))
    }

    /// Collective: the handle of a rank that brings nothing, of what the first one with memory brought.
    pub(super) fn rendezvous_nothing(
        py: Python<'_>,
        (group, lasting): (&Group, Option<&Group>),
    ) -> PyResult<Self> {
        let memory = on_lasting_terms(blocking(py, || group.rendezvous_nothing())?, lasting);
        let layout = memory.layout();
        let (offset, shape, dtype) = (layout.start, layout.shape.clone(), layout.dtype);
        let span = Span { offset, len: shape.iter().product(), shape, dtype };
        Ok(Self::new(memory, span))
    }

    fn new(memory: Bytes, span: Span) -> Self {
        let without = memory.ranks_without_memory().to_vec();
        Self { memory: Mutex::new(Some(Arc::new(memory))), span, facts: OnceLock::new(), without }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Bytes>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `memory` is what the lock guards: everybody takes the lock before the cell, so that nobody waits for
    /// both in a circle.
    fn facts_of(&self, memory: &Option<Arc<Bytes>>) -> &MemoryFacts {
        self.facts.get_or_init(|| memory.as_deref().map_or_else(MemoryFacts::default, facts_of))
    }

    #[inline]
    fn open(&self, op: &'static str) -> symmem::Result<Arc<Bytes>> {
        self.lock().clone().ok_or(Error::Closed { op })
    }

    /// An error of the call `op` if the memory is closed here.
    pub(crate) fn check_open(&self, op: &'static str) -> PyResult<()> {
        self.open(op).map(drop).map_err(raise)
    }

    /// Runs `work` on the memory, on these terms, without the interpreter.
    #[inline]
    pub(crate) fn wait<R: Send>(
        &self,
        op: &'static str,
        terms: Terms<'_, '_>,
        work: impl FnOnce(&Bytes) -> symmem::Result<R> + Send,
    ) -> PyResult<R> {
        let memory = self.open(op).map_err(raise)?;
        match terms.timeout {
            None => blocking(terms.py, || work(&memory)),
            Some(timeout) => blocking(terms.py, || work(&memory.within(timeout))),
        }
    }

    /// Nanoseconds of one barrier, from a loop of `count` without Python.
    pub(super) fn barrier_loop(&self, py: Python<'_>, count: u32) -> PyResult<f64> {
        self.wait("barrier", Terms { py, timeout: None, stream: None }, |memory| {
            let started = Instant::now();
            (0..count).try_for_each(|_| memory.barrier(0))?;
            Ok(started.elapsed().as_nanos() as f64 / f64::from(count.max(1)))
        })
    }
}

fn on_lasting_terms(memory: Bytes, lasting: Option<&Group>) -> Bytes {
    match lasting {
        None => memory,
        Some(lasting) => memory.on_terms_of(lasting),
    }
}

impl Handle for Host {
    fn place(&self) -> Place {
        Place::Cpu
    }

    fn ranks_without_memory(&self) -> &[usize] {
        &self.without
    }

    fn facts(&self) -> &MemoryFacts {
        self.facts_of(&self.lock())
    }

    fn start_of(&self, rank: usize) -> usize {
        let start = self.open("view").and_then(|memory| memory.offset_of(rank));
        start.unwrap_or(self.span.offset)
    }

    fn view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)> {
        let view = self.open("view")?.buffer::<u8>(rank, &[bytes], start)?;
        Ok((view.as_ptr() as usize, Arc::new(view)))
    }

    fn pad_view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)> {
        let view = self.open("signal_pad")?.signal_pad_view::<u8>(rank, &[bytes], start)?;
        Ok((view.as_ptr() as usize, Arc::new(view)))
    }

    #[inline]
    fn barrier(&self, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait("barrier", terms, |memory| memory.barrier(channel))
    }

    fn put_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait("put_signal", terms, |memory| memory.put_signal(rank, channel))
    }

    fn wait_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait("wait_signal", terms, |memory| memory.wait_signal(rank, channel))
    }

    fn try_put_signal(&self, rank: usize, channel: usize) -> PyResult<bool> {
        self.open("try_put_signal").and_then(|memory| memory.try_put_signal(rank, channel)).map_err(raise)
    }

    fn try_wait_signal(&self, rank: usize, channel: usize) -> PyResult<bool> {
        self.open("try_wait_signal").and_then(|memory| memory.try_wait_signal(rank, channel)).map_err(raise)
    }

    fn put(&self, rank: usize, start: usize, from: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()> {
        let start = start.saturating_mul(self.span.dtype.size());
        // SAFETY: `from` is on the CPU, as the caller saw.
        let from = unsafe { from.bytes_of() };
        // SAFETY: Python's arrays are no Rust borrows; a receiver that reads meanwhile sees torn elements.
        self.wait("put", terms, |memory| unsafe { memory.put(rank, start, from) })
    }

    fn get(&self, rank: usize, start: usize, out: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()> {
        let start = start.saturating_mul(self.span.dtype.size());
        // SAFETY: `out` is on the CPU and writable, as the caller saw.
        let out = unsafe { out.bytes_of_mut() };
        self.wait("get", terms, |memory| memory.get(rank, start, out))
    }

    fn run(&self, plan: &Plan<'_, '_>, terms: Terms<'_, '_>) -> PyResult<()> {
        // SAFETY: on the CPU, writable, of the span's type and apart from everybody's elements, as the caller
        // saw.
        let out = plan.out.as_ref().map(|out| unsafe { out.bytes_of_mut() });
        let (call, dtype) = (plan.call, self.span.dtype);
        self.wait(call.name(), terms, |memory| memory.run_as(dtype, call, out))
    }

    fn refuse(&self, error: PyErr, terms: Terms<'_, '_>) -> PyErr {
        // Of closed memory nobody waits for anything.
        let Ok(memory) = self.open("refusal") else { return error };
        match terms.timeout {
            None => refusal::tell(terms.py, memory.group(), error),
            Some(timeout) => refusal::tell(terms.py, memory.within(timeout).group(), error),
        }
    }

    fn all_to_all_v(
        &self,
        row: usize,
        splits: &[usize],
        out: &Operand<'_>,
        terms: Terms<'_, '_>,
    ) -> PyResult<Received> {
        // SAFETY: as in `run`.
        let (dtype, out) = (self.span.dtype, unsafe { out.bytes_of_mut() });
        self.wait("all_to_all_v", terms, |memory| memory.all_to_all_v_as(dtype, row, splits, out))
    }

    fn start(&self, plan: Plan<'_, '_>, terms: Terms<'_, '_>) -> PyResult<Pending> {
        let memory = self.open(plan.call.name()).map_err(raise)?;
        // Ctrl-C ends waiting for the operation, not the operation, which peers count on.
        let memory = memory.cancelled_by(&CancelToken::new());
        let memory = terms.timeout.map(|timeout| memory.within(timeout)).unwrap_or(memory);
        let bytes = plan.out.as_ref().map(|out| out.bytes());
        let pending = memory.start_as(self.span.dtype, plan.call, bytes).map_err(raise)?;
        Ok(Pending::landing(pending, self.span.dtype, bytes.is_some(), plan.result))
    }

    fn is_open(&self) -> bool {
        // A view of nothing: the memory has no question of its own for whether another handle closed it.
        let closed =
            |memory: Arc<Bytes>| matches!(memory.buffer::<u8>(0, &[0], 0), Err(Error::Closed { .. }));
        self.open("is_open").is_ok_and(|memory| !closed(memory))
    }

    fn close(&self, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait("close", terms, |memory| memory.cast::<u8>()?.close())?;
        self.leave();
        Ok(())
    }

    fn leave(&self) {
        let mut open = self.lock();
        self.facts_of(&open);
        let memory = open.take();
        drop(open);
        // Dropped after the lock is: the last handle of a group leaves it.
        drop(memory);
    }

    fn as_host(&self) -> Option<&Host> {
        Some(self)
    }
}
