//! What ranks must know of each other's devices before they exchange memory: which are the same, and which
//! can reach which. Everything is decided from cards that all ranks have seen, so all ranks decide alike.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice, CUdevice_P2PAttribute};
use serde::{Deserialize, Serialize};

use super::shareable;
use crate::cuda::Device;
use crate::cuda::driver::check;
use crate::group::Running;
use crate::sys::ids;
use crate::{Error, Result};

/// A rank's device, as the others see it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DeviceCard {
    uuid: String,
    /// How people know it.
    label: String,
    /// Ranks with equal hosts can pass each other descriptors.
    pub(super) host: String,
    is_mig: bool,
    /// Whether this rank accepts that others use its device as well.
    may_overlap: bool,
    /// Cluster and clique, where fabric handles work.
    domain: Option<(String, u32)>,
    /// Whether other ranks can map its memory at all, those of its own process included.
    is_exportable: bool,
    /// The devices that the rank's process sees, and whether its own can reach them.
    reaches: BTreeMap<String, DeviceReach>,
}

/// How a device reaches the memory of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum DeviceReach {
    /// As its own.
    Full,
    /// By loads and stores only. Kernels that fail compare-and-swap words of their peers, so that is not
    /// enough.
    NoAtomics,
    /// Not at all.
    None,
}

impl DeviceReach {
    /// What is in the way, if something is.
    fn problem(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::NoAtomics => Some(
                "the connection has no native atomics, by which kernels tell each other of failures; NVLink has them, and NCCL (SYMMEM_PROVIDER=nccl) does without",
            ),
            Self::None => Some("the driver has no peer access between them"),
        }
    }
}

impl DeviceCard {
    pub(super) fn new(running: &Running<'_>, device: &Device) -> Result<Self> {
        let inner = running.inner();
        // Only where handles of the domain can be made: asking NVML takes a while.
        let domain = if shareable::has_fabric(device) { device.fabric() } else { None };
        Ok(Self {
            uuid: ids::hex(&device.uuid()),
            label: device.to_string(),
            host: inner.members[inner.rank].host.clone(),
            is_mig: device.is_mig(),
            may_overlap: *running.group().context().config().allow_overlapping_devices,
            domain: domain.map(|fabric| (ids::hex(&fabric.cluster), fabric.clique)),
            is_exportable: shareable::is_any(shareable::kinds(device)?),
            reaches: reach_of(device)?,
        })
    }

    /// Whether both are in one NVLink domain, whose fabric handles both can use.
    pub(super) fn shares_domain(&self, other: &Self) -> bool {
        self.domain.is_some() && self.domain == other.domain
    }

    pub(super) fn is_same_device(&self, other: &Self) -> bool {
        (&self.host, &self.uuid) == (&other.host, &other.uuid)
    }

    /// Why the two cannot reach each other's memory, if they cannot.
    fn problem_with(&self, other: &Self) -> Option<&'static str> {
        if !self.is_exportable || !other.is_exportable {
            return Some(
                "memory of one of them cannot be exported; WSL and vGPU lack that, a driver on bare Linux has it",
            );
        }
        if self.is_same_device(other) || self.shares_domain(other) {
            return None;
        }
        if self.host != other.host {
            return Some(
                "they are on different hosts and not in one NVLink domain; Group::local is the group of one host",
            );
        }
        if self.is_mig || other.is_mig {
            return Some("a MIG instance reaches no other device; ranks can share one instance");
        }
        // A device that a process does not see cannot be asked about; then the driver has the word when it
        // maps.
        let problem = |from: &Self, to: &Self| from.reaches.get(&to.uuid).and_then(|reach| reach.problem());
        problem(self, other).or_else(|| problem(other, self))
    }
}

/// An error if ranks share a device and not all of them accept that.
pub(super) fn check_overlap(cards: &[DeviceCard]) -> Result<()> {
    for card in cards {
        let ranks: Vec<usize> = (0..cards.len()).filter(|rank| cards[*rank].is_same_device(card)).collect();
        if ranks.len() > 1 && !ranks.iter().all(|rank| cards[*rank].may_overlap) {
            return Err(Error::OverlappingDevices { ranks, device: card.label.clone() });
        }
    }
    Ok(())
}

/// An error that names the first pair of ranks that cannot reach each other's memory.
pub(super) fn check_reach(cards: &[DeviceCard]) -> Result<()> {
    for (rank, card) in cards.iter().enumerate() {
        for (peer, other) in cards.iter().enumerate().skip(rank + 1) {
            if let Some(problem) = card.problem_with(other) {
                let problem = format!("{} and {}: {problem}", card.label, other.label);
                return Err(Error::NoPeerAccess { rank, peer, problem });
            }
        }
    }
    Ok(())
}

/// Which visible devices `device` can reach. Asked once per device; no context is made on the others.
fn reach_of(device: &Device) -> Result<BTreeMap<String, DeviceReach>> {
    static KNOWN: Mutex<Option<HashMap<usize, BTreeMap<String, DeviceReach>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(reaches) = known.get(&device.ordinal()) {
        return Ok(reaches.clone());
    }
    let mut reaches = BTreeMap::new();
    for ordinal in 0..Device::count()? {
        let (peer, uuid) = peer_of(ordinal)?;
        reaches.insert(ids::hex(&uuid), reach_between(device, peer)?);
    }
    known.insert(device.ordinal(), reaches.clone());
    Ok(reaches)
}

fn peer_of(ordinal: usize) -> Result<(CUdevice, [u8; 16])> {
    let mut raw = 0;
    // SAFETY: writes one integer; the ordinal is below the count, which is an int.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut raw, ordinal as i32) })?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, raw) })?;
    Ok((raw, uuid.bytes.map(|byte| byte as u8)))
}

fn reach_between(device: &Device, peer: CUdevice) -> Result<DeviceReach> {
    if peer == device.raw() {
        return Ok(DeviceReach::Full);
    }
    let mut can = 0;
    // SAFETY: writes one integer; both are devices.
    check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, device.raw(), peer) })?;
    if can == 0 {
        return Ok(DeviceReach::None);
    }
    let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: writes one integer; both are devices, and different ones.
    let code = unsafe { sys::cuDeviceGetP2PAttribute(&mut can, atomics, device.raw(), peer) };
    check("cuDeviceGetP2PAttribute", code)?;
    Ok(if can == 0 { DeviceReach::NoAtomics } else { DeviceReach::Full })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(host: &str, uuid: &str) -> DeviceCard {
        DeviceCard {
            uuid: uuid.to_owned(),
            label: format!("device {uuid}"),
            host: host.to_owned(),
            is_mig: false,
            may_overlap: false,
            domain: None,
            is_exportable: true,
            reaches: BTreeMap::new(),
        }
    }

    fn domain(card: DeviceCard, clique: u32) -> DeviceCard {
        DeviceCard { domain: Some(("cluster".to_owned(), clique)), ..card }
    }

    #[test]
    fn hosts_are_crossed_within_a_domain_only() {
        let (a, b) = (card("x", "1"), card("y", "2"));
        assert!(a.problem_with(&b).is_some_and(|problem| problem.contains("hosts")));
        assert_eq!(domain(a.clone(), 1).problem_with(&domain(b.clone(), 1)), None);
        assert!(domain(a.clone(), 1).problem_with(&domain(b.clone(), 2)).is_some());
        assert!(domain(a, 1).problem_with(&b).is_some());
    }

    #[test]
    fn one_refusal_is_enough_and_the_unknown_is_none() {
        let (mut a, b) = (card("x", "1"), card("x", "2"));
        assert_eq!(a.problem_with(&b), None);
        a.reaches.insert("2".to_owned(), DeviceReach::Full);
        assert_eq!(a.problem_with(&b), None);
        for (reach, word) in [(DeviceReach::NoAtomics, "native atomics"), (DeviceReach::None, "peer access")]
        {
            a.reaches.insert("2".to_owned(), reach);
            for problem in [a.problem_with(&b), b.problem_with(&a)] {
                assert!(problem.is_some_and(|problem| problem.contains(word)), "{problem:?}");
            }
        }
        // Within a domain all is NVLink.
        assert_eq!(domain(a, 1).problem_with(&domain(b, 1)), None);
    }

    #[test]
    fn what_cannot_be_exported_is_no_others_not_even_on_one_device() {
        let (a, b) = (card("x", "1"), DeviceCard { is_exportable: false, ..card("x", "1") });
        assert_eq!(a.problem_with(&a.clone()), None);
        assert!(a.problem_with(&b).is_some_and(|problem| problem.contains("exported")));
        assert!(b.problem_with(&a).is_some());
    }

    #[test]
    fn a_mig_instance_reaches_only_itself() {
        let mig = DeviceCard { is_mig: true, ..card("x", "1") };
        assert_eq!(mig.problem_with(&mig.clone()), None);
        assert!(mig.problem_with(&card("x", "2")).is_some_and(|problem| problem.contains("MIG")));
    }

    #[test]
    fn equal_devices_of_different_hosts_are_two() {
        assert!(card("x", "1").is_same_device(&card("x", "1")));
        assert!(!card("x", "1").is_same_device(&card("y", "1")));
    }
}
