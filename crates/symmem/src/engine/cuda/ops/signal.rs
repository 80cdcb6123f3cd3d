//! Signals between two ranks, on the pads of symmetric memory: PyTorch's protocol, so kernels written for it fit.

use crate::Result;
use crate::cuda::Stream;
use crate::engine::cuda::kernels::Kernel;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// In the order of `stream`: raises this rank's signal on `channel` at `rank`, once the previous one was consumed. What
    /// this rank's stream wrote before is visible to `rank`'s stream after it has waited for the signal.
    pub fn put_signal(&self, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        let kernel = &self.engine.inner.body.kernels.put_signal;
        self.signal(Op::PutSignal, kernel, rank, channel, self.rank(), stream)
    }

    /// In the order of `stream`: consumes the signal on `channel` from `rank`, once it is there.
    pub fn wait_signal(&self, rank: usize, channel: usize, stream: &Stream) -> Result<()> {
        let kernel = &self.engine.inner.body.kernels.wait_signal;
        self.signal(Op::WaitSignal, kernel, rank, channel, rank, stream)
    }

    /// `source` is the rank whose slot it is.
    fn signal(
        &self,
        op: Op,
        kernel: &Kernel,
        rank: usize,
        channel: usize,
        source: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.group().check_rank(op.name(), rank)?;
        self.check_channel(op.name(), channel)?;
        self.check(op, Some(channel), stream)?;
        if !self.engine.is_direct() {
            return self.signal_carried(op, rank, channel, stream);
        }
        let call = Call {
            count: (self.world_size() * channel + source) as u64,
            peer: rank,
            data: &self.keep.pads,
            memory: self.owner(),
            ..Call::plain(Statement::plain(op, Some(channel), self.statement(), 32))
        };
        self.engine.launch(stream, kernel, &call)
    }
}
