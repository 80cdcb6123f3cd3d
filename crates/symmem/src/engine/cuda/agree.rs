//! What ranks agree on when they make an engine: compared, or the smallest of all, so that later every rank decides alike.

use serde::{Deserialize, Serialize};

use super::Settings;
use super::control::{Layout, MAX_BLOCKS};
use super::kernels::source_hash;
use super::plan::{Agreed, Limits, Routine, limit};
use crate::cuda::Device;
use crate::cuda::driver::driver;
use crate::group::Running;
use crate::operation::Op;
use crate::sys::ids;
use crate::{Error, Result};

/// Of the protocol between kernels; beside their sources, which are compared as well.
const VERSION: u32 = 1;

/// What a rank brings.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    version: u32,
    kernels: u64,
    lanes: u32,
    first_epoch: u32,
    max_blocks: u32,
    provider: String,
    /// Of all-reduces, wherever it can carry them.
    algorithm: String,
    /// Whether it brings a communicator of its own.
    adopted: bool,
    /// Ranks that count as out of reach.
    unreachable: Vec<usize>,
    /// Whether it works as if others were on other devices.
    apart: bool,
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
        let Self { version, kernels, lanes, first_epoch, provider, algorithm, unreachable, .. } = self;
        let by = if algorithm.is_empty() { String::new() } else { format!(", all-reduces by {algorithm}") };
        let whose = if self.adopted { ", by a communicator that was there" } else { "" };
        let far = if unreachable.is_empty() { String::new() } else { format!(", without {unreachable:?}") };
        format!(
            "version {version}, kernels {kernels:016x}, {lanes} lanes from epoch {first_epoch} on, memory of {provider}{whose}{by}{far}"
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
    adopted: bool,
    occupancies: Result<Limits, String>,
) -> Result<(Agreed, bool)> {
    let mine = Said { adopted, ..say(running, device, settings, occupancies) };
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
    let (multiprocessors, share) = multiprocessors(device);
    Said {
        version: VERSION,
        kernels: source_hash(),
        lanes: settings.lanes,
        first_epoch: settings.first_epoch(),
        max_blocks: settings.max_blocks.clamp(1, MAX_BLOCKS as u32),
        provider: settings.chosen_provider().to_string(),
        algorithm: settings.algorithm.clone(),
        adopted: false,
        unreachable: settings.unreachable.clone(),
        apart: settings.apart,
        device: format!("{} {}", inner.members[inner.rank].host, ids::hex(&device.uuid())),
        multiprocessors,
        share,
        occupancies: occupancies.as_ref().copied().unwrap_or_default(),
        error: occupancies.err(),
    }
}

/// The multiprocessors of `device`, and how many of them this process may use.
pub(super) fn multiprocessors(device: &Device) -> (u32, u32) {
    let seen = device.multiprocessors();
    match driver() {
        Ok(driver) if device.has_mps() => driver.mps.of(seen),
        _ => (seen, seen),
    }
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
    // Which of these a rank runs is its own affair.
    for routine in [Routine::LowLatencyWhole, Routine::LowLatencyTogether] {
        let other = limits[routine as usize];
        for (least, other) in limits[Routine::LowLatency as usize].iter_mut().zip(other) {
            *least = (*least).min(other);
        }
    }
    Agreed {
        world: all.len(),
        one_device: all.iter().all(|said| said.device == all[0].device && !said.apart),
        slot: Layout::new(all.len(), 1).slot,
        max_blocks: all.iter().map(|said| said.max_blocks).min().unwrap_or(1),
        // It was checked; and all ranks say the same.
        preferred: all[0].algorithm.parse().ok(),
        limits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(device: &str, share: u32) -> Said {
        Said {
            version: VERSION,
            kernels: 1,
            lanes: 1,
            first_epoch: 2,
            max_blocks: 32,
            provider: "vmm".to_owned(),
            algorithm: String::new(),
            adopted: false,
            unreachable: Vec::new(),
            apart: false,
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
        let together = smallest(&[said("a", 132), said("a", 132)]);
        assert_eq!(together.limits, [[66; 3]; Routine::COUNT]);
        let apart = smallest(&[said("a", 132), Said { apart: true, ..said("a", 132) }]);
        assert!(together.one_device && !alone.one_device && !apart.one_device);
        assert_eq!(smallest(&[said("a", 132), said("b", 13)]).limits, [[13; 3]; Routine::COUNT]);
        // What MPS gives each of two is no less than half of the device, and that of four is a quarter.
        assert_eq!(smallest(&[said("a", 66), said("a", 66)]).limits, [[66; 3]; Routine::COUNT]);
        assert_eq!(smallest(&[0; 4].map(|_| said("a", 33))).limits, [[33; 3]; Routine::COUNT]);
        let mut few = said("b", 132);
        (few.max_blocks, few.occupancies[1][2]) = (4, 0);
        let agreed = smallest(&[said("a", 132), few]);
        assert_eq!((agreed.max_blocks, agreed.limits[1]), (4, [128, 128, 1]));
        assert_eq!((agreed.limits[0], agreed.limits[2]), ([128, 128, 1], [128; 3]));
    }
}
