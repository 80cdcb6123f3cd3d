//! What an engine needs for multicast besides the user's memory: control blocks that are all reached at once,
//! and kernels.
//!
//! Made when an engine is, as far as the ranks can. What it guarantees: all ranks have it, or none has, and
//! those without know why, in the same words.

use serde::{Deserialize, Serialize};

use super::agree::multiprocessors;
use super::kernels::{Kernel, MultimemKernels};
use super::plan::{Algorithm, Limits, REDUCED_DTYPES, Routine, limit};
use super::{Engine, EngineInner};
use crate::cuda::Device;
use crate::group::Running;
use crate::table::Column;
use crate::{Error, Result};

/// Blocks that one launch of each kernel may have: by [`Routine::MULTIMEM`], then by [`REDUCED_DTYPES`].
type BlockLimits = [[u32; REDUCED_DTYPES.len()]; Routine::MULTIMEM.len()];

/// All of it.
#[derive(Debug)]
pub(super) struct Multimem {
    /// The address that reaches everybody's control block.
    pub(super) control: u64,
    kernels: MultimemKernels,
}

/// What a rank says after it has loaded its kernels.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MultimemProposal {
    limits: BlockLimits,
    /// Why it could not.
    problem: Option<String>,
}

/// Collective: everything for the ranks whose control blocks are `peers`, `recorded` or not, or why there is
/// nothing. Enters what the ranks agree on in `limits`.
pub(super) fn set_up(
    running: &Running<'_>,
    device: &Device,
    peers: &Column,
    lanes: u32,
    limits: &mut Limits,
    recorded: bool,
) -> Result<Result<Multimem, String>> {
    let control = match &peers.multicast {
        Ok(control) => *control,
        Err(problem) => return Ok(Err(problem.clone())),
    };
    // Only now: elsewhere nobody would use them.
    let cache = running.group().context().config().cache_dir.as_deref();
    let kernels = MultimemKernels::load(device, running.inner().world, cache, recorded);
    let loaded = kernels.and_then(|kernels| Ok((rows(&kernels, device, lanes)?, kernels)));
    let mine = match &loaded {
        Ok((limits, _)) => MultimemProposal { limits: *limits, problem: None },
        Err(error) => MultimemProposal { problem: Some(error.to_string()), ..MultimemProposal::default() },
    };
    let all = running.all_brought(running.op(), &mine)?;
    for (rank, said) in all.iter().enumerate() {
        if let Some(problem) = &said.problem {
            tracing::warn!(rank, problem, "no kernels for multicast");
            return Ok(Err(format!("rank {rank} has no kernels for it: {problem}")));
        }
        let own = &mut limits[Routine::ALL.len()..];
        let both = own.iter_mut().flatten().zip(said.limits.iter().flatten());
        both.for_each(|(least, limit)| *least = if rank == 0 { *limit } else { (*least).min(*limit) });
    }
    // Fails on every rank above if it failed on one.
    Ok(loaded.map(|(_, kernels)| Multimem { control, kernels }).map_err(|error| error.to_string()))
}

/// What this rank can do. No two ranks of a multicast object share a device.
fn rows(kernels: &MultimemKernels, device: &Device, lanes: u32) -> Result<BlockLimits> {
    let mut rows = BlockLimits::default();
    let (_, share) = multiprocessors(device);
    for (routine, row) in Routine::MULTIMEM.iter().copied().zip(&mut rows) {
        for (dtype_index, most) in row.iter_mut().enumerate() {
            let kernel = kernels.routine(routine, dtype_index).ok_or_else(|| unknown(routine))?;
            *most = limit(kernel.function.occupancy(routine.most_threads(), 0)?, share, lanes);
        }
    }
    Ok(rows)
}

fn unknown(routine: Routine) -> Error {
    Error::invalid("kernels", format!("{} is not there", routine.name()))
}

impl EngineInner {
    fn multimem(&self) -> Result<&Multimem> {
        let none = |problem: &String| Error::NoMulticast { problem: problem.clone() };
        self.body.multimem.as_ref().map_err(none)
    }
}

impl Engine {
    /// Whether operations that can use multicast are to.
    pub(crate) fn uses_multimem(&self) -> bool {
        self.forced == Some(Algorithm::Multimem)
    }

    /// An error unless the ranks have what multicast needs.
    pub(super) fn check_multimem(&self) -> Result<()> {
        self.inner.multimem().map(drop)
    }

    /// The kernel of `routine` for elements of the type at `dtype_index`.
    #[inline]
    pub(super) fn routine(&self, routine: Routine, dtype_index: usize) -> Result<&Kernel> {
        if !Routine::MULTIMEM.contains(&routine) {
            return Ok(self.inner.body.kernels.routine(routine, dtype_index));
        }
        self.inner.multimem()?.kernels.routine(routine, dtype_index).ok_or_else(|| unknown(routine))
    }

    /// The barrier.
    pub(super) fn barrier_kernel(&self) -> Result<&Kernel> {
        let kernels = &self.inner.body.kernels;
        match self.uses_multimem() {
            true => self.inner.multimem().map(|multimem| &multimem.kernels.barrier),
            false if self.inner.agreed.one_device => Ok(&kernels.barrier_together),
            false => Ok(&kernels.barrier),
        }
    }
}
