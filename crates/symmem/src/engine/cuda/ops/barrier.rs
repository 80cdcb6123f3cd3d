//! The barrier.

use super::meeting_threads;
use crate::cuda::Stream;
use crate::cuda::device::Bound;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::Algorithm;
use crate::engine::cuda::{Engine, Region};
use crate::operation::Op;
use crate::{Error, Result};

impl Engine {
    /// Collective, in the order of `stream`. Work behind it starts once every rank's stream is here; what any
    /// rank's stream wrote before is visible to all after.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.meet(LaunchTerms::plain(Op::Barrier, None, (0, 0), meeting_threads(self.group().size())), stream)
    }

    /// What became of an operation on `stream`. Arguments that are wrong here alone are told to the others.
    #[inline]
    pub(crate) fn told(&self, stream: &Stream, done: Result<()>) -> Result<()> {
        if let Err(error) = &done {
            self.tell(stream, error);
        }
        done
    }

    #[cold]
    fn tell(&self, stream: &Stream, error: &Error) {
        // Nothing was launched for these. `NoMulticast` is the same on all ranks; what else fails is the
        // group's or the device's, and known.
        if matches!(
            error,
            Error::Invalid { .. }
                | Error::RankOutOfRange { .. }
                | Error::ChannelOutOfRange { .. }
                | Error::NoLibrary { .. }
                | Error::LibraryTooOld { .. }
                | Error::Library { .. }
        ) {
            // Where this cannot be launched either (a stream of another device), the deadline is left.
            let _ = self.refuse(stream);
        }
    }

    #[inline]
    pub(super) fn meet_by_kernel(&self, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        self.launch(stream, self.barrier_kernel()?, &self.meeting(statement))
    }

    /// The same for who holds the order of the lane.
    pub(super) fn meet_in_order(&self, statement: LaunchTerms, stream: (&Stream, &Bound<'_>)) -> Result<()> {
        self.put_in_order(self.barrier_kernel()?, stream, &self.meeting(statement))
    }

    #[inline]
    fn meeting(&self, statement: LaunchTerms) -> LaunchArguments<'static> {
        let statement =
            LaunchTerms { algorithm: self.uses_multimem().then_some(Algorithm::Multimem), ..statement };
        let count = statement.channel.unwrap_or(0) as u64;
        LaunchArguments { count, is_small: true, ..LaunchArguments::plain(statement) }
    }
}

impl Region {
    /// Collective: `op` that moves nothing, for which the ranks must agree on the memory, and on `channel` if
    /// there is one.
    pub(crate) fn meet(&self, op: Op, channel: Option<usize>, stream: &Stream) -> Result<()> {
        let threads = meeting_threads(self.data.len());
        self.engine.meet(LaunchTerms::plain(op, channel, self.statement(), threads), stream)
    }

    /// `op` on no bytes: ranks with some would wait for those without.
    #[cold]
    pub(super) fn meet_for_nothing(&self, op: Op, stream: &Stream) -> Result<()> {
        self.meet(op, None, stream)
    }
}
