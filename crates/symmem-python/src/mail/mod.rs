//! `Mailbox`: messages between two ranks, of arrays and of objects.
//!
//! Used by Python, and by `group`, whose messages are those of a mailbox of its own. What they are besides
//! bytes is in [`envelope`], what was started and has not ended in [`travel`].

mod envelope;
mod travel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use symmem::CancelToken;

pub(crate) use self::envelope::Envelope;
use self::envelope::{OBJECT, check_kind, dtype_of, note_of};
pub(crate) use self::travel::Travel;
use self::travel::{MailElements, MailMessage, PendingMessage};
use crate::collectives::new_output;
use crate::error::{invalid, raise};
use crate::group::{Group, Whose, default_timeout, given, objects};
use crate::interrupt::{blocking, token};
use crate::operand::{Operand, Place};

/// How long a message that is late is still waited for.
const TAKING_BACK: Duration = Duration::from_millis(1);

/// Whom a message is for, and its tag.
pub(crate) type Dst = (usize, u64);
/// Whom a message is from, or anybody, and its tag, or any.
pub(crate) type Src = (Option<usize>, Option<u64>);

/// Messages between two ranks of a group, matched by source and tag.
///
/// Making one is collective; sending and receiving is between the two. Messages of one source and tag come in
/// the order they were sent; the receiver's array must be as long as the message. Any number of threads may
/// use a mailbox at once. A batch of `isend` and `irecv` in any order on all ranks comes to its end. Receives
/// take `src=None` for anybody, and `tag=None` for any tag.
///
///     mail = symmem.Mailbox(group)
///     if group.rank == 0:
///         mail.send(x, 1, tag=7)
///     else:
///         source = mail.recv(x, tag=7)      # from anybody
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct Mailbox {
    mail: Mutex<Option<symmem::Mailbox>>,
    timeout: Option<Duration>,
    group: Whose,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call on a mailbox: its name, and how long it waits if not as the mailbox says.
#[derive(Clone, Copy)]
pub(crate) struct MailCall {
    pub(crate) op: &'static str,
    pub(crate) patience: Option<Duration>,
}

impl Mailbox {
    /// How long a call waits that was given `timeout_ms`.
    fn asked(&self, op: &'static str, timeout_ms: u64) -> MailCall {
        MailCall { op, patience: given(timeout_ms).or_else(|| self.group.bound()) }
    }

    fn open(&self, asked: MailCall) -> PyResult<symmem::Mailbox> {
        let mail = lock(&self.mail);
        let mail = mail.as_ref().ok_or_else(|| raise(symmem::Error::Closed { op: asked.op }))?;
        let mail = mail.cancelled_by(&token());
        Ok(match asked.patience.or(self.timeout) {
            Some(timeout) => mail.within(timeout),
            None => mail,
        })
    }

    /// For messages that are started: nothing of it ends by itself but at [`Travel`]'s deadline, where
    /// waiting once more, in vain, takes it back.
    fn patient(&self, asked: MailCall) -> PyResult<symmem::Mailbox> {
        Ok(self.open(asked)?.within(TAKING_BACK).cancelled_by(&CancelToken::new()))
    }

    /// The mailbox for objects.
    fn for_objects(&self, asked: MailCall) -> PyResult<symmem::Mailbox> {
        let mail = self.open(asked)?;
        mail.group().check_authenticated(asked.op).map_err(raise)?;
        Ok(mail.noted(OBJECT))
    }

    pub(crate) fn send_array(&self, asked: MailCall, x: &Bound<'_, PyAny>, (dst, tag): Dst) -> PyResult<()> {
        let mail = self.open(asked)?;
        let operand = on_host(Operand::input_or_copy(x)?)?;
        // SAFETY: on the host; other Python threads race with it as they do with numpy.
        let bytes = unsafe { operand.bytes_of() };
        let mail = mail.noted(note_of(operand.dtype));
        blocking(x.py(), || mail.send(dst, tag, bytes))
    }

    /// Receives into `x`; the rank that it is from.
    pub(crate) fn receive_into(
        &self,
        asked: MailCall,
        x: &Bound<'_, PyAny>,
        (src, tag): Src,
    ) -> PyResult<usize> {
        let mail = self.open(asked)?;
        let operand = on_host(Operand::output(x)?)?;
        // SAFETY: as above, and writable.
        let bytes = unsafe { operand.bytes_of_mut() };
        let delivery = blocking(x.py(), || mail.receive(src, tag, bytes))?;
        check_kind(asked.op, &delivery, false)?;
        Ok(delivery.source)
    }

    /// Receives an array of any length: its elements, in one dimension.
    pub(crate) fn receive_array<'py>(
        &self,
        py: Python<'py>,
        asked: MailCall,
        (src, tag): Src,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mail = self.open(asked)?;
        let (delivery, bytes) = blocking(py, || mail.receive_vec(src, tag))?;
        check_kind(asked.op, &delivery, false)?;
        let dtype = dtype_of(delivery.note);
        let array = new_output(py, false, Place::Cpu, &[bytes.len() / dtype.size()], dtype)?;
        let operand = Operand::output(&array)?;
        // SAFETY: an array that nobody else has yet, with as many bytes.
        unsafe { operand.bytes_of_mut() }.copy_from_slice(&bytes);
        Ok(array)
    }

    pub(crate) fn send_pickled(
        &self,
        asked: MailCall,
        object: &Bound<'_, PyAny>,
        (dst, tag): Dst,
    ) -> PyResult<()> {
        let mail = self.for_objects(asked)?;
        let bytes = objects::dump(object)?;
        blocking(object.py(), || mail.send(dst, tag, &bytes))
    }

    pub(crate) fn receive_pickled<'py>(
        &self,
        py: Python<'py>,
        asked: MailCall,
        (src, tag): Src,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mail = self.for_objects(asked)?;
        let (delivery, bytes) = blocking(py, || mail.receive_vec(src, tag))?;
        check_kind(asked.op, &delivery, true)?;
        objects::load(py, &bytes)
    }

    /// Starts to send `object`, pickled.
    pub(crate) fn start_pickled(
        &self,
        asked: MailCall,
        object: &Bound<'_, PyAny>,
        (dst, tag): Dst,
    ) -> PyResult<Arc<Travel>> {
        self.for_objects(asked)?;
        let elements = MailElements::pickled(object)?;
        self.start(asked, OBJECT, elements, (dst, tag))
    }

    pub(crate) fn send_start(
        &self,
        asked: MailCall,
        x: &Bound<'_, PyAny>,
        address: Dst,
    ) -> PyResult<Arc<Travel>> {
        let operand = on_host(Operand::input_or_copy(x)?)?;
        self.start(asked, note_of(operand.dtype), MailElements::new(&operand)?, address)
    }

    fn start(
        &self,
        asked: MailCall,
        note: u64,
        elements: MailElements,
        (dst, tag): Dst,
    ) -> PyResult<Arc<Travel>> {
        let pending = self.patient(asked)?.noted(note).send_start(dst, tag, elements).map_err(raise)?;
        Ok(Travel::new(MailMessage::Sent(pending), asked.patience.or(self.timeout)))
    }

    pub(crate) fn receive_start(
        &self,
        asked: MailCall,
        x: &Bound<'_, PyAny>,
        (src, tag): Src,
    ) -> PyResult<Arc<Travel>> {
        let elements = MailElements::new(&on_host(Operand::output(x)?)?)?;
        let pending = self.patient(asked)?.receive_start(src, tag, elements).map_err(raise)?;
        Ok(Travel::new(MailMessage::Received(pending), asked.patience.or(self.timeout)))
    }

    /// The next message that a receive would get, once there is one.
    pub(crate) fn wait_for_any(
        &self,
        py: Python<'_>,
        asked: MailCall,
        (src, tag): Src,
    ) -> PyResult<Envelope> {
        let mail = self.open(asked)?;
        blocking(py, || mail.probe(src, tag)).map(Envelope)
    }

    /// The same, if there is one.
    pub(crate) fn look_for_any(&self, asked: MailCall, (src, tag): Src) -> PyResult<Option<Envelope>> {
        Ok(self.open(asked)?.try_probe(src, tag).map_err(raise)?.map(Envelope))
    }
}

#[pymethods]
impl Mailbox {
    /// Collective. A new mailbox, whose messages are no other mailbox's.
    #[new]
    fn new(py: Python<'_>, group: &Bound<'_, PyAny>) -> PyResult<Self> {
        let membership = Group::given(group, "Mailbox")?.get().membership();
        let group = membership.group("Mailbox", 0)?;
        let timeout = membership.timeout().or_else(|| default_timeout(group.context()));
        let mail = blocking(py, || symmem::Mailbox::new(&group))?;
        Ok(Self { mail: Mutex::new(Some(mail)), timeout, group: membership.downgrade() })
    }

    /// Sends the elements of `x` to rank `dst`. Returns when they are on their way and `x` may change.
    #[pyo3(signature = (x, dst, tag = 0, *, timeout_ms = 0))]
    fn send(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        self.send_array(self.asked("send", timeout_ms), x, (dst, tag))
    }

    /// Receives a message of `tag` from rank `src`, or from anybody, into `x`. Returns the rank that it is
    /// from.
    #[pyo3(signature = (x, src = None, tag = Some(0), *, timeout_ms = 0), text_signature = "($self, x, src=None, tag=0, *, timeout_ms=0)")]
    fn recv(
        &self,
        x: &Bound<'_, PyAny>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<usize> {
        self.receive_into(self.asked("recv", timeout_ms), x, (src, tag))
    }

    /// Sends a picklable object to rank `dst`, which takes it with `recv_object`.
    #[pyo3(signature = (obj, dst, tag = 0, *, timeout_ms = 0))]
    fn send_object(&self, obj: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        self.send_pickled(self.asked("send_object", timeout_ms), obj, (dst, tag))
    }

    /// The object that rank `src`, or anybody, sent with `tag`.
    #[pyo3(signature = (src = None, tag = Some(0), *, timeout_ms = 0), text_signature = "($self, src=None, tag=0, *, timeout_ms=0)")]
    fn recv_object<'py>(
        &self,
        py: Python<'py>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.receive_pickled(py, self.asked("recv_object", timeout_ms), (src, tag))
    }

    /// Waits for a message and says what it is; it stays there for a receive. By default one from anybody,
    /// with any tag.
    #[pyo3(signature = (src = None, tag = None, *, timeout_ms = 0))]
    fn probe(
        &self,
        py: Python<'_>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Envelope> {
        self.wait_for_any(py, self.asked("probe", timeout_ms), (src, tag))
    }

    /// `probe` without waiting: None if there is no message.
    #[pyo3(signature = (src = None, tag = None))]
    fn iprobe(&self, src: Option<usize>, tag: Option<u64>) -> PyResult<Option<Envelope>> {
        self.look_for_any(self.asked("iprobe", 0), (src, tag))
    }

    /// Starts `send`. `x` must not change until it has ended.
    #[pyo3(signature = (x, dst, tag = 0))]
    fn isend(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64) -> PyResult<PendingMessage> {
        Ok(PendingMessage { travel: self.send_start(self.asked("isend", 0), x, (dst, tag))? })
    }

    /// Starts `recv`. Waiting for it gives the rank that the message is from.
    #[pyo3(signature = (x, src = None, tag = Some(0)), text_signature = "($self, x, src=None, tag=0)")]
    fn irecv(&self, x: &Bound<'_, PyAny>, src: Option<usize>, tag: Option<u64>) -> PyResult<PendingMessage> {
        Ok(PendingMessage { travel: self.receive_start(self.asked("irecv", 0), x, (src, tag))? })
    }

    /// Local. What was started goes on; later calls raise `Closed`.
    fn close(&self) {
        let mail = lock(&self.mail).take();
        drop(mail);
    }
}

fn on_host(operand: Operand<'_>) -> PyResult<Operand<'_>> {
    match operand.device {
        Place::Cpu => Ok(operand),
        place => Err(invalid("mail", format!("messages are in host memory, not on {place}"))),
    }
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Mailbox>()?;
    module.add_class::<Envelope>()?;
    module.add_class::<PendingMessage>()
}
