//! The messages of a group: a mailbox that is made with it, because making one is collective and sending is not.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use super::{Group, Membership, lock};
use crate::error::raise;
use crate::mail::{Mailbox, Travel};
use crate::operand::Operand;
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

    /// Starts to send.
    pub(super) fn start_send(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64) -> PyResult<Pending> {
        let mail = self.mail(x.py(), "send")?;
        let travel = mail.cast::<Mailbox>()?.get().send_start(&Operand::input_or_copy(x)?, dst, tag)?;
        Ok(Pending::new(Box::new(Message { travel, result: x.py().None() })))
    }

    /// Starts to receive; waiting for it gives `x`.
    pub(super) fn start_receive(&self, x: &Bound<'_, PyAny>, src: usize, tag: u64) -> PyResult<Pending> {
        let mail = self.mail(x.py(), "receive")?;
        let travel = mail.cast::<Mailbox>()?.get().receive_start(&Operand::output(x)?, Some(src), tag)?;
        Ok(Pending::new(Box::new(Message { travel, result: x.clone().unbind() })))
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

/// A message on its way, and what waiting for it gives.
struct Message {
    travel: Arc<Travel>,
    result: Py<PyAny>,
}

impl Running for Message {
    fn poll(&mut self, _: &Waker) -> bool {
        self.travel.test()
    }

    fn sleeper(&self) -> Option<Sleeper> {
        let travel = Arc::clone(&self.travel);
        Some(Arc::new(move |slice: Duration| travel.wait_for(slice)))
    }

    fn finish(self: Box<Self>, _: Python<'_>) -> PyResult<Py<PyAny>> {
        self.travel.result()?;
        Ok(self.result)
    }
}
