//! Signals between two ranks, on the pads of symmetric memory: PyTorch's protocol, so kernels written for it
//! fit.

use crate::Result;
use crate::cuda::Stream;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// In the order of `stream`: raises this rank's signal on `channel` at `rank`, once the previous one was
    /// consumed. What this rank's stream wrote before is visible to `rank`'s stream after it has waited for
    /// the signal.
    pub fn put_signal(&self, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        self.signal(Op::PutSignal, rank, channel, stream)
    }

    /// In the order of `stream`: consumes the signal on `channel` from `rank`, once it is there.
    pub fn wait_signal(&self, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        self.signal(Op::WaitSignal, rank, channel, stream)
    }

    fn signal(&self, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        self.group().check_rank(op.name(), rank)?;
        self.check_channel(op.name(), channel)?;
        self.check_open(op.name())?;
        self.region().signal(op, rank, channel, stream)
    }
}
