//! `Array`: symmetric memory as Python sees it, with every zero-copy protocol.
//!
//! The class that users have is a subclass written in Python, with indexing and arithmetic; [`make`] makes
//! that. An array, and whatever was made of it by any protocol, keeps the memory mapped. An array from before
//! the fork of a rank is refused.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use symmem::DType;

use crate::cuda;
use crate::dlpack::{self, Export};
use crate::dtype;
use crate::fork;
use crate::operand::{Place, is_aligned, is_dense};
use crate::share::{self, ShareHandle};

/// What keeps an array's memory mapped.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// The Python class of arrays, once the package has set it.
static CLASS: Mutex<Option<Py<PyType>>> = Mutex::new(None);

thread_local! {
    /// The array that the constructor, which [`make`] calls, will return.
    static NEXT: RefCell<Option<Array>> = const { RefCell::new(None) };
}

/// Elements in symmetric memory, of this rank or of a peer. `symmem.empty` makes them.
#[pyclass(subclass, frozen, weakref, name = "Array", module = "symmem._symmem")]
pub(crate) struct Array {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[usize]>,
    /// In bytes.
    pub(crate) strides: Box<[isize]>,
    pub(crate) place: Place,
    /// Whether the elements follow each other in C order, and are aligned.
    pub(crate) dense: bool,
    pub(crate) keep: Keep,
    epoch: u32,
}

/// An array of `shape` elements at `address`, which is mapped as long as `keep`. Of the Python class that was
/// set by `_set_array_type`.
pub(crate) fn make(
    py: Python<'_>,
    address: usize,
    keep: Keep,
    shape: &[usize],
    dtype: DType,
    place: Place,
) -> PyResult<Py<PyAny>> {
    make_strided(py, address, keep, shape, &dense_strides(shape, dtype), dtype, place)
}

/// The strides, in bytes, of elements that follow each other in C order.
pub(crate) fn dense_strides(shape: &[usize], dtype: DType) -> Vec<isize> {
    let mut strides = vec![0; shape.len()];
    let mut next = dtype.size() as isize;
    for (stride, side) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next *= (*side).max(1) as isize;
    }
    strides
}

/// Bytes before the first element that others are in, and bytes from there to the end of the last; of some
/// elements of `size` bytes. `None` if that is more than there can be.
pub(crate) fn extent(shape: &[usize], strides: &[isize], size: usize) -> Option<(usize, usize)> {
    let (mut before, mut after) = (0usize, size);
    for (side, stride) in shape.iter().zip(strides) {
        let reach = side.checked_sub(1)?.checked_mul(stride.unsigned_abs())?;
        let end = if *stride < 0 { &mut before } else { &mut after };
        *end = end.checked_add(reach)?;
    }
    Some((before, before.checked_add(after)?))
}

/// [`make`] with `strides` in bytes. All elements must be within what `keep` keeps mapped.
pub(crate) fn make_strided(
    py: Python<'_>,
    address: usize,
    keep: Keep,
    shape: &[usize],
    strides: &[isize],
    dtype: DType,
    place: Place,
) -> PyResult<Py<PyAny>> {
    let len = shape.iter().product();
    let array = Array {
        address,
        len,
        dtype,
        shape: shape.into(),
        strides: strides.into(),
        place,
        dense: len == 0 || is_dense(shape, strides, dtype.size()) && is_aligned(address, len, dtype),
        keep,
        epoch: fork::epoch(),
    };
    let class =
        CLASS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|class| class.clone_ref(py));
    let class = class.unwrap_or_else(|| py.get_type::<Array>().unbind());
    NEXT.set(Some(array));
    let made = class.call0(py);
    // A class whose constructor fails on its way here must not leave it to the next one.
    NEXT.set(None);
    made
}

impl Array {
    /// `symmem.Forked` if this array belongs to a rank that this process was forked from.
    #[inline]
    pub(crate) fn check(&self, op: &'static str) -> PyResult<()> {
        fork::check(self.epoch, op)
    }

    fn nbytes_(&self) -> usize {
        self.len * self.dtype.size()
    }

    fn check_host(&self, what: &'static str) -> PyResult<()> {
        match self.place {
            Place::Cpu => Ok(()),
            place => Err(PyTypeError::new_err(format!(
                "{what}: the array is on {place}, which numpy cannot read; use torch(), cupy.from_dlpack or \
                 __cuda_array_interface__"
            ))),
        }
    }

    /// Whether the elements follow each other in C order, and whether in Fortran's.
    fn orders(&self) -> (bool, bool) {
        let size = self.dtype.size();
        let (mut shape, mut strides) = (self.shape.to_vec(), self.strides.to_vec());
        shape.reverse();
        strides.reverse();
        let c = self.len == 0 || is_dense(&self.shape, &self.strides, size);
        (c, self.len == 0 || is_dense(&shape, &strides, size))
    }

    /// Type string, shape, strides and address, which are the same in both array interfaces.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = dtype::typestr(self.dtype) else {
            let name = dtype::name(self.dtype);
            return Err(PyAttributeError::new_err(format!(
                "array interfaces have no {name}; use numpy(), torch() or __dlpack__"
            )));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("shape", PyTuple::new(py, self.shape.iter())?)?;
        interface.set_item("data", (self.address, false))?;
        match self.dense {
            true => interface.set_item("strides", py.None())?,
            false => interface.set_item("strides", PyTuple::new(py, self.strides.iter())?)?,
        }
        Ok(interface)
    }

    /// The elements as a capsule exports them.
    fn export(&self) -> Export {
        let size = self.dtype.size() as i64;
        Export {
            address: self.address,
            keep: Arc::clone(&self.keep),
            dtype: self.dtype,
            shape: self.shape.iter().map(|side| *side as i64).collect(),
            strides: self.strides.iter().map(|stride| *stride as i64 / size).collect(),
            place: self.place,
            copied: false,
        }
    }

    /// A private copy, as a capsule exports it.
    fn export_copy(&self) -> PyResult<Export> {
        if self.place != Place::Cpu {
            let problem = "a copy of device memory is not made here; use torch().clone() or cupy's copy()";
            return Err(PyBufferError::new_err(problem));
        }
        if !self.dense {
            return Err(PyBufferError::new_err(
                "a copy of strided memory is not made here; use numpy().copy()",
            ));
        }
        // Words, so that any element is aligned.
        let mut words = vec![0u64; self.nbytes_().div_ceil(size_of::<u64>())];
        // SAFETY: both have room for the elements, and are different memory. What a peer writes meanwhile may
        // be torn, and any bits are elements.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address as *const u8,
                words.as_mut_ptr().cast(),
                self.nbytes_(),
            );
        }
        let address = words.as_ptr() as usize;
        Ok(Export { address, keep: Arc::new(words), copied: true, ..self.export() })
    }
}

#[pymethods]
impl Array {
    #[new]
    #[pyo3(signature = (*_args, **_options))]
    fn new(_args: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let nobody = || PyTypeError::new_err("arrays are made by symmem.empty, and by what handles return");
        NEXT.take().ok_or_else(nobody)
    }

    /// Sides.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    /// Bytes from an element to the next one along each side.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.strides.iter())
    }

    /// The element type, as a `numpy.dtype`; that of bfloat16 and float8 is from ml_dtypes.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::numpy_dtype(py, self.dtype)
    }

    /// The element type's name, which needs neither numpy nor ml_dtypes.
    #[getter]
    fn dtype_name(&self) -> &'static str {
        dtype::name(self.dtype)
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.size()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes_()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.len
    }

    /// Number of sides.
    #[getter]
    fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Where the elements are: "cpu" or "cuda:N".
    #[getter]
    fn device(&self) -> String {
        self.place.to_string()
    }

    /// The first element's address in this process.
    fn data_ptr(&self) -> PyResult<usize> {
        self.check("data_ptr")?;
        Ok(self.address)
    }

    /// The elements as a `numpy.ndarray`, without a copy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        this.check("numpy")?;
        this.check_host("numpy()")?;
        let dtype = dtype::numpy_dtype(py, this.dtype)?;
        let (shape, strides) = (this.shape(py)?, this.strides(py)?);
        if this.dense {
            return numpy_ndarray(py)?.call1((shape, dtype, slf, 0, strides));
        }
        // numpy asks for a contiguous buffer here, whatever the strides are that it is told.
        let (before, bytes) = extent(&this.shape, &this.strides, this.dtype.size()).unwrap_or_default();
        let keep = Arc::clone(&this.keep);
        let bytes = make(py, this.address - before, keep, &[bytes], DType::U8, this.place)?;
        numpy_ndarray(py)?.call1((shape, dtype, bytes, before, strides))
    }

    /// The elements as a `torch.Tensor`, without a copy.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        this.check("torch")?;
        let torch = dtype::torch(py)?;
        let from_dlpack = torch.getattr(intern!(py, "from_dlpack"))?;
        if !matches!(this.dtype, DType::F8E4M3 | DType::F8E5M2) {
            return from_dlpack.call1((slf,));
        }
        // Not every torch that has fp8 has its DLPack codes.
        let keep = Arc::clone(&this.keep);
        let (address, shape, strides) = (this.address, &this.shape, &this.strides);
        let bytes = make_strided(py, address, keep, shape, strides, DType::U8, this.place)?;
        let theirs = dtype::torch_dtype(py, this.dtype)?;
        from_dlpack.call1((bytes,))?.call_method1(intern!(py, "view"), (theirs,))
    }

    /// numpy's own protocol: `numpy()`, or a copy where another type or a copy is asked for.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let array = Self::numpy(slf)?;
        let same = match dtype {
            Some(dtype) => array.getattr(intern!(py, "dtype"))?.eq(dtype)?,
            None => true,
        };
        match (same, copy) {
            (true, None | Some(false)) => Ok(array),
            (true, Some(true)) => array.call_method0(intern!(py, "copy")),
            (false, Some(false)) => Err(pyo3::exceptions::PyValueError::new_err(
                "another dtype needs a copy, and copy=False forbids it",
            )),
            (false, _) => array.call_method1(intern!(py, "astype"), (dtype,)),
        }
    }

    /// The array interface, of arrays on the CPU.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check("__array_interface__")?;
        match self.place {
            Place::Cpu => self.interface(py),
            place => Err(PyAttributeError::new_err(format!("the array is on {place}"))),
        }
    }

    /// The CUDA array interface, of arrays on a device.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check("__cuda_array_interface__")?;
        if self.place == Place::Cpu {
            return Err(PyAttributeError::new_err("the array is on the cpu"));
        }
        let interface = self.interface(py)?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// DLPack's kind of device and its number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device_of(self.place)
    }

    /// A DLPack capsule: versioned if `max_version` is at least 1.0. The consumer's `stream` is made to wait
    /// for the work that was put on the memory here.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check("__dlpack__")?;
        if dl_device.is_some_and(|device| device != dlpack::device_of(self.place)) {
            let place = self.place;
            return Err(PyBufferError::new_err(format!(
                "the array is on {place} and is not copied elsewhere"
            )));
        }
        let export = match copy {
            Some(true) => self.export_copy()?,
            _ => self.export(),
        };
        if let Place::Cuda(ordinal) = self.place {
            cuda::hand_over(py, ordinal, stream)?;
        }
        dlpack::export(py, export, max_version)
    }

    fn __len__(&self) -> PyResult<usize> {
        let nothing = || PyTypeError::new_err("len() of an array without sides");
        self.shape.first().copied().ok_or_else(nothing)
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "symmetric memory cannot be pickled by itself. Hint: send x.share(), whose open() is the same memory there, or \
             numpy().copy()",
        ))
    }

    /// A handle of the array for other processes of this user, which can be pickled: `symmem.share(x)`.
    fn share(slf: &Bound<'_, Self>) -> PyResult<ShareHandle> {
        share::share(slf.as_any())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        // SAFETY: the protocol's promise: a view to be filled. A failure must leave no object in it.
        let view = unsafe { &mut *view };
        view.obj = std::ptr::null_mut();
        let this = slf.get();
        let format = this.buffer_terms(flags)?;
        let wants = |flag: c_int| flags & flag == flag;
        view.buf = this.address as *mut c_void;
        view.len = this.nbytes_() as isize;
        view.readonly = 0;
        view.itemsize = this.dtype.size() as isize;
        view.format =
            if wants(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        let shaped = wants(ffi::PyBUF_ND);
        view.ndim = if shaped { this.shape.len() as c_int } else { 1 };
        // Consumers do not write these, and they live as long as the array, which the view keeps alive.
        view.shape = if shaped { this.shape.as_ptr() as *mut isize } else { std::ptr::null_mut() };
        let strided = wants(ffi::PyBUF_STRIDES);
        view.strides = if strided { this.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        view.suboffsets = std::ptr::null_mut();
        view.internal = std::ptr::null_mut();
        view.obj = slf.into_any().into_ptr();
        Ok(())
    }
}

impl Array {
    /// The format of a buffer, if the array can be one on these terms.
    fn buffer_terms(&self, flags: c_int) -> PyResult<&'static CStr> {
        self.check("buffer")?;
        if self.place != Place::Cpu {
            let problem = format!("the array is on {}, and buffers are of host memory", self.place);
            return Err(PyBufferError::new_err(problem));
        }
        let wants = |flag: c_int| flags & flag == flag;
        let (c, fortran) = self.orders();
        if !c && (!wants(ffi::PyBUF_STRIDES) || wants(ffi::PyBUF_C_CONTIGUOUS)) {
            return Err(PyBufferError::new_err("the array is not C-contiguous"));
        }
        if !fortran && wants(ffi::PyBUF_F_CONTIGUOUS) {
            return Err(PyBufferError::new_err("the array is not Fortran-contiguous"));
        }
        if !c && !fortran && wants(ffi::PyBUF_ANY_CONTIGUOUS) {
            return Err(PyBufferError::new_err("the array is not contiguous"));
        }
        match dtype::buffer_format(self.dtype) {
            Some(format) => Ok(format),
            // Without a format it is bytes.
            None if !wants(ffi::PyBUF_FORMAT) => Ok(c"B"),
            None => Err(PyBufferError::new_err(format!(
                "buffers have no {}; use numpy(), torch() or __dlpack__",
                dtype::name(self.dtype)
            ))),
        }
    }
}

fn numpy_ndarray(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: pyo3::sync::PyOnceLock<Py<PyType>> = pyo3::sync::PyOnceLock::new();
    TYPE.import(py, "numpy", "ndarray")
}

/// Sets the class of the arrays that are made from here on: a subclass of `Array`.
#[pyfunction]
fn _set_array_type(class: &Bound<'_, PyType>) -> PyResult<()> {
    if !class.is_subclass_of::<Array>()? {
        return Err(PyTypeError::new_err("the class of arrays must be a subclass of symmem._symmem.Array"));
    }
    *CLASS.lock().unwrap_or_else(PoisonError::into_inner) = Some(class.clone().unbind());
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Array>()?;
    module.add_function(wrap_pyfunction!(_set_array_type, module)?)
}
