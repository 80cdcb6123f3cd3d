//! Arrays in memory that can become symmetric, and what belongs to the rank that allocates them.
//!
//! The functions of Python that need no group. Device memory is `cuda`'s; what both have in common is here.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use symmem::DType;

use crate::array::{self, Array, Keep};
use crate::error::{invalid, raise};
use crate::operand::{Operand, Place};
use crate::registry::{self, Memory};
use crate::{context, cuda, dtype};

/// Bytes of `shape` elements of `dtype`.
fn bytes_of(shape: &[usize], dtype: DType) -> PyResult<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, side| bytes.checked_mul(*side));
    bytes.filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| {
        invalid(
            "size",
            format!("{shape:?} elements of {} are more than there is address space", dtype::name(dtype)),
        )
    })
}

fn allocate(
    py: Python<'_>,
    shape: &[usize],
    dtype: DType,
    place: Place,
    id: Option<&str>,
) -> PyResult<Py<PyAny>> {
    let context = context::current(py)?;
    let bytes = bytes_of(shape, dtype)?;
    if let Place::Cuda(ordinal) = place {
        return cuda::empty(py, &context, ordinal, shape, dtype, id);
    }
    let memory = match id {
        None => context.alloc::<u8>(bytes),
        Some(id) => context.alloc_persistent::<u8>(id, bytes),
    };
    let block = registry::register(Memory::Host(memory.map_err(raise)?), &context);
    let address = block.address();
    let keep: Keep = block;
    array::make(py, address, keep, shape, dtype, place)
}

/// The sides that were given one by one, or as one sequence.
fn sides(size: &Bound<'_, PyTuple>) -> PyResult<Vec<usize>> {
    if size.len() == 1
        && let Ok(sides) = size.get_item(0)?.extract::<Vec<usize>>()
    {
        return Ok(sides);
    }
    size.extract().map_err(|_| {
        // In numpy the element type comes second.
        let hint = match size.get_item(1).map(|second| dtype::parse(&second)) {
            Ok(Ok(dtype)) => format!(". Hint: name the element type, dtype={:?}", dtype::name(dtype)),
            _ => String::new(),
        };
        invalid("size", format!("{size} is not a list of sizes from 0 on{hint}"))
    })
}

/// An id is a name or a number; numbers are named by their digits.
fn name_of(id: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
    id.map(|id| id.str()?.extract()).transpose()
}

/// Local. A zeroed array that can become symmetric by `rendezvous`. The size is given one by one or as one
/// sequence.
///
/// `dtype` is a name ("float32", "bfloat16", or one of numpy's, as "f4"), or a numpy, ml_dtypes or torch
/// dtype; without it the elements are float32. `device` is "cpu" or "cuda:N". With an `alloc_id` the memory
/// is persistent: once its array is gone, the same id gives the same memory, as it was left.
///
///     x = symmem.empty(4, 8, dtype="bfloat16")
#[pyfunction]
#[pyo3(
    signature = (*size, dtype = None, device = None, alloc_id = None),
    text_signature = "(*size, dtype=None, device='cpu', alloc_id=None)"
)]
fn empty(
    size: &Bound<'_, PyTuple>,
    dtype: Option<&Bound<'_, PyAny>>,
    device: Option<&Bound<'_, PyAny>>,
    alloc_id: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let dtype = dtype.map_or(Ok(DType::F32), dtype::parse)?;
    let place = device.map_or(Ok(Place::Cpu), Place::parse)?;
    allocate(size.py(), &sides(size)?, dtype, place, name_of(alloc_id)?.as_deref())
}

/// Local. `empty` with PyTorch's arguments. Strides count elements, and must stay within as many elements as
/// `size` has.
#[pyfunction]
#[pyo3(signature = (size, stride, dtype, device, group_name = None, alloc_id = None))]
fn empty_strided_p2p(
    py: Python<'_>,
    size: Vec<usize>,
    stride: Vec<usize>,
    dtype: &Bound<'_, PyAny>,
    device: &Bound<'_, PyAny>,
    group_name: Option<&Bound<'_, PyAny>>,
    alloc_id: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    // PyTorch's allocators want to know the group beforehand; ours learn it at the rendezvous.
    let _ = group_name;
    let dtype = dtype::parse(dtype)?;
    check_strides(&size, &stride, bytes_of(&size, dtype)? / dtype.size())?;
    let made = allocate(py, &size, dtype, Place::parse(device)?, name_of(alloc_id)?.as_deref())?;
    let array = made.bind(py).cast::<Array>()?.get();
    let strides: Vec<isize> = stride.iter().map(|stride| (stride * dtype.size()) as isize).collect();
    array::make_strided(py, array.address, array.keep.clone(), &size, &strides, dtype, array.place)
}

fn check_strides(size: &[usize], stride: &[usize], len: usize) -> PyResult<()> {
    if size.len() != stride.len() {
        return Err(invalid("stride", format!("{} strides for {} sizes", stride.len(), size.len())));
    }
    if len == 0 {
        return Ok(());
    }
    let last = size.iter().zip(stride).try_fold(0usize, |last, (side, stride)| {
        (side - 1).checked_mul(*stride).and_then(|far| last.checked_add(far))
    });
    match last {
        Some(last) if last < len => Ok(()),
        _ => Err(invalid("stride", format!("{stride:?} reach beyond the {len} elements of {size:?}"))),
    }
}

/// Whether `x` is an array, tensor or view in memory of `symmem.empty`, whatever its strides.
#[pyfunction]
fn is_symm_mem_tensor(x: &Bound<'_, PyAny>) -> bool {
    address_of(x).is_some_and(|address| registry::find(address).is_some())
}

fn address_of(x: &Bound<'_, PyAny>) -> Option<usize> {
    if let Ok(array) = x.cast::<Array>() {
        return Some(array.get().address);
    }
    if let Ok(operand) = Operand::input(x) {
        return Some(operand.address);
    }
    // No dense array: but its first element may be in symmetric memory all the same.
    if let Ok(address) = x.call_method0("data_ptr") {
        return address.extract().ok();
    }
    let interface =
        x.getattr("__array_interface__").or_else(|_| x.getattr("__cuda_array_interface__")).ok()?;
    interface.get_item("data").ok()?.get_item(0).ok()?.extract().ok()
}

/// Bytes of the signal pads of this rank's later allocations.
#[pyfunction]
fn get_signal_pad_size(py: Python<'_>) -> PyResult<usize> {
    Ok(context::current(py)?.signal_pad_size())
}

/// Sets the bytes of the signal pads of this rank's later allocations: a multiple of 8, at most 2**30. All
/// ranks must set the same.
#[pyfunction]
fn set_signal_pad_size(py: Python<'_>, bytes: usize) -> PyResult<()> {
    context::current(py)?.set_signal_pad_size(bytes).map_err(raise)
}

/// The name of what provides memory on `device` ("cpu", "cuda", "cuda:N"); None for a device that has none.
#[pyfunction]
fn get_backend<'py>(device: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    context_object(device.py())?.call_method1("get_backend", (device,))
}

/// Chooses what provides memory, by name: "CUDA" or "NCCL" on GPUs, before the first memory there is made;
/// "SHM" is the CPU's only one.
#[pyfunction]
fn set_backend(py: Python<'_>, name: &str) -> PyResult<()> {
    context_object(py)?.call_method1("set_backend", (name,)).map(drop)
}

fn context_object(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, context::Context { inner: context::current(py)? })?.into_any())
}

/// Adds what this module has to the extension module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(empty, module)?)?;
    module.add_function(wrap_pyfunction!(empty_strided_p2p, module)?)?;
    module.add_function(wrap_pyfunction!(is_symm_mem_tensor, module)?)?;
    module.add_function(wrap_pyfunction!(get_signal_pad_size, module)?)?;
    module.add_function(wrap_pyfunction!(set_signal_pad_size, module)?)?;
    module.add_function(wrap_pyfunction!(get_backend, module)?)?;
    module.add_function(wrap_pyfunction!(set_backend, module)?)
}
