//! DLPack: arrays without a copy to and from any library, by capsules, versioned (1.0 and later) and legacy.
//!
//! `array` exports through [`export`], `operand` imports through [`import`]. An exported capsule owns what
//! keeps the memory mapped, and gives it back on any thread its consumer ends on, with or without the
//! interpreter.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use symmem::DType;

use crate::array::Keep;
use crate::error::invalid;
use crate::operand::{Described, Place};

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// What this writes, and all it needs of others: 1.1 has the codes of fp8.
const VERSION: Version = Version { major: 1, minor: 1 };

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

const FLAG_READ_ONLY: u64 = 1;
const FLAG_IS_COPIED: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlpackTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: Type,
    shape: *mut i64,
    /// In elements; null: dense.
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, of before 1.0.
#[repr(C)]
struct Legacy {
    tensor: DlpackTensor,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: Version,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlpackTensor,
}

/// What `__dlpack_device__` says.
pub(crate) fn device_of(place: Place) -> (i32, i32) {
    match place {
        Place::Cpu => (CPU, 0),
        Place::Cuda(ordinal) => (CUDA, ordinal),
    }
}

fn type_of(dtype: DType) -> Type {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 12,
        _ => 1,
    };
    Type { code, bits: dtype.size() as u8 * 8, lanes: 1 }
}

fn dtype_of(theirs: &Type) -> Option<DType> {
    let same = |dtype: &DType| {
        let ours = type_of(*dtype);
        (ours.code, ours.bits, ours.lanes) == (theirs.code, theirs.bits, theirs.lanes)
    };
    DType::ALL.into_iter().find(same)
}

/// What is to be exported.
pub(crate) struct Export {
    pub(crate) address: usize,
    pub(crate) keep: Keep,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    pub(crate) place: Place,
    pub(crate) copied: bool,
}

/// An [`Export`] in the form that consumers read; the capsule, then its consumer, owns it.
struct Exported<M> {
    managed: M,
    // The tensor points into these.
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    _keep: Keep,
}

impl Export {
    fn tensor(&mut self) -> DlpackTensor {
        let (kind, ordinal) = device_of(self.place);
        DlpackTensor {
            data: self.address as *mut c_void,
            device: Device { kind, ordinal },
            ndim: self.shape.len() as i32,
            dtype: type_of(self.dtype),
            // Vectors stay where they are when they move into the box.
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    fn into_box<M>(self, managed: M) -> *mut Exported<M> {
        let Self { shape, strides, keep, .. } = self;
        Box::into_raw(Box::new(Exported { managed, _shape: shape, _strides: strides, _keep: keep }))
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    // SAFETY: consumers call this once, with what they were given, whose owner is the box made by `export`.
    unsafe { drop(Box::from_raw((*managed).owner.cast::<Exported<Legacy>>())) };
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe { drop(Box::from_raw((*managed).owner.cast::<Exported<Versioned>>())) };
}

/// The capsule of `export` for a consumer that knows versions up to `max_version`; none: before there were
/// versions.
pub(crate) fn export<'py>(
    py: Python<'py>,
    mut export: Export,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = export.tensor();
    if max_version.is_none_or(|(major, _)| major < VERSION.major) {
        let managed = Legacy { tensor, owner: std::ptr::null_mut(), deleter: Some(delete_legacy) };
        let exported = export.into_box(managed);
        // SAFETY: just made, nobody else has it yet.
        unsafe {
            (*exported).managed.owner = exported.cast();
            let managed = &raw mut (*exported).managed;
            return capsule(py, managed.cast(), LEGACY, || delete_legacy(managed));
        }
    }
    let flags = if export.copied { FLAG_IS_COPIED } else { 0 };
    let managed = Versioned {
        version: VERSION,
        owner: std::ptr::null_mut(),
        deleter: Some(delete_versioned),
        flags,
        tensor,
    };
    let exported = export.into_box(managed);
    // SAFETY: as above.
    unsafe {
        (*exported).managed.owner = exported.cast();
        let managed = &raw mut (*exported).managed;
        capsule(py, managed.cast(), VERSIONED, || delete_versioned(managed))
    }
}

/// A capsule of `managed`; `give_up` frees it if there can be none.
fn capsule<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    give_up: impl FnOnce(),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: an attached thread; name and destructor live for ever, `managed` until the destructor or a
    // consumer ends it.
    let capsule = unsafe {
        let capsule = ffi::PyCapsule_New(managed, name.as_ptr(), Some(end_capsule));
        Bound::from_owned_ptr_or_err(py, capsule)
    };
    capsule.inspect_err(|_| give_up())
}

/// Frees what nobody consumed: consumers rename the capsule.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that dies; under its first name it still owns what was put
    // into it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// What `object` exports by `__dlpack__`, and the capsule, which is left unconsumed: it frees the export when
/// it goes.
pub(crate) fn import<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Described, Bound<'py, PyAny>)> {
    let capsule = ask(object)?;
    // SAFETY: an attached thread and a live object; the named pointer of a capsule is what its name says.
    let described = unsafe {
        let pointer = |name: &CStr| {
            let valid = ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1;
            valid.then(|| ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()))
        };
        match (pointer(VERSIONED), pointer(LEGACY)) {
            (Some(managed), _) => {
                let managed = &*managed.cast::<Versioned>();
                check_version(managed.version)?;
                describe(&managed.tensor, managed.flags & FLAG_READ_ONLY == 0)?
            }
            // It cannot say that it is read-only, and jax's are: nobody writes into it.
            (None, Some(managed)) => describe(&(*managed.cast::<Legacy>()).tensor, false)?,
            (None, None) => return Err(PyTypeError::new_err("__dlpack__ returned no DLPack capsule")),
        }
    };
    Ok((described, capsule))
}

/// A major version changes the layout of all that follows it.
fn check_version(version: Version) -> PyResult<()> {
    let Version { major, minor } = version;
    match major == VERSION.major {
        true => Ok(()),
        false => Err(PyBufferError::new_err(format!("DLPack {major}.{minor} is not known here"))),
    }
}

/// # Safety
/// `tensor` is as DLPack says.
unsafe fn describe(tensor: &DlpackTensor, writable: bool) -> PyResult<Described> {
    let Some(dtype) = dtype_of(&tensor.dtype) else {
        let Type { code, bits, lanes } = tensor.dtype;
        let problem = format!("it is of DLPack type {code} with {bits} bits and {lanes} lanes");
        return Err(invalid("array", problem));
    };
    let place = match tensor.device.kind {
        CPU | CUDA_HOST => Place::Cpu,
        CUDA | CUDA_MANAGED => Place::Cuda(tensor.device.ordinal),
        kind => return Err(invalid("array", format!("it is on a device of DLPack kind {kind}"))),
    };
    let sides = |start: *const i64| match tensor.ndim {
        0 => &[][..],
        // SAFETY: the caller's duty.
        ndim => unsafe { std::slice::from_raw_parts(start, ndim as usize) },
    };
    let shape = sides(tensor.shape).iter().map(|side| *side as usize).collect();
    let size = dtype.size() as isize;
    let strides = (!tensor.strides.is_null())
        .then(|| sides(tensor.strides).iter().map(|stride| *stride as isize * size).collect());
    let address = tensor.data as usize + tensor.byte_offset as usize;
    Ok(Described { address, dtype, shape, strides, place, writable })
}

/// The capsule of `object`, versioned if it can.
fn ask<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let options = PyDict::new(py);
    options.set_item(intern!(py, "max_version"), (VERSION.major, VERSION.minor))?;
    match object.call_method(intern!(py, "__dlpack__"), (), Some(&options)) {
        // It is from before there were versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method0(intern!(py, "__dlpack__"))
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_come_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of(&type_of(dtype)), Some(dtype));
        }
        assert_eq!(dtype_of(&Type { code: 2, bits: 32, lanes: 4 }), None);
        assert_eq!(dtype_of(&Type { code: 5, bits: 64, lanes: 1 }), None);
    }

    /// The layout is the C header's.
    #[test]
    fn structs_are_laid_out_as_in_c() {
        assert_eq!(size_of::<DlpackTensor>(), 48);
        assert_eq!(size_of::<Legacy>(), 64);
        assert_eq!(size_of::<Versioned>(), 80);
        assert_eq!(std::mem::offset_of!(Versioned, tensor), 32);
    }

    #[test]
    fn a_deleter_drops_what_keeps_the_memory() {
        let keep: Keep = std::sync::Arc::new(7);
        let weak = std::sync::Arc::downgrade(&keep);
        let mut export = Export {
            address: 8,
            keep,
            dtype: DType::F32,
            shape: vec![2],
            strides: vec![1],
            place: Place::Cpu,
            copied: false,
        };
        let tensor = export.tensor();
        let managed = Legacy { tensor, owner: std::ptr::null_mut(), deleter: Some(delete_legacy) };
        let exported = export.into_box(managed);
        // SAFETY: as a consumer does, once.
        unsafe {
            (*exported).managed.owner = exported.cast();
            assert_eq!(*(*exported).managed.tensor.shape, 2);
            let managed = &raw mut (*exported).managed;
            ((*managed).deleter.unwrap())(managed);
        }
        assert!(weak.upgrade().is_none());
    }
}
