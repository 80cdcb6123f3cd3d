//! What ranks agree on when they make an engine: compared, or the smallest of all, so that later every rank decides alike.

use serde::{Deserialize, Serialize};

use super::Settings;
use super::control::{Layout, MAX_BLOCKS};
use super::kernels::source_hash;
use super::plan::{Agreed, Limits, limit};
use crate::cuda::Device;
use crate::group::Running;
use crate::op::Op;
use crate::sys::ids;
use crate::{Error, Result};

/// Of the protocol between kernels; beside their sources, which are compared as well.
const VERSION: u32 = 1;

/// The part of the device that MPS gives this process, in per cent.
const MPS_SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// What a rank brings.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    version: u32,
    kernels: u64,
    lanes: u32,
    first_epoch: u32,
    max_blocks: u32,
    provider: String,
    /// Ranks that count as out of reach.
    unreachable: Vec<usize>,
    /// Which device of which machine.
    device: String,
    multiprocessors: u32,
    /// Of these, as many as this process may use.
    share: u32,
    occupancies: Limits,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Said {
    /// What must be equal, as people read it.
    fn terms(&self) -> String {
        let Self { version, kernels, lanes, first_epoch, provider, unreachable, .. } = self;
        let far = if unreachable.is_empty() { String::new() } else { format!(", without {unreachable:?}") };
        format!(
            "version {version}, kernels {kernels:016x}, {lanes} lanes from epoch {first_epoch} on, memory of {provider}{far}"
        )
    }

    /// Multiprocessors that this rank can count on when `ranks` share its device.
    fn counted_on(&self, ranks: u32) -> u32 {
        self.share.min(self.multiprocessors / ranks.max(1)).max(1)
    }
}

/// Collective: what all ranks agree on, and whether another rank of this process is on the same device. `occupancies` are
/// this rank's, or why it failed.
pub(super) fn agree(
    running: &Running<'_>,
    device: &Device,
    settings: &Settings,
    occupancies: Result<Limits, String>,
) -> Result<(Agreed, bool)> {
    let mine = say(running, device, settings, occupancies);
    let all = running.all_brought(Op::CudaEngine, &mine)?;
    let failed = all.iter().enumerate().find_map(|(rank, said)| Some((rank, said.error.clone()?)));
    if let Some((rank, message)) = failed {
        return Err(Error::Rank { context: running.context(), rank, message });
    }
    if all.iter().any(|said| said.terms() != all[0].terms()) {
        let values =
            all.iter().enumerate().map(|(rank, said)| format!("rank {rank}: {}", said.terms())).collect();
        return Err(Error::Mismatch { context: running.context(), what: "the engine", values });
    }
    let inner = running.inner();
    let own = &inner.members[inner.rank].process;
    let shares = |(rank, said): (usize, &Said)| {
        rank != inner.rank && said.device == mine.device && inner.members[rank].process == *own
    };
    let shares_device = all.iter().enumerate().any(shares);
    Ok((smallest(&all), shares_device))
}

fn say(
    running: &Running<'_>,
    device: &Device,
    settings: &Settings,
    occupancies: Result<Limits, String>,
) -> Said {
    let inner = running.inner();
    Said {
        version: VERSION,
        kernels: source_hash(),
        lanes: settings.lanes,
        first_epoch: settings.first_epoch(),
        max_blocks: settings.max_blocks.clamp(1, MAX_BLOCKS as u32),
        provider: settings.provider.to_string(),
        unreachable: settings.unreachable.clone(),
        device: format!("{} {}", inner.members[inner.rank].host, ids::hex(&device.uuid())),
        multiprocessors: device.multiprocessors(),
        share: own_share(device),
        occupancies: occupancies.as_ref().copied().unwrap_or_default(),
        error: occupancies.err(),
    }
}

/// The multiprocessors of `device` that this process may use.
pub(super) fn own_share(device: &Device) -> u32 {
    share_of(device.multiprocessors(), std::env::var(MPS_SHARE).ok().as_deref())
}

/// The share of `multiprocessors` that MPS leaves this process, `percentage` being what its variable says.
fn share_of(multiprocessors: u32, percentage: Option<&str>) -> u32 {
    let percentage = percentage.and_then(|text| text.trim().parse::<f64>().ok());
    let percentage = percentage.filter(|percentage| (0.0..=100.0).contains(percentage)).unwrap_or(100.0);
    ((f64::from(multiprocessors) * percentage / 100.0) as u32).max(1)
}

/// The least that any rank can do.
fn smallest(all: &[Said]) -> Agreed {
    let ranks_with = |said: &Said| all.iter().filter(|other| other.device == said.device).count() as u32;
    let mut limits = Limits::default().map(|row| row.map(|_| u32::MAX));
    for said in all {
        let multiprocessors = said.counted_on(ranks_with(said));
        for (row, occupancies) in limits.iter_mut().zip(&said.occupancies) {
            for (least, occupancy) in row.iter_mut().zip(occupancies) {
                *least = (*least).min(limit(*occupancy, multiprocessors, said.lanes));
            }
        }
    }
    Agreed {
        world: all.len(),
        slot: Layout::new(all.len(), 1).slot,
        max_blocks: all.iter().map(|said| said.max_blocks).min().unwrap_or(1),
        limits,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Routine;
    use super::*;

    fn said(device: &str, share: u32) -> Said {
        Said {
            version: VERSION,
            kernels: 1,
            lanes: 1,
            first_epoch: 2,
            max_blocks: 32,
            provider: "vmm".to_owned(),
            unreachable: Vec::new(),
            device: device.to_owned(),
            multiprocessors: 132,
            share,
            occupancies: [[2; 3]; Routine::COUNT],
            error: None,
        }
    }

    #[test]
    fn the_smallest_share_counts_for_all() {
        let alone = smallest(&[said("a", 132), said("b", 132)]);
        assert_eq!((alone.limits, alone.world), ([[128; 3]; Routine::COUNT], 2));
        assert_eq!(smallest(&[said("a", 132), said("a", 132)]).limits, [[66; 3]; Routine::COUNT]);
        assert_eq!(smallest(&[said("a", 132), said("b", 13)]).limits, [[13; 3]; Routine::COUNT]);
        // What MPS gives each of two is no less than half of the device.
        assert_eq!(smallest(&[said("a", 66), said("a", 66)]).limits, [[66; 3]; Routine::COUNT]);
        let mut few = said("b", 132);
        (few.max_blocks, few.occupancies[1][2]) = (4, 0);
        let agreed = smallest(&[said("a", 132), few]);
        assert_eq!((agreed.max_blocks, agreed.limits[1]), (4, [128, 128, 1]));
    }

    #[test]
    fn what_mps_says_is_a_percentage() {
        assert_eq!(share_of(132, None), 132);
        assert_eq!(share_of(132, Some("25")), 33);
        assert_eq!(share_of(132, Some(" 12.5 ")), 16);
        assert_eq!(share_of(132, Some("0.1")), 1);
        for odd in ["", "x", "-3", "250", "nan"] {
            assert_eq!(share_of(132, Some(odd)), 132, "{odd}");
        }
    }
}
