//! What ranks agree on when they make an engine: compared, or the smallest of all, so that later every rank
//! decides alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Settings;
use super::kernels::source_hash;
use super::plan::{AgreedEngine, Limits, Routine, built_in, kind, limit, measured};
use crate::cuda::Device;
use crate::cuda::driver::driver;
use crate::device::control::{ControlLayout, MAX_BLOCKS};
use crate::group::Running;
use crate::operation::Op;
use crate::sys::ids;
use crate::tuning::DeviceBounds;
use crate::{Error, Result};

/// Of the protocol between kernels; beside their sources, which are compared as well.
const VERSION: u32 = 1;

/// What a rank brings.
#[derive(Debug, Serialize, Deserialize)]
struct EngineProposal {
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
    /// What it is called.
    name: String,
    multiprocessors: u32,
    /// Of these, as many as this process may use.
    share: u32,
    occupancies: Limits,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl EngineProposal {
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

/// Collective: what all ranks agree on, and whether another rank of this process is on the same device.
/// `occupancies` are this rank's, or why it failed.
pub(super) fn agree(
    running: &Running<'_>,
    device: &Device,
    settings: &Settings,
    adopted: bool,
    occupancies: Result<Limits, String>,
) -> Result<(AgreedEngine, bool)> {
    let mine = EngineProposal { adopted, ..say(running, device, settings, occupancies) };
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
    let shares = |(rank, said): (usize, &EngineProposal)| {
        rank != inner.rank && said.device == mine.device && inner.members[rank].process == *own
    };
    let shares_device = all.iter().enumerate().any(shares);
    Ok((smallest(&all, &inner.devices), shares_device))
}

fn say(
    running: &Running<'_>,
    device: &Device,
    settings: &Settings,
    occupancies: Result<Limits, String>,
) -> EngineProposal {
    let inner = running.inner();
    let (multiprocessors, share) = multiprocessors(device);
    EngineProposal {
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
        name: device.name().to_owned(),
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

/// The least that any rank can do, and what rank 0's tuning says of `devices`.
fn smallest(all: &[EngineProposal], devices: &BTreeMap<String, DeviceBounds>) -> AgreedEngine {
    let ranks_with =
        |said: &EngineProposal| all.iter().filter(|other| other.device == said.device).count() as u32;
    let mut limits = Limits::default().map(|row| row.map(|_| u32::MAX));
    for said in all {
        let multiprocessors = said.counted_on(ranks_with(said));
        for (row, occupancies) in limits.iter_mut().zip(&said.occupancies) {
            for (least, occupancy) in row.iter_mut().zip(occupancies) {
                *least = (*least).min(limit(*occupancy, multiprocessors, said.lanes));
            }
        }
    }
    // Each rank may choose between these independently.
    for routine in [Routine::LowLatencyWhole, Routine::LowLatencyTogether] {
        let other = limits[routine as usize];
        for (least, other) in limits[Routine::LowLatency as usize].iter_mut().zip(other) {
            *least = (*least).min(other);
        }
    }
    let one_device = all.iter().all(|said| said.device == all[0].device && !said.apart);
    let built_in = built_in(all.len(), one_device);
    let is_one_kind = all.iter().all(|said| said.name == all[0].name);
    let bounds = devices.get(&kind(&all[0].name, one_device)).filter(|_| is_one_kind);
    // A tuning that means nothing must not keep anybody from working; all ranks have the same one.
    let warn = |error: &Error| tracing::warn!(%error, "what was measured of devices is not used");
    let found = bounds.map_or(Ok(built_in), |bounds| measured(built_in, bounds).inspect_err(warn));
    AgreedEngine {
        world: all.len(),
        one_device,
        slot: ControlLayout::new(all.len(), 1).slot,
        max_blocks: all.iter().map(|said| said.max_blocks).min().unwrap_or(1),
        // It was checked; and all ranks say the same.
        preferred: all[0].algorithm.parse().ok(),
        crossovers: found.unwrap_or(built_in),
        limits,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Algorithm, Form};
    use super::*;

    fn said(device: &str, share: u32) -> EngineProposal {
        EngineProposal {
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
            name: "a GPU".to_owned(),
            multiprocessors: 132,
            share,
            occupancies: [[2; 3]; Routine::COUNT],
            error: None,
        }
    }

    fn smallest(all: &[EngineProposal]) -> AgreedEngine {
        super::smallest(all, &BTreeMap::new())
    }

    #[test]
    fn what_was_measured_counts_for_ranks_of_that_kind_if_it_means_something() {
        let rows = |form: &str, algorithm: &str| {
            let bounds = BTreeMap::from([(algorithm.to_owned(), 4096)]);
            DeviceBounds::from([("out".to_owned(), BTreeMap::new()), (form.to_owned(), bounds)])
        };
        let found = |all: &[EngineProposal], rows| {
            super::smallest(all, &BTreeMap::from([("a GPU, ranks on several".to_owned(), rows)])).crossovers
        };
        let (several, low) = ([said("a", 132), said("b", 132)], Algorithm::LowLatency as usize);
        let mut expected = built_in(2, false);
        expected[low][Form::Private as usize] = 4096;
        assert_eq!(found(&several, rows("private", "low_latency")), expected);
        // Rows of another kind of devices.
        let one = [said("a", 132), said("a", 132)];
        assert_eq!(found(&one, rows("private", "low_latency")), built_in(2, true));
        let mixed = [said("a", 132), EngineProposal { name: "another".to_owned(), ..said("b", 132) }];
        assert_eq!(found(&mixed, rows("private", "low_latency")), built_in(2, false));
        // Nonsense, and what gives other bits.
        for (form, algorithm, words) in [
            (
                "sideways",
                "low_latency",
                "form: \"sideways\" is none of in_place, out, private, all_reduce_rms_norm",
            ),
            ("private", "ring", "algorithm: \"ring\" is none of low_latency"),
            ("private", "multimem", "algorithm: \"multimem\" is none of low_latency"),
        ] {
            assert_eq!(found(&several, rows(form, algorithm)), built_in(2, false));
            let error = measured(built_in(2, false), &rows(form, algorithm)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_smallest_share_counts_for_all() {
        let alone = smallest(&[said("a", 132), said("b", 132)]);
        assert_eq!((alone.limits, alone.world), ([[128; 3]; Routine::COUNT], 2));
        let together = smallest(&[said("a", 132), said("a", 132)]);
        assert_eq!(together.limits, [[66; 3]; Routine::COUNT]);
        let apart = smallest(&[said("a", 132), EngineProposal { apart: true, ..said("a", 132) }]);
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
