//! The messages of a group: a mailbox that is made with it, because making one is collective and sending is
//! not.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pyo3::prelude::*;

use super::{Group, Membership, lock};
use crate::Any;
use crate::error::{invalid, raise};
use crate::mail::{Envelope, MailCall, Mailbox, Src, Travel};
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
}

/// Receives into `x`, which it gives back, or a new array.
fn receive<'py>(
    py: Python<'py>,
    (mail, asked): (&Mailbox, MailCall),
    x: Option<&Any<'py>>,
    from: Src,
) -> PyResult<Any<'py>> {
    match x {
        None => mail.receive_array(py, asked, from),
        Some(x) => mail.receive_into(asked, x, from).map(|_| x.clone()),
    }
}

impl Group {
    /// The mailbox, and the call `op` on it, which was given `timeout_ms`.
    fn post(&self, py: Python<'_>, op: &'static str, timeout_ms: u64) -> PyResult<(Py<Mailbox>, MailCall)> {
        let patience = self.membership().patience(timeout_ms);
        Ok((self.membership().mail(py, op)?, MailCall { op, patience }))
    }
}

#[pymethods]
impl Group {
    /// Sends `x` to rank `dst`, which must `recv` it with the same tag. Returns when it is on its way and `x`
    /// may change.
    #[pyo3(signature = (x, dst, tag = 0, *, timeout_ms = 0))]
    fn send(&self, x: &Any<'_>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let (mail, asked) = self.post(x.py(), "send", timeout_ms)?;
        mail.get().send_array(asked, x, (dst, tag))
    }

    /// Receives into `x` what rank `src` sends with the same tag; None is anybody, and any tag. Returns `x`.
    /// Without an `x` it returns a new numpy array of what came, however long: its elements in one dimension.
    #[pyo3(
        signature = (x = None, src = None, tag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, x=None, src=None, tag=0, *, timeout_ms=0)"
    )]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        x: Option<&Any<'py>>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Any<'py>> {
        let (mail, asked) = self.post(py, "recv", timeout_ms)?;
        receive(py, (mail.get(), asked), x, (src, tag))
    }

    /// Starts a `send`. `x` must not change until it has ended.
    #[pyo3(signature = (x, dst, tag = 0))]
    fn isend(&self, x: &Any<'_>, dst: usize, tag: u64) -> PyResult<Pending> {
        let (mail, asked) = self.post(x.py(), "isend", 0)?;
        Ok(pending(mail.get().send_start(asked, x, (dst, tag))?, x.py().None()))
    }

    /// Starts a `recv` into `x`. Waiting for it gives `x`.
    #[pyo3(signature = (x, src = None, tag = Some(0)), text_signature = "($self, x, src=None, tag=0)")]
    fn irecv(&self, x: &Any<'_>, src: Option<usize>, tag: Option<u64>) -> PyResult<Pending> {
        let (mail, asked) = self.post(x.py(), "irecv", 0)?;
        Ok(pending(mail.get().receive_start(asked, x, (src, tag))?, x.clone().unbind()))
    }

    /// Sends `x` to rank `dst` and receives from rank `src`, or anybody, at once, so that ranks can exchange
    /// in a ring. Returns as `recv` does: `out`, or a new array of what came.
    #[pyo3(
        signature = (x, dst, out = None, src = None, sendtag = 0, recvtag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, x, dst, out=None, src=None, sendtag=0, recvtag=0, *, timeout_ms=0)"
    )]
    #[allow(clippy::too_many_arguments)] // Those of both.
    fn sendrecv<'py>(
        &self,
        x: &Any<'py>,
        dst: usize,
        out: Option<&Any<'py>>,
        src: Option<usize>,
        sendtag: u64,
        recvtag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Any<'py>> {
        if let Some(out) = out
            && !are_apart(&Operand::input_or_copy(x)?, &Operand::output(out)?)
        {
            return Err(invalid("out", "it overlaps x, which is sent meanwhile. Hint: pass a copy"));
        }
        let (py, (mail, asked)) = (x.py(), self.post(x.py(), "sendrecv", timeout_ms)?);
        let sent = pending(mail.get().send_start(asked, x, (dst, sendtag))?, py.None());
        let received = receive(py, (mail.get(), asked), out, (src, recvtag))?;
        sent.wait(py, 0)?;
        Ok(received)
    }

    /// Sends a picklable object to rank `dst`, which takes it with `recv_object`.
    #[pyo3(signature = (obj, dst, tag = 0, *, timeout_ms = 0))]
    fn send_object(&self, obj: &Any<'_>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let (mail, asked) = self.post(obj.py(), "send_object", timeout_ms)?;
        mail.get().send_pickled(asked, obj, (dst, tag))
    }

    /// The object that rank `src` sent with the same tag; None is anybody, and any tag.
    #[pyo3(
        signature = (src = None, tag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, src=None, tag=0, *, timeout_ms=0)"
    )]
    fn recv_object<'py>(
        &self,
        py: Python<'py>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Any<'py>> {
        let (mail, asked) = self.post(py, "recv_object", timeout_ms)?;
        mail.get().receive_pickled(py, asked, (src, tag))
    }

    /// `sendrecv` of objects.
    #[pyo3(
        signature = (obj, dst, src = None, sendtag = 0, recvtag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, obj, dst, src=None, sendtag=0, recvtag=0, *, timeout_ms=0)"
    )]
    fn sendrecv_object<'py>(
        &self,
        obj: &Any<'py>,
        dst: usize,
        src: Option<usize>,
        sendtag: u64,
        recvtag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Any<'py>> {
        let (py, (mail, asked)) = (obj.py(), self.post(obj.py(), "sendrecv_object", timeout_ms)?);
        let sent = pending(mail.get().start_pickled(asked, obj, (dst, sendtag))?, py.None());
        let received = mail.get().receive_pickled(py, asked, (src, recvtag))?;
        sent.wait(py, 0)?;
        Ok(received)
    }

    /// Waits for a message and says what it is; it stays there for a receive. By default one from anybody,
    /// with any tag.
    ///
    ///     found = group.probe()
    ///     x = group.recv(None, found.source, found.tag)
    #[pyo3(signature = (src = None, tag = None, *, timeout_ms = 0))]
    fn probe(
        &self,
        py: Python<'_>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Envelope> {
        let (mail, asked) = self.post(py, "probe", timeout_ms)?;
        mail.get().wait_for_any(py, asked, (src, tag))
    }

    /// `probe` without waiting: None if there is no message.
    #[pyo3(signature = (src = None, tag = None))]
    fn iprobe(&self, py: Python<'_>, src: Option<usize>, tag: Option<u64>) -> PyResult<Option<Envelope>> {
        let (mail, asked) = self.post(py, "iprobe", 0)?;
        mail.get().look_for_any(asked, (src, tag))
    }
}

fn pending(travel: Arc<Travel>, result: Py<PyAny>) -> Pending {
    Pending::new(Box::new(StartedMessage { travel, result }))
}

fn is_remote(py: Python<'_>, error: &PyErr) -> bool {
    error.get_type(py).name().is_ok_and(|name| name.to_str().is_ok_and(|name| name == "NotLocal"))
}

/// A message on its way, and what waiting for it gives.
struct StartedMessage {
    travel: Arc<Travel>,
    result: Py<PyAny>,
}

impl Running for StartedMessage {
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
