//! Arrays of numpy, read where numpy keeps them.
//!
//! Only `operand` calls it. Python's way to an array's address, `__array_struct__`, makes a capsule for every
//! question, which takes longer than all other arguments of a collective. The fields below are in the binary
//! interface of numpy 1 and 2; whether the numpy at hand has them there is seen once, by asking it in
//! Python's way too, and from then on that is the only way if not.

use std::sync::OnceLock;

use pyo3::intern;
use pyo3::prelude::*;

use super::foreign::Hold;
use super::{Operand, Place};
use crate::dtype;

const C_CONTIGUOUS: i32 = 0x1;
const ALIGNED: i32 = 0x100;
const NOT_SWAPPED: i32 = 0x200;
const WRITEABLE: i32 = 0x400;

/// The beginning of numpy's `PyArrayObject_fields`.
#[repr(C)]
struct Fields {
    head: pyo3::ffi::PyObject,
    data: *mut u8,
    nd: i32,
    shape: *const isize,
    strides: *const isize,
    base: *mut pyo3::ffi::PyObject,
    descr: *const Descr,
    flags: i32,
}

/// The beginning of numpy's `PyArray_Descr`, which is the same in both versions as far as this goes.
#[repr(C)]
struct Descr {
    head: pyo3::ffi::PyObject,
    class: *mut pyo3::ffi::PyTypeObject,
    kind: u8,
    letter: u8,
    byte_order: u8,
    flags: u8,
    number: i32,
}

/// numpy's `PyArrayInterface`, behind `__array_struct__`.
#[repr(C)]
struct Interface {
    two: i32,
    nd: i32,
    kind: u8,
    itemsize: i32,
    flags: i32,
    shape: *const isize,
    strides: *const isize,
    data: *mut u8,
}

/// What an array says of itself.
#[derive(Debug, PartialEq, Eq)]
struct ArrayFacts {
    data: usize,
    nd: i32,
    shape: usize,
    kind: u8,
    /// Bytes of an element; 0 of one that has no kind of ours.
    size: usize,
    flags: i32,
}

/// Bytes of the elements of numpy's own types of numbers by their `type_num`, from bool on; C's long is 64
/// bits here.
const SIZES: [usize; 16] = [1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 4, 8, 0, 8, 16];
const HALF: i32 = 23;

/// What `object`, an array of numpy, says in its fields.
fn read(object: &Bound<'_, PyAny>) -> ArrayFacts {
    // SAFETY: a live array of numpy 1 or 2, as `is_read_as_told` has seen before anybody comes here, or is
    // about to check further.
    let (fields, descr) = unsafe {
        let fields = &*object.as_ptr().cast::<Fields>();
        (fields, &*fields.descr)
    };
    let size = match descr.number {
        HALF => 2,
        number => usize::try_from(number).ok().and_then(|number| SIZES.get(number)).copied().unwrap_or(0),
    };
    let native = if descr.byte_order == b'>' { 0 } else { NOT_SWAPPED };
    let flags = fields.flags & (C_CONTIGUOUS | ALIGNED | WRITEABLE) | native;
    ArrayFacts {
        data: fields.data as usize,
        nd: fields.nd,
        shape: fields.shape as usize,
        kind: descr.kind,
        size,
        flags,
    }
}

/// What `object`, an array of numpy, says in Python; and the object that its shape is valid with.
fn ask<'py>(object: &Bound<'py, PyAny>) -> PyResult<(ArrayFacts, Bound<'py, PyAny>)> {
    let py = object.py();
    let capsule = object.getattr(intern!(py, "__array_struct__"))?;
    // SAFETY: an attached thread and a live object; what is no such capsule gives null and an error.
    let interface = unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
    if interface.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: numpy's own array gives a capsule of this struct, valid while the capsule lives.
    let interface = unsafe { &*interface.cast::<Interface>() };
    let said = ArrayFacts {
        data: interface.data as usize,
        nd: interface.nd,
        shape: interface.shape as usize,
        kind: interface.kind,
        size: interface.itemsize as usize,
        flags: interface.flags & (C_CONTIGUOUS | ALIGNED | NOT_SWAPPED | WRITEABLE),
    };
    Ok((said, capsule))
}

/// Whether this numpy keeps its fields where [`read`] looks: it says the same of arrays that differ in all of
/// them.
fn layout_is_known(py: Python<'_>) -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| is_read_as_told(py).unwrap_or(false))
}

fn is_read_as_told(py: Python<'_>) -> PyResult<bool> {
    let numpy = py.import("numpy")?;
    let major = numpy.getattr("__version__")?.to_string();
    if !(major.starts_with("1.") || major.starts_with("2.")) {
        return Ok(false);
    }
    let zeros = |shape: Vec<usize>, dtype: &str| numpy.call_method1("zeros", (shape, dtype));
    let locked = zeros(vec![4], "u2")?;
    locked.getattr("flags")?.setattr("writeable", false)?;
    let samples = [
        zeros(vec![3, 5], "f4")?,
        zeros(vec![7], "c16")?,
        zeros(vec![2, 3, 4], ">i8")?.getattr("T")?,
        locked,
    ];
    for sample in &samples {
        let (told, _capsule) = ask(sample)?;
        let read = read(sample);
        let same_shape = told.nd == read.nd && sides(&told) == sides(&read);
        if !same_shape || (ArrayFacts { shape: 0, ..told } != ArrayFacts { shape: 0, ..read }) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sides(said: &ArrayFacts) -> Vec<usize> {
    match said.nd {
        nd if nd <= 0 => Vec::new(),
        // SAFETY: the array, or its capsule, is alive, and has that many sides.
        nd => unsafe { std::slice::from_raw_parts(said.shape as *const usize, nd as usize) }.to_vec(),
    }
}

/// `object`, an array of numpy, as it is.
pub(super) fn view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
    let py = object.py();
    let (said, _capsule) = match layout_is_known(py) {
        true => (read(object), None),
        false => ask(object).map(|(said, capsule)| (said, Some(capsule)))?,
    };
    let complex = said.kind == b'c' && matches!(said.size, 8 | 16);
    let (kind, size) = if complex { (b'f', said.size / 2) } else { (said.kind, said.size) };
    let dtype = match dtype::of_kind(kind, size) {
        Some(dtype) if said.flags & NOT_SWAPPED != 0 => dtype,
        // ml_dtypes' types have no kind of their own; others get their message here.
        _ => dtype::of_numpy(&object.getattr(intern!(py, "dtype"))?)?,
    };
    let shape = sides(&said);
    Ok(Operand {
        address: said.data,
        len: shape.iter().product::<usize>() << u32::from(complex),
        dtype,
        shape,
        complex,
        device: Place::Cpu,
        writable: said.flags & WRITEABLE != 0,
        object: object.clone(),
        dense: said.flags & C_CONTIGUOUS != 0 && said.flags & ALIGNED != 0,
        _hold: Hold::Nothing,
    })
}
