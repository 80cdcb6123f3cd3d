//! How Python registers operators: `_TorchLibrary`, and `_torch_operation` for what a kernel does.

use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::abi::{Abi, WRITTEN_FOR, abi};
use super::fast::Fast;
use super::kernel::{self, Operation, Returned};
use super::value::Slot;
use crate::error::invalid;

/// Definitions in a namespace of torch's (`key` None), or kernels for a dispatch key in it, until it is
/// closed.
#[pyclass(frozen, module = "symmem._symmem", name = "_TorchLibrary")]
pub(crate) struct Library {
    abi: &'static Abi,
    /// Torch's library, as a number: 0 once closed.
    handle: Mutex<usize>,
}

fn text(what: &'static str, text: &str) -> PyResult<CString> {
    CString::new(text).map_err(|_| invalid(what, "there is a NUL in it"))
}

/// `code` of a call that should have been made.
fn done(code: i32, what: impl FnOnce() -> String) -> PyResult<()> {
    match code {
        0 => Ok(()),
        _ => Err(invalid("torch", format!("it did not take {}: see stderr", what()))),
    }
}

impl Library {
    fn with<R>(&self, work: impl FnOnce(*mut c_void) -> R) -> PyResult<R> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        match *handle {
            0 => Err(invalid("library", "it is closed")),
            handle => Ok(work(handle as *mut c_void)),
        }
    }
}

#[pymethods]
impl Library {
    #[new]
    #[pyo3(signature = (namespace, key = None))]
    fn new(namespace: &str, key: Option<&str>) -> PyResult<Self> {
        let abi =
            abi().ok_or_else(|| invalid("torch", "it has no stable interface: it is older than 2.10"))?;
        let (name, file) = (text("namespace", namespace)?, c"symmem");
        let mut handle = std::ptr::null_mut();
        let code = match key {
            // SAFETY: strings that end, and room for the answer.
            None => unsafe { (abi.new_fragment)(name.as_ptr(), file.as_ptr(), 0, &mut handle) },
            Some(key) => {
                let key = text("key", key)?;
                // SAFETY: as above.
                unsafe { (abi.new_kernels)(name.as_ptr(), key.as_ptr(), file.as_ptr(), 0, &mut handle) }
            }
        };
        done(code, || format!("the namespace {namespace}"))?;
        Ok(Self { abi, handle: Mutex::new(handle as usize) })
    }

    /// Defines an operator.
    fn define(&self, schema: &str) -> PyResult<()> {
        let words = text("schema", schema)?;
        // SAFETY: a live library and a string that ends.
        let code = self.with(|library| unsafe { (self.abi.define)(library, words.as_ptr()) })?;
        done(code, || schema.to_owned())
    }

    /// Makes the kernel `number` that of the operator `name`.
    fn implement(&self, name: &str, number: usize) -> PyResult<()> {
        let kernel = kernel::get(number).ok_or_else(|| invalid("kernel", "there is none of this number"))?;
        let words = text("name", name)?;
        // SAFETY: a live library, a string that ends, and a function that is there as long as the process.
        let code = self
            .with(|library| unsafe { (self.abi.implement)(library, words.as_ptr(), kernel, WRITTEN_FOR) })?;
        done(code, || name.to_owned())
    }

    /// Takes back what was registered. A library that nobody closes stays: kernels are as lasting as this
    /// module.
    fn close(&self) -> PyResult<()> {
        let handle = std::mem::take(&mut *self.handle.lock().unwrap_or_else(PoisonError::into_inner));
        if handle == 0 {
            return Ok(());
        }
        // SAFETY: a live library, which nobody finds any more.
        done(unsafe { (self.abi.delete_library)(handle as *mut c_void) }, || "its library back".to_owned())
    }
}

/// Whether operators can be registered through torch's stable interface.
#[pyfunction]
fn _torch_is_stable() -> bool {
    abi().is_some()
}

/// Makes a kernel; its number. `arguments` are the types of the schema; `returned` is "" for nothing, "int",
/// "=N" for the N-th argument, "~N" for a new tensor like it, which `function` gets as its last argument.
/// `fast` is "" or the arguments of [`Fast::parse`].
#[pyfunction]
fn _torch_operation(
    arguments: Vec<String>,
    returned: &str,
    written: Vec<usize>,
    function: Py<PyAny>,
    fast: &str,
) -> PyResult<usize> {
    let slots = arguments.iter().map(|text| {
        Slot::parse(text)
            .ok_or_else(|| invalid("operator", format!("{text} cannot be carried by torch's interface")))
    });
    let number =
        |text: &str| text.parse().map_err(|_| invalid("operator", format!("{text:?} is not an argument")));
    let returned = match returned.split_at_checked(1) {
        _ if returned == "int" => Some(Returned::Int),
        Some(("=", at)) => Some(Returned::Argument(number(at)?)),
        Some(("~", at)) => Some(Returned::Like(number(at)?)),
        Some(_) => return Err(invalid("operator", format!("it cannot return {returned:?}"))),
        None => None,
    };
    let fast = (!fast.is_empty()).then(|| Fast::parse(fast)).transpose()?;
    let arguments = slots.collect::<PyResult<_>>()?;
    kernel::add(Operation { arguments, returned, written, function, fast })
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Library>()?;
    module.add_function(wrap_pyfunction!(_torch_is_stable, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_operation, module)?)
}
