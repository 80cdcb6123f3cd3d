//! `Context`: the state that belongs to a rank rather than to the process.
//!
//! Allocations come from a context. Which one is current is per thread, because threads can be ranks: what
//! `with group:` or `with context:` entered on this thread, else the one of the process.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use symmem::RankContext;
use symmem::cuda::{self, Provider};

use crate::backend;
use crate::error::raise;
use crate::operand::Place;

/// The process' own context, made when it is first asked for.
static PROCESS: Mutex<Option<RankContext>> = Mutex::new(None);

thread_local! {
    static ENTERED: RefCell<Vec<RankContext>> = const { RefCell::new(Vec::new()) };
}

/// A rank's own state: signal pad size, backends, persistent allocations. Threads that are ranks have one
/// each.
///
/// >>> import symmem
/// >>> context = symmem.current_context()
/// >>> context.get_backend("cpu")
/// 'SHM'
#[pyclass(frozen, weakref, name = "Context", module = "symmem")]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) inner: RankContext,
}

#[pymethods]
impl Context {
    /// A context of its own, with the configuration of the environment.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let inner = RankContext::from_env().map_err(raise)?;
        warn(py, &inner);
        Ok(Self { inner })
    }

    /// Bytes of the signal pads of later allocations.
    #[getter]
    fn signal_pad_size(&self) -> usize {
        self.inner.signal_pad_size()
    }

    /// Sets the bytes of the signal pads of later allocations: a multiple of 8, at most 2**30.
    fn set_signal_pad_size(&self, bytes: usize) -> PyResult<()> {
        self.inner.set_signal_pad_size(bytes).map_err(raise)
    }

    /// The backend for memory on `device` ("cpu", "cuda" or "cuda:N"), None for a device that has none.
    #[pyo3(signature = (device = None))]
    fn get_backend(&self, device: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
        let Some(device) = device else { return Ok(Some(backend::HOST.to_owned())) };
        let text = device.str()?;
        let kind = text.to_str()?.split(':').next().unwrap_or_default();
        Ok(match kind {
            "cpu" => Some(backend::HOST.to_owned()),
            "cuda" => Some(backend::name(self.inner.device_provider())),
            _ => None,
        })
    }

    /// Chooses a backend by name: "CUDA" or "NCCL" for memory of GPUs, before the first of it is made; "SHM"
    /// is the CPU's only one.
    fn set_backend(&self, name: &str) -> PyResult<()> {
        match backend::parse("set_backend", name)? {
            Some(provider) => self.inner.set_device_provider(provider).map_err(raise),
            None => Ok(()),
        }
    }

    /// Whether `device` has addresses that reach all ranks at once.
    fn has_multicast_support(&self, device: &Bound<'_, PyAny>) -> PyResult<bool> {
        match Place::parse(device)? {
            Place::Cpu => Ok(self.inner.has_multicast_support()),
            Place::Cuda(_) if !uses_multicast(&self.inner) => Ok(false),
            Place::Cuda(ordinal) => Ok(symmem::cuda::Device::new(ordinal as usize)
                .map(|device| device.has_multicast())
                .unwrap_or(false)),
        }
    }

    /// Forgets the persistent allocation `alloc_id`; its memory goes when its last array does. True if there
    /// was one.
    fn release_persistent(&self, alloc_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.inner.release_persistent(alloc_id.str()?.to_str()?))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        enter(&slf.get().inner);
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        leave(&self.inner);
    }

    fn __repr__(&self) -> String {
        format!("Context(signal_pad_size={})", self.inner.signal_pad_size())
    }
}

/// Makes `context` the current one of this thread, until [`leave`].
pub(crate) fn enter(context: &RankContext) {
    ENTERED.with_borrow_mut(|entered| entered.push(context.clone()));
}

/// Ends the innermost [`enter`] of `context` on this thread; blocks may end in another order than they began.
fn leave(context: &RankContext) {
    // The configuration is part of what all copies of a context share, so its address says which one it is.
    let is_it = |entered: &RankContext| ptr::eq(entered.config(), context.config());
    let _left = ENTERED.with_borrow_mut(|entered| {
        let at = entered.iter().rposition(is_it)?;
        Some(entered.remove(at))
    });
}

/// The context of the calling thread.
pub(crate) fn current(py: Python<'_>) -> PyResult<RankContext> {
    let context = current_quietly().map_err(raise)?;
    // Runs Python, so without the lock.
    warn(py, &context);
    Ok(context)
}

/// [`current`] for callers that may not have the interpreter.
pub(crate) fn current_quietly() -> symmem::Result<RankContext> {
    if let Some(context) = ENTERED.with_borrow(|entered| entered.last().cloned()) {
        return Ok(context);
    }
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    match &*process {
        Some(context) => Ok(context.clone()),
        None => Ok(process.insert(RankContext::from_env()?).clone()),
    }
}

/// Whether memory is mapped for multicast where a device can: unless the environment says not to.
pub(crate) fn uses_multicast(context: &RankContext) -> bool {
    let rows = context.config().rows();
    rows.iter().all(|row| row.variable != "SYMMEM_MULTICAST" || row.value == "true")
}

/// Tells the logger "symmem", once, of variables that are named like settings and mean nothing. Logs of
/// warnings are seen unless the program says otherwise. What goes wrong with that is nobody's concern here.
fn warn(py: Python<'_>, context: &RankContext) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let say = |unknown: String| {
        let log = py.import("logging")?.call_method1("getLogger", ("symmem",))?;
        log.call_method1("warning", ("%s", unknown))
    };
    context.config().unknown_variables().into_iter().for_each(|unknown| drop(say(unknown)));
}

/// The context that `empty` allocates from on this thread.
#[pyfunction]
fn current_context(py: Python<'_>) -> PyResult<Context> {
    Ok(Context { inner: current(py)? })
}

/// Heeds `TORCH_SYMMMEM`, which `name` is the value of: chooses a backend for memory of GPUs, where the
/// caller is about to use one, unless the program or `SYMMEM_PROVIDER` did. A name that is none is an error
/// anyway.
#[pyfunction]
fn _prefer_backend(py: Python<'_>, name: &str, on_gpu: bool) -> PyResult<()> {
    // The host's provider says nothing of devices.
    let is_of_devices = |named: String| {
        named.trim().parse().map(Provider::place).is_ok_and(|place| place == cuda::PlaceKind::Device)
    };
    let is_named = std::env::var("SYMMEM_PROVIDER").is_ok_and(is_of_devices);
    match backend::parse("TORCH_SYMMMEM", name)? {
        Some(provider) if on_gpu && !is_named => current(py)?.prefer_device_provider(provider).map_err(raise),
        _ => Ok(()),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Context>()?;
    module.add_function(wrap_pyfunction!(_prefer_backend, module)?)?;
    module.add_function(wrap_pyfunction!(current_context, module)?)
}
