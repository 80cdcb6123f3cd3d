//! NCCL's collectives on arrays of any library, with the argument checks of `torch.cuda.nccl`, word for word.
//!
//! Only `symmem/nccl.py` calls these. What they guarantee: everything is checked before NCCL is called on any
//! device; all calls of one collective are one group; the interpreter is given up meanwhile; nothing waits
//! for a device.
//!
//! | file | what it is |
//! |---|---|
//! | `item.rs` | one array, as NCCL needs it |
//! | `call.rs` | the arguments of a collective: checked, and carried out |
//! | `communicator.rs` | communicators that the caller makes, and those that are kept for lists of devices |

mod call;
mod communicator;
mod item;

use std::ffi::c_int;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use symmem::nccl::{self, UniqueId};

use self::call::NcclCall;
use self::communicator::Communicator;
use self::item::{NcclArray, items};
use crate::error::raise;
use crate::interrupt::blocking;

/// Whether arrays can be given to one call: on devices, contiguous, of a type that NCCL takes, and no two on
/// one device.
#[pyfunction]
fn _nccl_suits(tensors: &Bound<'_, PyAny>) -> PyResult<bool> {
    let items = items(tensors)?;
    let devices: Vec<i32> = items.iter().filter(|item| item.dense).filter_map(NcclArray::ordinal).collect();
    let alone = |(at, device): (usize, &i32)| !devices[..at].contains(device);
    Ok(devices.len() == items.len() && devices.iter().enumerate().all(alone))
}

/// A library: its file, why it was taken, its version, and what stands behind the numbers.
type LibraryFacts = (String, String, (u32, u32, u32), String);

/// The NCCL that is in use.
#[pyfunction]
fn _nccl_library(py: Python<'_>) -> PyResult<LibraryFacts> {
    blocking(py, || {
        let loaded = nccl::library()?;
        let version = (loaded.version.major, loaded.version.minor, loaded.version.patch);
        Ok((loaded.path.display().to_string(), loaded.why.to_string(), version, loaded.suffix()))
    })
}

/// What the ranks of a communicator must have in common.
#[pyfunction]
fn _nccl_unique_id(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let id = py.detach(UniqueId::new).map_err(raise)?;
    Ok(PyBytes::new(py, id.as_bytes()))
}

#[pyfunction]
fn _nccl_all_reduce(
    inputs: &Bound<'_, PyAny>,
    outputs: &Bound<'_, PyAny>,
    op: c_int,
    streams: Option<&Bound<'_, PyAny>>,
    comms: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let outputs = items(outputs)?;
    let call = NcclCall::new(inputs, streams, comms)?;
    call.check_outputs(&outputs, 1, 1)?;
    let (count, dtype) = (call.count(), call.dtype()?);
    // SAFETY: as many elements as were checked; their libraries keep the memory for the stream.
    call.run(inputs.py(), Some(&outputs), move |part| unsafe {
        part.communicator.all_reduce_raw(part.from, part.to, count, dtype, op, part.stream)
    })
}

/// `output` is that of the root, if it is here; none: the root's input.
#[pyfunction]
fn _nccl_reduce(
    inputs: &Bound<'_, PyAny>,
    output: Option<&Bound<'_, PyAny>>,
    root: i64,
    op: c_int,
    streams: Option<&Bound<'_, PyAny>>,
    comms: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let output = output.map(|output| NcclArray::of(output, 0)).transpose()?;
    let call = NcclCall::new(inputs, streams, comms)?;
    let root = call.root(root)?;
    call.check_output(output.as_ref(), root)?;
    let (count, dtype) = (call.count(), call.dtype()?);
    let to = output.as_ref().map(|output| output.address);
    call.run(inputs.py(), None, move |part| {
        let to = if part.communicator.rank() == root { to.unwrap_or(part.from) } else { 0 };
        // SAFETY: as many elements as were checked; their libraries keep the memory for the stream.
        unsafe { part.communicator.reduce_raw(part.from, to, count, dtype, op, root, part.stream) }
    })
}

#[pyfunction]
fn _nccl_broadcast(
    inputs: &Bound<'_, PyAny>,
    root: i64,
    streams: Option<&Bound<'_, PyAny>>,
    comms: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let call = NcclCall::new(inputs, streams, comms)?;
    let root = call.root(root)?;
    call.check_in_place()?;
    // NCCL counts as this process does, so no count is too large for it.
    let (count, dtype) = (call.count(), call.dtype()?);
    // SAFETY: as many elements as were checked; their libraries keep the memory for the stream.
    call.run(inputs.py(), None, move |part| unsafe {
        part.communicator.broadcast_raw(part.from, part.from, count, dtype, root, part.stream)
    })
}

#[pyfunction]
fn _nccl_all_gather(
    inputs: &Bound<'_, PyAny>,
    outputs: &Bound<'_, PyAny>,
    streams: Option<&Bound<'_, PyAny>>,
    comms: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let outputs = items(outputs)?;
    let call = NcclCall::new(inputs, streams, comms)?;
    call.check_outputs(&outputs, call.world(), 1)?;
    let (count, dtype) = (call.count(), call.dtype()?);
    // SAFETY: as many elements as were checked; their libraries keep the memory for the stream.
    call.run(inputs.py(), Some(&outputs), move |part| unsafe {
        part.communicator.all_gather_raw(part.from, part.to, count, dtype, part.stream)
    })
}

#[pyfunction]
fn _nccl_reduce_scatter(
    inputs: &Bound<'_, PyAny>,
    outputs: &Bound<'_, PyAny>,
    op: c_int,
    streams: Option<&Bound<'_, PyAny>>,
    comms: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let outputs = items(outputs)?;
    let call = NcclCall::new(inputs, streams, comms)?;
    call.check_outputs(&outputs, 1, call.world())?;
    let (count, dtype) = (call.count() / call.world(), call.dtype()?);
    // SAFETY: as many elements as were checked; their libraries keep the memory for the stream.
    call.run(inputs.py(), Some(&outputs), move |part| unsafe {
        part.communicator.reduce_scatter_raw(part.from, part.to, count, dtype, op, part.stream)
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Communicator>()?;
    module.add_function(wrap_pyfunction!(communicator::_nccl_init_rank, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_suits, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_library, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_unique_id, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_all_reduce, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_reduce, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_broadcast, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_all_gather, module)?)?;
    module.add_function(wrap_pyfunction!(_nccl_reduce_scatter, module)?)
}
