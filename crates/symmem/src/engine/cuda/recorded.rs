//! Recording of what kernels of an engine do, for `trace`.
//!
//! An engine that is made while its group is recorded loads kernels that record themselves, if they can be
//! compiled; every other engine loads kernels without it, and pays nothing. When its group is recorded later,
//! or nothing can be compiled, a kernel of one thread before each launch and one after it record that
//! (`kernels/marks.cu`). Those are there from the start: anything that is loaded while kernels wait for peers
//! may have to wait for them.
//!
//! The first recorded launch of a lane makes the lane's ring, and a kernel tells the lane where the ring is.
//! Kernels write the ring; those of a graph that was captured meanwhile write it with every replay. If there
//! is no ring to be had, the lane stays unrecorded, with a warning.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::Engine;
use super::launch::LaunchArguments;
use super::launch_terms::LaunchTerms;
use crate::Result;
use crate::cuda::Stream;
use crate::cuda::capture::Relaxed;
use crate::cuda::owner::OwnedAddress;
use crate::device::HostBlock;
use crate::operation::Op;
use crate::sync::record::OnDevice;
use crate::sync::record::device::{DeviceRing, RecordedLaunch};
use crate::sys::clock::boottime_ns;

/// How often the clocks of host and device are compared; the quickest answer counts.
const LOOKS: usize = 16;
/// How long the device may take to say what its clock shows.
const PATIENCE: Duration = Duration::from_millis(100);
/// Launches after which it is asked whether somebody reads the records.
const ROUND: u64 = 1 << 12;

/// The rings of an engine's lanes.
#[derive(Debug)]
pub(super) struct LaneRings(Vec<OnceLock<Option<LaneRing>>>);

#[derive(Debug)]
struct LaneRing {
    block: HostBlock<DeviceRing>,
    /// Whether the clocks were compared: else nobody could say when something was.
    has_clock: bool,
}

impl LaneRings {
    pub(super) fn new(lanes: usize) -> Self {
        Self((0..lanes).map(|_| OnceLock::new()).collect())
    }
}

/// Who records a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recording {
    /// Nobody.
    No,
    /// Its kernel.
    Itself,
    /// Kernels before and after it.
    Around,
}

impl Engine {
    /// Who records a launch that is made now on this handle's lane.
    #[inline]
    pub(super) fn recording(&self, statement: &LaunchTerms) -> Recording {
        if !self.group().inner.is_recorded() || !self.know(statement) {
            return Recording::No;
        }
        match self.inner.body.kernels.record_themselves {
            true => Recording::Itself,
            false => Recording::Around,
        }
    }

    /// Notes what the launch is, for who reads the records. False if there are none.
    #[cold]
    fn know(&self, statement: &LaunchTerms) -> bool {
        let ring = self.inner.body.rings.0[self.lane].get_or_init(|| {
            self.make_ring()
                .inspect_err(|error| tracing::warn!(%error, "operations of the device are not recorded"))
                .unwrap_or_default()
        });
        let Some(ring) = ring.as_ref().filter(|ring| ring.has_clock) else { return false };
        let ring = ring.block.memory();
        let launches = self.inner.body.lanes[self.lane].launches();
        if launches % ROUND == ROUND - 1 && !ring.is_read() {
            self.group().inner.stop_recording();
            return false;
        }
        ring.know(statement.signature(), || (launched(statement), statement.bytes));
        true
    }

    fn make_ring(&self) -> Result<Option<LaneRing>> {
        // What follows has nothing to do with a capture that may be going on.
        let _relaxed = Relaxed::enter();
        let (device, engine) = (self.device().ordinal(), self.inner.number);
        let on = OnDevice { device, engine, lane: self.lane };
        let Some(ring) = self.group().inner.device_ring(on) else { return Ok(None) };
        let block = HostBlock::new(self.device(), &Arc::new(ring))?;
        let has_clock = self.open(&block)?;
        if !has_clock {
            tracing::warn!(
                "operations of {} are not recorded: it does not say what its clock shows",
                self.device()
            );
        }
        // A kernel that is late may write it still, so it is kept all the same.
        Ok(Some(LaneRing { block, has_clock }))
    }

    /// Tells the lane where its ring is, and notes there what both clocks show. False if the device does not
    /// answer.
    fn open(&self, block: &HostBlock<DeviceRing>) -> Result<bool> {
        // Not a stream of its own, which would take one of the queues that the ranks' own streams need.
        let stream = Stream::service(self.device())?;
        let ring = block.memory();
        let [input, output] = [DeviceRing::RECORDS, DeviceRing::CLOCK]
            .map(|offset| OwnedAddress::bare(block.address() + offset as u64));
        let call = LaunchArguments {
            input,
            output,
            ..LaunchArguments::plain(LaunchTerms::plain(Op::Copy, None, (0, 0), 1))
        };
        let mut best: Option<(u64, u64, u64)> = None;
        'looks: for _ in 0..LOOKS {
            ring.reset_clock();
            let (before, begun) = (boottime_ns(), Instant::now());
            self.launch_at_once(&stream, &self.inner.body.kernels.open_records, &call)?;
            while ring.clock() == 0 {
                // A busy device: what there is must do.
                if begun.elapsed() > PATIENCE {
                    break 'looks;
                }
                std::hint::spin_loop();
            }
            let took = boottime_ns() - before;
            if best.is_none_or(|(quickest, ..)| took < quickest) {
                best = Some((took, ring.clock(), before + took / 2));
            }
        }
        let Some((_, device_ns, boot_ns)) = best else { return Ok(false) };
        ring.set_clock(device_ns, boot_ns);
        Ok(true)
    }
}

/// What a launch is recorded as.
fn launched(statement: &LaunchTerms) -> RecordedLaunch {
    let (reduce, dtype) =
        statement.reduction.map_or((0, 0), |(reduce, dtype)| (reduce as u8 + 1, dtype as u8 + 1));
    let algorithm = statement.algorithm.map_or(0, |algorithm| algorithm as u8 + 1);
    RecordedLaunch { op: statement.op, dtype, reduce, algorithm, channel: statement.channel }
}
