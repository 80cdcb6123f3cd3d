//! Communicators: ranks that know each other through NCCL.
//!
//! Public. Made by the ranks of a [`Group`](crate::Group) (`join.rs`), with an id that travelled by other means, for all devices of this
//! process, or adopted from whoever made one. What it guarantees: no call blocks (NCCL is told so, and polled with a
//! deadline), one thread at a time is in NCCL, a failed or ended communicator is not touched again, windows go before it,
//! and dropping the last handle aborts it, which waits for nobody.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use symmem_store::{Deadline, Interrupt, Wait};

use super::bindings::{
    Code, Functions, IN_PROGRESS, NO_COLOUR, REVOKING, RawComm, RawConfig, RawId, SHRINK, SHRINKING, SUCCESS,
};
use super::error::{error, too_late};
use super::group_call;
use super::library::{Nccl, nccl};
use super::turn::Turn;
use crate::cuda::{Device, Stream};
use crate::engine::cuda::Activity;
use crate::sys::fork;
use crate::{Error, Result};

/// How long calls may take unless told otherwise: as long as everything else in this crate.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long an abort waits for another thread to leave NCCL. Calls do not block, so it leaves when it is next polled.
const LEAVING: Duration = Duration::from_secs(5);
/// The longest sleep between two polls.
const NAP: Duration = Duration::from_millis(1);

/// What the ranks of a communicator must have in common before they know each other. Made by one of them, and brought to
/// the others by whatever means there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

impl UniqueId {
    /// Bytes of an id.
    pub const BYTES: usize = 128;

    /// A new one. The process that makes it must live until all ranks have used it.
    pub fn new() -> Result<Self> {
        let nccl = nccl()?;
        let mut id = RawId([0; Self::BYTES]);
        // SAFETY: writes one id.
        let code = unsafe { (nccl.functions.get_unique_id)(&mut id) };
        match code {
            SUCCESS => Ok(Self(id.0)),
            code => Err(error(nccl, "ncclGetUniqueId", code, ptr::null_mut())),
        }
    }

    /// The id with these bytes, which [`UniqueId::as_bytes`] of another rank gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let id = bytes.try_into().map_err(|_| {
            let (expected, got) = (Self::BYTES, bytes.len());
            Error::invalid("unique id", format!("expected {expected} bytes, got {got}"))
        })?;
        Ok(Self(id))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever has the bytes can join.
        f.write_str("UniqueId")
    }
}

/// This rank's part in a set of ranks that communicate through NCCL. Cheap to clone.
///
/// Operations go in the order of the stream that they are given; all ranks must make them in the same order. Streams must
/// be done before the last handle is dropped, which aborts what is under way; [`Communicator::finish`] ends it in an
/// orderly way, with all ranks.
#[derive(Clone)]
pub struct Communicator {
    pub(super) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(super) nccl: &'static Nccl,
    /// Null once it is gone.
    raw: AtomicPtr<c_void>,
    pub(super) device: Device,
    pub(super) rank: usize,
    pub(super) world: usize,
    owner: Owner,
    turn: Turn,
    /// Set by an abort: whoever waits in here gives up.
    stopping: AtomicBool,
    /// Windows that are registered.
    pub(super) windows: AtomicUsize,
    timeout: Option<Duration>,
    /// Work on streams, so that memory it may use is not unmapped before it is done.
    activity: Arc<Activity>,
}

/// Who ends it.
enum Owner {
    Ours,
    /// Whoever made it; what is held keeps it alive.
    Theirs(#[allow(dead_code)] Option<Arc<dyn Any + Send + Sync>>),
}

impl Communicator {
    /// Collective over `world` ranks that all have `id`: this one is `rank`, on `device`.
    pub fn with_id(id: &UniqueId, rank: usize, world: usize, device: &Device) -> Result<Self> {
        Self::with_id_within(id, rank, world, device, TIMEOUT)
    }

    /// [`Communicator::with_id`], with `timeout` for this and for every later call.
    pub fn with_id_within(
        id: &UniqueId,
        rank: usize,
        world: usize,
        device: &Device,
        timeout: Duration,
    ) -> Result<Self> {
        let begun = Self::begin(id, rank, world, device, Some(timeout))?;
        begun.inner.settle("ncclCommInitRankConfig", IN_PROGRESS)?;
        Ok(begun)
    }

    /// Starts to make a communicator; it can be used once it has settled.
    pub(super) fn begin(
        id: &UniqueId,
        rank: usize,
        world: usize,
        device: &Device,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let nccl = nccl()?;
        let (raw_rank, raw_world) = (number("rank", rank)?, number("world size", world)?);
        if rank >= world {
            return Err(Error::RankOutOfRange { op: "ncclCommInitRankConfig", rank, world });
        }
        let activity = Activity::new(device, 0)?;
        let mut config = RawConfig::new(nccl.loaded.version);
        let out = Out::new();
        let _bound = device.bind()?;
        // SAFETY: the configuration is as long as it says; the result stays where it is until NCCL has written it.
        let code = unsafe {
            (nccl.functions.init_rank)(out.address(), raw_world, RawId(id.0), raw_rank, &mut config)
        };
        let raw = out.value();
        if !matches!(code, SUCCESS | IN_PROGRESS) || raw.is_null() {
            return Err(error(nccl, "ncclCommInitRankConfig", code, ptr::null_mut()));
        }
        let parts = Parts { nccl, raw, device: device.clone(), rank, world, owner: Owner::Ours, timeout };
        Ok(Self { inner: Arc::new(Inner::new(parts, activity)) })
    }

    /// One communicator for each of `devices`, which must differ; their ranks are in that order. All of this process, so
    /// nobody else takes part.
    pub fn for_devices(devices: &[Device]) -> Result<Vec<Self>> {
        let nccl = nccl()?;
        check_distinct(devices)?;
        let id = UniqueId::new()?;
        let world = devices.len();
        // As one group: each waits for the others.
        group_call::raw_start(nccl)?;
        let begun: Vec<Result<Self>> = devices
            .iter()
            .enumerate()
            .map(|(rank, device)| Self::begin(&id, rank, world, device, Some(TIMEOUT)))
            .collect();
        // Ended whatever happened, and before anything is let go of.
        let ended = group_call::raw_end(nccl, devices.first());
        let begun = begun.into_iter().collect::<Result<Vec<Self>>>()?;
        let code = ended?;
        for communicator in &begun {
            communicator.inner.settle("ncclGroupEnd", code)?;
        }
        Ok(begun)
    }

    /// A communicator that somebody else made (PyTorch, cudarc), and ends after the last clone of what this returns is
    /// gone; `keep` can be what makes sure of that. Its device is asked for.
    ///
    /// # Safety
    /// `raw` is an `ncclComm_t` of the NCCL that [`library`](super::library()) names, and lives as long as said. Nobody else makes
    /// calls on it while a call of this crate does.
    pub unsafe fn adopt(raw: *mut c_void, keep: Option<Arc<dyn Any + Send + Sync>>) -> Result<Self> {
        if raw.is_null() {
            return Err(Error::invalid("communicator", "it is null"));
        }
        let nccl = nccl()?;
        let ask = |call, function: unsafe extern "C" fn(RawComm, *mut c_int) -> Code| {
            let mut value = 0;
            // SAFETY: a live communicator, as the caller promises; writes one integer.
            let code = unsafe { function(raw, &mut value) };
            match code {
                SUCCESS => usize::try_from(value).map_err(|_| Error::invalid(call, value.to_string())),
                code => Err(error(nccl, call, code, raw)),
            }
        };
        let device = Device::new(ask("ncclCommCuDevice", nccl.functions.cuda_device)?)?;
        let (rank, world) =
            (ask("ncclCommUserRank", nccl.functions.user_rank)?, ask("ncclCommCount", nccl.functions.count)?);
        let activity = Activity::new(&device, 0)?;
        let owner = Owner::Theirs(keep);
        let parts = Parts { nccl, raw, device, rank, world, owner, timeout: Some(TIMEOUT) };
        Ok(Self { inner: Arc::new(Inner::new(parts, activity)) })
    }

    /// Collective. Communicators of those ranks that have the same colour, ordered by `key` and then by rank. A rank
    /// without a colour takes part and gets `None`.
    pub fn split(&self, colour: Option<u32>, key: usize) -> Result<Option<Self>> {
        const CALL: &str = "ncclCommSplit";
        let colour = match colour {
            Some(colour) => number("colour", colour as usize)?,
            None => NO_COLOUR,
        };
        let key = number("key", key)?;
        self.inner.child(CALL, |nccl, raw, out, config| {
            // SAFETY: a live communicator; result and configuration live until the call is done.
            Ok(unsafe { (nccl.functions.split)(raw, colour, key, out, config) })
        })
    }

    /// Collective over the ranks that stay. A communicator without `excluded`; `abort` ends what is under way on this one
    /// first, as one must where a rank is gone.
    pub fn shrink(&self, excluded: &[usize], abort: bool) -> Result<Self> {
        const CALL: &str = "ncclCommShrink";
        let mut ranks: Vec<c_int> =
            excluded.iter().map(|rank| number("rank", *rank)).collect::<Result<_>>()?;
        let count = number("number of ranks", ranks.len())?;
        let shrink = self.inner.nccl.need(SHRINKING, self.inner.nccl.functions.shrink)?;
        let child = self.inner.child(CALL, |_, raw, out, config| {
            // SAFETY: as many ranks as said; otherwise as for a split.
            Ok(unsafe { shrink(raw, ranks.as_mut_ptr(), count, out, config, SHRINK[usize::from(abort)]) })
        })?;
        child.ok_or_else(|| Error::invalid(CALL, "this rank is excluded"))
    }

    /// Ends what is under way on this communicator, on all ranks that are there; it can then be shrunk or ended.
    pub fn revoke(&self) -> Result<()> {
        let revoke = self.inner.nccl.need(REVOKING, self.inner.nccl.functions.revoke)?;
        // SAFETY: a live communicator; the flags must be 0.
        self.inner.call("ncclCommRevoke", |_, raw| unsafe { revoke(raw, 0) })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.inner.world
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// NCCL's handle; null once it has ended. For calls of your own, which must not meet calls of this crate.
    pub fn raw(&self) -> *mut c_void {
        self.inner.raw.load(Ordering::Acquire)
    }

    /// Whether NCCL is done with what it was asked (work on streams is the streams'), or what has become of it. Never
    /// waits: for those who watch over it.
    pub fn poll(&self) -> Result<bool> {
        // Without its turn an abort could come in between; whoever has it will see what there is to see.
        if self.inner.turn.take(&Wait::for_at_most(Duration::ZERO)).is_err() {
            return Ok(false);
        }
        let settled = self.inner.settled("asynchronous operation", IN_PROGRESS);
        self.inner.leave();
        settled
    }

    /// Collective. Waits until every rank is here and all work is done, for at most `within`, and ends the communicator.
    /// Windows must be gone. Whatever comes of it, the communicator cannot be used afterwards.
    pub fn finish(&self, within: Duration) -> Result<()> {
        self.inner.finish(within)
    }

    /// Ends the communicator and what is under way on it. Waits for no other rank. Windows are gone with it. One that was
    /// adopted is left to whoever made it.
    pub fn abort(&self) {
        self.inner.abort();
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("device", self.device())
            .finish_non_exhaustive()
    }
}

/// What a communicator is made of.
struct Parts {
    nccl: &'static Nccl,
    raw: RawComm,
    device: Device,
    rank: usize,
    world: usize,
    owner: Owner,
    timeout: Option<Duration>,
}

impl Inner {
    fn new(parts: Parts, activity: Arc<Activity>) -> Self {
        let Parts { nccl, raw, device, rank, world, owner, timeout } = parts;
        Self {
            nccl,
            raw: AtomicPtr::new(raw),
            device,
            rank,
            world,
            owner,
            turn: Turn::default(),
            stopping: AtomicBool::new(false),
            windows: AtomicUsize::new(0),
            timeout,
            activity,
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

    /// Runs `call` with the device current, in this thread's turn, and waits until NCCL has taken it; within a group of
    /// calls, that is when the group ends.
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
        if group_call::is_open() && code == IN_PROGRESS {
            return Ok(());
        }
        self.settle(op, code)
    }

    /// One step of a set-up: runs `call` in this thread's turn, and `wait`, which is given what says whether NCCL is done.
    pub(super) fn step<E: From<Error>>(
        &self,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
        wait: impl FnOnce(&dyn Fn() -> Result<bool>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.enter(op)?;
        let done = self.step_in_turn(op, call, wait);
        self.leave();
        done
    }

    fn step_in_turn<E: From<Error>>(
        &self,
        op: &'static str,
        call: impl FnOnce(&Functions, RawComm) -> Code,
        wait: impl FnOnce(&dyn Fn() -> Result<bool>) -> Result<(), E>,
    ) -> Result<(), E> {
        let raw = self.alive(op)?;
        let _bound = self.device.bind()?;
        let code = call(&self.nccl.functions, raw);
        wait(&|| self.settled(op, code))
    }

    /// Runs `call`, which ends something of this rank's alone, with little patience: nobody else is waited for.
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

    /// [`Inner::call`] that gives `stream` work, which is remembered.
    pub(super) fn work(
        self: &Arc<Self>,
        op: &'static str,
        stream: &Stream,
        call: impl FnOnce(&Functions, RawComm) -> Code,
    ) -> Result<()> {
        self.call(op, call)?;
        if group_call::remember(self, stream) { Ok(()) } else { self.worked(stream) }
    }

    /// Notes that `stream` was given work. That of a capture runs when its graph does, and is the graph's business.
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
        let state = if code == IN_PROGRESS { self.state(raw)? } else { code };
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            code => Err(error(self.nccl, op, code, raw)),
        }
    }

    /// Makes a communicator out of this one; `None` where this rank has no part in it.
    fn child(
        self: &Arc<Self>,
        op: &'static str,
        make: impl FnOnce(&Nccl, RawComm, *mut RawComm, *mut RawConfig) -> Result<Code>,
    ) -> Result<Option<Communicator>> {
        if group_call::is_open() {
            return Err(Error::invalid(op, "it cannot be part of a group of calls"));
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
        let parts = Parts { nccl: self.nccl, raw, device, rank: 0, world: 0, owner: Owner::Ours, timeout };
        let mut inner = Inner::new(parts, activity);
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

    fn finish(self: &Arc<Self>, within: Duration) -> Result<()> {
        const CALL: &str = "ncclCommFinalize";
        let windows = self.windows.load(Ordering::Acquire);
        if windows > 0 {
            let problem = format!("{windows} windows are registered on it. Hint: drop their memory first");
            return Err(Error::invalid("communicator", problem));
        }
        if let Owner::Theirs(_) = self.owner {
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
        if !raw.is_null() && matches!(self.owner, Owner::Ours) {
            // One that cannot be made current must not keep the communicator from going.
            let _bound = self.device.bind();
            // SAFETY: a live communicator, which nobody finds any more.
            let code = unsafe { (self.nccl.functions.abort)(raw) };
            if !matches!(code, SUCCESS | IN_PROGRESS) {
                let error = error(self.nccl, "ncclCommAbort", code, ptr::null_mut());
                tracing::warn!(%error, "not released");
            }
        }
        self.leave();
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

impl Drop for Inner {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A place for a result that NCCL may write after the call has returned. It stays for ever where that cannot be known.
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

fn check_distinct(devices: &[Device]) -> Result<()> {
    if devices.is_empty() {
        return Err(Error::invalid("devices", "there are none"));
    }
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].contains(device) {
            return Err(Error::invalid("devices", format!("{device} is there twice")));
        }
    }
    Ok(())
}
