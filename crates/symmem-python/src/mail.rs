//! `Mailbox`: messages between two ranks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use symmem::{CancelToken, PendingReceive, PendingSend};

use crate::error::{invalid, raise, raise_ref};
use crate::group::{Group, default_timeout};
use crate::interrupt::{blocking, token};
use crate::operand::{Operand, Place};
use crate::pending::timed_out;

/// The longest wait between two looks at Python's signals.
const TICK: Duration = Duration::from_millis(20);
/// How long a message that is late is still waited for.
const TAKING_BACK: Duration = Duration::from_millis(1);

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
        let mail = mail.cancelled_by(&token());
        Ok(match asked.or(self.timeout) {
            Some(timeout) => mail.within(timeout),
            None => mail,
        })
    }
}

impl Mailbox {
    /// For messages that are started: nothing of it ends by itself but at [`Travel`]'s deadline, where waiting once more, in vain, takes
    /// it back.
    fn patient(&self, op: &'static str) -> PyResult<symmem::Mailbox> {
        Ok(self.open(op, 0)?.within(TAKING_BACK).cancelled_by(&CancelToken::new()))
    }

    pub(crate) fn send_start(&self, operand: &Operand<'_>, dst: usize, tag: u64) -> PyResult<Arc<Travel>> {
        let elements = Elements::new(operand)?;
        let pending = self.patient("send")?.send_start(dst, tag, elements).map_err(raise)?;
        Ok(Travel::new(Message::Sent(pending), self.timeout))
    }

    pub(crate) fn receive_start(
        &self,
        operand: &Operand<'_>,
        src: Option<usize>,
        tag: u64,
    ) -> PyResult<Arc<Travel>> {
        let elements = Elements::new(operand)?;
        let pending = self.patient("receive")?.receive_start(src, tag, elements).map_err(raise)?;
        Ok(Travel::new(Message::Received(pending), self.timeout))
    }
}

#[pymethods]
impl Mailbox {
    /// Collective. A new mailbox, whose messages are no other mailbox's.
    #[new]
    fn new(py: Python<'_>, group: &Group) -> PyResult<Self> {
        let asked = group.membership().timeout();
        let group = group.membership().group("mailbox", 0)?;
        let timeout = asked.or_else(|| default_timeout(group.context()));
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
        let operand = on_host(Operand::input_or_copy(x)?)?;
        Ok(PendingMessage { travel: self.send_start(&operand, dst, tag)? })
    }

    /// Starts `recv`. Waiting for it gives the rank that the message is from.
    #[pyo3(signature = (x, src = None, tag = 0))]
    fn irecv(&self, x: &Bound<'_, PyAny>, src: Option<usize>, tag: u64) -> PyResult<PendingMessage> {
        let operand = on_host(Operand::output(x)?)?;
        Ok(PendingMessage { travel: self.receive_start(&operand, src, tag)? })
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

enum Stage {
    Travelling(Message),
    Ended(Result<Option<usize>, symmem::Error>),
    /// Between the two; nobody sees it but under the lock.
    Ending,
}

/// A message on its way, for all who wait for it. Nothing here needs the interpreter.
pub(crate) struct Travel {
    stage: Mutex<Stage>,
    /// When it is taken back.
    deadline: Option<Instant>,
}

impl Travel {
    fn new(message: Message, timeout: Option<Duration>) -> Arc<Self> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Arc::new(Self { stage: Mutex::new(Stage::Travelling(message)), deadline })
    }

    /// The stage, unless somebody waits under its lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, Stage>> {
        match self.stage.try_lock() {
            Ok(stage) => Some(stage),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether it has ended. Never blocks.
    pub(crate) fn test(&self) -> bool {
        self.try_lock().is_some_and(|mut stage| self.has_ended(&mut stage, Duration::ZERO))
    }

    /// Waits for at most `slice`; whether it has ended.
    pub(crate) fn wait_for(&self, slice: Duration) -> bool {
        match self.try_lock() {
            Some(mut stage) => self.has_ended(&mut stage, slice),
            // Who has the lock waits for the same.
            None => {
                std::thread::sleep(slice.min(Duration::from_millis(1)));
                false
            }
        }
    }

    fn has_ended(&self, stage: &mut Stage, slice: Duration) -> bool {
        let Stage::Travelling(message) = stage else { return true };
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let over = if slice.is_zero() { message.test() } else { message.wait_for(slice).unwrap_or(true) };
        if !over && !is_late {
            return false;
        }
        if let Stage::Travelling(message) = std::mem::replace(stage, Stage::Ending) {
            // What is late is taken back here; what has ended gives its result at once.
            *stage = Stage::Ended(message.finish());
        }
        true
    }

    /// What became of it: the source of a message that was received. Asked when it has ended.
    pub(crate) fn result(&self) -> PyResult<Option<usize>> {
        let stage = lock(&self.stage);
        match &*stage {
            Stage::Ended(Ok(source)) => Ok(*source),
            Stage::Ended(Err(error)) => Err(raise_ref(error)),
            _ => Err(invalid("message", "it has not ended yet")),
        }
    }
}

/// A message that was started by `isend` or `irecv`. Dropping it does not stop it.
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct PendingMessage {
    travel: Arc<Travel>,
}

#[pymethods]
impl PendingMessage {
    /// Whether it has ended. Never blocks.
    fn test(&self) -> bool {
        self.travel.test()
    }

    /// Waits until it has ended: None for a message that was sent, the source of one that was received. `timeout_ms=0` waits as
    /// long as the group's calls do, from when it was started, and then takes it back; `Timeout` after another time leaves it on its way,
    /// and so does KeyboardInterrupt.
    #[pyo3(signature = (timeout_ms = 0))]
    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Option<usize>> {
        let end = (timeout_ms > 0).then(|| Instant::now() + Duration::from_millis(timeout_ms));
        loop {
            let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            if py.detach(|| self.travel.wait_for(left.min(TICK))) {
                return self.travel.result();
            }
            if left.is_zero() {
                let text = format!(
                    "PendingMessage.wait: the message has not ended within {timeout_ms} ms. It goes on; wait again"
                );
                return Err(timed_out(py, text));
            }
            py.check_signals()?;
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
