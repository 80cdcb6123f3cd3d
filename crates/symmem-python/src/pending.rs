//! `Pending`: an operation that was started, to be tested, waited for or awaited.
//!
//! Anything that starts operations makes one from a [`Running`], mostly a [`Started`] around what the Rust
//! library gives. Nobody polls: the operation's end rings the [`Bell`], which wakes threads and event loops.
//! An operation that cannot ring ([`Running::sleeper`]) is slept for by whoever waits, or by a thread where
//! an event loop does.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use symmem::erased::ErasedBuffer;
use symmem::{DType, Error};

use crate::error::{invalid, raise};
use crate::exit;
use crate::operand::{Operand, Place};

/// The longest sleep between two looks at Python's signals.
const TICK: Duration = Duration::from_millis(20);
/// The longest sleep of a thread that waits for nothing else.
const LONG_TICK: Duration = Duration::from_secs(1);

/// What [`Running::sleeper`] gives. Called without the interpreter.
pub(crate) type Sleeper = Arc<dyn Fn(Duration) -> bool + Send + Sync>;

/// An operation under way.
pub(crate) trait Running: Send {
    /// Whether it has ended. If not, `waker` is woken when it has; only the last one is.
    fn poll(&mut self, waker: &Waker) -> bool;

    /// For an operation that wakes nobody: what sleeps for at most so long until it has ended, and says
    /// whether it has.
    fn sleeper(&self) -> Option<Sleeper> {
        None
    }

    /// Its result, once it has ended.
    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// A started operation of the Rust library, and what makes Python's result of its own.
pub(crate) struct Started<R, F> {
    pending: symmem::Pending<R>,
    result: Option<symmem::Result<R>>,
    finish: F,
}

impl<R, F> Started<R, F>
where
    R: Send + 'static,
    F: FnOnce(Python<'_>, R) -> PyResult<Py<PyAny>> + Send + 'static,
{
    /// `pending`, whose result `finish` turns into Python's.
    pub(crate) fn boxed(pending: symmem::Pending<R>, finish: F) -> Box<dyn Running> {
        Box::new(Self { pending, result: None, finish })
    }
}

impl<R, F> Running for Started<R, F>
where
    R: Send,
    F: FnOnce(Python<'_>, R) -> PyResult<Py<PyAny>> + Send,
{
    fn poll(&mut self, waker: &Waker) -> bool {
        if self.result.is_some() {
            return true;
        }
        if let Poll::Ready(result) = Pin::new(&mut self.pending).poll(&mut Context::from_waker(waker)) {
            self.result = Some(result);
        }
        self.result.is_some()
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(result) = self.result else {
            return Err(invalid("Pending", "it has not ended yet"));
        };
        (self.finish)(py, result.map_err(raise)?)
    }
}

/// Rung once, when the operation ends.
#[derive(Default)]
struct Bell {
    state: Mutex<Rung>,
    rang: Condvar,
}

#[derive(Default)]
struct Rung {
    rung: bool,
    /// Whom to call then: the event loop, and the arguments of its `call_soon_threadsafe`.
    loops: Vec<(Py<PyAny>, Py<Pending>, Py<PyAny>)>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Rung> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until it rings, for at most `slice`.
    fn sleep(&self, slice: Duration) {
        let state = self.lock();
        if !state.rung {
            let _ = self.rang.wait_timeout(state, slice);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        state.rung = true;
        let loops = std::mem::take(&mut state.loops);
        drop(state);
        self.rang.notify_all();
        if loops.is_empty() {
            return;
        }
        // An interpreter that is shutting down has no event loop to wake either.
        exit::attach(|py| {
            for (event_loop, pending, future) in loops {
                // A loop that was closed meanwhile has nobody to tell.
                let _ = notify(py, &event_loop, &pending, &future);
            }
        });
    }
}

/// Has `future` resolved on the thread of its event loop.
fn notify(py: Python<'_>, event_loop: &Py<PyAny>, pending: &Py<Pending>, future: &Py<PyAny>) -> PyResult<()> {
    let resolve = pending.bind(py).getattr("_resolve")?;
    event_loop.bind(py).call_method1("call_soon_threadsafe", (resolve, future)).map(drop)
}

enum PendingState {
    Running(Box<dyn Running>),
    /// A thread is making the result.
    Ending,
    Ended(PyResult<Py<PyAny>>),
}

/// An operation that was started and may still be running. Made by the `..._start` forms, `isend` and
/// `irecv`.
///
/// Dropping it does not stop the operation, for the peers count on it.
///
///     pending = mem.all_reduce_start()
///     ...                      # something else meanwhile
///     pending.wait()           # or: await pending
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct Pending {
    state: Mutex<PendingState>,
    bell: Arc<Bell>,
    sleeper: Option<Sleeper>,
}

impl Pending {
    /// A pending for `running`.
    pub(crate) fn new(running: Box<dyn Running>) -> Self {
        let sleeper = running.sleeper();
        let pending =
            Self { state: Mutex::new(PendingState::Running(running)), bell: Arc::default(), sleeper };
        pending.poll();
        pending
    }

    /// A pending for a collective whose output, if it `lands`, goes to `result`: an array that is not touched
    /// before the end.
    pub(crate) fn landing(
        pending: symmem::Pending<ErasedBuffer>,
        dtype: DType,
        lands: bool,
        result: Py<PyAny>,
    ) -> Self {
        Self::new(Started::boxed(pending, move |py, data| {
            if lands {
                land(result.bind(py), dtype, &data)?;
            }
            Ok(result)
        }))
    }

    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the operation has ended; if not, the bell rings when it has.
    fn poll(&self) -> bool {
        match &mut *self.lock() {
            PendingState::Running(running) => running.poll(&Waker::from(Arc::clone(&self.bell))),
            PendingState::Ending => false,
            PendingState::Ended(_) => true,
        }
    }

    /// Sleeps for at most `slice` until the operation has ended.
    fn sleep(&self, slice: Duration) {
        match &self.sleeper {
            None => self.bell.sleep(slice),
            Some(sleep) => {
                sleep(slice);
            }
        }
    }

    /// Has the bell rung by a thread, for an operation that cannot.
    fn ring_later(&self) -> PyResult<()> {
        let Some(sleep) = self.sleeper.clone() else { return Ok(()) };
        let bell = Arc::clone(&self.bell);
        let thread = thread::Builder::new().name("symmem await".to_owned()).spawn(move || {
            while !sleep(LONG_TICK) {}
            bell.wake();
        });
        let hint = "is there a limit on threads?";
        let failed =
            |source| raise(Error::Sys { call: "starting a thread to await an operation", source, hint });
        thread.map(drop).map_err(failed)
    }

    /// The result, if the operation has ended. Made once; later calls give the same.
    fn take(&self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        if !self.poll() {
            return None;
        }
        let state = std::mem::replace(&mut *self.lock(), PendingState::Ending);
        let ended = match state {
            // Without the lock: what makes the result may let other threads run.
            PendingState::Running(running) => running.finish(py),
            PendingState::Ended(ended) => ended,
            PendingState::Ending => return None,
        };
        let copy = match &ended {
            Ok(result) => Ok(result.clone_ref(py)),
            Err(error) => Err(error.clone_ref(py)),
        };
        *self.lock() = PendingState::Ended(ended);
        Some(copy)
    }
}

/// Copies what a started operation gave into the output it was asked for.
fn land(object: &Bound<'_, PyAny>, dtype: DType, data: &[u8]) -> PyResult<()> {
    // Looked at again: Python may have changed the object since the start.
    let out = Operand::any_output(object)?;
    if out.bytes() != data.len() || out.dtype != dtype || out.device != Place::Cpu {
        return Err(invalid("out", "it was changed while the operation was running"));
    }
    // SAFETY: on the CPU, writable; nobody reads it who does not race with the operation.
    unsafe { out.bytes_of_mut() }.copy_from_slice(data);
    out.land()
}

/// `symmem.Timeout` with this text.
pub(crate) fn timed_out(py: Python<'_>, text: String) -> PyErr {
    let class = py.import("symmem._symmem").and_then(|module| module.getattr("Timeout"));
    match class.and_then(|class| class.call1((text.clone(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyTimeoutError::new_err(text),
    }
}

#[pymethods]
impl Pending {
    /// Whether the operation has ended, so that `wait` returns at once. Never blocks.
    fn test(&self) -> bool {
        self.poll()
    }

    /// Waits until the operation has ended, and returns what the blocking form returns, or raises what it
    /// raises.
    ///
    /// `timeout_ms=0` waits as long as the operation itself may take. When a longer wait ends with `Timeout`,
    /// or with KeyboardInterrupt, the operation goes on and can be waited for again.
    #[pyo3(signature = (timeout_ms = 0))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Py<PyAny>> {
        let deadline = (timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(timeout_ms));
        loop {
            if let Some(result) = self.take(py) {
                return result;
            }
            let left = deadline.map_or(TICK, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let text = format!(
                    "Pending.wait: the operation has not ended within {timeout_ms} ms. It goes on; wait again"
                );
                return Err(timed_out(py, text));
            }
            py.detach(|| self.sleep(left.min(TICK)));
            py.check_signals()?;
        }
    }

    /// `await pending` is `pending.wait()` that lets the event loop run meanwhile.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        let this = slf.get();
        let mut state = this.bell.lock();
        if state.rung || this.poll() {
            drop(state);
            this.resolve(&future)?;
        } else {
            let watcher = (event_loop.unbind(), slf.clone().unbind(), future.clone().unbind());
            state.loops.push(watcher);
            drop(state);
            this.ring_later()?;
        }
        future.call_method0("__await__")
    }

    /// Gives `future` the result of the operation, which has ended. Called by the event loop.
    #[pyo3(name = "_resolve")]
    fn resolve(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match self.wait(py, 0) {
            Ok(result) => future.call_method1("set_result", (result,)),
            Err(error) => future.call_method1("set_exception", (error,)),
        }
        .map(drop)
    }

    fn __repr__(&self) -> &'static str {
        if self.poll() { "<symmem.Pending: ended>" } else { "<symmem.Pending: running>" }
    }
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pending>()
}
