//! Communicators: ranks that know each other through NCCL.
//!
//! Public. Made by the ranks of a [`Group`](crate::Group) (`provider/nccl/join.rs`), with an id that
//! travelled by other means, for all devices of this process, or adopted from whoever made one. What it
//! guarantees: no call blocks (NCCL is told so, and polled with a deadline), one thread at a time is in NCCL,
//! a failed or ended communicator is not touched again, windows go before it, and dropping the last handle
//! aborts it, which waits for nobody.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::bindings::{
    Code, IN_PROGRESS, NO_COLOUR, REVOKING, RawComm, RawConfig, RawId, SHRINK, SHRINKING, SUCCESS,
};
use super::error::error;
use super::group_call;
use super::library::nccl;
use super::shared::{CommunicatorOwner, CommunicatorParts, Out, SharedCommunicator, number};
use crate::cuda::Device;
use crate::cuda::activity::Activity;
use crate::cuda::capture::Relaxed;
use crate::{Error, Result};

/// How long calls may take unless told otherwise: as long as everything else in this crate.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The call that makes a communicator.
const MAKING: &str = "ncclCommInitRankConfig";

/// What the ranks of a communicator must have in common before they know each other. Made by one of them, and
/// brought to the others by any means.
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
/// Operations go in the order of the stream that they are given; all ranks must make them in the same order.
/// Streams must be done before the last handle is dropped, which aborts what is under way;
/// [`Communicator::finish`] ends it in an orderly way, with all ranks.
#[derive(Clone)]
pub struct Communicator {
    pub(super) inner: Arc<SharedCommunicator>,
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
        begun.inner.settle(MAKING, IN_PROGRESS)?;
        Ok(begun)
    }

    /// Starts to make a communicator; it can be used once [`Communicator::is_made`] says so.
    pub(crate) fn begin(
        id: &UniqueId,
        rank: usize,
        world: usize,
        device: &Device,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let nccl = nccl()?;
        let (raw_rank, raw_world) = (number("rank", rank)?, number("world size", world)?);
        if rank >= world {
            return Err(Error::RankOutOfRange { op: MAKING, rank, world });
        }
        let activity = Activity::new(device, 0)?;
        let mut config = RawConfig::new(nccl.loaded.version);
        let out = Out::new();
        let _bound = device.bind()?;
        let _relaxed = Relaxed::enter();
        // SAFETY: the configuration is as long as it says; the result stays where it is until NCCL has
        // written it.
        let code = unsafe {
            (nccl.functions.init_rank)(out.address(), raw_world, RawId(id.0), raw_rank, &mut config)
        };
        let raw = out.value();
        if !matches!(code, SUCCESS | IN_PROGRESS) || raw.is_null() {
            return Err(error(nccl, MAKING, code, ptr::null_mut()));
        }
        let parts = CommunicatorParts {
            nccl,
            raw,
            device: device.clone(),
            rank,
            world,
            owner: CommunicatorOwner::Ours,
            timeout,
        };
        Ok(Self { inner: Arc::new(SharedCommunicator::new(parts, activity)) })
    }

    /// Whether NCCL has done what [`Communicator::begin`] began. Never waits.
    pub(crate) fn is_made(&self) -> Result<bool> {
        self.inner.settled(MAKING, IN_PROGRESS)
    }

    /// One communicator for each of `devices`, which must differ; their ranks are in that order. All of this
    /// process, so nobody else takes part.
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

    /// A communicator that somebody else made (PyTorch, cudarc), and ends after the last clone of what this
    /// returns is gone; `keep` can be what makes sure of that: windows hold a clone until they are taken off,
    /// which may be as late as the next allocation after their memory was dropped. Its device is asked for.
    ///
    /// # Safety
    /// `raw` is an `ncclComm_t` of the NCCL that [`library`](super::library()) names, and lives as long as
    /// said. Nobody else makes calls on it while a call of this crate does.
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
        let owner = CommunicatorOwner::Theirs(keep);
        let parts = CommunicatorParts { nccl, raw, device, rank, world, owner, timeout: Some(TIMEOUT) };
        Ok(Self { inner: Arc::new(SharedCommunicator::new(parts, activity)) })
    }

    /// Collective. Communicators of those ranks that have the same colour, ordered by `key` and then by rank.
    /// A rank without a colour takes part and gets `None`.
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

    /// Collective over the ranks that stay. A communicator without `excluded`; `abort` ends what is under way
    /// on this one first, as one must where a rank is gone.
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

    /// Ends what is under way on this communicator, on all ranks that are there; it can then be shrunk or
    /// ended.
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
        self.inner.raw()
    }

    /// Whether NCCL is done with what it was asked (work on streams is the streams'), or what has become of
    /// it. Never waits: for those who watch over it.
    pub fn poll(&self) -> Result<bool> {
        self.inner.poll()
    }

    /// Collective. Waits until every rank is here and all work is done, for at most `within`, and ends the
    /// communicator. Windows must be gone. Whatever comes of it, the communicator cannot be used afterwards.
    pub fn finish(&self, within: Duration) -> Result<()> {
        self.inner.finish(within)
    }

    /// Ends the communicator and what is under way on it. Waits for no other rank. Windows are gone with it.
    /// One that was adopted is left to whoever made it.
    pub fn abort(&self) {
        self.inner.abort();
    }

    /// Whether NCCL has nothing of it any more, after an abort.
    pub(crate) fn has_ended(&self) -> bool {
        self.inner.has_ended()
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
