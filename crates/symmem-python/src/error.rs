//! The exceptions: one Python class per variant of [`symmem::Error`], defined in `exceptions.py`.
//!
//! Everything else in this crate raises through [`raise`] or [`invalid`]. The text of an exception is the
//! error's, with Python's names (`words`); what the error knows besides is in attributes.

use std::ffi::CString;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use symmem::Error;
use symmem::store::StoreError;

use crate::words;

static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// The exception of `error`: the class named like its variant, with its attributes, and its text.
#[cold]
pub(crate) fn raise(error: Error) -> PyErr {
    raise_ref(&error)
}

/// [`raise`] for an error that others want too.
#[cold]
pub(crate) fn raise_ref(error: &Error) -> PyErr {
    Python::attach(|py| exception(py, error).unwrap_or_else(|failure| failure))
}

/// `symmem.Invalid`: the argument `what` cannot be right.
#[cold]
pub(crate) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> PyErr {
    raise(Error::Invalid { what: what.into(), problem: problem.into() })
}

/// `symmem.Invalid` with exactly this text, for checks whose words are another library's.
#[cold]
pub(crate) fn refused(text: impl Into<String>) -> PyErr {
    worded("Invalid", text.into())
}

fn worded(class: &str, text: String) -> PyErr {
    Python::attach(|py| match made(py, class, &text) {
        Ok(Some(exception)) => PyErr::from_value(exception),
        Ok(None) => PyRuntimeError::new_err(text),
        Err(failure) => failure,
    })
}

/// Whether `error` is one of symmem's own, and not what a signal handler raised.
#[cold]
pub(crate) fn is_own(py: Python<'_>, error: &PyErr) -> bool {
    let of_class = || error.value(py).is_instance(&CLASSES.get(py)?.bind(py).get_item("Error").ok()??).ok();
    of_class().unwrap_or(false)
}

/// `symmem.Mismatch` with this text, for what the bindings compare themselves.
#[cold]
pub(crate) fn mismatched(text: String) -> PyErr {
    worded("Mismatch", text)
}

/// `symmem.Busy` of the call `op`, for what one call of a rank has for itself.
#[cold]
pub(crate) fn busy(op: &'static str, group: &str, (rank, world): (usize, usize)) -> PyErr {
    let text = format!(
        "{op} on group {group:?} (rank {rank} of {world}): another thread of this rank is inside an operation of this group. \
         Hint: use group.clone() for a parallel stream of operations"
    );
    let error = worded("Busy", text);
    let described = Python::attach(|py| {
        let exception = error.value(py);
        exception.setattr("op", words::operation(op))?;
        exception.setattr("group", group)?;
        exception.setattr("rank", rank)?;
        exception.setattr("world_size", world)
    });
    described.map_or_else(|failure| failure, |()| error)
}

/// [`raise`] for the call that the user made, where the library names a step of it.
#[cold]
pub(crate) fn raise_as(call: &'static str, mut error: Error) -> PyErr {
    if let Error::Closed { op }
    | Error::NothingBrought { op, .. }
    | Error::Forked { op }
    | Error::OutOfBounds { op, .. }
    | Error::RankOutOfRange { op, .. }
    | Error::NotLocal { op, .. } = &mut error
    {
        *op = call;
    }
    raise(error)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let text = text_of(error);
    let Some(exception) = made(py, class_of(error), &text)? else {
        return Ok(PyRuntimeError::new_err(text));
    };
    describe(&exception, error)?;
    Ok(PyErr::from_value(exception))
}

/// The error's text in the words of Python, also where it has another rank's words in it.
fn text_of(error: &Error) -> String {
    let text = error.to_string();
    let text = match error {
        Error::Mismatch { .. } => words::of_calls(&text),
        Error::Rank { message, .. } if !message.is_empty() => {
            text.replace(message, &words::in_python(message))
        }
        _ => text,
    };
    words::in_python(&text)
}

/// An exception of a class; none while the module is being made.
fn made<'py>(py: Python<'py>, class: &str, text: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(classes) = CLASSES.get(py) else { return Ok(None) };
    classes.bind(py).as_any().get_item(class)?.call1((text,)).map(Some)
}

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Timeout { .. } => "Timeout",
        Error::Cancelled { .. } => "Cancelled",
        Error::PeerLost { .. } => "PeerLost",
        Error::PeerLeft { .. } => "PeerLeft",
        Error::GroupFailed { .. } => "GroupFailed",
        Error::Mismatch { .. } | Error::MessageSize { .. } => "Mismatch",
        Error::Rank { .. } => "RankFailed",
        Error::Unproven { .. } => "Unproven",
        Error::Busy { .. } => "Busy",
        Error::Borrowed { .. } => "Borrowed",
        Error::Poisoned { .. } => "Poisoned",
        Error::Closed { .. } => "Closed",
        Error::NothingBrought { .. } => "NothingBrought",
        Error::NotShared { .. } => "NotShared",
        Error::Forked { .. } => "Forked",
        Error::OutOfMemory { .. } => "OutOfMemory",
        Error::RankOutOfRange { .. } => "RankOutOfRange",
        Error::ChannelOutOfRange { .. } => "ChannelOutOfRange",
        Error::OutOfBounds { .. } => "OutOfBounds",
        Error::Invalid { .. } => "Invalid",
        Error::Persistent { .. } => "Persistent",
        Error::NotLocal { .. } => "NotLocal",
        Error::Store(error) => class_of_store(error),
        Error::Channel { .. } => "ChannelFailed",
        Error::Sys { .. } => "SystemFailed",
        Error::NoCuda { .. } => "NoCuda",
        Error::Cuda { .. } => "CudaFailed",
        Error::OverlappingDevices { .. } => "OverlappingDevices",
        Error::NoPeerAccess { .. } => "NoPeerAccess",
        Error::NoMulticast { .. } => "NoMulticast",
        Error::Device { .. } => "DeviceFailed",
        Error::NoLibrary { .. } => "NoLibrary",
        Error::LibraryTooOld { .. } => "LibraryTooOld",
        Error::Library { .. } => "LibraryFailed",
        Error::Spawned { .. } => "Spawned",
        _ => "Error",
    }
}

fn class_of_store(error: &StoreError) -> &'static str {
    match error {
        StoreError::Timeout { .. } | StoreError::Unreachable { .. } | StoreError::ClientsMissing { .. } => {
            "StoreTimeout"
        }
        StoreError::Cancelled { .. } => "Cancelled",
        StoreError::QueueEmpty { .. } => "QueueEmpty",
        _ => "StoreFailed",
    }
}

/// Sets the attributes of `exception`.
fn describe(exception: &Bound<'_, PyAny>, error: &Error) -> PyResult<()> {
    if let Some(context) = error.context() {
        exception.setattr("op", words::operation(context.op))?;
        exception.setattr("group", &context.group)?;
        exception.setattr("rank", context.rank)?;
        exception.setattr("world_size", context.world)?;
    }
    if let Some(op) = op_of(error) {
        exception.setattr("op", words::operation(op))?;
    }
    if let Some(culprit) = error.culprit() {
        exception.setattr("culprit", culprit)?;
    }
    if error.is_group_failure() {
        exception.setattr("is_group_failure", true)?;
    }
    match error {
        Error::Timeout { missing, .. } => exception.setattr("missing", missing.as_slice()),
        Error::Unproven { ranks, .. } | Error::NothingBrought { ranks, .. } => {
            exception.setattr("ranks", ranks.as_slice())
        }
        Error::PeerLost { pid, .. } => exception.setattr("pid", pid),
        // Raised by that rank, and only delivered by the launcher.
        Error::Spawned { rank, .. } => exception.setattr("rank", rank),
        Error::RankOutOfRange { rank, .. } => exception.setattr("given", rank),
        Error::Channel { rank, .. } | Error::NoPeerAccess { rank, .. } => exception.setattr("culprit", rank),
        Error::GroupFailed { cause, .. } | Error::Device { cause, .. } => {
            exception.setattr("cause", cause.to_string())
        }
        Error::Sys { source, .. } => exception.setattr("errno", source.raw_os_error()),
        Error::Cuda { code, .. } => exception.setattr("code", code),
        Error::NoLibrary { library, .. } | Error::LibraryTooOld { library, .. } => {
            exception.setattr("library", library)
        }
        Error::Library { library, code, .. } => {
            exception.setattr("library", library)?;
            exception.setattr("code", code)
        }
        _ => Ok(()),
    }
}

fn op_of(error: &Error) -> Option<&'static str> {
    match error {
        Error::Borrowed { op, .. }
        | Error::Poisoned { op, .. }
        | Error::Closed { op }
        | Error::NothingBrought { op, .. }
        | Error::Forked { op }
        | Error::RankOutOfRange { op, .. }
        | Error::ChannelOutOfRange { op, .. }
        | Error::OutOfBounds { op, .. }
        | Error::NotLocal { op, .. } => Some(op),
        _ => None,
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let source = CString::new(include_str!("exceptions.py"))?;
    let classes = PyDict::new(py);
    // The classes are users' by this name, also in tracebacks and pickles.
    classes.set_item("__name__", "symmem")?;
    py.run(&source, Some(&classes), None)?;
    let names: Vec<String> = classes.as_any().get_item("__all__")?.extract()?;
    for name in names {
        module.add(&*name, classes.as_any().get_item(&name)?)?;
    }
    CLASSES.get_or_init(py, || classes.unbind());
    Ok(())
}
