//! Taking the interpreter on threads that Python did not start.
//!
//! An interpreter that shuts down ends such a thread where it stands when it asks for the interpreter, before
//! Python 3.14 by unwinding it, which no Rust frame survives: the process aborts. So these threads ask
//! through [`attach`]. At exit, before anything is taken down, Python waits until the last one is out, and
//! nobody comes in after that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the exit waits for threads that are inside: what they do is short, unless a user's store makes it
/// long.
const PATIENCE: Duration = Duration::from_secs(2);

static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread that is inside.
struct Inside;

impl Inside {
    fn enter() -> Option<Self> {
        // Counted before it looks, so that an exit which did not see it counted is one that it sees.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self;
        (!CLOSED.load(Ordering::SeqCst)).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `f` with the interpreter; `None` if that is going away.
pub(crate) fn attach<R>(f: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _inside = Inside::enter()?;
    Python::try_attach(f)
}

/// Called by Python at exit.
#[pyfunction]
fn _exit(py: Python<'_>) {
    CLOSED.store(true, Ordering::SeqCst);
    py.detach(|| {
        let deadline = Instant::now() + PATIENCE;
        while INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let exit = wrap_pyfunction!(_exit, module)?;
    module.py().import("atexit")?.call_method1("register", (exit,)).map(drop)
}
