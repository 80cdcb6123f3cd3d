//! Messages on their way: what keeps their bytes, and what those who started them wait for.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use symmem::{Delivery, PendingReceive, PendingSend};

use super::envelope::check_kind;
use super::lock;
use crate::error::{invalid, raise_ref};
use crate::group::objects;
use crate::operand::Operand;
use crate::pending::timed_out;

/// The longest wait between two looks at Python's signals.
const TICK: Duration = Duration::from_millis(20);

/// The elements of an array, or a pickle, which it keeps.
pub(super) struct MailElements {
    address: usize,
    bytes: usize,
    /// Dropped from any thread; the interpreter is told when somebody next has it.
    _object: Py<PyAny>,
}

impl MailElements {
    pub(super) fn new(operand: &Operand<'_>) -> PyResult<Self> {
        let object = operand.keeper().ok_or_else(|| {
            invalid(
                "array",
                "it cannot be kept while a message travels. Hint: pass a numpy array or a tensor",
            )
        })?;
        Ok(Self { address: operand.address, bytes: operand.bytes(), _object: object })
    }

    /// A pickle, whose bytes stay where they are as long as it lives.
    pub(super) fn pickled(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let pickle = objects::pickle(object)?;
        let bytes = pickle.as_bytes();
        Ok(Self {
            address: bytes.as_ptr() as usize,
            bytes: bytes.len(),
            _object: pickle.clone().into_any().unbind(),
        })
    }
}

impl AsRef<[u8]> for MailElements {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: dense elements on the host that the object keeps; whoever writes them meanwhile races as
        // with numpy.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

impl AsMut<[u8]> for MailElements {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above; made of an output.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

pub(super) enum MailMessage {
    Sent(PendingSend<MailElements>),
    Received(PendingReceive<MailElements>),
}

impl MailMessage {
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

    /// What a message is that was received.
    fn finish(self) -> symmem::Result<Option<Delivery>> {
        match self {
            Self::Sent(pending) => pending.wait().map(|_| None),
            Self::Received(pending) => pending.wait().map(|(delivery, _)| Some(delivery)),
        }
    }
}

enum Stage {
    Travelling(MailMessage),
    Ended(Result<Option<Delivery>, symmem::Error>),
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
    pub(super) fn new(message: MailMessage, timeout: Option<Duration>) -> Arc<Self> {
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
            Stage::Ended(Ok(None)) => Ok(None),
            Stage::Ended(Ok(Some(delivery))) => {
                check_kind("irecv", delivery, false)?;
                Ok(Some(delivery.source))
            }
            Stage::Ended(Err(error)) => Err(raise_ref(error)),
            _ => Err(invalid("message", "it has not ended yet")),
        }
    }
}

/// A message that was started by `isend` or `irecv`. Dropping it does not stop it.
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct PendingMessage {
    pub(super) travel: Arc<Travel>,
}

#[pymethods]
impl PendingMessage {
    /// Whether it has ended. Never blocks.
    fn test(&self) -> bool {
        self.travel.test()
    }

    /// Waits until it has ended: None for a message that was sent, the source of one that was received.
    /// `timeout_ms=0` waits as long as the group's calls do, from when it was started, and then takes it
    /// back; `Timeout` after another time leaves it on its way, and so does KeyboardInterrupt.
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
