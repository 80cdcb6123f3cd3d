//! The operations of the CUDA engine, one file for each kind. All return as soon as the work is on its stream.
//!
//! Every one checks, before anything is launched: the process is the rank, the group is whole, the stream is of the engine's
//! device, and the arguments are right. Arguments that are wrong on one rank alone are told to the others by a launch that
//! agrees with no operation ([`Engine::refuse`]): all fail at once, as ranks that disagree do. Where that cannot be (a stream of
//! another device, NCCL) the others wait until their deadline.

mod all_reduce;
mod barrier;
mod copy;
mod multimem;
mod pull;
mod signal;
mod words;

#[cfg(feature = "bench-support")]
use super::plan::Tune;
use super::{Algorithm, Engine};
use crate::cuda::Stream;
use crate::cuda::owner::{Owner, Place};
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

/// Threads of a block that only meets: one for each peer, whole warps.
fn meeting_threads(world: usize) -> u32 {
    (world as u32).next_multiple_of(32)
}

impl<T: Element> SymmetricMemory<T> {
    /// The same memory, whose operations go in the order of lane `lane` of the engine.
    pub fn lane(&self, lane: usize) -> Result<Self> {
        Ok(self.on(self.engine.lane(lane)?))
    }

    /// The same memory on [`Engine::using`] of `algorithm`. All ranks must choose alike.
    pub fn using(&self, algorithm: Algorithm) -> Self {
        self.on(self.engine.using(algorithm))
    }

    /// The same memory with other values than the dispatcher's table, for sweeps.
    #[doc(hidden)]
    #[cfg(feature = "bench-support")]
    pub fn tuned(&self, tune: Tune) -> Self {
        self.on(self.engine.tuned(tune))
    }

    /// Runs `launch`, which launches the collective `op`. Arguments that are wrong here alone are told to the others, but not on memory
    /// that all ranks have closed.
    #[inline]
    fn told(&self, op: Op, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check_open(op.name())?;
        self.engine.told(stream, launch())
    }

    /// The checks of every operation that is no collective: the memory is open, and what [`Engine::check`] looks at.
    #[inline]
    fn check(&self, op: Op, channel: Option<usize>, stream: &Stream) -> Result<()> {
        self.check_open(op.name())?;
        self.engine.check(op, channel, stream)
    }

    /// Which memory this is, for signatures.
    fn statement(&self) -> (u64, u64) {
        (self.keep.number, self.place())
    }

    /// What keeps the addresses valid, for graphs.
    pub(super) fn owner(&self) -> Option<&dyn Owner> {
        Some(&self.keep)
    }

    /// This rank's memory, whose owner every operation keeps.
    pub(super) fn own_place(&self) -> Place<'static> {
        Place::bare(self.own_address())
    }

    /// The channels of the signal pad.
    fn check_channel(&self, op: &'static str, channel: usize) -> Result<()> {
        let channels = self.keep.pad_bytes / (size_of::<u32>() * self.world_size());
        if channel < channels {
            return Ok(());
        }
        Err(Error::ChannelOutOfRange { op, channel, channels })
    }

    /// The bytes of `len` elements from `start` on, as offset and length.
    fn span(&self, op: &'static str, start: usize, len: usize) -> Result<(u64, usize)> {
        let size = size_of::<T>();
        if start.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(((start * size) as u64, len * size));
        }
        Err(Error::OutOfBounds {
            op,
            offset: (start as u64).saturating_mul(size as u64),
            bytes: (len as u64).saturating_mul(size as u64),
            size: (self.len * size) as u64,
        })
    }
}

impl Engine {
    /// An error if memory on `theirs` was handed to this engine.
    fn check_memory(&self, what: &'static str, theirs: &crate::cuda::Device) -> Result<()> {
        let ours = self.device();
        if theirs == ours {
            return Ok(());
        }
        let problem =
            format!("it is on {theirs}, the engine on {ours}. Hint: use memory of the engine's device");
        Err(Error::invalid(what, problem))
    }
}
