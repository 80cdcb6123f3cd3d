//! The messages of a group: a mailbox that is made with it, because making one is collective and sending is not.

use std::task::Waker;
use std::time::Duration;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use super::{Group, Membership, lock};
use crate::error::raise;
use crate::exit;
use crate::mail::Mailbox;
use crate::pending::{Pending, Running, Sleeper};

impl Membership {
    /// Collective. Makes the group's mailbox. Ranks on several hosts have none.
    pub(super) fn with_mail(self, py: Python<'_>) -> PyResult<Self> {
        let group = Bound::new(py, Group::of(self.clone()))?;
        match py.get_type::<Mailbox>().call1((group,)) {
            Ok(mail) => *lock(&self.shared.mail) = Some(mail.unbind()),
            Err(error) if is_remote(py, &error) => {}
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    fn mail<'py>(&self, py: Python<'py>, op: &'static str) -> PyResult<Bound<'py, PyAny>> {
        self.group(op, 0)?;
        let mail = lock(&self.shared.mail).as_ref().map(|mail| mail.clone_ref(py).into_bound(py));
        mail.ok_or_else(|| raise(symmem::Error::NotLocal { op, ranks: Vec::new() }))
    }

    /// Ends the mailbox's part in the membership.
    pub(super) fn close_mail(&self) {
        let mail = lock(&self.shared.mail).take();
        // A mailbox that cannot be closed goes with its last reference.
        let _ = mail.map(|mail| Python::attach(|py| mail.call_method0(py, "close")));
    }

    pub(super) fn send(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let terms = [("timeout_ms", self.milliseconds(timeout_ms))].into_py_dict(x.py())?;
        self.mail(x.py(), "send")?.call_method("send", (x, dst, tag), Some(&terms)).map(drop)
    }

    pub(super) fn recv(&self, x: &Bound<'_, PyAny>, src: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let terms = [("timeout_ms", self.milliseconds(timeout_ms))].into_py_dict(x.py())?;
        self.mail(x.py(), "recv")?.call_method("recv", (x, src, tag), Some(&terms)).map(drop)
    }

    /// Starts to send (`method` "isend") or to receive ("irecv"); waiting for it gives `result`.
    pub(super) fn start_message(
        &self,
        method: &'static str,
        x: &Bound<'_, PyAny>,
        peer: usize,
        tag: u64,
        result: Py<PyAny>,
    ) -> PyResult<Pending> {
        let message = self.mail(x.py(), method)?.call_method1(method, (x, peer, tag))?.unbind();
        Ok(Pending::new(Box::new(Message { message, result })))
    }

    /// `timeout_ms` as it was given, or what `within` said.
    fn milliseconds(&self, timeout_ms: u64) -> u64 {
        let own = self.timeout.map_or(0, |timeout| timeout.as_millis().max(1) as u64);
        if timeout_ms > 0 { timeout_ms } else { own }
    }
}

fn is_remote(py: Python<'_>, error: &PyErr) -> bool {
    error.get_type(py).name().is_ok_and(|name| name.to_str().is_ok_and(|name| name == "NotLocal"))
}

/// A message on its way.
struct Message {
    message: Py<PyAny>,
    result: Py<PyAny>,
}

impl Running for Message {
    fn poll(&mut self, _: &Waker) -> bool {
        // What cannot be asked has ended, and says so when it is waited for.
        Python::attach(|py| {
            self.message.call_method0(py, "test").and_then(|ended| ended.is_truthy(py)).unwrap_or(true)
        })
    }

    fn sleeper(&self) -> Option<Sleeper> {
        let message = Python::attach(|py| self.message.clone_ref(py));
        Some(std::sync::Arc::new(move |slice: Duration| {
            // Nobody waits any more where the interpreter is going away.
            exit::attach(|py| {
                let waited = message.call_method1(py, "wait", (slice.as_millis().max(1) as u64,));
                !waited.is_err_and(|error| error.is_instance_of::<PyTimeoutError>(py))
            })
            .unwrap_or(true)
        }))
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.message.call_method0(py, "wait")?;
        Ok(self.result)
    }
}
