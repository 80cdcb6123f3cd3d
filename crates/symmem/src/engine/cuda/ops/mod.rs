//! The operations by kernels of this crate, one file for each kind, on regions: bytes of all ranks, whatever
//! their elements. All return as soon as the work is on its stream.
//!
//! Called by `route.rs`, and by the handle's methods (`collective/device`) where there is nothing to route.
//! Arguments are checked there, before anything is launched. Those that are wrong on one rank alone are told
//! to the others by a launch that agrees with no operation ([`Engine::refuse`]): all fail at once, as ranks
//! that disagree do. Where that cannot be (a stream of another device, NCCL) the others wait until their
//! deadline.

mod all_reduce;
mod barrier;
mod copy;
mod multimem;
mod norm;
mod products;
mod pull;
mod signal;
mod words;

pub(crate) use self::all_reduce::AllReduce;
pub(crate) use self::copy::By;
pub(crate) use self::norm::{MAX_ROW, NormLaunch, RowsToNormalise, UNIT, Written};
pub use self::products::FusedWay;
pub(crate) use self::products::{MatrixPlace, ProductToScatter, RowsToMultiply};
pub(crate) use self::pull::DeviceRead;
use super::carrier::Carrier;
use super::launch_terms::LaunchTerms;
use super::{Engine, Region};
use crate::cuda::Stream;
use crate::operation::Op;
use crate::{Error, Result};

/// Kernels of this crate carry operations where every rank reaches every other.
#[derive(Debug)]
pub(super) struct ByKernels;

impl Carrier for ByKernels {
    fn works(&self, all_reach_all: bool) -> bool {
        all_reach_all
    }

    fn all_reduce(&self, region: &Region, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        region.all_reduce_by_kernel(work, stream)
    }

    fn read(&self, region: &Region, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()> {
        region.read_by_kernel(reading, stream)
    }

    fn all_reduce_rms_norm(
        &self,
        region: &Region,
        work: &RowsToNormalise<'_>,
        stream: &Stream,
    ) -> Result<()> {
        if work.is_fused { region.norm_fused(work, stream) } else { region.norm_unfused(work, stream) }
    }

    fn all_gather_matmul(&self, region: &Region, work: &RowsToMultiply<'_>, stream: &Stream) -> Result<()> {
        region.gather_and_multiply(work, true, stream)
    }

    fn matmul_reduce_scatter(
        &self,
        region: &Region,
        work: &ProductToScatter<'_>,
        stream: &Stream,
    ) -> Result<()> {
        region.multiply_and_scatter(work, true, stream)
    }

    fn signal(&self, region: &Region, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        region.signal_by_kernel(op, rank, channel, stream)
    }

    fn meet(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        engine.meet_by_kernel(statement, stream)
    }

    fn refuse(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        engine.meet(statement, stream)
    }
}

/// Threads of a block that only meets: one for each peer, whole warps.
pub(super) fn meeting_threads(world: usize) -> u32 {
    (world as u32).next_multiple_of(32)
}

impl Engine {
    /// An error if memory on `theirs` was handed to this engine.
    pub(crate) fn check_memory(&self, what: &'static str, theirs: &crate::cuda::Device) -> Result<()> {
        let ours = self.device();
        if theirs == ours {
            return Ok(());
        }
        let problem =
            format!("it is on {theirs}, the engine on {ours}. Hint: use memory of the engine's device");
        Err(Error::invalid(what, problem))
    }
}
