//! The Python classes of stores, with the methods of PyTorch's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use symmem::Deadline;
use symmem::store::{self, Result, TcpStoreOptions, Wait};

use super::from_python;
use crate::error::{invalid, raise};
use crate::interrupt::{blocking, token};

/// How long calls wait unless told otherwise, as in PyTorch.
const TIMEOUT: f64 = 300.0;

/// A shared map from strings to bytes, with blocking reads, counters and queues. The methods are those of
/// `torch.distributed.Store`; `timeout` is in seconds (or a timedelta), and 0 waits as long as it takes.
#[pyclass(frozen, subclass, weakref, module = "symmem")]
pub(crate) struct Store {
    inner: Arc<dyn store::Store>,
    timeout: Mutex<Duration>,
}

impl Store {
    pub(super) fn new(inner: Arc<dyn store::Store>) -> Self {
        Self { inner, timeout: Mutex::new(Duration::from_secs_f64(TIMEOUT)) }
    }

    fn base(inner: Arc<dyn store::Store>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Self::new(inner))
    }

    pub(super) fn inner(&self) -> Arc<dyn store::Store> {
        Arc::clone(&self.inner)
    }

    fn within(self, timeout: Duration) -> Self {
        Self { timeout: Mutex::new(timeout), ..self }
    }

    fn patience(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` with the store's timeout.
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn store::Store, &Wait<'_>) -> Result<R> + Send,
    ) -> PyResult<R> {
        waiting(py, self.patience(), |wait| call(&*self.inner, wait))
    }
}

/// Runs `call`, which may wait for `timeout`, without the interpreter.
fn waiting<R: Send>(
    py: Python<'_>,
    timeout: Duration,
    call: impl FnOnce(&Wait<'_>) -> Result<R> + Send,
) -> PyResult<R> {
    let token = token();
    blocking(py, || {
        let deadline = if timeout.is_zero() { Deadline::never() } else { Deadline::after(timeout) };
        Ok(call(&Wait::new(deadline).with_cancel(&token))?)
    })
}

/// Seconds, or a timedelta.
struct Seconds(Duration);

impl Default for Seconds {
    fn default() -> Self {
        Self(Duration::from_secs_f64(TIMEOUT))
    }
}

impl FromPyObject<'_, '_> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let seconds: f64 = match object.hasattr("total_seconds")? {
            true => object.call_method0("total_seconds")?.extract()?,
            false => object.extract()?,
        };
        let wrong = |_| invalid("timeout", format!("{seconds} is not a number of seconds from 0 on"));
        Duration::try_from_secs_f64(seconds).map(Self).map_err(wrong)
    }
}

/// The bytes of a value: bytes, or a string's UTF-8.
pub(super) struct Value(pub(super) Vec<u8>);

impl FromPyObject<'_, '_> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.cast::<PyString>() {
            Ok(text) => Ok(Self(text.to_str()?.as_bytes().to_vec())),
            Err(_) => Ok(Self(object.extract()?)),
        }
    }
}

fn names(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

#[pymethods]
impl Store {
    /// Sets `key` to `value`.
    fn set(&self, py: Python<'_>, key: &str, value: Value) -> PyResult<()> {
        self.call(py, |store, wait| store.set(key, &value.0, wait))
    }

    /// The value of `key`, waiting until somebody sets it.
    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.call(py, |store, wait| store.get(key, wait))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Adds `amount` to the counter at `key` (missing counts as 0) and returns the new value.
    fn add(&self, py: Python<'_>, key: &str, amount: i64) -> PyResult<i64> {
        self.call(py, |store, wait| store.add(key, amount, wait))
    }

    /// Stores `desired_value` if the value equals `expected_value` (or the key is missing and that is empty);
    /// returns what the key now holds.
    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        expected_value: Value,
        desired_value: Value,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value =
            self.call(py, |store, wait| store.compare_set(key, &expected_value.0, &desired_value.0, wait))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Deletes `key`; True if it existed.
    fn delete_key(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        self.call(py, |store, wait| store.delete(key, wait))
    }

    /// Waits until all `keys` exist.
    #[pyo3(signature = (keys, timeout = None))]
    fn wait(&self, py: Python<'_>, keys: Vec<String>, timeout: Option<Seconds>) -> PyResult<()> {
        let timeout = timeout.map_or_else(|| self.patience(), |timeout| timeout.0);
        waiting(py, timeout, |wait| self.inner.wait(&names(&keys), wait))
    }

    /// Whether all `keys` exist now.
    fn check(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<bool> {
        self.call(py, |store, wait| store.check(&names(&keys), wait))
    }

    /// Number of keys, the store's own included.
    fn num_keys(&self, py: Python<'_>) -> PyResult<i64> {
        self.call(py, |store, wait| store.num_keys(wait))
    }

    /// All keys, as the store holds them.
    fn list_keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |store, wait| store.list_keys(wait))
    }

    /// Appends to the value of `key` (missing counts as empty).
    fn append(&self, py: Python<'_>, key: &str, value: Value) -> PyResult<()> {
        self.call(py, |store, wait| store.append(key, &value.0, wait))
    }

    /// The values of `keys` in order, waiting until all exist.
    fn multi_get<'py>(&self, py: Python<'py>, keys: Vec<String>) -> PyResult<Bound<'py, PyList>> {
        let values = self.call(py, |store, wait| store.multi_get(&names(&keys), wait))?;
        PyList::new(py, values.iter().map(|value| PyBytes::new(py, value)))
    }

    /// Sets several keys.
    fn multi_set(&self, py: Python<'_>, keys: Vec<String>, values: Vec<Value>) -> PyResult<()> {
        if keys.len() != values.len() {
            return Err(invalid("multi_set", format!("{} keys, but {} values", keys.len(), values.len())));
        }
        let pairs: Vec<(&str, &[u8])> =
            keys.iter().zip(&values).map(|(key, value)| (key.as_str(), &value.0[..])).collect();
        self.call(py, |store, wait| store.multi_set(&pairs, wait))
    }

    /// Pushes onto the queue `key`.
    fn queue_push(&self, py: Python<'_>, key: &str, value: Value) -> PyResult<()> {
        self.call(py, |store, wait| store.queue_push(key, &value.0, wait))
    }

    /// Pops the oldest value of the queue `key`, waiting for one if `block`; else an empty queue is
    /// `QueueEmpty`.
    #[pyo3(signature = (key, block = true))]
    fn queue_pop<'py>(&self, py: Python<'py>, key: &str, block: bool) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.call(py, |store, wait| store.queue_pop(key, block, wait))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Length of the queue `key`.
    fn queue_len(&self, py: Python<'_>, key: &str) -> PyResult<i64> {
        self.call(py, |store, wait| store.queue_len(key, wait))
    }

    /// Whether `append`, `multi_get` and `multi_set` are there. They are.
    fn has_extended_api(&self) -> bool {
        true
    }

    /// How long calls wait, in seconds; 0 is as long as it takes.
    #[getter]
    fn timeout(&self) -> f64 {
        self.patience().as_secs_f64()
    }

    /// Sets how long calls wait.
    fn set_timeout(&self, timeout: Seconds) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout.0;
    }

    /// A second, independent connection to the same store.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let inner = blocking(py, || Ok(self.inner.try_clone()?))?;
        Ok(Self::new(inner).within(self.patience()))
    }

    fn __repr__(&self) -> String {
        format!("Store(timeout={})", self.patience().as_secs_f64())
    }
}

/// A store for the threads of one process.
///
///     store = symmem.HashStore()
///     store.set("colour", "green")
///     assert store.get("colour") == b"green"
#[pyclass(frozen, extends = Store, module = "symmem")]
pub(super) struct HashStore;

#[pymethods]
impl HashStore {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        Store::base(Arc::new(store::HashStore::new())).add_subclass(Self)
    }

    fn __repr__(&self) -> &'static str {
        "HashStore()"
    }
}

/// A store for processes of one user that see one file, in the format of PyTorch's FileStore. The file is
/// that user's only (mode 0600): one that is wider is narrowed, and one of another user is refused. With
/// `num_workers` the last of so many stores removes the file when it goes.
#[pyclass(frozen, extends = Store, module = "symmem")]
pub(super) struct FileStore {
    path: PathBuf,
}

#[pymethods]
impl FileStore {
    #[new]
    #[pyo3(signature = (path, num_workers = None))]
    fn new(py: Python<'_>, path: PathBuf, num_workers: Option<i64>) -> PyResult<PyClassInitializer<Self>> {
        let workers = num_workers.and_then(|workers| usize::try_from(workers).ok());
        let timeout = Duration::from_secs_f64(TIMEOUT);
        let store = waiting(py, timeout, |wait| store::FileStore::open(path.clone(), workers, wait))?;
        Ok(Store::base(Arc::new(store)).add_subclass(Self { path }))
    }

    /// The file.
    #[getter]
    fn path(&self) -> &PathBuf {
        &self.path
    }

    fn __repr__(&self) -> String {
        format!("FileStore({:?})", self.path)
    }
}

/// A part of another store: every key gets `prefix/` before it.
#[pyclass(frozen, extends = Store, module = "symmem")]
pub(super) struct PrefixStore {
    underlying: Py<PyAny>,
    prefix: String,
}

#[pymethods]
impl PrefixStore {
    #[new]
    fn new(prefix: String, store: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let inner = store::PrefixStore::new(prefix.clone(), from_python(store)?);
        let part = Self { underlying: store.clone().unbind(), prefix };
        Ok(Store::base(Arc::new(inner)).add_subclass(part))
    }

    /// The store underneath.
    #[getter]
    fn underlying_store(&self, py: Python<'_>) -> Py<PyAny> {
        self.underlying.clone_ref(py)
    }

    /// What comes before every key.
    #[getter]
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("PrefixStore({:?}, {})", self.prefix, self.underlying.bind(py).repr()?))
    }
}

/// The address to serve at that the environment names.
fn bind_from_env() -> PyResult<Option<String>> {
    let config = symmem::Config::from_env().map_err(raise)?;
    Ok(config.get_store_bind().map(str::to_owned))
}

/// A store for processes on any machine, which one of them (`is_master`) serves, or a PyTorch program does.
///
/// The master listens on `host` and nowhere else; `bind`, or SYMMEM_STORE_BIND, names another address of its
/// machine, where the others reach it by one that it does not know (NAT, a container), and "*" is every
/// interface. Port 0 lets the master find one (`port` says which). With `world_size` the master waits until
/// so many have come, unless `wait_for_workers` is False.
///
///     store = symmem.TcpStore("127.0.0.1", 29500, is_master=rank == 0)
#[pyclass(frozen, extends = Store, module = "symmem")]
pub(super) struct TcpStore {
    host: String,
    port: u16,
    is_master: bool,
}

#[pymethods]
impl TcpStore {
    #[new]
    #[pyo3(signature = (host, port, is_master = false, world_size = None, timeout = Seconds::default(), wait_for_workers = true, bind = None))]
    #[expect(clippy::too_many_arguments, reason = "PyTorch's, and one more")]
    fn new(
        py: Python<'_>,
        host: String,
        port: u16,
        is_master: bool,
        world_size: Option<usize>,
        timeout: Seconds,
        wait_for_workers: bool,
        bind: Option<String>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let options = TcpStoreOptions {
            world_size,
            is_master,
            wait_for_workers,
            bind: if is_master && bind.is_none() { bind_from_env()? } else { bind },
            ..TcpStoreOptions::default()
        };
        let store = waiting(py, timeout.0, |wait| store::TcpStore::open(&host, port, &options, wait))?;
        let port = store.port();
        let base = PyClassInitializer::from(Store::new(Arc::new(store)).within(timeout.0));
        Ok(base.add_subclass(Self { host, port, is_master }))
    }

    /// Where the store is served.
    #[getter]
    fn host(&self) -> &str {
        &self.host
    }

    /// The port: the one given, or the one that a master found for 0.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Whether this one serves the store.
    #[getter]
    fn is_master(&self) -> bool {
        self.is_master
    }

    fn __repr__(&self) -> String {
        let master = if self.is_master { ", is_master=True" } else { "" };
        format!("TcpStore({:?}, {}{master})", self.host, self.port)
    }
}
