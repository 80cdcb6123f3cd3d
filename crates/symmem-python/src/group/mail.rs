//! The messages of a group: a mailbox that is made with it, because making one is collective and sending is not.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pyo3::prelude::*;

use super::{Group, Membership, lock};
use crate::error::{invalid, raise};
use crate::mail::{Asked, Dst, Mailbox, Src, Travel};
use crate::operand::Operand;
use crate::pending::{Pending, Running, Sleeper};
use crate::private::are_apart;

impl Membership {
    /// Collective. Makes the group's mailbox. Ranks on several hosts have none.
    pub(super) fn with_mail(self, py: Python<'_>) -> PyResult<Self> {
        let group = Bound::new(py, Group::of(self.clone()))?;
        match py.get_type::<Mailbox>().call1((group,)) {
            Ok(mail) => *lock(&self.shared.mail) = Some(mail.cast_into::<Mailbox>()?.unbind()),
            Err(error) if is_remote(py, &error) => {}
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    /// The mailbox, for the call `op`.
    pub(super) fn mail(&self, py: Python<'_>, op: &'static str) -> PyResult<Py<Mailbox>> {
        self.group(op, 0)?;
        let mail = lock(&self.shared.mail).as_ref().map(|mail| mail.clone_ref(py));
        mail.ok_or_else(|| raise(symmem::Error::NotLocal { op, ranks: Vec::new() }))
    }

    /// Ends the mailbox's part in the membership.
    pub(super) fn close_mail(&self) {
        let mail = lock(&self.shared.mail).take();
        // A mailbox that cannot be closed goes with its last reference.
        let _ = mail.map(|mail| Python::attach(|py| mail.call_method0(py, "close")));
    }

    /// The call `op`, which was given `timeout_ms`.
    pub(super) fn asked(&self, op: &'static str, timeout_ms: u64) -> Asked {
        Asked { op, patience: self.patience(timeout_ms) }
    }

    /// Receives into `x`, which it gives back, or a new array.
    pub(super) fn recv<'py>(
        &self,
        py: Python<'py>,
        asked: Asked,
        x: Option<&Bound<'py, PyAny>>,
        from: Src,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mail = self.mail(py, asked.op)?;
        match x {
            None => mail.get().receive_array(py, asked, from),
            Some(x) => mail.get().receive_into(asked, x, from).map(|_| x.clone()),
        }
    }

    /// Starts to send.
    pub(super) fn start_send(&self, asked: Asked, x: &Bound<'_, PyAny>, to: Dst) -> PyResult<Pending> {
        let travel = self.mail(x.py(), asked.op)?.get().send_start(asked, x, to)?;
        Ok(pending(travel, x.py().None()))
    }

    /// Starts to receive; waiting for it gives `x`.
    pub(super) fn start_receive(&self, asked: Asked, x: &Bound<'_, PyAny>, from: Src) -> PyResult<Pending> {
        let travel = self.mail(x.py(), asked.op)?.get().receive_start(asked, x, from)?;
        Ok(pending(travel, x.clone().unbind()))
    }

    /// Sends `x` and receives at once, in an order in which nobody waits for nobody.
    pub(super) fn send_and_receive<'py>(
        &self,
        asked: Asked,
        (x, to): (&Bound<'py, PyAny>, Dst),
        (out, from): (Option<&Bound<'py, PyAny>>, Src),
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(out) = out
            && !are_apart(&Operand::input_or_copy(x)?, &Operand::output(out)?)
        {
            return Err(invalid("out", "it overlaps x, which is sent meanwhile. Hint: pass a copy"));
        }
        let sent = self.start_send(asked, x, to)?;
        let received = self.recv(x.py(), asked, out, from)?;
        sent.wait(x.py(), 0)?;
        Ok(received)
    }

    /// The same with objects.
    pub(super) fn send_and_receive_object<'py>(
        &self,
        asked: Asked,
        (object, to): (&Bound<'py, PyAny>, Dst),
        from: Src,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let mail = self.mail(py, asked.op)?;
        let sent = pending(mail.get().start_pickled(asked, object, to)?, py.None());
        let received = mail.get().receive_pickled(py, asked, from)?;
        sent.wait(py, 0)?;
        Ok(received)
    }
}

fn pending(travel: Arc<Travel>, result: Py<PyAny>) -> Pending {
    Pending::new(Box::new(Message { travel, result }))
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
