//! The exchange of device memory: every rank exports, sends, imports, maps, and votes.
//!
//! Collective. Used for the control blocks of an engine and for rendezvous; needs a group and a device, but no engine.
//! What it guarantees: what ranks can compare is compared before anything is sent, and is the same typed error on every
//! rank; a rank that fails later goes straight to the vote, all ranks get its error, nothing is left mapped, exported or
//! reserved, and the same memory can be tried again.
//!
//! A rank offers every kind of handle that it can make. The importer takes a fabric handle where both ranks are in the
//! same NVLink domain, else a file descriptor where both are on the same host. Threads of one process do the same: an
//! import within a process is a mapping of its own, with a life of its own.

mod card;
mod multicast;

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::card::Card;
pub(crate) use self::multicast::share_multicast;
use super::shareable::{self, FabricHandle};
use super::{DeviceMemory, Mapping, Vmm};
use crate::cuda::Device;
use crate::cuda::capture::check_no_capture;
use crate::error::Halt;
use crate::group::{Brought, Running};
use crate::sys::channel::MAX_FDS;
use crate::sys::ids;
use crate::{Error, Result};

/// What the message with the descriptors says it is.
const HANDLES: &str = "device memory";

/// One rank's memory as this rank's device reaches it.
#[derive(Clone, Debug)]
pub(crate) struct PeerMemory {
    /// First byte in the address space of this rank's device.
    pub(crate) address: u64,
    /// Keeps the address valid.
    _keep: Arc<dyn Any + Send + Sync>,
}

/// Collective: everybody's `memory`, of which all ranks bring the same sizes. Outer index: which memory; inner: rank.
///
/// A rank that failed to make its memory tells the others instead of staying away. `finish` is what each rank does with
/// the table before the vote: its failure is a failure of the exchange.
pub(crate) fn share_made<T>(
    running: &Running<'_>,
    device: &Device,
    memory: Result<Vec<Arc<DeviceMemory>>>,
    finish: impl FnOnce(&[Vec<PeerMemory>]) -> Result<T>,
) -> Result<(Vec<Vec<PeerMemory>>, T)> {
    let tag = running.next_tag()?;
    let exports = memory.and_then(Exports::new);
    let offers = compare(running, device, &exports)?;
    // Fails on every rank above if it failed on one.
    let exports = exports?;
    let outcome = map_everybody(running, device, tag, &exports, &offers).and_then(|peers| {
        let finished = finish(&peers)?;
        Ok((peers, finished))
    });
    running.conclude(tag, outcome)
}

/// `memory` of this rank, one of `world`, where no other is in reach.
pub(crate) fn alone(memory: &Arc<DeviceMemory>, rank: usize, world: usize) -> Vec<PeerMemory> {
    let nowhere = || PeerMemory { address: 0, _keep: Arc::clone(memory) as _ };
    (0..world).map(|peer| if peer == rank { own(memory) } else { nowhere() }).collect()
}

/// Collective: whether the devices of all ranks reach each other's memory. The same answer on every rank.
pub(crate) fn is_in_reach(running: &Running<'_>, device: &Device) -> Result<bool> {
    let mine = match Card::new(running, device) {
        Ok(card) => Introduction { card: Some(card), error: None },
        Err(error) => Introduction { card: None, error: Some(error.to_string()) },
    };
    let all = running.compare(running.op(), &mine)?;
    let cards: Vec<&Card> = all.iter().filter_map(|said| said.card.as_ref()).collect();
    card::check_overlap(&cards)?;
    Ok(card::check_reach(&cards).is_ok())
}

/// A rank's device, before anything else is known.
#[derive(Debug, Serialize, Deserialize)]
struct Introduction {
    card: Option<Card>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Brought for Introduction {
    const WHAT: &str = "the devices";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        String::new()
    }
}

/// This rank's memory with every handle that could be made of it.
struct Exports {
    memory: Vec<Arc<DeviceMemory>>,
    /// One per memory, or none at all where the device makes fabric handles only.
    fds: Vec<OwnedFd>,
    fabric: Vec<FabricHandle>,
}

impl Exports {
    fn new(memory: Vec<Arc<DeviceMemory>>) -> Result<Self> {
        check_no_capture("exchange of device memory")?;
        if memory.len() > MAX_FDS {
            let problem = format!("{} at once are more than {MAX_FDS}", memory.len());
            return Err(Error::invalid("exchange of device memory", problem));
        }
        let mut exports = Self { fds: Vec::new(), fabric: Vec::new(), memory };
        for memory in &exports.memory {
            let physical = memory.physical();
            let kinds = shareable::kinds(physical.device())?;
            if shareable::includes_fd(kinds) {
                exports.fds.push(shareable::export_fd(physical)?);
            }
            if shareable::includes_fabric(kinds) {
                exports.fabric.push(shareable::export_fabric(physical)?);
            }
        }
        Ok(exports)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

/// What a rank brings.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    provider: String,
    /// Bytes that were asked for, which must agree, and that there are, which may differ by device.
    bytes: Vec<usize>,
    mapped: Vec<usize>,
    card: Option<Card>,
    has_fds: bool,
    /// Fabric handles in hexadecimal digits.
    fabric: Vec<String>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Offer {
    fn new(running: &Running<'_>, device: &Device, exports: &Result<Exports>) -> Self {
        let (exports, error) = match exports {
            Ok(exports) => (Some(exports), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let (card, no_card) = match Card::new(running, device) {
            Ok(card) => (Some(card), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let memory = || exports.iter().flat_map(|exports| &exports.memory);
        Self {
            provider: Vmm::NAME.to_owned(),
            bytes: memory().map(|memory| memory.bytes()).collect(),
            mapped: memory().map(|memory| memory.mapped_bytes()).collect(),
            card,
            has_fds: exports.is_some_and(|exports| !exports.fds.is_empty()),
            fabric: exports
                .iter()
                .flat_map(|exports| &exports.fabric)
                .map(|handle| ids::hex(handle))
                .collect(),
            error: error.or(no_card),
        }
    }

    /// The fabric handle of memory `index`, if there is one.
    fn fabric_handle(&self, index: usize) -> Option<FabricHandle> {
        ids::unhex(self.fabric.get(index)?)?.try_into().ok()
    }
}

impl Brought for Offer {
    const WHAT: &str = "the device memory";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let bytes: Vec<String> = self.bytes.iter().map(|bytes| format!("{bytes} bytes")).collect();
        format!("{} in {}", bytes.join(" and "), self.provider)
    }
}

/// Everybody's offer, if they fit together. What is wrong is the same error on every rank: all see the same offers.
fn compare(running: &Running<'_>, device: &Device, exports: &Result<Exports>) -> Result<Vec<Offer>> {
    let offers = running.compare(running.op(), &Offer::new(running, device, exports))?;
    let cards: Vec<&Card> = offers.iter().filter_map(|offer| offer.card.as_ref()).collect();
    card::check_overlap(&cards)?;
    card::check_reach(&cards)?;
    Ok(offers)
}

fn map_everybody(
    running: &Running<'_>,
    device: &Device,
    tag: u64,
    exports: &Exports,
    offers: &[Offer],
) -> Result<Vec<Vec<PeerMemory>>, Halt> {
    let (me, fds) = (running.inner().rank, exports.fds());
    let neighbours = || (0..offers.len()).filter(|rank| *rank != me && is_neighbour(running, *rank));
    for peer in neighbours().filter(|_| !fds.is_empty()) {
        running.send_handles(peer, tag, HANDLES, &fds)?;
    }
    let mut peers = vec![Vec::with_capacity(offers.len()); exports.memory.len()];
    for (rank, offer) in offers.iter().enumerate() {
        // Received whether they are used or not: the message would stay in the channel, and the memory with it.
        let fds = match rank != me && offer.has_fds && is_neighbour(running, rank) {
            true => running.receive_handles(rank, tag, HANDLES, exports.memory.len())?,
            false => Vec::new(),
        };
        for (index, row) in peers.iter_mut().enumerate() {
            row.push(match rank == me {
                true => own(&exports.memory[index]),
                false => import(device, rank, offer, index, fds.get(index), &offers[me])?,
            });
        }
    }
    Ok(peers)
}

/// Whether `rank` is on this rank's host.
fn is_neighbour(running: &Running<'_>, rank: usize) -> bool {
    let inner = running.inner();
    inner.members[rank].host == inner.members[inner.rank].host
}

fn own(memory: &Arc<DeviceMemory>) -> PeerMemory {
    PeerMemory { address: memory.address(), _keep: Arc::clone(memory) as _ }
}

/// Maps memory `index` of `rank` by the best handle there is.
fn import(
    device: &Device,
    rank: usize,
    theirs: &Offer,
    index: usize,
    fd: Option<&OwnedFd>,
    mine: &Offer,
) -> Result<PeerMemory> {
    let bytes = theirs.mapped.get(index).copied().unwrap_or_default();
    let same_domain =
        matches!((&theirs.card, &mine.card), (Some(theirs), Some(mine)) if theirs.shares_domain(mine));
    let handle = theirs.fabric_handle(index).filter(|_| same_domain && !mine.fabric.is_empty());
    let by_fabric = handle.map(|handle| shareable::import_fabric(device, &handle, bytes));
    let physical = match (by_fabric, fd) {
        (Some(Ok(physical)), _) => physical,
        (Some(Err(error)), None) => return Err(error),
        (other, Some(fd)) => {
            if let Some(Err(error)) = other {
                tracing::debug!(rank, %error, "a fabric handle was refused, taking the file descriptor");
            }
            shareable::import_fd(device, fd.as_fd(), bytes)?
        }
        (None, None) => {
            let problem = "there is no handle that this rank could use";
            return Err(Error::invalid(format!("device memory of rank {rank}"), problem));
        }
    };
    let mapping = Mapping::new(device, Arc::new(physical))?;
    Ok(PeerMemory { address: mapping.address(), _keep: Arc::new(mapping) })
}
