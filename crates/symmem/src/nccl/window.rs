//! Memory that NCCL allocated, registered as a window with all ranks.
//!
//! Called by `provider/nccl`. What it guarantees: deregistration comes before freeing, and both before the
//! communicator's end, by ownership; windows of a communicator that was aborted are gone with it and are not
//! touched again.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bindings::{NcclTeam, PEER_POINTERS, RawWindow, SUCCESS, SYMMETRIC, TEAMS, WINDOWS};
use super::communicator::Communicator;
use super::error::error;
use super::memory::NcclAllocation;
use super::shared::{Out, SharedCommunicator, number};
use super::version::Version;
use crate::cuda::capture::Relaxed;
use crate::cuda::{Stream, buffer, deferred};
use crate::sys::fork;
use crate::{Error, Result};

/// Versions whose window structure was checked, and that have no call to ask for pointers. In others peers
/// are out of reach.
const KNOWN_STRUCTURE: [Version; 1] = [Version::new(2, 28, 9)];

/// Memory that is registered with all ranks of a communicator.
pub(crate) struct Window(Option<RegisteredWindow>);

/// What is behind a window. Fields go in this order, after `drop` has deregistered.
struct RegisteredWindow {
    raw: RawWindow,
    memory: Arc<NcclAllocation>,
    communicator: Arc<SharedCommunicator>,
}

// SAFETY: the handle is only a number here, and calls with it take their turn.
unsafe impl Send for RegisteredWindow {}
// SAFETY: as above.
unsafe impl Sync for RegisteredWindow {}

impl Window {
    /// Collective. Registers everybody's `memory`, which must be of the same size; every rank has said that
    /// it will. `wait` waits until what it is given says that NCCL is done.
    pub(crate) fn register<E: From<Error>>(
        communicator: &Communicator,
        memory: &Arc<NcclAllocation>,
        wait: impl FnOnce(&dyn Fn() -> Result<bool>) -> Result<(), E>,
    ) -> Result<Self, E> {
        const CALL: &str = "ncclCommWindowRegister";
        let inner = &communicator.inner;
        let register = inner.nccl.need(WINDOWS, inner.nccl.functions.window_register)?;
        let mut out = Out::new();
        let (address, bytes) = (memory.address(), memory.bytes());
        let registered = inner.step(
            CALL,
            // SAFETY: a live communicator and memory; the result stays where it is until NCCL has written it.
            |_, raw| unsafe { register(raw, address, bytes, out.address(), SYMMETRIC) },
            wait,
        );
        if let Err(error) = registered {
            out.leak();
            // NCCL may still be at it, until the communicator has ended.
            inner.keep(memory);
            return Err(error);
        }
        let raw = out.value();
        if raw.is_null() {
            out.leak();
            let problem = "NCCL gives no window. Hint: symmetric memory needs cuMem (NCCL_CUMEM_ENABLE) and peers in reach; NCCL_DEBUG=INFO says what is missing";
            return Err(Error::invalid(CALL, problem).into());
        }
        inner.windows.fetch_add(1, Ordering::AcqRel);
        let registered =
            RegisteredWindow { raw, memory: Arc::clone(memory), communicator: Arc::clone(inner) };
        Ok(Self(Some(registered)))
    }

    /// NCCL's handle, for kernels of its device interface.
    pub(crate) fn raw(&self) -> Option<RawWindow> {
        self.0.as_ref().map(|registered| registered.raw)
    }

    /// Where NCCL says that everybody's memory is for kernels on this rank's device; 0 for a rank that loads
    /// and stores do not reach. Nobody has looked whether it is there.
    pub(crate) fn pointers(&self) -> Result<Vec<u64>> {
        self.registered()?.pointers()
    }

    /// As [`RegisteredWindow::multicast`].
    pub(crate) fn multicast(&self) -> Option<u64> {
        self.0.as_ref()?.multicast()
    }
}

impl RegisteredWindow {
    /// As [`Window::pointers`].
    fn pointers(&self) -> Result<Vec<u64>> {
        match self.communicator.nccl.functions.peer_pointer {
            Some(_) => (0..self.communicator.world).map(|peer| self.asked(peer)).collect(),
            None => self.read_structure(),
        }
    }

    /// What NCCL says where the memory of `peer` is.
    fn asked(&self, peer: usize) -> Result<u64> {
        let nccl = self.communicator.nccl;
        let ask = nccl.need(PEER_POINTERS, nccl.functions.peer_pointer)?;
        let (peer, mut address) = (number("rank", peer)?, 0);
        // SAFETY: a registered window; writes one address.
        let ask = |_| Ok(unsafe { ask(self.raw, 0, peer, &mut address) });
        match self.communicator.ask_in_turn("ncclGetPeerDevicePointer", ask)? {
            SUCCESS => Ok(address),
            code => Err(self.failed("ncclGetPeerDevicePointer", code)),
        }
    }

    /// Where the window's structure in device memory says that everybody's memory is.
    fn read_structure(&self) -> Result<Vec<u64>> {
        let SharedCommunicator { nccl, world, rank, .. } = &*self.communicator;
        let version = nccl.loaded.version;
        if !KNOWN_STRUCTURE.contains(&version) {
            tracing::debug!(%version, "nobody has checked where this NCCL keeps pointers: peers are out of reach");
            return Ok(vec![0; *world]);
        }
        let team_of = nccl.need(TEAMS, nccl.functions.team_lsa)?;
        // SAFETY: a live communicator.
        let team = self.communicator.ask_in_turn("ncclTeamLsa", |raw| Ok(unsafe { team_of(raw) }))?;
        let _relaxed = Relaxed::enter();
        let stream = Stream::service(self.memory.device())?;
        // SAFETY: in these versions a window is the address of a structure of more than that many bytes.
        let bytes = unsafe { buffer::read::<u8>(self.raw as u64, STRUCTURE, &stream) };
        let Ok(bytes) = bytes else { return Ok(vec![0; *world]) };
        Ok((0..*world).map(|peer| place(&bytes, team, *rank, peer)).collect())
    }

    /// The address that reaches the memory of all ranks at once, where NCCL has one.
    fn multicast(&self) -> Option<u64> {
        let ask = self.communicator.nccl.functions.multicast_pointer?;
        let mut address = 0;
        // SAFETY: a registered window; writes one address.
        let ask = |_| Ok(unsafe { ask(self.raw, 0, &mut address) });
        let code = self.communicator.ask_in_turn("ncclGetLsaMultimemDevicePointer", ask).ok()?;
        (code == SUCCESS && address != 0).then_some(address)
    }

    fn failed(&self, call: &'static str, code: i32) -> Error {
        error(self.communicator.nccl, call, code, ptr::null_mut())
    }
}

impl Window {
    /// What is registered; only a window that is being dropped has nothing.
    fn registered(&self) -> Result<&RegisteredWindow> {
        self.0.as_ref().ok_or(Error::Closed { op: "window" })
    }
}

impl RegisteredWindow {
    fn deregister(&self) {
        let Some(deregister) = self.communicator.nccl.functions.window_deregister else { return };
        let raw = self.raw;
        // SAFETY: registered on this communicator, once; work on it kept it alive.
        let gone = self
            .communicator
            .end_something("ncclCommWindowDeregister", |_, comm| unsafe { deregister(comm, raw) });
        match gone {
            Ok(()) => {}
            // It goes with the communicator, which an abort may only be about to end.
            Err(Error::Closed { .. }) => self.communicator.keep(&self.memory),
            Err(error) => {
                tracing::warn!(%error, "not released");
                // NCCL may still have it registered: then it stays.
                std::mem::forget(Arc::clone(&self.memory));
            }
        }
    }
}

impl Drop for RegisteredWindow {
    fn drop(&mut self) {
        // It goes with the communicator, and its memory not before; in a forked child it is the rank's.
        if !fork::is_child() && self.communicator.is_alive() {
            self.deregister();
        } else {
            self.communicator.keep(&self.memory);
        }
        self.communicator.windows.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(registered) = self.0.take() else { return };
        let communicator = Arc::clone(&registered.communicator);
        // Whoever drops it must not wait for a thread that is in NCCL, nor make it part of a group of calls.
        if !fork::is_child() && !communicator.is_free() {
            deferred::drop_when(Box::new(move || communicator.is_free()), Box::new(registered));
        }
    }
}

/// Bytes of a window's structure that are looked at.
const STRUCTURE: usize = 32;

/// Where `peer`'s memory is, by the structure in `bytes`: all ranks of the team are at equal distances from
/// its first.
fn place(bytes: &[u8], team: NcclTeam, rank: usize, peer: usize) -> u64 {
    let long = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte]));
    let (base, stride) = (long(8), u64::from(long(24) as u32));
    let in_team = peer as i64 - (rank as i64 - i64::from(team.rank));
    if base == 0 || team.stride != 1 || !(0..i64::from(team.ranks)).contains(&in_team) {
        return 0;
    }
    base.wrapping_add((in_team as u64).wrapping_mul(stride) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_team_is_at_equal_distances() {
        let mut bytes = [0; STRUCTURE];
        bytes[8..16].copy_from_slice(&0x7000_0000_0000u64.to_le_bytes());
        bytes[24..28].copy_from_slice(&2u32.to_le_bytes());
        // The offset for multicast is no part of the distance.
        bytes[28..32].copy_from_slice(&9u32.to_le_bytes());
        let team = NcclTeam { ranks: 2, rank: 1, stride: 1 };
        // Ranks 2 and 3 of four; this is rank 3.
        let places: Vec<u64> = (0..4).map(|peer| place(&bytes, team, 3, peer)).collect();
        assert_eq!(places, [0, 0, 0x7000_0000_0000, 0x7002_0000_0000]);
        let odd = NcclTeam { stride: 2, ..team };
        assert_eq!(place(&bytes, odd, 3, 3), 0);
        assert_eq!(place(&[0; STRUCTURE], team, 3, 3), 0);
    }
}
