//! The collective part of multicast: all ranks have it, or none has, and nobody waits for ever.
//!
//! Rank 0 makes the object, everybody (rank 0 too) imports it and adds its device; only when all have done
//! that may anybody bind, because binding waits in the driver until all devices were added. Rank 0 keeps the
//! object it made until all have bound: if it went earlier, a late import would give a fresh and empty one.
//! Failures are no error of the operation that wanted multicast: it goes on without.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::CUmemAllocationHandleType;
use serde::{Deserialize, Serialize};

use super::join::JoinedVmm;
use super::shareable::{self, FabricHandle};
use super::{DeviceMemory, Multicast, Physical, multicast};
use crate::cuda::Device;
use crate::error::Halt;
use crate::group::{Running, SetupRefusal};
use crate::provider::LocalMemory;
use crate::sys::ids;
use crate::{Error, Result};

/// What the message with the descriptor says it is.
const HANDLE: &str = "multicast object";

/// What a rank could bring to a multicast object.
#[derive(Debug, Serialize, Deserialize)]
struct MulticastProposal {
    /// Why not, if not.
    problem: Option<String>,
    mapped: usize,
    has_fds: bool,
}

/// Collective: one address that reaches everybody's `memory`, or why that cannot be, which is the same on
/// every rank.
pub(super) fn share_multicast(
    running: &Running<'_>,
    joined: &JoinedVmm,
    memory: &Arc<DeviceMemory>,
) -> Result<Result<Multicast, String>> {
    let device = joined.device();
    let world = running.inner().world;
    // Every rank knows this much.
    if world < 2 || world > u32::MAX as usize {
        return Ok(Err(format!("{world} ranks have none")));
    }
    let tag = running.next_tag()?;
    let abilities = running.all_brought(running.op(), &ability(running, device, memory))?;
    let way = match way(running, joined, &abilities) {
        Ok(way) => way,
        Err(problem) => {
            // Machines without multicast are no news; some ranks without are.
            match abilities.iter().all(|ability| ability.problem.is_some()) {
                true => tracing::debug!(problem, "no multicast"),
                false => tracing::warn!(problem, "no multicast"),
            }
            return Ok(Err(problem));
        }
    };
    let outcome = attempt(running, device, memory, tag, way)?;
    Ok(outcome.map_err(|SetupRefusal { rank, message }| {
        tracing::warn!(rank, message, "multicast could not be set up, going on without");
        format!("rank {rank}: {message}")
    }))
}

fn ability(running: &Running<'_>, device: &Device, memory: &Arc<DeviceMemory>) -> MulticastProposal {
    let kinds = shareable::kinds(device).unwrap_or(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE);
    MulticastProposal {
        problem: problem(running, device, memory, kinds),
        mapped: memory.mapped_bytes(),
        has_fds: shareable::includes_fd(kinds),
    }
}

/// Why this rank cannot take part, if it cannot.
fn problem(
    running: &Running<'_>,
    device: &Device,
    memory: &DeviceMemory,
    kinds: CUmemAllocationHandleType,
) -> Option<String> {
    if !*running.group().context().config().multicast {
        return Some("it is switched off".to_owned());
    }
    if !device.has_multicast() {
        return Some(format!("{device} has none"));
    }
    match multicast::granularity(device, running.inner().world, memory.mapped_bytes(), kinds) {
        Ok(granularity) if memory.mapped_bytes().is_multiple_of(granularity) => None,
        Ok(granularity) => {
            Some(format!("{} bytes are not a multiple of {granularity}", memory.mapped_bytes()))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// How the object travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleKind {
    Fd,
    Fabric,
}

impl HandleKind {
    fn kind(self) -> CUmemAllocationHandleType {
        match self {
            Self::Fd => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            Self::Fabric => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
        }
    }
}

/// How the object can travel to everybody, or why there will be none. The same on every rank.
fn way(
    running: &Running<'_>,
    joined: &JoinedVmm,
    abilities: &[MulticastProposal],
) -> Result<HandleKind, String> {
    for (rank, ability) in abilities.iter().enumerate() {
        if let Some(problem) = &ability.problem {
            return Err(format!("rank {rank}: {problem}"));
        }
        if ability.mapped != abilities[0].mapped {
            return Err(format!("rank {rank} has {} bytes, rank 0 {}", ability.mapped, abilities[0].mapped));
        }
    }
    let cards = &joined.cards;
    for (rank, card) in cards.iter().enumerate() {
        if cards[..rank].iter().any(|other| other.is_same_device(card)) {
            return Err(format!("rank {rank} shares its device with another rank"));
        }
    }
    let fds = (0..abilities.len()).all(|rank| abilities[rank].has_fds && running.is_on_this_host(rank))
        && cards.iter().all(|card| card.host == cards[0].host);
    match (fds, cards.iter().all(|card| card.shares_domain(&cards[0]))) {
        (true, _) => Ok(HandleKind::Fd),
        (false, true) => Ok(HandleKind::Fabric),
        (false, false) => Err("the ranks have no kind of handle in common".to_owned()),
    }
}

/// Rank 0's object, made and on its way to everybody.
struct Made {
    /// Kept until everybody has bound.
    _object: Physical,
    fabric: Option<FabricHandle>,
    fd: Option<OwnedFd>,
}

/// What rank 0 says about its object; the others say nothing.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MulticastObject {
    error: Option<String>,
    /// The fabric handle in hexadecimal digits, if it travels so.
    fabric: String,
}

fn attempt(
    running: &Running<'_>,
    device: &Device,
    memory: &Arc<DeviceMemory>,
    tag: u64,
    way: HandleKind,
) -> Result<Result<Multicast, SetupRefusal>> {
    let bytes = memory.mapped_bytes();
    let mut announcement = MulticastObject::default();
    let mut made = None;
    if running.inner().rank == 0 {
        match make(running, device, bytes, tag, way) {
            Ok(object) => made = Some(object),
            Err(Halt::Failed(error)) => announcement.error = Some(error.to_string()),
            Err(Halt::Interrupted(interrupt)) => return Err(running.fail(interrupt, &|_| true)),
        }
    }
    if let Some(handle) = made.as_ref().and_then(|made| made.fabric) {
        announcement.fabric = ids::hex(&handle);
    }
    // Before anybody looks for the object: it has been sent, or there is none.
    let mut said = running.all_brought(running.op(), &announcement)?;
    let MulticastObject { error, fabric } = said.swap_remove(0);
    if let Some(message) = error {
        running.inner().endpoint.discard(tag);
        return Ok(Err(SetupRefusal { rank: 0, message }));
    }
    let fabric = ids::unhex(&fabric).and_then(|bytes| bytes.try_into().ok());
    let object = match running.vote(tag, join(running, device, bytes, tag, made.as_ref(), fabric))? {
        Ok(object) => Arc::new(object),
        Err(refusal) => return Ok(Err(refusal)),
    };
    let bound = Multicast::bind(&object, memory).map_err(Halt::Failed);
    let outcome = running.vote(tag, bound);
    drop(made);
    outcome
}

/// Rank 0: makes the object and sends it to everybody.
fn make(
    running: &Running<'_>,
    device: &Device,
    bytes: usize,
    tag: u64,
    way: HandleKind,
) -> Result<Made, Halt> {
    let world = running.inner().world;
    let object = multicast::create(device, world, bytes, way.kind())?;
    if way == HandleKind::Fabric {
        let fabric = Some(shareable::export_fabric(&object)?);
        return Ok(Made { _object: object, fabric, fd: None });
    }
    let fd = shareable::export_fd(&object)?;
    for peer in 1..world {
        running.send_handles(peer, tag, HANDLE, &[fd.as_fd()])?;
    }
    Ok(Made { _object: object, fabric: None, fd: Some(fd) })
}

/// Imports the object, rank 0 as well, and adds this rank's device.
fn join(
    running: &Running<'_>,
    device: &Device,
    bytes: usize,
    tag: u64,
    made: Option<&Made>,
    fabric: Option<FabricHandle>,
) -> Result<Physical, Halt> {
    let object = match (fabric, made.and_then(|made| made.fd.as_ref())) {
        (Some(handle), _) => shareable::import_fabric(device, &handle, bytes)?,
        (None, Some(fd)) => shareable::import_fd(device, fd.as_fd(), bytes)?,
        (None, None) => {
            let fds = running.receive_handles(0, tag, HANDLE, 1)?;
            let fd = fds.first().ok_or_else(|| Error::invalid(HANDLE, "rank 0 sent none"))?;
            shareable::import_fd(device, fd.as_fd(), bytes)?
        }
    };
    multicast::add_device(&object, device)?;
    Ok(object)
}
