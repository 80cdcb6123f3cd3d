//! The barrier.

use super::meeting_threads;
use crate::Result;
use crate::cuda::{Engine, Stream, SymmetricMemory};
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::Algorithm;
use crate::engine::cuda::statement::Statement;
use crate::memory::Element;
use crate::op::Op;

impl Engine {
    /// Collective, in the order of `stream`. Work behind it starts once every rank's stream is here; what any rank's stream
    /// wrote before is visible to all after.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.meet(Statement::plain(Op::Barrier, None, (0, 0), meeting_threads(self.group().size())), stream)
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
    /// Collective, in the order of `stream`. [`Engine::barrier`] for which the ranks must agree on the memory and `channel`.
    pub fn barrier(&self, channel: usize, stream: &Stream) -> Result<()> {
        let op = Op::MemoryBarrier;
        self.check_channel(op.name(), channel)?;
        let threads = meeting_threads(self.world_size());
        self.engine.meet(Statement::plain(op, Some(channel), self.statement(), threads), stream)
    }
}
