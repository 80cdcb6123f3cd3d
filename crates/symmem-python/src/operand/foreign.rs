//! Arrays of libraries this crate does not know, by the protocols that they speak.
//!
//! Asked in this order: `__cuda_array_interface__` (cupy, numba), the buffer protocol (which says what is
//! read-only), `__dlpack__` (jax, tensorflow), `__array_interface__`.

use std::ffi::CStr;
use std::fmt;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};

use super::{Described, Operand, Place};
use crate::dlpack;
use crate::dtype;
use crate::error::invalid;

/// What keeps the elements of an operand in place, besides the object itself.
#[derive(Debug)]
pub(super) enum Hold<'py> {
    Nothing,
    Object(#[allow(dead_code)] Bound<'py, PyAny>),
    Buffer(#[allow(dead_code)] Buffer<'py>),
    /// The elements are this copy of those whose first is at `of`.
    Copy {
        copy: Bound<'py, PyAny>,
        of: usize,
    },
}

/// A view of the buffer protocol, released when dropped.
pub(super) struct Buffer<'py> {
    view: Box<ffi::Py_buffer>,
    _py: Python<'py>,
}

impl fmt::Debug for Buffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("address", &self.view.buf).finish_non_exhaustive()
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: `view` was filled by PyObject_GetBuffer, and the thread is attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

pub(super) fn view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
    let py = object.py();
    if let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
        let place = cuda_place(object)?;
        return of_interface(object, &interface, place);
    }
    // SAFETY: an attached thread and a live object.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1
        && let Some(operand) = of_buffer(object)?
    {
        return Ok(operand);
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return of_dlpack(object);
    }
    if let Some(interface) = object.getattr_opt(intern!(py, "__array_interface__"))? {
        return of_interface(object, &interface, Place::Cpu);
    }
    let numbers = object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.is_instance_of::<PyFloat>()
        || object.is_instance_of::<PyInt>();
    Err(PyTypeError::new_err(format!(
        "expected an array (symmem, numpy, torch, or with __dlpack__, an array interface or a buffer), not {}{}",
        object.get_type().name()?,
        if numbers { ". Hint: pass numpy.asarray(x)" } else { "" }
    )))
}

/// The device of an object that only says that it is on one.
fn cuda_place(object: &Bound<'_, PyAny>) -> PyResult<Place> {
    let py = object.py();
    if object.hasattr(intern!(py, "__dlpack_device__"))? {
        let (_, ordinal): (i32, i32) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
        return Ok(Place::Cuda(ordinal));
    }
    let device = object.getattr_opt(intern!(py, "device"))?;
    let id = match device {
        Some(device) => device.getattr_opt(intern!(py, "id"))?,
        None => None,
    };
    Ok(Place::Cuda(id.map_or(Ok(0), |id| id.extract())?))
}

/// `__array_interface__` and `__cuda_array_interface__` say the same of different memory.
fn of_interface<'py>(
    object: &Bound<'py, PyAny>,
    interface: &Bound<'py, PyAny>,
    place: Place,
) -> PyResult<Operand<'py>> {
    let interface = interface.cast::<PyDict>()?;
    let entry = |name: &str| {
        let missing = || invalid("array interface", format!("it has no {name:?}"));
        interface.get_item(name)?.ok_or_else(missing)
    };
    let shape: Vec<usize> = entry("shape")?.extract()?;
    let (address, read_only): (usize, bool) = entry("data")?.extract()?;
    let typestr: String = entry("typestr")?.extract()?;
    let dtype = match of_typestr(&typestr) {
        Some(dtype) => dtype,
        None => dtype::parse(&object.getattr("dtype")?)?,
    };
    let strides: Option<Vec<isize>> = match interface.get_item("strides")? {
        Some(strides) => strides.extract()?,
        None => None,
    };
    // The interface may own what it points to.
    let hold = Hold::Object(interface.clone().into_any());
    let described = Described { address, dtype, shape, strides, place, writable: !read_only };
    Ok(Operand::new(object, described, hold))
}

fn of_typestr(typestr: &str) -> Option<symmem::DType> {
    match typestr.as_bytes() {
        [b'<' | b'|' | b'=', kind, size @ ..] => {
            let size = std::str::from_utf8(size).ok()?.parse().ok()?;
            dtype::of_kind(*kind, size)
        }
        _ => None,
    }
}

/// None where the object has no buffer after all: other protocols may do.
fn of_buffer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Operand<'py>>> {
    let py = object.py();
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: an attached thread, a live object, and a view that is released exactly if it was filled.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) } != 0 {
        let error = PyErr::fetch(py);
        return if error.is_instance_of::<PyBufferError>(py) { Ok(None) } else { Err(error) };
    }
    let buffer = Buffer { view, _py: py };
    let view = &buffer.view;
    if !view.suboffsets.is_null() {
        return Err(invalid("array", "its buffer is not one piece of memory"));
    }
    // SAFETY: the protocol's promise: a null-terminated format, or none for bytes.
    let format = if view.format.is_null() { c"B" } else { unsafe { CStr::from_ptr(view.format) } };
    let Some(dtype) = dtype::of_buffer_format(format.to_bytes(), view.itemsize as usize) else {
        return Ok(None);
    };
    // SAFETY: the protocol's promise, as is the next one.
    let shape = unsafe { extents(view.shape, view.ndim) }.iter().map(|side| *side as usize).collect();
    let strides = (!view.strides.is_null())
        // SAFETY: as above.
        .then(|| unsafe { extents(view.strides, view.ndim) }.to_vec());
    let (address, writable, place) = (view.buf as usize, view.readonly == 0, Place::Cpu);
    let described = Described { address, dtype, shape, strides, place, writable };
    Ok(Some(Operand::new(object, described, Hold::Buffer(buffer))))
}

/// `count` numbers at `start`.
///
/// # Safety
/// They are there, and stay for as long as the slice, unless `count` is 0.
unsafe fn extents<'a>(start: *const isize, count: i32) -> &'a [isize] {
    if count <= 0 || start.is_null() {
        return &[];
    }
    // SAFETY: the caller's duty.
    unsafe { std::slice::from_raw_parts(start, count as usize) }
}

fn of_dlpack<'py>(object: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
    let (described, capsule) = dlpack::import(object)?;
    Ok(Operand::new(object, described, Hold::Object(capsule)))
}
