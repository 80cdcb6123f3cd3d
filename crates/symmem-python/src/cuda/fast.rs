//! `DeviceMemory`: the short way to a device handle, for callers who have addresses and handles of streams
//! already.
//!
//! `symmem.torch` calls it once per operation: all arguments are ints, nothing is looked up by name, and what
//! does not change from call to call (the part of the memory, its algorithm, the stream) is found in tables.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use symmem::cuda::{Form, Status, Stream};
use symmem::{DType, ReduceOp};

use super::core::DeviceMemoryEnd;
use super::handle::check_private;
use super::reduced::{Choice, ReducedElements};
use super::stream;
use crate::array;
use crate::error::{invalid, raise};
use crate::memory::SymmetricMemory;
use crate::operand::{Operand, Place};

/// How long `sync` waits unless it is told otherwise.
const PATIENCE_MS: u64 = 300_000;

/// A device handle for those in a hurry. Addresses and streams are ints and are trusted.
#[pyclass(frozen, module = "symmem._symmem", name = "DeviceMemory")]
pub(crate) struct DeviceMemory {
    core: Arc<DeviceMemoryEnd>,
}

impl DeviceMemory {
    #[inline]
    fn adopt(&self, raw: usize) -> PyResult<Stream> {
        // SAFETY: the caller says that it is a stream; whoever passes one keeps it until the work is done.
        unsafe { stream::adopt(&self.core.device, raw) }.map_err(raise)
    }
}

#[pymethods]
impl DeviceMemory {
    /// Ordinal of the device.
    #[getter]
    fn device(&self) -> i32 {
        self.core.ordinal()
    }

    /// First byte of this rank's allocation.
    #[getter]
    fn base(&self) -> usize {
        self.core.facts.buffers[self.core.rank]
    }

    /// Bytes of this rank's allocation.
    #[getter]
    fn size(&self) -> usize {
        self.core.facts.buffer_size
    }

    /// Collective. Reduces `count` elements at `at`, an address in this rank's allocation.
    ///
    /// `input` 0: from there. `out` 0: to there. Else from and to these addresses; with an `input`, `at` is a
    /// place to work in. `dtype`, `op` and `algorithm` are codes: the positions in `DTYPES`, `OPS` and
    /// `ALGORITHMS`. `stream` is a handle.
    #[pyo3(signature = (at, input, out, count, dtype, op, algorithm, stream, /))]
    #[allow(clippy::too_many_arguments)]
    fn all_reduce_ptr(
        &self,
        py: Python<'_>,
        at: usize,
        input: u64,
        out: u64,
        count: usize,
        dtype: u8,
        op: u8,
        algorithm: u8,
        stream: usize,
    ) -> PyResult<()> {
        let elements = match (input, out) {
            (0, 0) => ReducedElements::InPlace,
            (0, out) => ReducedElements::Out(out),
            (_, 0) => return Err(invalid("out", "private input needs an address for the result")),
            (input, out) => ReducedElements::Private(input, out),
        };
        let (dtype, op) = from_codes(dtype, op)?;
        let choice = Choice::from_code(algorithm).map_err(raise)?;
        let (range, stream) = (self.core.range(at, count, dtype), self.adopt(stream)?);
        // SAFETY: addresses that the caller vouches for, with `count` elements; the part of the allocation is
        // checked.
        py.detach(|| unsafe { self.core.all_reduce(range, op, elements, choice, None, &stream) })
            .map_err(raise)
    }

    /// Collective. The `part` elements at the address `out` become this rank's part of the reduction of
    /// everybody's `count` elements at `at`; the rest as for `all_reduce_ptr`.
    #[pyo3(signature = (at, count, out, part, dtype, op, stream, /))]
    #[allow(clippy::too_many_arguments)]
    fn reduce_scatter_ptr(
        &self,
        py: Python<'_>,
        at: usize,
        count: usize,
        out: u64,
        part: usize,
        dtype: u8,
        op: u8,
        stream: usize,
    ) -> PyResult<()> {
        let (dtype, op) = from_codes(dtype, op)?;
        let (range, stream) = (self.core.range(at, count, dtype), self.adopt(stream)?);
        // SAFETY: as for `all_reduce_ptr`.
        py.detach(|| unsafe { self.core.reduce_scatter(range, op, (out, part), &stream) }).map_err(raise)
    }

    /// Collective. `out` becomes the reduction of everybody's `x`; the symmetric memory is a place to work
    /// in. Without `out` the result is in `x`. Both are contiguous and have the handle's element type, and at
    /// most as many elements.
    #[pyo3(signature = (x, op = "sum", out = None, *, algorithm = None, timeout_ms = 0, stream = None))]
    #[allow(clippy::too_many_arguments)]
    fn all_reduce_from<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        op: &str,
        out: Option<&Bound<'py, PyAny>>,
        algorithm: Option<&str>,
        timeout_ms: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let core = &self.core;
        let result = out.unwrap_or(x);
        let (input, output) = (Operand::input(x)?, Operand::output(result)?);
        let dtype = core.span.dtype;
        let from = check_private(core, dtype, "x", &input)?;
        let to = check_private(core, dtype, "out", &output)?;
        if input.len != output.len || input.len > core.span.len {
            let problem = format!(
                "it has {} elements, x {}, and the symmetric memory {}",
                output.len, input.len, core.span.len
            );
            return Err(invalid("out", problem));
        }
        let (op, choice) = (parse_op(op)?, Choice::parse(algorithm).map_err(raise)?);
        let part = (core.span.offset, input.len, dtype);
        let within = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let stream = stream::stream(py, &core.device, stream)?;
        // SAFETY: memory of Python objects, which is there as long as their library says; libraries order
        // frees by streams.
        py.detach(|| unsafe {
            core.all_reduce(part, op, ReducedElements::Private(from, to), choice, within, &stream)
        })
        .map_err(raise)?;
        Ok(result.clone())
    }

    /// Collective. `all_reduce` of the handle's elements by a chosen algorithm, one of `ALGORITHMS`: those of
    /// the library (`multimem` needs multicast, `one_shot` does not work in place), `auto`, `one_trip`
    /// (`low_latency` or `one_shot`) or `try_multimem` (that or the usual choice). All ranks must choose
    /// alike.
    #[pyo3(signature = (algorithm, op = "sum", out = None, *, timeout_ms = 0, stream = None))]
    fn all_reduce_using(
        &self,
        py: Python<'_>,
        algorithm: &str,
        op: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let core = &self.core;
        let span = &core.span;
        let elements = match out {
            None => ReducedElements::InPlace,
            Some(out) => {
                let out = Operand::output(out)?;
                let address = check_private(core, span.dtype, "out", &out)?;
                if out.len != span.len {
                    let problem = format!("it has {} elements, the symmetric memory {}", out.len, span.len);
                    return Err(invalid("out", problem));
                }
                ReducedElements::Out(address)
            }
        };
        let (op, choice) = (parse_op(op)?, Choice::parse(Some(algorithm)).map_err(raise)?);
        let part = (span.offset, span.len, span.dtype);
        let within = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let stream = stream::stream(py, &core.device, stream)?;
        // SAFETY: as for `all_reduce_from`.
        py.detach(|| unsafe { core.all_reduce(part, op, elements, choice, within, &stream) }).map_err(raise)
    }

    /// Collective. A barrier on `channel`.
    #[pyo3(signature = (channel, stream, /))]
    fn barrier_raw(&self, py: Python<'_>, channel: usize, stream: usize) -> PyResult<()> {
        let stream = self.adopt(stream)?;
        py.detach(|| self.core.barrier(channel, None, &stream)).map_err(raise)
    }

    /// What the stream gets from now on comes after the operations of this memory so far, on any streams.
    #[pyo3(signature = (stream, /))]
    fn order_behind(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        let stream = self.adopt(stream)?;
        py.detach(|| self.core.order_behind(&stream)).map_err(raise)
    }

    /// Copies `bytes` of rank `rank` from byte `start` of the handle's elements on to the address `to`.
    #[pyo3(signature = (rank, start, to, bytes, stream, /))]
    fn get_ptr(
        &self,
        py: Python<'_>,
        rank: usize,
        start: usize,
        to: u64,
        bytes: usize,
        stream: usize,
    ) -> PyResult<()> {
        let stream = self.adopt(stream)?;
        // SAFETY: an address that the caller vouches for.
        py.detach(|| unsafe { self.core.get(rank, start, to, bytes, false, &stream) }).map_err(raise)
    }

    /// Copies `bytes` at the address `from` to rank `rank`, from byte `start` of the handle's elements on.
    #[pyo3(signature = (rank, start, from_, bytes, stream, /))]
    fn put_ptr(
        &self,
        py: Python<'_>,
        rank: usize,
        start: usize,
        from_: u64,
        bytes: usize,
        stream: usize,
    ) -> PyResult<()> {
        let stream = self.adopt(stream)?;
        // SAFETY: an address that the caller vouches for.
        py.detach(|| unsafe { self.core.put(rank, start, from_, bytes, &stream) }).map_err(raise)
    }

    /// How an all-reduce of `count` elements runs: the name of the algorithm, blocks, threads of each. `form`
    /// is `in_place`, `out` or `private`.
    #[pyo3(signature = (form, count, dtype = None))]
    fn plan(
        &self,
        form: &str,
        count: usize,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(String, u32, u32)> {
        let form = Form::ALL.into_iter().find(|known| known.name() == form);
        let form = form.ok_or_else(|| invalid("form", "it must be in_place, out or private"))?;
        let dtype = dtype.map_or(Ok(self.core.span.dtype), crate::dtype::parse)?;
        let live = self.core.live("plan").map_err(raise)?;
        let plan = live.whole.shared.engine.plan(form, dtype, count.saturating_mul(dtype.size()));
        let plan = plan.map_err(raise)?;
        Ok((plan.algorithm.name().to_owned(), plan.grid, plan.threads))
    }

    /// Whether the group can still be used: `None`, or the rank that failed, and why. Cheap, and never
    /// blocks: for those who replay graphs.
    fn status(&self) -> PyResult<Option<(usize, String)>> {
        let live = self.core.live("status").map_err(raise)?;
        Ok(match live.whole.shared.engine.status() {
            Status::Failed { culprit, cause, detail } => {
                let words = if detail.is_empty() { cause.to_string() } else { format!("{cause}: {detail}") };
                Some((culprit, words))
            }
            _ => None,
        })
    }

    /// Waits until the work on the stream is done, and raises what went wrong on any rank. Unlike a plain
    /// synchronisation it ends when the group fails, and after `timeout_ms` (0: 300 s).
    #[pyo3(signature = (timeout_ms = 0, *, stream = None))]
    fn sync(&self, py: Python<'_>, timeout_ms: u64, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let live = self.core.live("sync").map_err(raise)?;
        let stream = stream::stream(py, &self.core.device, stream)?;
        let within = Duration::from_millis(if timeout_ms == 0 { PATIENCE_MS } else { timeout_ms });
        sync(py, &live.whole.shared.engine, &stream, within)
    }

    /// This rank's elements as an array.
    fn local(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let core = &self.core;
        let span = &core.span;
        let view = core.view(core.rank, span.offset, span.bytes());
        let (address, keep) = view.map_err(raise)?;
        array::make(py, address, keep, &span.shape, span.dtype, Place::Cuda(core.ordinal()))
    }

    fn __repr__(&self) -> String {
        let span = &self.core.span;
        format!("DeviceMemory(cuda:{}, {:?} of {})", self.core.ordinal(), span.shape, span.dtype)
    }
}

/// An element type and an operation from their codes.
fn from_codes(dtype: u8, op: u8) -> PyResult<(DType, ReduceOp)> {
    let found = (DType::ALL.get(usize::from(dtype)), ReduceOp::ALL.get(usize::from(op)));
    match found {
        (Some(dtype), Some(op)) => Ok((*dtype, *op)),
        _ => Err(invalid("code", format!("there is no element type {dtype} or operation {op}"))),
    }
}

/// Waits in short turns, between which Python sees signals.
fn sync(py: Python<'_>, engine: &symmem::cuda::Engine, stream: &Stream, within: Duration) -> PyResult<()> {
    const TURN: Duration = Duration::from_millis(100);
    let end = std::time::Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        match py.detach(|| engine.sync(stream, left.min(TURN))) {
            Err(symmem::Error::Timeout { .. }) if left > TURN => py.check_signals()?,
            result => return result.map_err(raise),
        }
    }
}

fn parse_op(name: &str) -> PyResult<ReduceOp> {
    let known = ReduceOp::ALL.into_iter().find(|op| op.name() == name);
    known.ok_or_else(|| {
        let names: Vec<_> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
        invalid("reduce operation", format!("{name:?} must be one of {}", names.join(", ")))
    })
}

/// The short way to a handle of device memory.
#[pyfunction]
fn _device_memory(handle: &SymmetricMemory) -> PyResult<DeviceMemory> {
    let device = handle.handle().as_device();
    let device = device.ok_or_else(|| invalid("handle", "its memory is on the host, not on a device"))?;
    Ok(DeviceMemory { core: Arc::clone(&device.core) })
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DeviceMemory>()?;
    module.add_function(wrap_pyfunction!(_device_memory, module)?)?;
    let class = module.getattr("DeviceMemory")?;
    let dtypes: Vec<_> = DType::ALL.iter().map(|dtype| crate::dtype::name(*dtype)).collect();
    let ops: Vec<_> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
    class.setattr("DTYPES", pyo3::types::PyTuple::new(module.py(), dtypes)?)?;
    class.setattr("OPS", pyo3::types::PyTuple::new(module.py(), ops)?)?;
    class.setattr("ALGORITHMS", pyo3::types::PyTuple::new(module.py(), Choice::names())?)
}
