//! `ShareHandle`: an array for other processes of this user, outside of groups. Pickled, sent, and opened
//! there.
//!
//! The library offers the memory as long as it lives in the process that shared it, and checks who asks; here
//! are the shape of the array and what keeps it. What was opened is memory of another process: it is in no
//! registry, and so no rank's own.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use symmem::store::Wait;
use symmem::{DType, Deadline};

use crate::array::{self, Array, Keep, extent};
use crate::error::{invalid, raise};
use crate::group::default_timeout;
use crate::interrupt::{blocking, token};
use crate::operand::{Operand, Place};
use crate::registry::{self, AllocatedBlock, Memory};
use crate::{context, dtype};

/// What another process of this user needs to have an array too. Made by `x.share()`; pickled in any way, and
/// opened there.
///
/// It can be opened as long as the process that made it lives and has the array, a view of it, or this
/// handle. Who has opened the array keeps its memory, whatever becomes of the others. Its pickle holds a
/// secret: who has that, and is of this user, can read and write the array.
///
/// >>> import pickle, symmem
/// >>> x = symmem.empty(3, dtype="int32")
/// >>> handle = pickle.loads(pickle.dumps(x.share()))
/// >>> y = handle.open()
/// >>> y[0] = 7
/// >>> x.tolist()
/// [7, 0, 0]
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct ShareHandle {
    handle: symmem::ShareHandle,
    /// Bytes from the start of the memory to the first element.
    offset: usize,
    shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
    dtype: DType,
    /// Keeps the memory, and so the offer, in the process that shares it.
    _keep: Option<Arc<AllocatedBlock>>,
}

#[pymethods]
impl ShareHandle {
    /// What `pickle` calls; users have `x.share()`.
    #[new]
    fn new(
        text: &str,
        offset: usize,
        shape: Vec<usize>,
        strides: Vec<isize>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        if shape.len() != strides.len() {
            return Err(invalid("share handle", "it has not one stride per side"));
        }
        let handle = text.parse().map_err(raise)?;
        Ok(Self { handle, offset, shape, strides, dtype: dtype::parse(dtype)?, _keep: None })
    }

    /// The array: the same memory, here. Raises `NotShared`, at once, if it can no longer be had; a process
    /// that does not answer is waited for until the timeout. In the process that shares it, it is a view of
    /// that very memory.
    #[pyo3(signature = (*, timeout_ms = 0))]
    fn open(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Py<PyAny>> {
        let context = context::current(py)?;
        let asked = (timeout_ms > 0).then(|| std::time::Duration::from_millis(timeout_ms));
        let deadline = asked.or(default_timeout(&context)).map_or(Deadline::never(), Deadline::after);
        let token = token();
        let view = blocking(py, || self.handle.open::<u8>(&Wait::new(deadline).with_cancel(&token)))?;
        let address = (view.as_ptr() as usize).checked_add(self.offset);
        let address = address.filter(|_| self.is_within(view.len()));
        let address =
            address.ok_or_else(|| invalid("share handle", "its elements are not within the memory"))?;
        let keep: Keep = match registry::find(view.as_ptr() as usize) {
            Some((block, _)) => block,
            None => Arc::new(view),
        };
        array::make_strided(py, address, keep, &self.shape, &self.strides, self.dtype, Place::Cpu)
    }

    /// The process that shares the array.
    #[getter]
    fn pid(&self) -> u32 {
        self.handle.pid()
    }

    /// The array's sides.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The array's element type.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype::numpy_dtype(py, self.dtype)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this) = (slf.py(), slf.get());
        let text = this.handle.to_string();
        let (shape, strides) = (this.shape.clone(), this.strides.clone());
        let arguments = (text, this.offset, shape, strides, dtype::name(this.dtype));
        (slf.get_type(), arguments).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (&self.shape, dtype::name(self.dtype));
        format!("<symmem.ShareHandle of {shape:?} {dtype} in process {}>", self.handle.pid())
    }
}

impl ShareHandle {
    /// Whether all elements are within the first `bytes` of the memory, and aligned.
    fn is_within(&self, bytes: usize) -> bool {
        let size = self.dtype.size();
        if self.shape.contains(&0) {
            return self.offset <= bytes;
        }
        let aligned = |step: usize| step.is_multiple_of(size);
        let steps_fit = self.strides.iter().all(|stride| aligned(stride.unsigned_abs()));
        let reach = extent(&self.shape, &self.strides, size);
        let within = reach.is_some_and(|(before, all)| {
            let end = self.offset.checked_sub(before).and_then(|start| start.checked_add(all));
            end.is_some_and(|end| end <= bytes)
        });
        within && steps_fit && aligned(self.offset)
    }
}

/// Local. A handle of `x`, which is any array or view in memory from `symmem.empty`, for other processes of
/// this user. It can be pickled: sent to a worker of a pool, for example, which opens it and has the same
/// memory.
///
/// From here on others may read and write the memory at any time: synchronise as with memory of a peer.
#[pyfunction]
pub(crate) fn share(x: &Bound<'_, PyAny>) -> PyResult<ShareHandle> {
    let (address, shape, strides, dtype, place) = match x.cast::<Array>() {
        Ok(array) => {
            let array = array.get();
            array.check("share")?;
            (array.address, array.shape.to_vec(), array.strides.to_vec(), array.dtype, array.place)
        }
        Err(_) => {
            let operand = Operand::input(x)?;
            let strides = array::dense_strides(&operand.shape, operand.dtype);
            (operand.address, operand.shape.clone(), strides, operand.dtype, operand.device)
        }
    };
    if place != Place::Cpu {
        let problem = format!("the array is on {place}, and only memory of the CPU is shared this way");
        return Err(invalid("share", problem));
    }
    let Some((block, offset)) = registry::find(address) else {
        let problem = "the array is not in symmetric memory of this process. Hint: allocate it with symmem.empty; of an \
                       array that was opened, pass its handle on";
        return Err(invalid("share", problem));
    };
    let Memory::Host(allocation) = &block.memory else {
        return Err(invalid("share", "only memory of the CPU is shared this way"));
    };
    let handle = allocation.share().map_err(raise)?;
    Ok(ShareHandle { handle, offset, shape, strides, dtype, _keep: Some(block) })
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ShareHandle>()?;
    module.add_function(wrap_pyfunction!(share, module)?)
}
