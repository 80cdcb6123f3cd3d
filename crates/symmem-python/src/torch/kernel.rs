//! Kernels: what torch's dispatcher calls when a program calls an operator.
//!
//! A kernel is a bare function, to which nothing else can be told; so there is one function per number, and
//! the number says which operation is meant ([`add`]). Torch calls without the interpreter, from any thread.
//! Whatever goes wrong, a panic too, is raised as torch's error, which Python sees as a RuntimeError with our
//! text.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::abi::{self, Abi, Kernel};
use super::fast::Fast;
use super::value::{Argument, Slot, Tensor, take};
use crate::error::invalid;

/// What an operator returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// The argument with this number.
    Argument(usize),
    /// A new tensor like the argument with this number. The function gets it as one more argument, and fills
    /// it.
    Like(usize),
    /// The number that the function returns.
    Int,
}

/// What the kernel of a number does.
pub(super) struct Operation {
    pub(super) arguments: Vec<Slot>,
    pub(super) returned: Option<Returned>,
    /// Arguments that are written.
    pub(super) written: Vec<usize>,
    /// Python's function: the arguments as the schema has them, tensors of the same memory among them.
    pub(super) function: Py<PyAny>,
    /// The way without Python, if there is one.
    pub(super) fast: Option<Fast>,
}

static OPERATIONS: RwLock<Vec<Arc<Operation>>> = RwLock::new(Vec::new());

macro_rules! kernels {
    ($($number:literal)*) => {
        [$(entry::<$number>),*]
    };
}

/// One kernel per operation; two namespaces of some forty, and room.
const KERNELS: [Kernel; 128] = kernels!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
    96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
);

/// Makes a kernel for `operation`; its number.
pub(super) fn add(operation: Operation) -> PyResult<usize> {
    let mut operations = OPERATIONS.write().unwrap_or_else(PoisonError::into_inner);
    if operations.len() == KERNELS.len() {
        return Err(invalid("operators", format!("there are no more than {} kernels", KERNELS.len())));
    }
    operations.push(Arc::new(operation));
    Ok(operations.len() - 1)
}

/// The kernel with this number.
pub(super) fn get(number: usize) -> Option<Kernel> {
    KERNELS.get(number).copied()
}

fn operation(number: usize) -> Option<Arc<Operation>> {
    OPERATIONS.read().unwrap_or_else(PoisonError::into_inner).get(number).cloned()
}

thread_local! {
    /// What is raised: torch reads it after everything else of the kernel is gone.
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

extern "C-unwind" fn entry<const NUMBER: usize>(stack: *mut u64, inputs: u64, outputs: u64) {
    // SAFETY: torch calls kernels with as many values as it says, made for them.
    if unsafe { enter(NUMBER, stack, inputs as usize, outputs as usize) } {
        raise();
    }
}

/// Raises what [`enter`] parked.
#[cold]
fn raise() {
    let text = TEXT.with(|text| text.borrow().as_deref().map_or(c"".as_ptr(), CStr::as_ptr));
    // SAFETY: the thread's own text, which changes in its next failing kernel only.
    abi::throw(unsafe { CStr::from_ptr(text) });
}

/// Runs the operation; whether it failed, and [`raise`] has something to say. Nothing of it is alive then.
///
/// # Safety
/// `stack` holds `inputs` values that torch made for this kernel, and has room for `outputs`.
#[inline(never)] // One copy, not one in each of the kernels.
unsafe fn enter(number: usize, stack: *mut u64, inputs: usize, outputs: usize) -> bool {
    // SAFETY: as the caller promises.
    let run = AssertUnwindSafe(|| unsafe { run(number, stack, inputs, outputs) });
    let text = match catch_unwind(run) {
        Ok(Ok(())) => return false,
        Ok(Err(text)) => text,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            format!("symmem panicked, which is a bug: {text}")
        }
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    TEXT.with(|parked| parked.replace(Some(text)));
    true
}

/// # Safety
/// As for [`enter`].
unsafe fn run(number: usize, stack: *mut u64, inputs: usize, outputs: usize) -> Result<(), String> {
    let (Some(operation), Some(abi)) = (operation(number), abi::abi()) else {
        return Err(format!("symmem has no operator {number}"));
    };
    if operation.arguments.len() != inputs || usize::from(operation.returned.is_some()) != outputs {
        return Err(format!(
            "symmem knows another operator than one with {inputs} arguments and {outputs} results"
        ));
    }
    // SAFETY: as the caller promises; each value is taken once.
    let arguments = unsafe { arguments(abi, &operation, stack) };
    let result = work(&operation, &arguments)?;
    if let Some(value) = result {
        // SAFETY: room for the result, as the caller promises.
        unsafe { stack.write(value) };
    }
    Ok(())
}

/// # Safety
/// As for [`enter`]; the operation has as many arguments as there are.
unsafe fn arguments(abi: &'static Abi, operation: &Operation, stack: *mut u64) -> Vec<Argument> {
    let one = |(at, slot): (usize, &Slot)| {
        // SAFETY: as the caller promises.
        unsafe { take(abi, *slot, stack.add(at).read()) }
    };
    operation.arguments.iter().enumerate().map(one).collect()
}

/// Does the operation's work; the value it returns.
fn work(operation: &Operation, arguments: &[Argument]) -> Result<Option<u64>, String> {
    let made = match operation.returned {
        Some(Returned::Like(at)) => match arguments.get(at) {
            Some(Argument::Tensor(tensor)) => {
                let out = tensor.empty_like().ok_or("torch cannot make the output: see stderr")?;
                Some(Arc::new(out))
            }
            _ => return Err("symmem has no tensor to make the output like".to_owned()),
        },
        _ => None,
    };
    let done = match &operation.fast {
        Some(fast) => fast.run(arguments, made.as_ref()),
        None => Ok(false),
    };
    let number = match done {
        Ok(true) => None,
        Ok(false) => attached(|py| slow(py, operation, arguments, made.as_ref()))?,
        Err(error) => attached(|_| Err(error.raised()))?,
    };
    for at in &operation.written {
        arguments.get(*at).into_iter().flat_map(Argument::tensors).for_each(|tensor| tensor.written());
    }
    let value = match operation.returned {
        None => return Ok(None),
        Some(Returned::Int) => number.map(|number| number as u64),
        Some(Returned::Like(_)) => made.and_then(|made| made.another_value()),
        Some(Returned::Argument(at)) => match arguments.get(at) {
            Some(Argument::Tensor(tensor)) => tensor.another_value(),
            _ => None,
        },
    };
    value.map(Some).ok_or_else(|| "torch cannot take what the operator returns: see stderr".to_owned())
}

/// `work` with Python's lock; the words of what it raises.
fn attached<R>(work: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, String> {
    let done = Python::try_attach(|py| work(py).map_err(|error| words(py, &error)));
    done.unwrap_or_else(|| Err("the interpreter is going away".to_owned()))
}

/// Python's function, on tensors of the same memory.
fn slow(
    py: Python<'_>,
    operation: &Operation,
    arguments: &[Argument],
    made: Option<&Arc<Tensor>>,
) -> PyResult<Option<i64>> {
    let made = made.map(|made| Argument::Tensor(Arc::clone(made)));
    let all = arguments.iter().chain(&made).map(|argument| argument.to_python(py));
    let result = operation.function.bind(py).call1(PyTuple::new(py, all.collect::<PyResult<Vec<_>>>()?)?)?;
    match operation.returned {
        Some(Returned::Int) => result.extract().map(Some),
        _ => Ok(None),
    }
}

/// The text of what was raised. A Ctrl-C is raised again, as soon as Python code runs.
fn words(py: Python<'_>, error: &PyErr) -> String {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: no preconditions; sets the flag that a signal sets.
        unsafe { pyo3::ffi::PyErr_SetInterrupt() };
        return "interrupted".to_owned();
    }
    let text = error.value(py).to_string();
    if text.is_empty() { error.to_string() } else { text }
}
