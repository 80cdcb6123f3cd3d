//! What is wrong with this rank's arguments of a collective is told to the other ranks before it is raised
//! here.
//!
//! Used by everything of this crate that checks arguments before the library does, which tells by itself. The
//! others, who make the call, raise `RankFailed` with this rank's words instead of waiting for it.

use pyo3::prelude::*;
use symmem::{CancelToken, Error};

use crate::group::Membership;
use crate::interrupt::blocking;
use crate::operand::{Operand, Place};
use crate::pending::{Pending, Started};

/// The text of an exception, as the others read it.
pub(crate) fn words(py: Python<'_>, error: &PyErr) -> String {
    error.value(py).to_string()
}

/// Tells the other ranks of `group` about `error`, in place of the call that they make; what to raise:
/// `error`, or what was still to be said about an operation before, or what a signal handler raised
/// meanwhile.
#[cold]
pub(crate) fn tell(py: Python<'_>, group: &symmem::Group, error: PyErr) -> PyErr {
    let words = words(py, &error);
    match blocking(py, || Ok(group.refuse(&words))) {
        Ok(Err(earlier @ (Error::Rank { .. } | Error::Mismatch { .. }))) => crate::error::raise(earlier),
        Ok(_) => error,
        Err(interruption) => interruption,
    }
}

impl Membership {
    /// What this rank brings to a collective on host memory; what is wrong with it is told to the others.
    #[inline]
    pub(crate) fn told<R>(&self, py: Python<'_>, timeout_ms: u64, brought: PyResult<R>) -> PyResult<R> {
        match brought {
            Ok(brought) => Ok(brought),
            Err(error) => Err(self.refuse(py, timeout_ms, error)),
        }
    }

    /// Tells the others about `error` in place of a collective on host memory; what to raise.
    #[cold]
    pub(crate) fn refuse(&self, py: Python<'_>, timeout_ms: u64, error: PyErr) -> PyErr {
        match self.group("refusal", timeout_ms) {
            // Across machines such a collective is an error everywhere, and nobody waits.
            Ok(group) if group.is_local() => tell(py, &group, error),
            _ => error,
        }
    }

    /// The same in place of a started collective: in its turn, and raised when the others have been told.
    #[cold]
    pub(crate) fn refuse_started(&self, py: Python<'_>, timeout_ms: u64, error: PyErr) -> PyErr {
        let Ok(group) = self.group("refusal", timeout_ms) else { return error };
        if !group.is_local() {
            return error;
        }
        // Ctrl-C ends waiting for the operation, not the operation.
        let started = group.cancelled_by(&CancelToken::new()).start().refuse(&words(py, &error));
        let Ok(pending) = started else { return error };
        let pending = Pending::new(Started::boxed(pending, |py, ()| Ok(py.None())));
        match pending.wait(py, 0) {
            Err(raised) if raised.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) => raised,
            _ => error,
        }
    }

    /// Whether the others, who make a call with an array like `x`, make it in host memory, as far as can be
    /// known.
    pub(crate) fn is_on_host(&self, x: &Bound<'_, PyAny>) -> bool {
        match Operand::any(x) {
            Ok(operand) if operand.device == Place::Cpu => true,
            // Nobody can have put anything on a device before the group had one.
            _ => self.engines().is_empty(),
        }
    }
}
