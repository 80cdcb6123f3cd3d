//! Arguments that hold elements: a symmem, numpy or torch array, or anything with DLPack, an array interface
//! or a buffer.
//!
//! Every function that takes an array takes it as an [`Operand`]. Nothing is copied, except strided arrays by
//! [`Operand::or_copy`] and its callers. The three that matter take well under a microsecond; the rest are
//! asked in the order in which they say most about what they are.

mod foreign;
mod numpy;

use std::fmt;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyTuple, PyType};
use symmem::DType;

use crate::array::Array;
use crate::dtype;
use crate::error::invalid;

use self::foreign::Hold;

/// Where elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Host memory.
    Cpu,
    /// Memory of the CUDA device with this ordinal.
    Cuda(i32),
}

impl Place {
    /// From "cpu", "cuda", "cuda:1", or an object whose text is one (a `torch.device`). "cuda" is torch's
    /// current device, or 0.
    pub(crate) fn parse(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text = object.str()?;
        let text = text.to_str()?;
        if text == "cpu" || text == "cpu:0" {
            return Ok(Self::Cpu);
        }
        if text == "cuda" {
            return current_cuda(object.py()).map(Self::Cuda);
        }
        let ordinal = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse::<u16>().ok());
        match ordinal {
            Some(ordinal) => Ok(Self::Cuda(ordinal.into())),
            None => Err(invalid("device", format!("{text:?} is not \"cpu\", \"cuda\" or \"cuda:N\""))),
        }
    }
}

fn current_cuda(py: Python<'_>) -> PyResult<i32> {
    let Some(torch) = dtype::imported(py, "torch")? else { return Ok(0) };
    let cuda = torch.getattr(intern!(py, "cuda"))?;
    if !cuda.call_method0(intern!(py, "is_available"))?.is_truthy()? {
        return Ok(0);
    }
    cuda.call_method0(intern!(py, "current_device"))?.extract()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Contiguous elements of a Python object, which it keeps alive and in place.
#[derive(Debug)]
pub(crate) struct Operand<'py> {
    pub(crate) address: usize,
    /// Number of elements.
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Whether each pair of elements is a complex number. The shape counts numbers then.
    pub(crate) complex: bool,
    pub(crate) device: Place,
    pub(crate) writable: bool,
    /// What was passed: the result of in-place forms.
    pub(crate) object: Bound<'py, PyAny>,
    /// Whether the elements are dense, in C order and aligned.
    dense: bool,
    /// What keeps the elements in place besides the object.
    _hold: Hold<'py>,
}

impl<'py> Operand<'py> {
    /// `object`, to be read. C-contiguous, else ValueError.
    pub(crate) fn input(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let operand = Self::view(object)?;
        if !operand.dense {
            return Err(not_dense(&operand));
        }
        Ok(operand)
    }

    /// `object`, to be written: also writable.
    pub(crate) fn output(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::input(object)?.into_output()
    }

    /// An input as an output: also writable.
    pub(crate) fn into_output(self) -> PyResult<Self> {
        match self.writable {
            true => Ok(self),
            false => Err(invalid("array", "it is read-only, and this writes it. Hint: pass a writable copy")),
        }
    }

    /// `object`, to be read; a copy of it where it is strided.
    pub(crate) fn input_or_copy(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::view(object)?.or_copy()
    }

    /// `object`, to be written; a copy of it where it is strided, which [`Operand::land`] puts back. Its
    /// elements may be complex.
    pub(crate) fn any_output(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let operand = Self::any(object)?.into_output()?;
        match operand.device {
            Place::Cpu => operand.or_copy(),
            // When a copy could be put back is known to a stream only.
            _ if !operand.dense => Err(not_dense(&operand)),
            _ => Ok(operand),
        }
    }

    /// Itself where it is dense, else a copy.
    pub(crate) fn or_copy(self) -> PyResult<Self> {
        if self.dense {
            return Ok(self);
        }
        let copy = Self::any(&dense_copy(&self.object)?)?;
        if !copy.dense {
            return Err(not_dense(&self));
        }
        let hold = Hold::Copy { copy: copy.object.clone(), of: self.address };
        Ok(Self { object: self.object, _hold: hold, ..copy })
    }

    /// Puts the elements where they belong, if they are a copy.
    pub(crate) fn land(&self) -> PyResult<()> {
        let Hold::Copy { copy, .. } = &self._hold else { return Ok(()) };
        let py = self.object.py();
        if is_tensor(&self.object)? {
            // What collectives write is none of autograd's business.
            let tensor = self.object.call_method0(intern!(py, "detach"))?;
            return tensor.call_method1(intern!(py, "copy_"), (copy,)).map(drop);
        }
        let numpy = py.import(intern!(py, "numpy"))?;
        let target = numpy.call_method1(intern!(py, "asarray"), (&self.object,))?;
        numpy.call_method1(intern!(py, "copyto"), (target, copy)).map(drop)
    }

    /// Where the first element of what was passed is, also if the elements are a copy.
    pub(crate) fn first_address(&self) -> usize {
        match &self._hold {
            Hold::Copy { of, .. } => *of,
            _ => self.address,
        }
    }

    /// Whether the elements are a copy.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self._hold, Hold::Copy { .. })
    }

    /// What the elements are called in Python.
    pub(crate) fn type_name(&self) -> &'static str {
        match (self.complex, self.dtype) {
            (false, dtype) => dtype::name(dtype),
            (true, DType::F32) => "complex64",
            (true, _) => "complex128",
        }
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The bytes of its elements. Of no use where [`Operand::device`] is not the CPU.
    ///
    /// # Safety
    /// It is on the CPU, and nobody writes the elements while the slice lives (another Python thread that
    /// does races, as it does with numpy).
    pub(crate) unsafe fn bytes_of(&self) -> &[u8] {
        debug_assert!(self.device == Place::Cpu);
        if self.len == 0 {
            return &[];
        }
        // SAFETY: dense, aligned (`view`), kept alive by `self`; else the caller's duty.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes()) }
    }

    /// The bytes of its elements, to be written.
    ///
    /// # Safety
    /// As for [`Operand::bytes_of`]; it is an output, and nobody reads the elements meanwhile either.
    #[allow(clippy::mut_from_ref)] // The elements are not part of the operand; who else has them is the caller's duty.
    pub(crate) unsafe fn bytes_of_mut(&self) -> &mut [u8] {
        debug_assert!(self.device == Place::Cpu && self.writable);
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes_of`.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes()) }
    }

    /// The same memory, as bytes.
    pub(crate) fn into_bytes(self) -> Self {
        let len = self.bytes();
        Self { len, dtype: DType::U8, shape: vec![len], complex: false, ..self }
    }

    /// An object that keeps the elements where they are, if one alone does.
    pub(crate) fn keeper(&self) -> Option<Py<PyAny>> {
        match &self._hold {
            Hold::Nothing => keeper_of(&self.object).ok(),
            Hold::Object(object) | Hold::Copy { copy: object, .. } => Some(object.clone().unbind()),
            Hold::Buffer(_) => None,
        }
    }

    /// Whether the elements are dense, in C order and aligned.
    pub(crate) fn is_dense(&self) -> bool {
        self.dense
    }

    /// `object` as it is, dense or not.
    pub(crate) fn view(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let operand = Self::any(object)?;
        match operand.complex {
            false => Ok(operand),
            true => Err(dtype::unknown(&object.getattr(intern!(object.py(), "dtype"))?)),
        }
    }

    /// `object` as it is, dense or not, its elements complex or not.
    pub(crate) fn any(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<Array>() {
            return of_array(array.get(), object);
        }
        let py = object.py();
        if is_a(object, numpy_array(py)?) {
            return numpy::view(object);
        }
        if is_tensor(object)? {
            return of_torch(object);
        }
        foreign::view(object)
    }

    /// The operand of what a protocol says of `object`.
    fn new(object: &Bound<'py, PyAny>, described: Described, hold: Hold<'py>) -> Self {
        let Described { address, dtype, shape, strides, place, writable } = described;
        let len = shape.iter().product();
        let even = strides.is_none_or(|strides| is_dense(&shape, &strides, dtype.size()));
        let dense = len == 0 || even && is_aligned(address, len, dtype);
        Self {
            address,
            len,
            dtype,
            shape,
            complex: false,
            device: place,
            writable,
            object: object.clone(),
            dense,
            _hold: hold,
        }
    }
}

/// What the protocols say of an array, each in its own way.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) address: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// In bytes; none: dense.
    pub(crate) strides: Option<Vec<isize>>,
    pub(crate) place: Place,
    pub(crate) writable: bool,
}

/// Whether `len` elements at `address` are where Rust may read them. None of them always are.
pub(crate) fn is_aligned(address: usize, len: usize, dtype: DType) -> bool {
    len == 0 || address.is_multiple_of(dtype.size())
}

/// Whether elements of `size` bytes with these strides follow each other in C order.
pub(crate) fn is_dense(shape: &[usize], strides: &[isize], size: usize) -> bool {
    let mut expected = size as isize;
    for (side, stride) in shape.iter().zip(strides).rev() {
        // One element has no next one, whatever its stride.
        if *side != 1 && *stride != expected {
            return false;
        }
        expected = expected.wrapping_mul(*side as isize);
    }
    true
}

/// What keeps the elements of `object`: a tensor's storage, because `tensor.data = other` takes it away from
/// the tensor.
fn keeper_of(object: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let keeper = match is_tensor(object)? {
        true => object.call_method0(intern!(object.py(), "untyped_storage"))?,
        false => object.clone(),
    };
    Ok(keeper.unbind())
}

#[cold]
fn not_dense(operand: &Operand<'_>) -> PyErr {
    let shape = &operand.shape;
    let problem = format!(
        "its {shape:?} elements are not C-contiguous and aligned. Hint: numpy.ascontiguousarray(x), x.contiguous()"
    );
    invalid("array", problem)
}

/// A dense copy of `object`, of the kind it is.
fn dense_copy<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if is_tensor(object)? {
        let plain =
            object.call_method0(intern!(py, "resolve_conj"))?.call_method0(intern!(py, "resolve_neg"))?;
        let copy = plain.call_method0(intern!(py, "contiguous"))?;
        // Unaligned elements are contiguous to torch.
        return if copy.is(object) { object.call_method0(intern!(py, "clone")) } else { Ok(copy) };
    }
    // cupy and others that numpy cannot read have a copy of their own, which is dense.
    if object.hasattr(intern!(py, "__cuda_array_interface__"))? {
        return object.call_method1(intern!(py, "copy"), ("C",));
    }
    // `array` and not `ascontiguousarray`, which leaves unaligned elements where they are.
    let numpy = py.import(intern!(py, "numpy"))?;
    numpy.call_method(intern!(py, "array"), (object,), Some(&[("order", "C")].into_py_dict(py)?))
}

fn of_array<'py>(array: &Array, object: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
    array.check("array")?;
    Ok(Operand {
        address: array.address,
        len: array.len,
        dtype: array.dtype,
        shape: array.shape.to_vec(),
        complex: false,
        device: array.place,
        writable: true,
        object: object.clone(),
        dense: array.dense && is_aligned(array.address, array.len, array.dtype),
        _hold: Hold::Nothing,
    })
}

fn numpy_array(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.import(py, "numpy", "ndarray")
}

/// Whether `object` is of `class` or a subclass, by its type alone: torch's metaclass takes long to say the
/// same.
fn is_a(object: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> bool {
    // SAFETY: an attached thread and two live objects.
    unsafe { pyo3::ffi::PyObject_TypeCheck(object.as_ptr(), class.as_type_ptr()) != 0 }
}

/// Whether `object` is a torch tensor.
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(torch_tensor(object.py())?.is_some_and(|class| is_a(object, class)))
}

/// `torch.Tensor`, if torch is imported.
fn torch_tensor(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyType>>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(class) = TYPE.get(py) {
        return Ok(Some(class.bind(py)));
    }
    let Some(torch) = dtype::imported(py, "torch")? else { return Ok(None) };
    let Some(class) = torch.getattr_opt("Tensor")? else { return Ok(None) };
    let class = class.cast_into::<PyType>()?.unbind();
    Ok(Some(TYPE.get_or_init(py, || class).bind(py)))
}

fn of_torch<'py>(object: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
    let py = object.py();
    let theirs = object.getattr(intern!(py, "dtype"))?;
    let (dtype, complex) = match dtype::of_torch(&theirs)? {
        Some(dtype) => (dtype, false),
        None => match theirs.str()?.to_str()? {
            "torch.complex64" => (DType::F32, true),
            "torch.complex128" => (DType::F64, true),
            _ => (dtype::parse(&theirs)?, false),
        },
    };
    let shape = object.getattr(intern!(py, "shape"))?;
    let shape =
        shape.cast::<PyTuple>()?.iter().map(|side| side.extract()).collect::<PyResult<Vec<usize>>>()?;
    let device = match object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        true => Place::Cpu,
        false => Place::parse(&object.getattr(intern!(py, "device"))?)?,
    };
    let says = |question| object.call_method0(question)?.is_truthy();
    let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let len = shape.iter().product::<usize>() << u32::from(complex);
    // The bits of a lazily negated or conjugated tensor are not its elements.
    let dense = says(intern!(py, "is_contiguous"))?
        && is_aligned(address, len, dtype)
        && !says(intern!(py, "is_neg"))?
        && !(complex && says(intern!(py, "is_conj"))?);
    Ok(Operand {
        address,
        len,
        dtype,
        shape,
        complex,
        device,
        writable: true,
        object: object.clone(),
        dense,
        _hold: Hold::Nothing,
    })
}
