//! Waiting without the interpreter, and Ctrl-C.
//!
//! Everything that may wait for a peer runs inside [`blocking`]. Signals are Python's business: C sets a
//! flag, and the main thread runs the handler when it next looks. A wait looks through [`token`], which the
//! group carries, on the slow path only; so an operation that finds its peers there pays for nothing but
//! giving the interpreter up.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use symmem::CancelToken;

use crate::error::raise;

/// Waits are woken far more often than a person presses keys; asking takes the interpreter, which others may
/// need.
const BETWEEN_POLLS: Duration = Duration::from_millis(15);

thread_local! {
    /// Whether `RAISED` holds something: the only thing that a successful call looks at.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
    /// What a signal handler raised during the wait of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    static LAST_POLL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A token that is cancelled while a Python signal handler (Ctrl-C) wants the waiting call to end. Every
/// group made by the bindings carries it: `group.cancelled_by(&token())`. Waits under it belong inside
/// [`blocking`].
pub(crate) fn token() -> CancelToken {
    static TOKEN: OnceLock<CancelToken> = OnceLock::new();
    TOKEN.get_or_init(|| CancelToken::polled(signal_wants_out)).clone()
}

/// Runs `f`, which may block, without the interpreter; raises what it returns, or what a signal handler
/// raised meanwhile. That comes first even where `f` succeeded, because Python has already forgotten the
/// signal.
#[inline]
pub(crate) fn blocking<R: Send>(py: Python<'_>, f: impl FnOnce() -> symmem::Result<R> + Send) -> PyResult<R> {
    let result = py.detach(f);
    if INTERRUPTED.get() {
        return Err(interruption(result.err()));
    }
    result.map_err(raise)
}

/// What the signal handler raised, with the error of the call that it ended as context.
#[cold]
fn interruption(error: Option<symmem::Error>) -> PyErr {
    INTERRUPTED.set(false);
    match (RAISED.take(), error.map(raise)) {
        (Some(raised), Some(error)) => {
            Python::attach(|py| raised.set_context(py, Some(error)));
            raised
        }
        (Some(raised), None) => raised,
        (None, Some(error)) => error,
        (None, None) => crate::error::invalid("interrupt", "the signal's exception was lost"),
    }
}

/// Asked by a wait: runs pending signal handlers; true if one raised, until [`blocking`] has raised it.
fn signal_wants_out() -> bool {
    if INTERRUPTED.get() {
        return true;
    }
    if !is_main_thread() || !is_time() {
        return false;
    }
    // None: the interpreter is going away, and whoever waits in it with it.
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let interrupted = raised.is_some();
    if interrupted {
        RAISED.set(raised);
        INTERRUPTED.set(true);
    }
    interrupted
}

/// Keeps what a signal handler raised while the waiting call ran Python code: [`blocking`] raises it. False
/// on other threads than the main one, where no handler runs, and nobody may ever look.
pub(crate) fn hand_over(raised: PyErr) -> bool {
    let takes = is_main_thread();
    // The first one is why the call ends.
    if takes && !INTERRUPTED.replace(true) {
        RAISED.set(Some(raised));
    }
    takes
}

/// Python runs signal handlers on the main thread only, so the others need not ask.
fn is_main_thread() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() == libc::getpid() }
}

fn is_time() -> bool {
    let now = Instant::now();
    let due = LAST_POLL.get().is_none_or(|last| now.duration_since(last) >= BETWEEN_POLLS);
    if due {
        LAST_POLL.set(Some(now));
    }
    due
}
