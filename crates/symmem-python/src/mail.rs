//! `Mailbox`: messages between two ranks.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use symmem::{PendingReceive, PendingSend};

use crate::error::{invalid, raise};
use crate::group::Group;
use crate::interrupt::{blocking, token};
use crate::operand::{Operand, Place};
use crate::pending::timed_out;

/// Messages between two ranks of a group, matched by source and tag.
///
/// Making one is collective; sending and receiving is between the two. Messages of one source and tag come in the order they were
/// sent; the receiver's array must be as long as the message. Any number of threads may use a mailbox at once. A batch of `isend` and
/// `irecv` in any order on all ranks comes to its end.
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    /// The mailbox for `op`, whose calls wait for `timeout_ms`, or for 0 as long as those of its group.
    fn open(&self, op: &'static str, timeout_ms: u64) -> PyResult<symmem::Mailbox> {
        let mail = lock(&self.mail);
        let mail = mail.as_ref().ok_or_else(|| raise(symmem::Error::Closed { op }))?;
        let asked = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        Ok(match asked.or(self.timeout) {
            Some(timeout) => mail.within(timeout),
            None => mail.cancelled_by(&token()),
        })
    }
}

#[pymethods]
impl Mailbox {
    /// Collective. A new mailbox, whose messages are no other mailbox's.
    #[new]
    fn new(py: Python<'_>, group: &Group) -> PyResult<Self> {
        let timeout = group.membership().timeout();
        let group = group.membership().group("mailbox", 0)?;
        let mail = blocking(py, || symmem::Mailbox::new(&group))?;
        Ok(Self { mail: Mutex::new(Some(mail)), timeout })
    }

    /// Sends the elements of `x` to rank `dst`. Returns when they are on their way and `x` may change.
    #[pyo3(signature = (x, dst, tag = 0, *, timeout_ms = 0))]
    fn send(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let mail = self.open("send", timeout_ms)?;
        let operand = on_host(Operand::input_or_copy(x)?)?;
        // SAFETY: on the host; other Python threads race with it as they do with numpy.
        let bytes = unsafe { operand.bytes_of() };
        blocking(x.py(), || mail.send(dst, tag, bytes))
    }

    /// Receives a message of `tag` from rank `src`, or from anybody, into `x`. Returns the rank that it is from.
    #[pyo3(signature = (x, src = None, tag = 0, *, timeout_ms = 0))]
    fn recv(&self, x: &Bound<'_, PyAny>, src: Option<usize>, tag: u64, timeout_ms: u64) -> PyResult<usize> {
        let mail = self.open("receive", timeout_ms)?;
        let operand = on_host(Operand::output(x)?)?;
        // SAFETY: as above, and writable.
        let bytes = unsafe { operand.bytes_of_mut() };
        Ok(blocking(x.py(), || mail.receive(src, tag, bytes))?.source)
    }

    /// Starts `send`. `x` must not change until it has ended.
    #[pyo3(signature = (x, dst, tag = 0))]
    fn isend(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64) -> PyResult<PendingMessage> {
        let mail = self.open("send", 0)?;
        let operand = on_host(Operand::input_or_copy(x)?)?;
        let pending = mail.send_start(dst, tag, Elements::new(&operand)?).map_err(raise)?;
        Ok(PendingMessage::new(Message::Sent(pending)))
    }

    /// Starts `recv`. Waiting for it gives the rank that the message is from.
    #[pyo3(signature = (x, src = None, tag = 0))]
    fn irecv(&self, x: &Bound<'_, PyAny>, src: Option<usize>, tag: u64) -> PyResult<PendingMessage> {
        let mail = self.open("receive", 0)?;
        let operand = on_host(Operand::output(x)?)?;
        let pending = mail.receive_start(src, tag, Elements::new(&operand)?).map_err(raise)?;
        Ok(PendingMessage::new(Message::Received(pending)))
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

/// The elements of an array, which it keeps.
struct Elements {
    address: usize,
    bytes: usize,
    /// Dropped from any thread; the interpreter is told when somebody next has it.
    _object: Py<PyAny>,
}

impl Elements {
    fn new(operand: &Operand<'_>) -> PyResult<Self> {
        let object = operand.keeper().ok_or_else(|| {
            invalid(
                "array",
                "it cannot be kept while a message travels. Hint: pass a numpy array or a tensor",
            )
        })?;
        Ok(Self { address: operand.address, bytes: operand.bytes(), _object: object })
    }
}

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: dense elements on the host that the object keeps; whoever writes them meanwhile races as with numpy.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

impl AsMut<[u8]> for Elements {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above; made of an output.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

enum Message {
    Sent(PendingSend<Elements>),
    Received(PendingReceive<Elements>),
}

impl Message {
    fn test(&self) -> bool {
        match self {
            Self::Sent(pending) => pending.test(),
            Self::Received(pending) => pending.test(),
        }
    }

    fn wait_for(&self, timeout: Duration) -> symmem::Result<bool> {
        match self {
            Self::Sent(pending) => pending.wait_for(timeout),
            Self::Received(pending) => pending.wait_for(timeout),
        }
    }

    /// The source of a message that was received.
    fn finish(self) -> symmem::Result<Option<usize>> {
        match self {
            Self::Sent(pending) => pending.wait().map(|_| None),
            Self::Received(pending) => pending.wait().map(|(delivery, _)| Some(delivery.source)),
        }
    }
}

enum State {
    Travelling(Message),
    Ended(PyResult<Option<usize>>),
    /// Between the two.
    Ending,
}

/// A message that was started by `isend` or `irecv`. Dropping it does not stop it.
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct PendingMessage {
    state: Mutex<State>,
}

impl PendingMessage {
    fn new(message: Message) -> Self {
        Self { state: Mutex::new(State::Travelling(message)) }
    }
}

#[pymethods]
impl PendingMessage {
    /// Whether it has ended. Never blocks.
    fn test(&self) -> bool {
        // A thread that waits holds the lock.
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poison)) => poison.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        match &*state {
            State::Travelling(message) => message.test(),
            State::Ended(_) => true,
            State::Ending => false,
        }
    }

    /// Waits until it has ended: None for a message that was sent, the source of one that was received. `timeout_ms=0` waits as
    /// long as the group's calls do; `Timeout` after another time leaves the message on its way.
    #[pyo3(signature = (timeout_ms = 0))]
    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<usize>> {
        let over = blocking(py, || match &*lock(&self.state) {
            State::Travelling(message) if timeout_ms > 0 => {
                message.wait_for(Duration::from_millis(timeout_ms))
            }
            _ => Ok(true),
        })?;
        if !over {
            let text = format!(
                "PendingMessage.wait: the message has not ended within {timeout_ms} ms. It goes on; wait again"
            );
            return Err(timed_out(py, text));
        }
        // Locked while it waits, without the interpreter: whoever comes second waits for the lock.
        let ended = py.detach(|| {
            let mut state = lock(&self.state);
            let message = match std::mem::replace(&mut *state, State::Ending) {
                State::Travelling(message) => message,
                ended => {
                    *state = ended;
                    return None;
                }
            };
            let result = message.finish();
            *state = State::Ended(Ok(None));
            Some(result)
        });
        if let Some(result) = ended {
            let result = blocking(py, || result);
            *lock(&self.state) = State::Ended(result.as_ref().map_err(|error| error.clone_ref(py)).copied());
            return result;
        }
        match &*lock(&self.state) {
            State::Ended(Ok(source)) => Ok(*source),
            State::Ended(Err(error)) => Err(error.clone_ref(py)),
            _ => Err(invalid("message", "it has not ended yet")),
        }
    }

    fn __repr__(&self) -> &'static str {
        if self.test() { "<symmem.PendingMessage: ended>" } else { "<symmem.PendingMessage: on its way>" }
    }
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Mailbox>()?;
    module.add_class::<PendingMessage>()
}
