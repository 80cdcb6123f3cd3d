//! Signals between two ranks, on the pads of symmetric memory: PyTorch's protocol, so kernels written for it
//! fit.

use crate::Result;
use crate::cuda::Stream;
use crate::engine::cuda::Region;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::operation::Op;

impl Region {
    #[inline]
    pub(super) fn signal_by_kernel(
        &self,
        op: Op,
        rank: usize,
        channel: usize,
        stream: &Stream,
    ) -> Result<()> {
        let kernels = &self.engine.inner.body.kernels;
        // The slot is that of the rank that raises the signal.
        let (kernel, source) = match op {
            Op::PutSignal => (&kernels.put_signal, self.rank()),
            _ => (&kernels.wait_signal, rank),
        };
        let call = LaunchArguments {
            count: (self.data.len() * channel + source) as u64,
            peer: rank,
            data: &self.table.pads,
            memory: self.owner(),
            ..LaunchArguments::plain(LaunchTerms::plain(op, Some(channel), self.statement(), 32))
        };
        self.engine.launch(stream, kernel, &call)
    }
}
