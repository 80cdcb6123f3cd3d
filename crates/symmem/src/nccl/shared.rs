//! A communicator behind its handles: calls in turn, polled until they are done, and its end.
//!
//! Called by the rest of `nccl`. What it guarantees is what `communicator.rs` promises: whoever is in NCCL
//! has its turn, waits end at their deadline or with an abort, and what has ended is not touched again.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use symmem_store::{Deadline, Interrupt, Wait};

use super::bindings::{Code, Functions, IN_PROGRESS, RawComm, RawConfig, SUCCESS};
use super::communicator::Communicator;
use super::ending;
use super::error::{error, too_late};
use super::group_call;
use super::library::NcclLibrary;
use super::memory::NcclAllocation;
use super::turn::CallTurn;
use crate::cuda::activity::Activity;
use crate::cuda::capture::Relaxed;
use crate::cuda::{Device, Stream};
use crate::sys::fork;
use crate::{Error, Result};

/// How long an abort waits for another thread to leave NCCL. Calls do not block, so it leaves when it is next
/// polled.
const LEAVING: Duration = Duration::from_secs(5);
/// The longest sleep between two polls.
const NAP: Duration = Duration::from_millis(1);

/// What the handles of a communicator share.
pub(crate) struct SharedCommunicator {
    pub(super) nccl: &'static NcclLibrary,
    /// Null once it is gone.
    raw: AtomicPtr<c_void>,
    pub(super) device: Device,
    pub(super) rank: usize,
    pub(super) world: usize,
    owner: CommunicatorOwner,
    turn: CallTurn,
    /// Set by an abort: whoever waits in here gives up.
    stopping: AtomicBool,
    /// Windows that are registered.
    pub(super) windows: AtomicUsize,
    timeout: Option<Duration>,
    /// Work on streams, so that memory it may use is not unmapped before it is done.
    activity: Arc<Activity>,
    /// Memory that NCCL has registered until the communicator has ended; none once it has.
    kept: KeptMemory,
}

/// What is kept until a communicator has ended.
type KeptMemory = Arc<Mutex<Option<Vec<Arc<NcclAllocation>>>>>;

/// Who ends it.
pub(super) enum CommunicatorOwner {
    Ours,
    /// Whoever made it; what is held keeps it alive.
    Theirs(#[allow(dead_code)] Option<Arc<dyn Any + Send + Sync>>),
}

/// What a communicator is made of.
pub(super) struct CommunicatorParts {
    pub(super) nccl: &'static NcclLibrary,
    pub(super) raw: RawComm,
    pub(super) device: Device,
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) owner: CommunicatorOwner,
    pub(super) timeout: Option<Duration>,
}

impl SharedCommunicator {
    pub(super) fn new(parts: CommunicatorParts, activity: Arc<Activity>) -> Self {
        let CommunicatorParts { nccl, raw, device, rank, world, owner, timeout } = parts;
        Self {
            nccl,
            raw: AtomicPtr::new(raw),
            device,
            rank,
            world,
            owner,
            turn: CallTurn::default(),
            stopping: AtomicBool::new(false),
            windows: AtomicUsize::new(0),
            timeout,
            activity,
            kept: Arc::new(Mutex::new(Some(Vec::new()))),
        }
    }

    /// Keeps `memory`, which is registered, until the communicator has ended, if it has not yet.
    pub(super) fn keep(&self, memory: &Arc<NcclAllocation>) {
        if let Some(kept) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            kept.push(Arc::clone(memory));
        }
    }

    /// Whether NCCL has nothing of it any more; of one that was adopted, whether this library has.
    pub(crate) fn has_ended(&self) -> bool {
        let is_theirs = matches!(self.owner, CommunicatorOwner::Theirs(_));
        is_theirs && !self.is_alive() || self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// What ends `raw`, in any thread.
    fn ending(&self, raw: RawComm) -> impl FnOnce() + Send + use<> {
        let (nccl, device, kept, address) =
            (self.nccl, self.device.clone(), Arc::clone(&self.kept), raw as usize);
        move || {
            end(nccl, &device, address as RawComm);
            let freed = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(freed);
        }
    }

    /// Ends `raw`, which nobody finds any more. Kernels of NCCL's that are at work leave by that only, so
    /// where there are any a moment in which nothing runs does not come before.
    fn end(&self, raw: RawComm) {
        match self.activity.is_idle() {
            true => ending::soon(&self.device, self.ending(raw)),
            false => ending::now(self.ending(raw)),
        }
    }

    /// NCCL's handle, while there is one.
    pub(super) fn alive(&self, op: &'static str) -> Result<RawComm> {
        if fork::is_child() {
            return Err(Error::Forked { op });
        }
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() { Err(Error::Closed { op }) } else { Ok(raw) }
    }

    /// NCCL's handle; null once it has ended.
    pub(super) fn raw(&self) -> RawComm {
        self.raw.load(Ordering::Acquire)
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.raw.load(Ordering::Acquire).is_null()
    }

    /// What NCCL says of the communicator.
    fn state(&self, raw: RawComm) -> Result<Code> {
        let mut state = SUCCESS;
        // SAFETY: a live communicator; writes one code.
        let code = unsafe { (self.nccl.functions.async_error)(raw, &mut state) };
        if code == SUCCESS { Ok(state) } else { Err(error(self.nccl, "ncclCommGetAsyncError", code, raw)) }
    }

    fn terms(&self) -> Wait<'static> {
        Wait::new(self.timeout.map_or(Deadline::never(), Deadline::after))
    }

    /// Takes this thread's turn.
    fn enter(&self, op: &'static str) -> Result<()> {
        let terms = self.terms();
        self.turn.take(&terms).map_err(|_| too_late(op, terms.elapsed()))
    }

    /// Gives the turn of this thread back.
    pub(super) fn leave(&self) {
        self.turn.give_back();
    }

    /// Runs `call` with the device current, in this thread's turn, and waits until NCCL has taken it; within
    /// a group of calls, that is when the group ends.
    pub(super) fn call(
        self: &Arc<Self>,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
    ) -> Result<()> {
        self.enter(op)?;
        let called = self.call_in_turn(op, call);
        if !group_call::take_over(self) {
            self.leave();
        }
        called
    }

    fn call_in_turn(&self, op: &'static str, call: impl FnOnce(&Functions, RawComm) -> Code) -> Result<()> {
        let raw = self.alive(op)?;
        let _bound = self.device.bind()?;
        let code = call(&self.nccl.functions, raw);
        if group_call::is_open() && matches!(code, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        self.settle(op, code)
    }

    /// One step of a set-up: runs `call` in this thread's turn, and `wait`, which is given what says whether
    /// NCCL is done.
    pub(super) fn step<E: From<Error>>(
        &self,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
        wait: impl FnOnce(&dyn Fn() -> Result<bool>) -> Result<(), E>,
    ) -> Result<(), E> {
        if group_call::is_open() {
            return Err(in_a_group(op).into());
        }
        self.enter(op)?;
        let done = self.step_in_turn(op, call, wait);
        self.leave();
        done
    }

    /// Asks NCCL something, in this thread's turn: an abort must not come in between.
    pub(super) fn ask_in_turn<R>(
        &self,
        op: &'static str,
        ask: impl FnOnce(RawComm) -> Result<R>,
    ) -> Result<R> {
        self.enter(op)?;
        let asked = self.alive(op).and_then(ask);
        self.leave();
        asked
    }

    fn step_in_turn<E: From<Error>>(
        &self,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
        wait: impl FnOnce(&dyn Fn() -> Result<bool>) -> Result<(), E>,
    ) -> Result<(), E> {
        let raw = self.alive(op)?;
        let _bound = self.device.bind()?;
        // Another thread may be capturing; what is registered here is no concern of its graph.
        let _relaxed = Relaxed::enter();
        let code = call(&self.nccl.functions, raw);
        wait(&|| self.settled(op, code))
    }

    /// Runs `call`, which ends something of this rank's alone, with little patience: nobody else is waited
    /// for.
    pub(super) fn end_something(
        &self,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
    ) -> Result<()> {
        let terms = Wait::for_at_most(LEAVING);
        self.turn.take(&terms).map_err(|_| too_late(op, terms.elapsed()))?;
        let ended = self.step_in_turn(op, call, |settled| wait_for(op, &terms, settled));
        self.leave();
        ended
    }

    /// Whether no thread has its turn.
    pub(super) fn is_free(&self) -> bool {
        self.turn.is_free()
    }

    /// [`SharedCommunicator::call`] that gives `stream` work, which is remembered; a graph that it is
    /// captured into keeps the communicator.
    pub(super) fn work(
        self: &Arc<Self>,
        op: &'static str,
        stream: &Stream,
        call: impl FnOnce(&Functions, RawComm) -> Code,
    ) -> Result<()> {
        stream.keep_in_capture(Arc::clone(self) as Arc<dyn Any + Send + Sync>)?;
        self.call(op, call)?;
        if group_call::remember(self, stream) { Ok(()) } else { self.worked(stream) }
    }

    /// Notes that `stream` was given work. That of a capture runs when its graph does, and is the graph's
    /// business.
    pub(super) fn worked(&self, stream: &Stream) -> Result<()> {
        match stream.capture_id()? {
            None => self.activity.copied(stream),
            Some(_) => Ok(()),
        }
    }

    /// Waits until NCCL has done what `op` began with `code`.
    pub(super) fn settle(&self, op: &'static str, code: Code) -> Result<()> {
        self.settle_within(op, code, &self.terms())
    }

    fn settle_within(&self, op: &'static str, code: Code, terms: &Wait<'_>) -> Result<()> {
        wait_for(op, terms, &|| self.settled(op, code))
    }

    /// Whether NCCL has done what `op` began with `code`.
    pub(super) fn settled(&self, op: &'static str, code: Code) -> Result<bool> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed { op });
        }
        let raw = self.alive(op)?;
        // Some calls (ncclCommSplit, ncclCommWindowRegister) say that they succeeded while a thread of NCCL's
        // is still at it, and writes their result later. Only the communicator knows.
        let state = if matches!(code, SUCCESS | IN_PROGRESS) { self.state(raw)? } else { code };
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            code => Err(error(self.nccl, op, code, raw)),
        }
    }

    /// As [`Communicator::poll`].
    pub(super) fn poll(&self) -> Result<bool> {
        // Without its turn an abort could come in between; whoever has it will see what there is to see.
        if self.turn.take(&Wait::for_at_most(Duration::ZERO)).is_err() {
            return Ok(false);
        }
        let settled = self.settled("asynchronous operation", IN_PROGRESS);
        self.leave();
        settled
    }

    /// Makes a communicator out of this one; `None` where this rank has no part in it.
    pub(super) fn child(
        self: &Arc<Self>,
        op: &'static str,
        make: impl FnOnce(&NcclLibrary, RawComm, *mut RawComm, *mut RawConfig) -> Result<Code>,
    ) -> Result<Option<Communicator>> {
        if group_call::is_open() {
            return Err(in_a_group(op));
        }
        let activity = Activity::new(&self.device, 0)?;
        let mut config = RawConfig::new(self.nccl.loaded.version);
        let mut out = Out::new();
        let mut refused = None;
        let made = self.call(op, |_, raw| match make(self.nccl, raw, out.address(), &mut config) {
            Ok(code) => code,
            Err(error) => {
                refused = Some(error);
                SUCCESS
            }
        });
        if let Err(error) = made {
            out.leak();
            return Err(error);
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let raw = out.value();
        if raw.is_null() {
            return Ok(None);
        }
        let (device, timeout) = (self.device.clone(), self.timeout);
        let parts = CommunicatorParts {
            nccl: self.nccl,
            raw,
            device,
            rank: 0,
            world: 0,
            owner: CommunicatorOwner::Ours,
            timeout,
        };
        let mut inner = SharedCommunicator::new(parts, activity);
        inner.settle(op, IN_PROGRESS)?;
        inner.rank = inner.ask("ncclCommUserRank", self.nccl.functions.user_rank)?;
        inner.world = inner.ask("ncclCommCount", self.nccl.functions.count)?;
        Ok(Some(Communicator { inner: Arc::new(inner) }))
    }

    fn ask(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(RawComm, *mut c_int) -> Code,
    ) -> Result<usize> {
        let raw = self.alive(call)?;
        let mut value = 0;
        // SAFETY: a live communicator; writes one integer.
        let code = unsafe { function(raw, &mut value) };
        match code {
            SUCCESS => usize::try_from(value).map_err(|_| Error::invalid(call, value.to_string())),
            code => Err(error(self.nccl, call, code, raw)),
        }
    }

    pub(super) fn finish(self: &Arc<Self>, within: Duration) -> Result<()> {
        const CALL: &str = "ncclCommFinalize";
        if group_call::is_open() {
            return Err(in_a_group(CALL));
        }
        let windows = self.windows.load(Ordering::Acquire);
        if windows > 0 {
            let problem = format!("{windows} windows are registered on it. Hint: drop their memory first");
            return Err(Error::invalid("communicator", problem));
        }
        if let CommunicatorOwner::Theirs(_) = self.owner {
            return Err(Error::invalid("communicator", "it was adopted, and whoever made it ends it"));
        }
        let terms = Wait::for_at_most(within);
        self.turn.take(&terms).map_err(|_| too_late(CALL, terms.elapsed()))?;
        let ended = self.finish_in_turn(CALL, &terms);
        self.leave();
        if ended.is_err() {
            self.abort();
        }
        ended
    }

    fn finish_in_turn(&self, call: &'static str, terms: &Wait<'_>) -> Result<()> {
        let raw = self.alive(call)?;
        let _bound = self.device.bind()?;
        let _relaxed = Relaxed::enter();
        // SAFETY: a live communicator.
        let code = unsafe { (self.nccl.functions.finalize)(raw) };
        self.settle_within(call, code, terms)?;
        self.raw.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: a live communicator, which nobody finds any more.
        let code = unsafe { (self.nccl.functions.destroy)(raw) };
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(error(self.nccl, "ncclCommDestroy", code, ptr::null_mut())),
        }
    }

    /// As [`Communicator::abort`].
    pub(super) fn abort(&self) {
        if fork::is_child() {
            return;
        }
        self.stopping.store(true, Ordering::Release);
        if self.turn.take(&Wait::for_at_most(LEAVING)).is_err() {
            tracing::warn!("another thread does not leave NCCL; the communicator stays");
            return;
        }
        let raw = self.raw.swap(ptr::null_mut(), Ordering::AcqRel);
        if !raw.is_null() && matches!(self.owner, CommunicatorOwner::Ours) {
            self.end(raw);
        }
        self.leave();
    }
}

/// Ends `raw`, a live communicator that nobody finds any more, without its peers.
fn end(nccl: &NcclLibrary, device: &Device, raw: RawComm) {
    // One that cannot be made current must not keep the communicator from going.
    let _bound = device.bind();
    let _relaxed = Relaxed::enter();
    // SAFETY: a live communicator, which nobody finds any more.
    let code = unsafe { (nccl.functions.abort)(raw) };
    if !matches!(code, SUCCESS | IN_PROGRESS) {
        let error = error(nccl, "ncclCommAbort", code, ptr::null_mut());
        tracing::warn!(%error, "not released");
    }
}

/// Waits until `settled` says so.
fn wait_for(op: &'static str, terms: &Wait<'_>, settled: &dyn Fn() -> Result<bool>) -> Result<()> {
    let waited = terms.until(|slice| match settled() {
        Ok(false) => {
            std::thread::sleep(slice.min(NAP));
            Ok(None)
        }
        Ok(true) => Ok(Some(Ok(()))),
        Err(error) => Ok(Some(Err(error))),
    });
    waited.unwrap_or_else(|_: Interrupt| Err(too_late(op, terms.elapsed())))
}

impl Drop for SharedCommunicator {
    fn drop(&mut self) {
        let raw = std::mem::replace(self.raw.get_mut(), ptr::null_mut());
        if raw.is_null() || fork::is_child() || matches!(self.owner, CommunicatorOwner::Theirs(_)) {
            return;
        }
        self.end(raw);
    }
}

/// A place for a result that NCCL may write after the call has returned. It stays for ever where that cannot
/// be known.
pub(super) struct Out(*mut *mut c_void);

impl Out {
    pub(super) fn new() -> Self {
        Self(Box::into_raw(Box::new(ptr::null_mut())))
    }

    pub(super) fn address(&self) -> *mut *mut c_void {
        self.0
    }

    /// What is there, once NCCL is done.
    pub(super) fn value(&self) -> *mut c_void {
        // SAFETY: made from a box; NCCL is done with it.
        unsafe { self.0.read() }
    }

    /// Leaves it to NCCL.
    pub(super) fn leak(&mut self) {
        self.0 = ptr::null_mut();
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made from a box, and not leaked.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// `value` as NCCL takes numbers.
pub(super) fn number(what: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::invalid(what, format!("{value} is too large")))
}

/// NCCL does what is part of a group when the group ends, long after its results were looked for.
#[cold]
fn in_a_group(op: &'static str) -> Error {
    Error::invalid(op, "it cannot be part of a group of calls. Hint: end the GroupCall first")
}
