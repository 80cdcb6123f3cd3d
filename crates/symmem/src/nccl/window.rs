//! Memory that NCCL allocates, and its registration as a window with all ranks.
//!
//! Called by `provider/nccl`. What it guarantees: deregistration comes before freeing, and both before the communicator's
//! end, by ownership; windows of a communicator that was aborted are gone with it and are not touched again; a pointer to a
//! peer's memory is believed only after the mark that the peer left there was read through it.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bindings::{PEER_POINTERS, RawWindow, SUCCESS, SYMMETRIC, TEAMS, Team, WINDOW_ALIGNMENT, WINDOWS};
use super::communicator::Communicator;
use super::error::error;
use super::inner::{Inner, Out, number};
use super::library::{Nccl, nccl};
use super::version::Version;
use crate::cuda::{Device, Stream, buffer};
use crate::error::Halt;
use crate::group::Running;
use crate::provider::vmm::check_no_capture;
use crate::provider::vmm::graveyard::{self, Relaxed};
use crate::sys::{fork, ids};
use crate::{Error, Result};

/// What tells a rank's memory apart from all other memory: at its end, behind what was asked for.
pub(crate) type Mark = [u8; 16];

/// Where the mark begins: a multiple of this.
const MARK_ALIGNMENT: usize = 16;

/// Versions whose window structure was checked, and that have no call to ask for pointers. In others peers are out of reach.
const KNOWN_STRUCTURE: [Version; 1] = [Version::new(2, 28, 9)];

/// Memory of this rank that NCCL has allocated, zeroed.
#[derive(Debug)]
pub(crate) struct NcclMemory {
    nccl: &'static Nccl,
    device: Device,
    address: u64,
    /// Bytes that were asked for.
    bytes: usize,
    mark: Mark,
}

impl NcclMemory {
    /// Local: `bytes` zeroed bytes on `device`.
    pub(crate) fn alloc(device: &Device, bytes: usize) -> Result<Arc<Self>> {
        check_no_capture("allocation of device memory")?;
        let nccl = nccl()?;
        nccl.check(WINDOWS)?;
        graveyard::reap();
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let mark = ids::random()?;
        let mut address = ptr::null_mut();
        let _bound = device.bind()?;
        // SAFETY: writes one address.
        let code = unsafe { (nccl.functions.mem_alloc)(&mut address, Self::total(bytes)) };
        if code != SUCCESS {
            return Err(error(nccl, "ncclMemAlloc", code, ptr::null_mut()));
        }
        let memory = Self { nccl, device: device.clone(), address: address as u64, bytes, mark };
        if !memory.address.is_multiple_of(WINDOW_ALIGNMENT as u64) {
            return Err(Error::invalid("memory of NCCL", "it is not aligned for a window"));
        }
        memory.begin()?;
        Ok(Arc::new(memory))
    }

    fn mark_at(bytes: usize) -> usize {
        bytes.next_multiple_of(MARK_ALIGNMENT)
    }

    fn total(bytes: usize) -> usize {
        Self::mark_at(bytes) + size_of::<Mark>()
    }

    /// Writes zeros, and the mark behind them, and waits for that.
    fn begin(&self) -> Result<()> {
        let stream = Stream::service(&self.device)?;
        let mark_at = Self::mark_at(self.bytes);
        // SAFETY: this memory, which is as long as that and which nobody else knows yet.
        unsafe {
            buffer::fill_bytes(self.address, mark_at, 0, &stream)?;
            buffer::write(self.address + mark_at as u64, self.mark.len(), &self.mark, &stream)
        }
    }

    /// First byte, as kernels see it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }
}

impl Drop for NcclMemory {
    fn drop(&mut self) {
        // What a forked child inherited belongs to the rank.
        if fork::is_child() {
            return;
        }
        let _bound = self.device.bind();
        let _relaxed = Relaxed::enter();
        // SAFETY: allocated by NCCL; its windows held it, so they are gone; kernels that may use it kept it alive.
        let code = unsafe { (self.nccl.functions.mem_free)(self.address as *mut _) };
        if code != SUCCESS {
            let error = error(self.nccl, "ncclMemFree", code, ptr::null_mut());
            tracing::warn!(%error, "not released");
        }
    }
}

/// Memory that is registered with all ranks of a communicator.
pub(crate) struct Window(Option<Registered>);

/// What is behind a window. Fields go in this order, after `drop` has deregistered.
struct Registered {
    raw: RawWindow,
    memory: Arc<NcclMemory>,
    communicator: Arc<Inner>,
}

// SAFETY: the handle is only a number here, and calls with it take their turn.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Window {
    /// Collective. Registers everybody's `memory`, which must be of the same size; every rank has said that it will.
    pub(crate) fn register(
        running: &Running<'_>,
        communicator: &Communicator,
        memory: &Arc<NcclMemory>,
    ) -> Result<Self, Halt> {
        const CALL: &str = "ncclCommWindowRegister";
        let inner = &communicator.inner;
        let register = inner.nccl.need(WINDOWS, inner.nccl.functions.window_register)?;
        let mut out = Out::new();
        let (address, total) = (memory.address, NcclMemory::total(memory.bytes));
        let registered = inner.step(
            CALL,
            // SAFETY: a live communicator and memory; the result stays where it is until NCCL has written it.
            |_, raw| unsafe { register(raw, address, total, out.address(), SYMMETRIC) },
            |settled| running.wait_in_step(settled),
        );
        if let Err(halt) = registered {
            out.leak();
            return Err(halt);
        }
        let raw = out.value();
        if raw.is_null() {
            out.leak();
            let problem = "NCCL gives no window. Hint: symmetric memory needs cuMem (NCCL_CUMEM_ENABLE) and peers in reach; NCCL_DEBUG=INFO says what is missing";
            return Err(Error::invalid(CALL, problem).into());
        }
        inner.windows.fetch_add(1, Ordering::AcqRel);
        let registered = Registered { raw, memory: Arc::clone(memory), communicator: Arc::clone(inner) };
        Ok(Self(Some(registered)))
    }

    /// NCCL's handle, for kernels of its device interface.
    pub(crate) fn raw(&self) -> Option<RawWindow> {
        self.0.as_ref().map(|registered| registered.raw)
    }

    /// As [`Registered::peers`].
    pub(crate) fn peers(&self, marks: &[Mark]) -> Result<Vec<u64>> {
        self.registered()?.peers(marks)
    }

    /// As [`Registered::multicast`].
    pub(crate) fn multicast(&self) -> Option<u64> {
        self.0.as_ref()?.multicast()
    }
}

impl Registered {
    /// Where everybody's memory is for kernels on this rank's device; 0 for a rank that loads and stores do not reach. `marks`
    /// are those that the ranks left in their memory.
    fn peers(&self, marks: &[Mark]) -> Result<Vec<u64>> {
        let (rank, world) = (self.communicator.rank, self.communicator.world);
        let mut addresses = match self.communicator.nccl.functions.peer_pointer {
            Some(_) => (0..world).map(|peer| self.asked(peer)).collect::<Result<Vec<_>>>()?,
            None => self.read_structure()?,
        };
        for (peer, address) in addresses.iter_mut().enumerate() {
            if peer != rank && *address != 0 && !self.is_marked(*address, &marks[peer]) {
                tracing::warn!(
                    peer,
                    "NCCL's pointer does not lead to that rank's memory; it counts as out of reach"
                );
                *address = 0;
            }
        }
        addresses[rank] = self.memory.address;
        Ok(addresses)
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
        let Inner { nccl, world, rank, .. } = &*self.communicator;
        let version = nccl.loaded.version;
        if !KNOWN_STRUCTURE.contains(&version) {
            tracing::debug!(%version, "nobody has checked where this NCCL keeps pointers: peers are out of reach");
            return Ok(vec![0; *world]);
        }
        let team_of = nccl.need(TEAMS, nccl.functions.team_lsa)?;
        // SAFETY: a live communicator.
        let team = self.communicator.ask_in_turn("ncclTeamLsa", |raw| Ok(unsafe { team_of(raw) }))?;
        let _relaxed = Relaxed::enter();
        let stream = Stream::service(&self.memory.device)?;
        // SAFETY: in these versions a window is the address of a structure of more than that many bytes.
        let bytes = unsafe { buffer::read::<u8>(self.raw as u64, STRUCTURE, &stream) };
        let Ok(bytes) = bytes else { return Ok(vec![0; *world]) };
        Ok((0..*world).map(|peer| place(&bytes, team, *rank, peer)).collect())
    }

    /// Whether `mark` can be read behind the memory that is said to be at `address`.
    fn is_marked(&self, address: u64, mark: &Mark) -> bool {
        let at = address.checked_add(NcclMemory::mark_at(self.memory.bytes) as u64);
        let _relaxed = Relaxed::enter();
        let read = Stream::service(&self.memory.device).and_then(|stream| {
            let at = at.ok_or_else(|| Error::invalid("pointer of NCCL", "it is none"))?;
            // SAFETY: the copy of the driver checks the address, and changes nothing.
            unsafe { buffer::read::<u8>(at, mark.len(), &stream) }
        });
        read.is_ok_and(|read| read == mark)
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
    fn registered(&self) -> Result<&Registered> {
        self.0.as_ref().ok_or(Error::Closed { op: "window" })
    }
}

impl Registered {
    fn deregister(&self) {
        let Some(deregister) = self.communicator.nccl.functions.window_deregister else { return };
        let raw = self.raw;
        // SAFETY: registered on this communicator, once; work on it kept it alive.
        let gone = self
            .communicator
            .end_something("ncclCommWindowDeregister", |_, comm| unsafe { deregister(comm, raw) });
        match gone {
            Ok(()) | Err(Error::Closed { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "not released");
                // NCCL may still have it registered: then it stays.
                std::mem::forget(Arc::clone(&self.memory));
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // It goes with the communicator; in a forked child it is the rank's.
        if !fork::is_child() && self.communicator.is_alive() {
            self.deregister();
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
            graveyard::bury_until(Box::new(move || communicator.is_free()), Box::new(registered));
        }
    }
}

/// Bytes of a window's structure that are looked at.
const STRUCTURE: usize = 32;

/// Where `peer`'s memory is, by the structure in `bytes`: all ranks of the team are at equal distances from its first.
fn place(bytes: &[u8], team: Team, rank: usize, peer: usize) -> u64 {
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
        let team = Team { ranks: 2, rank: 1, stride: 1 };
        // Ranks 2 and 3 of four; this is rank 3.
        let places: Vec<u64> = (0..4).map(|peer| place(&bytes, team, 3, peer)).collect();
        assert_eq!(places, [0, 0, 0x7000_0000_0000, 0x7002_0000_0000]);
        let odd = Team { stride: 2, ..team };
        assert_eq!(place(&bytes, odd, 3, 3), 0);
        assert_eq!(place(&[0; STRUCTURE], team, 3, 3), 0);
    }

    #[test]
    fn the_mark_is_behind_what_was_asked_for() {
        assert_eq!(NcclMemory::mark_at(1), 16);
        assert_eq!(NcclMemory::mark_at(0), 0);
        assert_eq!(NcclMemory::total(32), 48);
    }
}
