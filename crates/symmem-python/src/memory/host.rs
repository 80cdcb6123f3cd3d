//! Handles of host memory.
//!
//! The handle is prepared once, with the token that makes waits end on Ctrl-C, so that a call costs no more than the Rust
//! call and giving up the interpreter around it.

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use symmem::{Allocation, CancelToken, Element, Error, Group, Received};

use super::{Call, Handle, Span, Terms};
use crate::array::Keep;
use crate::dtype::dispatch;
use crate::error::{invalid, raise};
use crate::interrupt::blocking;
use crate::operand::{Operand, Place};
use crate::pending::{Pending, Running, Started};
use crate::refusal;

/// The memory as bytes; operations on elements cast it.
type Bytes = symmem::SymmetricMemory<u8>;

/// A handle of host memory.
pub(crate) struct Host {
    /// `None` once closed, or once the group was.
    memory: Mutex<Option<Arc<Bytes>>>,
    span: Span,
    buffer_size: usize,
    signal_pad_size: usize,
    /// Made when somebody asks, or at the latest when the memory goes: `group.all_reduce(x)` makes a handle for every call.
    addresses: OnceLock<Addresses>,
    without: Vec<usize>,
}

/// Where every rank's memory is in this process.
#[derive(Default)]
struct Addresses {
    buffers: Vec<usize>,
    pads: Vec<usize>,
}

impl Addresses {
    fn of(memory: &Bytes) -> Self {
        let numbers = |pointers: Vec<*mut u8>| pointers.iter().map(|pointer| *pointer as usize).collect();
        Self { buffers: numbers(memory.buffer_ptrs()), pads: numbers(memory.signal_pad_ptrs()) }
    }
}

impl Host {
    /// Collective, but local where the allocation is `known` on the group: then all ranks are taken to have their span at the same
    /// place, as far as they look into each other's memory. Later calls wait as `lasting` says, if that differs.
    pub(super) fn rendezvous(
        py: Python<'_>,
        (group, lasting): (&Group, Option<&Group>),
        (allocation, known): (&Allocation<u8>, bool),
        span: &Span,
    ) -> PyResult<Self> {
        let memory = match known {
            true => blocking(py, || allocation.rendezvous(group)?.part(span.offset, span.bytes())),
            false => dispatch!(span.dtype, T => blocking(py, || {
                allocation.rendezvous_shaped::<T>(group, span.offset, &span.shape)?.cast::<u8>()
            })),
        }?;
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
        Self {
            span,
            buffer_size: memory.buffer_size(),
            signal_pad_size: memory.signal_pad_size(),
            addresses: OnceLock::new(),
            without: memory.ranks_without_memory().to_vec(),
            memory: Mutex::new(Some(Arc::new(memory))),
        }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Bytes>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> &Addresses {
        self.addresses_of(&self.lock())
    }

    /// `memory` is what the lock guards: everybody takes the lock before the cell, so that nobody waits for both in a circle.
    fn addresses_of(&self, memory: &Option<Arc<Bytes>>) -> &Addresses {
        self.addresses.get_or_init(|| memory.as_deref().map_or_else(Addresses::default, Addresses::of))
    }

    #[inline]
    fn open(&self, op: &'static str) -> symmem::Result<Arc<Bytes>> {
        self.lock().clone().ok_or(Error::Closed { op })
    }

    /// Runs `work` on the memory, on these terms, without the interpreter.
    #[inline]
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        op: &'static str,
        terms: Terms<'_, '_>,
        work: impl FnOnce(&Bytes) -> symmem::Result<R> + Send,
    ) -> PyResult<R> {
        let memory = self.open(op).map_err(raise)?;
        match terms.timeout {
            None => blocking(py, || work(&memory)),
            Some(timeout) => blocking(py, || work(&memory.within(timeout))),
        }
    }

    /// Nanoseconds of one barrier, from a loop of `count` without Python.
    pub(super) fn barrier_loop(&self, py: Python<'_>, count: u32) -> PyResult<f64> {
        self.wait(py, "barrier", Terms::default(), |memory| {
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

    fn buffer_size(&self) -> usize {
        self.buffer_size
    }

    fn signal_pad_size(&self) -> usize {
        self.signal_pad_size
    }

    fn buffer_ptrs(&self) -> Vec<usize> {
        self.addresses().buffers.clone()
    }

    fn signal_pad_ptrs(&self) -> Vec<usize> {
        self.addresses().pads.clone()
    }

    fn buffer_ptrs_dev(&self) -> usize {
        self.addresses().buffers.as_ptr() as usize
    }

    fn signal_pad_ptrs_dev(&self) -> usize {
        self.addresses().pads.as_ptr() as usize
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
    fn barrier(&self, py: Python<'_>, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait(py, "barrier", terms, |memory| memory.barrier(channel))
    }

    fn put_signal(&self, py: Python<'_>, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait(py, "put_signal", terms, |memory| memory.put_signal(rank, channel))
    }

    fn wait_signal(&self, py: Python<'_>, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait(py, "wait_signal", terms, |memory| memory.wait_signal(rank, channel))
    }

    fn try_put_signal(&self, _: Python<'_>, rank: usize, channel: usize) -> PyResult<bool> {
        self.open("try_put_signal").and_then(|memory| memory.try_put_signal(rank, channel)).map_err(raise)
    }

    fn try_wait_signal(&self, _: Python<'_>, rank: usize, channel: usize) -> PyResult<bool> {
        self.open("try_wait_signal").and_then(|memory| memory.try_wait_signal(rank, channel)).map_err(raise)
    }

    fn put(
        &self,
        py: Python<'_>,
        rank: usize,
        start: usize,
        from: &Operand<'_>,
        terms: Terms<'_, '_>,
    ) -> PyResult<()> {
        dispatch!(self.span.dtype, T => {
            // SAFETY: `from` is on the CPU and of the span's type, as the caller saw.
            let from = unsafe { from.slice::<T>() };
            // SAFETY: Python's arrays are no Rust borrows; a receiver that reads meanwhile sees torn elements.
            self.wait(py, "put", terms, |memory| unsafe { memory.cast::<T>()?.put(rank, start, from) })
        })
    }

    fn get(
        &self,
        py: Python<'_>,
        rank: usize,
        start: usize,
        out: &Operand<'_>,
        terms: Terms<'_, '_>,
    ) -> PyResult<()> {
        dispatch!(self.span.dtype, T => {
            // SAFETY: `out` is on the CPU, writable and of the span's type, as the caller saw.
            let out = unsafe { out.slice_mut::<T>() };
            self.wait(py, "get", terms, |memory| memory.cast::<T>()?.get(rank, start, out))
        })
    }

    fn run(
        &self,
        py: Python<'_>,
        call: Call,
        out: Option<&Operand<'_>>,
        terms: Terms<'_, '_>,
    ) -> PyResult<()> {
        dispatch!(self.span.dtype, T => {
            // SAFETY: on the CPU, writable, of the span's type and apart from everybody's elements, as the caller saw.
            let out = out.map(|out| unsafe { out.slice_mut::<T>() });
            self.wait(py, call.name(), terms, |memory| run(memory.cast::<T>()?, call, out))
        })
    }

    fn refuse(&self, py: Python<'_>, error: PyErr, terms: Terms<'_, '_>) -> PyErr {
        // Of closed memory nobody waits for anything.
        let Ok(memory) = self.open("refusal") else { return error };
        match terms.timeout {
            None => refusal::tell(py, memory.group(), error),
            Some(timeout) => refusal::tell(py, memory.within(timeout).group(), error),
        }
    }

    fn all_to_all_v(
        &self,
        py: Python<'_>,
        row: usize,
        splits: &[usize],
        out: &Operand<'_>,
        terms: Terms<'_, '_>,
    ) -> PyResult<Received> {
        dispatch!(self.span.dtype, T => {
            // SAFETY: as in `run`.
            let out = unsafe { out.slice_mut::<T>() };
            self.wait(py, "all_to_all_v", terms, |memory| memory.cast::<T>()?.all_to_all_v(row, splits, out))
        })
    }

    fn start(
        &self,
        _: Python<'_>,
        call: Call,
        out: Option<&Operand<'_>>,
        result: Py<PyAny>,
        terms: Terms<'_, '_>,
    ) -> PyResult<Pending> {
        let memory = self.open(call.name()).map_err(raise)?;
        // Ctrl-C ends waiting for the operation, not the operation, which peers count on.
        let memory = memory.cancelled_by(&CancelToken::new());
        let memory = match terms.timeout {
            None => memory,
            Some(timeout) => memory.within(timeout),
        };
        let len = out.map(|out| out.len);
        let started = dispatch!(self.span.dtype, T => {
            let memory = memory.cast::<T>().map_err(raise)?;
            start(memory, call, len, result)
        })?;
        Ok(Pending::new(started))
    }

    fn is_open(&self) -> bool {
        // A view of nothing: the memory has no question of its own for whether another handle closed it.
        let closed =
            |memory: Arc<Bytes>| matches!(memory.buffer::<u8>(0, &[0], 0), Err(Error::Closed { .. }));
        self.open("is_open").is_ok_and(|memory| !closed(memory))
    }

    fn close(&self, py: Python<'_>, terms: Terms<'_, '_>) -> PyResult<()> {
        self.wait(py, "close", terms, |memory| memory.cast::<u8>()?.close())?;
        self.leave();
        Ok(())
    }

    fn leave(&self) {
        let mut open = self.lock();
        self.addresses_of(&open);
        let memory = open.take();
        drop(open);
        // Dropped after the lock is: the last handle of a group leaves it.
        drop(memory);
    }

    fn as_host(&self) -> Option<&Host> {
        Some(self)
    }
}

fn run<T: Element>(
    mut memory: symmem::SymmetricMemory<T>,
    call: Call,
    out: Option<&mut [T]>,
) -> symmem::Result<()> {
    let in_place = out.is_none();
    let out = out.unwrap_or_default();
    match call {
        Call::AllReduce(op) if in_place => memory.all_reduce(op),
        Call::AllReduce(op) => memory.all_reduce_out(op, out),
        Call::Reduce(op, root) => memory.reduce(op, root, out),
        Call::ReduceScatter(op) => memory.reduce_scatter(op, out),
        Call::ReduceScatterColumns(op, columns) => memory.reduce_scatter_columns(op, columns, out),
        Call::AllGather => memory.all_gather(out),
        Call::Broadcast(root) => memory.broadcast(root),
        Call::AllToAll => memory.all_to_all(out),
        Call::Gather(root) => memory.gather(root, out),
        Call::Scatter(root) => memory.scatter(root, out),
    }
}

/// Starts `call`, whose output has `len` elements; waiting for it gives `result`, which is that output.
fn start<T: Element>(
    mut memory: symmem::SymmetricMemory<T>,
    call: Call,
    len: Option<usize>,
    result: Py<PyAny>,
) -> PyResult<Box<dyn Running>> {
    let out = vec![T::zeroed(); len.unwrap_or_default()];
    let pending = match call {
        Call::AllReduce(op) if len.is_none() => {
            return Ok(in_place(memory.all_reduce_start(op).map_err(raise)?, result));
        }
        Call::Broadcast(root) => return Ok(in_place(memory.broadcast_start(root).map_err(raise)?, result)),
        Call::AllReduce(op) => memory.all_reduce_out_start(op, out),
        Call::Reduce(op, root) => memory.reduce_start(op, root, out),
        Call::ReduceScatter(op) => memory.reduce_scatter_start(op, out),
        Call::AllGather => memory.all_gather_start(out),
        Call::AllToAll => memory.all_to_all_start(out),
        Call::ReduceScatterColumns(..) | Call::Gather(_) | Call::Scatter(_) => {
            return Err(invalid(call.name(), "it has no started form. Hint: call it in a thread of its own"));
        }
    };
    let pending = pending.map_err(raise)?;
    Ok(Started::boxed(pending, move |py, data| {
        if len.is_some() {
            land(py, &result, &data)?;
        }
        Ok(result)
    }))
}

fn in_place(pending: symmem::Pending<()>, result: Py<PyAny>) -> Box<dyn Running> {
    Started::boxed(pending, |_, ()| Ok(result))
}

/// Copies what a started operation gave into the output it was asked for.
pub(crate) fn land<T: Element>(py: Python<'_>, object: &Py<PyAny>, data: &[T]) -> PyResult<()> {
    // Looked at anew: Python may have changed the object since the start.
    let out = Operand::any_output(object.bind(py))?;
    if out.len != data.len() || out.dtype != T::DTYPE || out.device != Place::Cpu {
        return Err(invalid("out", "it was changed while the operation was running"));
    }
    // SAFETY: as many elements of the same type, writable; `data` is memory of our own.
    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), out.address as *mut T, data.len()) };
    out.land()
}
