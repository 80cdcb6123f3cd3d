//! The barrier.

use super::meeting_threads;
use crate::cuda::Stream;
use crate::engine::cuda::Engine;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::Algorithm;
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

impl Engine {
    /// Collective, in the order of `stream`. Work behind it starts once every rank's stream is here; what any rank's stream
    /// wrote before is visible to all after.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.meet(Statement::plain(Op::Barrier, None, (0, 0), meeting_threads(self.group().size())), stream)
    }

    /// Collective, in the order of `stream`, in place of an operation that this rank cannot launch: the others, who do, fail at once
    /// as ranks that disagree do, instead of at their deadline. If all ranks refuse, nothing happens. For callers who check
    /// more than this crate does before they call it. Where NCCL does the work the others wait all the same.
    pub fn refuse(&self, stream: &Stream) -> Result<()> {
        if !self.is_direct() {
            return Ok(());
        }
        let threads = meeting_threads(self.group().size());
        self.meet(Statement::plain(Op::Refusal, None, (0, 0), threads), stream)
    }

    /// What became of an operation on `stream`. Arguments that are wrong here alone are told to the others.
    #[inline]
    pub(super) fn told(&self, stream: &Stream, done: Result<()>) -> Result<()> {
        if let Err(error) = &done {
            self.tell(stream, error);
        }
        done
    }

    #[cold]
    fn tell(&self, stream: &Stream, error: &Error) {
        // Nothing was launched for these. `NoMulticast` is the same on all ranks; what else fails is the group's or the device's, and
        // known.
        if matches!(
            error,
            Error::Invalid { .. } | Error::RankOutOfRange { .. } | Error::ChannelOutOfRange { .. }
        ) {
            // Where this cannot be launched either (a stream of another device), the deadline is left.
            let _ = self.refuse(stream);
        }
    }

    fn meet(&self, statement: Statement, stream: &Stream) -> Result<()> {
        self.check(statement.op, statement.channel, stream)?;
        let kernel = self.barrier_kernel()?;
        let statement =
            Statement { algorithm: self.uses_multimem().then_some(Algorithm::Multimem), ..statement };
        if !self.is_direct() {
            return self.meet_carried(statement.op, stream);
        }
        let count = statement.channel.unwrap_or(0) as u64;
        self.launch(stream, kernel, &Call { count, is_small: true, ..Call::plain(statement) })
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// `op` on no bytes: ranks with some would wait for those without.
    #[cold]
    pub(super) fn meet_for_nothing(&self, op: Op, stream: &Stream) -> Result<()> {
        let threads = meeting_threads(self.world_size());
        self.engine.meet(Statement::plain(op, None, self.statement(), threads), stream)
    }

    /// Collective, in the order of `stream`. [`Engine::barrier`] for which the ranks must agree on the memory and `channel`.
    pub fn barrier(&self, channel: usize, stream: &Stream) -> Result<()> {
        let op = Op::MemoryBarrier;
        let threads = meeting_threads(self.world_size());
        self.told(op, stream, || {
            self.check_channel(op.name(), channel)?;
            self.engine.meet(Statement::plain(op, Some(channel), self.statement(), threads), stream)
        })
    }
}
