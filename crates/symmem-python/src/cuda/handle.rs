//! The handle of device memory, as `memory` wants it: arguments become addresses and streams, the rest is
//! [`DeviceMemoryEnd`]'s.
//!
//! Every operation returns as soon as it is on its stream.

use std::sync::Arc;

use pyo3::prelude::*;
use symmem::cuda::Stream;
use symmem::erased::Call;
use symmem::{DType, Group, Received};

use super::core::DeviceMemoryEnd;
use super::engine::Engines;
use super::norm::DeviceNormPlan;
use super::reduced::{Choice, ReducedElements};
use super::stream;
use crate::array::Keep;
use crate::collectives::Plan;
use crate::error::{invalid, raise};
use crate::interrupt::blocking;
use crate::memory::{Handle, MemoryFacts, Span, Terms};
use crate::operand::{Operand, Place};
use crate::pending::Pending;
use crate::registry::AllocatedBlock;

/// Copies of no more bytes than this are done by threads, which have less to set up than the copy engine.
const SMALL_COPY: usize = 64 << 10;

/// A handle of device memory.
pub(crate) struct DeviceHandle {
    pub(crate) core: Arc<DeviceMemoryEnd>,
}

impl DeviceHandle {
    /// Collective for a new pair of allocation and group, else local: see [`Engines::attach`].
    pub(crate) fn rendezvous(
        py: Python<'_>,
        group: &Group,
        engines: &Engines,
        block: &Arc<AllocatedBlock>,
        span: &Span,
    ) -> PyResult<Self> {
        let core = blocking(py, || DeviceMemoryEnd::rendezvous(group, engines, block, span.clone()))?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Puts a norm on the stream of `terms`; gives where the result will be.
    pub(crate) fn norm(&self, plan: DeviceNormPlan<'_>, terms: Terms<'_, '_>) -> PyResult<Py<PyAny>> {
        let (core, norm, stream) = (&self.core, plan.norm(), self.stream(terms)?);
        terms.py.detach(|| core.norm(norm, terms.timeout, &stream)).map_err(raise)?;
        Ok(plan.result)
    }

    fn stream(&self, terms: Terms<'_, '_>) -> PyResult<Stream> {
        stream::stream(terms.py, &self.core.device, terms.stream)
    }

    /// The device address of private memory, which must be on the handle's device and of its element type.
    fn private(&self, what: &str, operand: &Operand<'_>) -> PyResult<u64> {
        check_private(&self.core, self.core.span.dtype, what, operand)
    }
}

/// The device address of private memory, which must be on the handle's device and have elements of `dtype`.
pub(super) fn check_private(
    core: &DeviceMemoryEnd,
    dtype: DType,
    what: &str,
    operand: &Operand<'_>,
) -> PyResult<u64> {
    let place = Place::Cuda(core.ordinal());
    if operand.device != place {
        let problem = format!("it is on {}, the symmetric memory on {place}", operand.device);
        return Err(invalid(what, problem));
    }
    if operand.dtype != dtype {
        return Err(invalid(what, format!("it has elements of {}, the handle of {dtype}", operand.dtype)));
    }
    Ok(operand.address as u64)
}

/// What devices do not do, and what they do.
#[cold]
fn not_there(what: &str) -> PyErr {
    let problem = "it is not done on devices. Hint: collectives (reductions: sum and avg of bfloat16, float16 and float32), \
                   barrier, put_signal, wait_signal, put, get and get_buffer are; host memory (device=\"cpu\") has all";
    invalid(what, problem)
}

impl Handle for DeviceHandle {
    fn place(&self) -> Place {
        Place::Cuda(self.core.ordinal())
    }

    fn facts(&self) -> &MemoryFacts {
        &self.core.facts
    }

    fn start_of(&self, rank: usize) -> usize {
        self.core.start_of(rank)
    }

    fn view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)> {
        self.core.view(rank, start, bytes)
    }

    fn pad_view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)> {
        self.core.pad_view(rank, start, bytes)
    }

    fn barrier(&self, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        let stream = self.stream(terms)?;
        terms.py.detach(|| self.core.barrier(channel, terms.timeout, &stream)).map_err(raise)
    }

    fn put_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        let stream = self.stream(terms)?;
        terms.py.detach(|| self.core.put_signal(rank, channel, terms.timeout, &stream)).map_err(raise)
    }

    fn wait_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()> {
        let stream = self.stream(terms)?;
        terms.py.detach(|| self.core.wait_signal(rank, channel, terms.timeout, &stream)).map_err(raise)
    }

    fn try_put_signal(&self, _rank: usize, _channel: usize) -> PyResult<bool> {
        Err(not_there("try_put_signal"))
    }

    fn try_wait_signal(&self, _rank: usize, _channel: usize) -> PyResult<bool> {
        Err(not_there("try_wait_signal"))
    }

    fn put(&self, rank: usize, start: usize, from: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()> {
        let address = self.private("put", from)?;
        let (start, bytes) = (start.saturating_mul(from.dtype.size()), from.bytes());
        let stream = self.stream(terms)?;
        // SAFETY: memory of a Python object, which is there as long as its library says; libraries order
        // frees by streams.
        terms.py.detach(|| unsafe { self.core.put(rank, start, address, bytes, &stream) }).map_err(raise)
    }

    fn get(&self, rank: usize, start: usize, out: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()> {
        let address = self.private("get", out)?;
        let (start, bytes) = (start.saturating_mul(out.dtype.size()), out.bytes());
        let stream = self.stream(terms)?;
        let small = bytes <= SMALL_COPY;
        // SAFETY: as for `put`.
        terms
            .py
            .detach(|| unsafe { self.core.get(rank, start, address, bytes, small, &stream) })
            .map_err(raise)
    }

    fn run(&self, plan: &Plan<'_, '_>, terms: Terms<'_, '_>) -> PyResult<()> {
        let (call, out) = (plan.call, plan.out.as_ref());
        let Call::AllReduce(op) = call else {
            let out = out.map(|out| self.private("out", out).map(|address| (address, out.len))).transpose();
            let out = out.map_err(|error| self.refuse(error, terms))?;
            let stream = self.stream(terms)?;
            // SAFETY: as for `put`.
            return terms
                .py
                .detach(|| unsafe { self.core.run(call, out, terms.timeout, &stream) })
                .map_err(raise);
        };
        let span = &self.core.span;
        let elements = match out {
            None => ReducedElements::InPlace,
            Some(out) if out.len != span.len => {
                let problem = format!("it has {} elements, the symmetric memory {}", out.len, span.len);
                return Err(self.refuse(invalid("out", problem), terms));
            }
            Some(out) => {
                let out = self.private("out", out).map_err(|error| self.refuse(error, terms))?;
                ReducedElements::Out(out)
            }
        };
        let part = (span.offset, span.len, span.dtype);
        let stream = self.stream(terms)?;
        // SAFETY: as for `put`; the length was checked.
        terms
            .py
            .detach(|| unsafe {
                self.core.all_reduce(part, op, elements, Choice::Table, terms.timeout, &stream)
            })
            .map_err(raise)
    }

    fn refuse(&self, error: PyErr, terms: Terms<'_, '_>) -> PyErr {
        // Without a stream there is no place for it among the others' operations.
        if let Ok(stream) = self.stream(terms) {
            let _ = terms.py.detach(|| self.core.refuse(&stream));
        }
        error
    }

    fn all_to_all_v(
        &self,
        _row: usize,
        _splits: &[usize],
        _out: &Operand<'_>,
        _terms: Terms<'_, '_>,
    ) -> PyResult<Received> {
        Err(not_there("all_to_all_v"))
    }

    fn start(&self, plan: Plan<'_, '_>, _: Terms<'_, '_>) -> PyResult<Pending> {
        let name = plan.call.name();
        let problem = format!(
            "operations on devices never wait: they are in the order of a stream. Hint: {name}(stream=...), and an event"
        );
        Err(invalid(format!("{name}_start"), problem))
    }

    fn is_open(&self) -> bool {
        self.core.live("is_open").is_ok()
    }

    fn close(&self, terms: Terms<'_, '_>) -> PyResult<()> {
        blocking(terms.py, || self.core.close())
    }

    fn leave(&self) {
        self.core.leave();
    }

    fn as_device(&self) -> Option<&DeviceHandle> {
        Some(self)
    }
}
