//! The barrier of symmetric memory.

use crate::Result;
use crate::cuda::Stream;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. [`Engine::barrier`](crate::cuda::Engine::barrier) for which the
    /// ranks must agree on the memory and `channel`.
    pub fn barrier(&self, channel: usize, stream: &Stream) -> Result<()> {
        let op = Op::MemoryBarrier;
        self.told(op, stream, || {
            self.check_channel(op.name(), channel)?;
            self.region().meet(op, Some(channel), stream)
        })
    }
}
