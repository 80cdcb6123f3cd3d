//! One array of a call: what NCCL needs to know of it, and what the checks ask.

use std::borrow::Cow;
use std::ffi::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use symmem::DType;

use crate::dtype;
use crate::error::refused;
use crate::operand::{Operand, Place, is_tensor};

/// NCCL's number for bytes.
const BYTES: c_int = 1;

/// An array, kept where it is.
pub(super) struct NcclArray<'py> {
    pub(super) address: u64,
    /// Number of elements.
    pub(super) len: usize,
    /// The name of its type.
    pub(super) dtype: Cow<'static, str>,
    /// NCCL's number for its type, if it takes it.
    pub(super) number: Option<c_int>,
    /// None: a sparse tensor, which is nowhere in one piece.
    pub(super) place: Option<Place>,
    /// Whether its elements follow each other.
    pub(super) dense: bool,
    pub(super) writable: bool,
    /// None for a sparse tensor.
    _operand: Option<Operand<'py>>,
}

/// The arrays of a collection.
pub(super) fn items<'py>(objects: &Bound<'py, PyAny>) -> PyResult<Vec<NcclArray<'py>>> {
    objects.try_iter()?.enumerate().map(|(at, object)| NcclArray::of(&object?, at)).collect()
}

impl<'py> NcclArray<'py> {
    /// `object`, which was passed at position `at`.
    pub(super) fn of(object: &Bound<'py, PyAny>, at: usize) -> PyResult<Self> {
        let py = object.py();
        if is_tensor(object)? {
            if object.getattr(intern!(py, "layout"))?.str()?.to_str()? != "torch.strided" {
                return Ok(Self::sparse());
            }
            if let Some(name) = foreign_fp8(object)? {
                // What symmem itself has no elements of can still be moved, as the reference does: as bytes.
                let bytes =
                    object.call_method1(intern!(py, "view"), (dtype::torch_dtype(py, DType::U8)?,))?;
                return Ok(Self { dtype: name.into(), ..Self::new(Operand::view(&bytes)?) });
            }
        }
        match Operand::view(object) {
            Ok(operand) => Ok(Self::new(operand)),
            Err(error) => Err(not_an_item(object, at, error)),
        }
    }

    fn new(operand: Operand<'py>) -> Self {
        Self {
            address: operand.address as u64,
            len: operand.len,
            dtype: dtype::name(operand.dtype).into(),
            number: number(operand.dtype),
            place: Some(operand.device),
            dense: operand.is_dense(),
            writable: operand.writable,
            _operand: Some(operand),
        }
    }

    fn sparse() -> Self {
        Self {
            address: 0,
            len: 0,
            dtype: "".into(),
            number: None,
            place: None,
            dense: false,
            writable: false,
            _operand: None,
        }
    }

    /// The number of its device.
    pub(super) fn ordinal(&self) -> Option<i32> {
        match self.place {
            Some(Place::Cuda(ordinal)) => Some(ordinal),
            _ => None,
        }
    }
}

/// The type as the reference maps it: everything of one byte that is not int8 goes as bytes, so reductions of
/// it are those of bytes.
fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => BYTES,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => return None,
    })
}

/// The name of an 8-bit float of torch that this library has no type for.
fn foreign_fp8(tensor: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let dtype = tensor.getattr(intern!(tensor.py(), "dtype"))?;
    if dtype::of_torch(&dtype)?.is_some() {
        return Ok(None);
    }
    let name = dtype.str()?.to_string();
    let name = name.strip_prefix("torch.").unwrap_or(&name);
    Ok(matches!(name, "float8_e4m3fnuz" | "float8_e5m2fnuz").then(|| name.to_owned()))
}

/// Why `object` cannot be used: its type, or that it is no array at all.
#[cold]
fn not_an_item(object: &Bound<'_, PyAny>, at: usize, error: PyErr) -> PyErr {
    let py = object.py();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    if let Ok(Some(theirs)) = object.getattr_opt(intern!(py, "dtype")) {
        return match dtype::parse(&theirs) {
            Ok(_) => error,
            Err(_) => refused(format!("Unconvertible NCCL type {theirs}")),
        };
    }
    match object.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("expected Tensor at {at} (got {kind})")),
        Err(_) => error,
    }
}
