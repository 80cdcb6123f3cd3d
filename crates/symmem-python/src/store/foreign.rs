//! Any Python object with the methods of PyTorch's stores, as a store of ours.
//!
//! The interpreter is taken for each call and given up in between. What may wait for a key is polled by
//! `check` instead of called with a long timeout, so that deadlines, cancellation and watches hold as for our
//! own stores.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use symmem::store::{Interrupt, Result, Store, StoreError, Wait};

use super::class::Value;
use crate::exit;
use crate::interrupt;

/// The methods without which nothing works.
const NEEDED: [&str; 4] = ["set", "get", "check", "add"];
/// Time between two looks for a key: short at first, for most waits are.
const FIRST_NAP: Duration = Duration::from_micros(200);
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// A store that is a Python object.
pub(super) struct Foreign {
    object: Py<PyAny>,
    /// What it is, for messages.
    name: String,
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Foreign").field(&self.name).finish()
    }
}

/// What ends a poll.
enum Fault {
    Interrupt(Interrupt),
    Error(StoreError),
}

impl From<Interrupt> for Fault {
    fn from(interrupt: Interrupt) -> Self {
        Self::Interrupt(interrupt)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl Foreign {
    pub(super) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let kind = object.get_type().fully_qualified_name()?.to_string();
        for method in NEEDED {
            if !object.hasattr(method)? {
                let problem = format!(
                    "{kind} is not a store: it has no method {method:?}. Hint: pass one of symmem's stores or torch.distributed's"
                );
                return Err(PyTypeError::new_err(problem));
            }
        }
        Ok(Self { object: object.clone().unbind(), name: kind })
    }

    /// Runs `work` with the interpreter.
    fn attached<R>(
        &self,
        op: &'static str,
        work: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<R>,
    ) -> Result<R> {
        let done = exit::attach(|py| work(self.object.bind(py)).map_err(|error| self.failed(py, op, &error)));
        done.unwrap_or_else(|| Err(self.broken(op, "the interpreter is shutting down".to_owned())))
    }

    fn call<R>(
        &self,
        op: &'static str,
        method: &str,
        arguments: impl for<'py> PyCallArgs<'py>,
        extract: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Result<R> {
        self.attached(op, |object| extract(&object.call_method1(method, arguments)?))
    }

    fn failed(&self, py: Python<'_>, op: &'static str, error: &PyErr) -> StoreError {
        // Of this kind is what a signal handler raises to end the program; stores have no errors like that.
        if !error.is_instance_of::<PyException>(py) && interrupt::hand_over(error.clone_ref(py)) {
            return StoreError::Cancelled { op };
        }
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            // SAFETY: no preconditions. Python forgot the signal when it raised this; the main thread is to
            // see it again.
            unsafe { pyo3::ffi::PyErr_SetInterrupt() };
            return StoreError::Cancelled { op };
        }
        self.broken(op, error.to_string())
    }

    fn broken(&self, op: &'static str, problem: String) -> StoreError {
        StoreError::Network { op, addr: self.name.clone(), source: io::Error::other(problem) }
    }

    /// Asks `ready` until it gives a value.
    fn until<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let mut nap = FIRST_NAP;
        let polled = wait.until(|slice| {
            if !slice.is_zero() {
                thread::sleep(slice.min(nap));
                nap = (nap * 2).min(LONGEST_NAP);
            }
            Ok(ready()?)
        });
        polled.map_err(|fault: Fault| match fault {
            Fault::Error(error) => error,
            Fault::Interrupt(Interrupt::Cancelled) => StoreError::Cancelled { op },
            Fault::Interrupt(Interrupt::Watch(source)) => StoreError::Interrupted { op, source },
            Fault::Interrupt(Interrupt::Expired) => {
                let keys = keys.iter().take(16).map(|key| key.to_string()).collect();
                StoreError::Timeout { op, keys, elapsed: wait.elapsed() }
            }
        })
    }

    fn exist(&self, op: &'static str, keys: &[&str]) -> Result<bool> {
        self.attached(op, |object| {
            let keys = PyList::new(object.py(), keys)?;
            object.call_method1("check", (keys,))?.is_truthy()
        })
    }

    fn fetch(&self, op: &'static str, key: &str) -> Result<Vec<u8>> {
        self.call(op, "get", (key,), bytes)
    }

    fn has(&self, method: &str) -> bool {
        self.attached("look", |object| object.hasattr(method)).unwrap_or(false)
    }
}

fn bytes(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(object.extract::<Value>()?.0)
}

fn nothing(_: &Bound<'_, PyAny>) -> PyResult<()> {
    Ok(())
}

impl Store for Foreign {
    fn set(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.attached("set", |object| {
            object.call_method1("set", (key, PyBytes::new(object.py(), value))).map(drop)
        })
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.wait(&[key], wait)?;
        self.fetch("get", key)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value, wait))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.wait(keys, wait)?;
        keys.iter().map(|key| self.fetch("multi_get", key)).collect()
    }

    fn add(&self, key: &str, delta: i64, _: &Wait<'_>) -> Result<i64> {
        self.call("add", "add", (key, delta), |value| value.extract())
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], _: &Wait<'_>) -> Result<Vec<u8>> {
        self.attached("compare_set", |object| {
            let py = object.py();
            let arguments = (key, PyBytes::new(py, expected), PyBytes::new(py, desired));
            bytes(&object.call_method1("compare_set", arguments)?)
        })
    }

    fn append(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.attached("append", |object| {
            object.call_method1("append", (key, PyBytes::new(object.py(), value))).map(drop)
        })
    }

    fn delete(&self, key: &str, _: &Wait<'_>) -> Result<bool> {
        self.call("delete", "delete_key", (key,), |gone| gone.is_truthy())
    }

    fn check(&self, keys: &[&str], _: &Wait<'_>) -> Result<bool> {
        self.exist("check", keys)
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.until("wait", keys, wait, || Ok(self.exist("wait", keys)?.then_some(())))
    }

    fn num_keys(&self, _: &Wait<'_>) -> Result<i64> {
        self.call("num_keys", "num_keys", (), |count| count.extract())
    }

    fn list_keys(&self, _: &Wait<'_>) -> Result<Vec<String>> {
        self.call("list_keys", "list_keys", (), |keys| keys.extract())
    }

    fn queue_push(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.attached("queue_push", |object| {
            nothing(&object.call_method1("queue_push", (key, PyBytes::new(object.py(), value)))?)
        })
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        let pop = || self.call("queue_pop", "queue_pop", (key, false), bytes);
        let is_empty = |wait: &Wait<'_>| Ok(self.queue_len(key, wait)? == 0);
        if !block && is_empty(wait)? {
            return Err(StoreError::QueueEmpty { key: key.to_owned() });
        }
        // Somebody else may have been faster between the look and the pop.
        self.until("queue_pop", &[key], wait, || match is_empty(wait)? {
            true => Ok(None),
            false => match pop() {
                Err(error @ StoreError::Cancelled { .. }) => Err(error),
                Err(_) if block && is_empty(wait)? => Ok(None),
                popped => popped.map(Some),
            },
        })
    }

    fn queue_len(&self, key: &str, _: &Wait<'_>) -> Result<i64> {
        self.call("queue_len", "queue_len", (key,), |count| count.extract())
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.add(key, 1, wait)?;
        self.until("barrier", &[key], wait, || Ok((self.add(key, 0, wait)? >= world as i64).then_some(())))
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        let clones = self.has("clone");
        let object = self.attached("clone", |object| match clones {
            true => Ok(object.call_method0("clone")?.unbind()),
            false => Ok(object.clone().unbind()),
        })?;
        Ok(Arc::new(Self { object, name: self.name.clone() }))
    }
}
