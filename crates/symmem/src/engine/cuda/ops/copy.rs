//! Copies between this rank's memory and a peer's, from one side: by the copy engine, or by threads.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use cudarc::driver::sys;

use crate::cuda::driver::check;
use crate::cuda::owner::OwnedAddress;
use crate::cuda::{Stream, queues};
use crate::device::control::MAX_THREADS;
use crate::engine::cuda::Region;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::DEFAULT_BLOCKS;
use crate::operation::Op;
use crate::{Error, Result};

/// Bytes that a thread of the copying kernel moves at least, where there are as many.
const BYTES_PER_THREAD: usize = 64;

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The copy engine.
    Engine,
    /// The copy engine, in the order of the lane.
    EngineInTurn,
    /// Threads of a kernel.
    Threads,
}

impl Region {
    /// Copies `bytes` bytes from the first place, which is a peer's or a private one, to the second. The
    /// engine is checked.
    pub(crate) fn copy(
        &self,
        op: Op,
        by: By,
        (input, output): (OwnedAddress<'_>, OwnedAddress<'_>),
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (from, to) = (input.address, output.address);
        if bytes == 0 || from == to {
            return Ok(());
        }
        if from.abs_diff(to) < bytes as u64 {
            return Err(Error::invalid(op.name(), "both sides overlap. Hint: copy by way of other memory"));
        }
        if by == By::Threads {
            let (grid, threads) = shape(bytes);
            let statement = LaunchTerms { grid, ..LaunchTerms::plain(op, None, self.statement(), threads) };
            let (count, memory) = (bytes as u64, self.owner());
            let call = LaunchArguments { count, input, output, memory, ..LaunchArguments::plain(statement) };
            return self.engine.launch_beside(stream, &self.engine.inner.body.kernels.copy, &call);
        }
        let uses = [self.owner(), input.owner, output.owner];
        let copy = || copy_by_engine(from, to, bytes, stream);
        match by {
            By::EngineInTurn => self.engine.in_turn(op, stream, &uses, |_| copy()),
            _ => self.engine.beside(stream, &uses, |_| copy()),
        }
    }

    /// What `stream` gets from now on comes after what the lane has got so far. The engine is checked.
    pub(crate) fn order_behind(&self, stream: &Stream) -> Result<()> {
        self.engine.in_turn(Op::Copy, stream, &[self.owner()], |_| Ok(()))
    }
}

/// Gives `stream` a copy by the copy engine, of places that do not overlap. The caller keeps both until it is
/// done.
pub(super) fn copy_by_engine(from: u64, to: u64, bytes: usize, stream: &Stream) -> Result<()> {
    let _turn = queues::turn();
    // SAFETY: both ranges are mapped: the peer's as long as the table, which the engine holds until the copy
    // is done, and the private one as its owner, or whoever made the slice, promised; a graph keeps all of
    // them.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) })
}

/// Blocks and threads of the copying kernel. It waits for nobody, so only its use of the device limits it.
fn shape(bytes: usize) -> (u32, u32) {
    let threads = u32::try_from(bytes.div_ceil(BYTES_PER_THREAD)).unwrap_or(u32::MAX);
    let grid = threads.div_ceil(MAX_THREADS).clamp(1, DEFAULT_BLOCKS);
    (grid, threads.min(MAX_THREADS).next_multiple_of(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_grow_with_the_bytes() {
        assert_eq!(shape(1), (1, 32));
        assert_eq!(shape(64 * 512), (1, 512));
        assert_eq!(shape(64 * 512 * 4), (4, 512));
        assert_eq!(shape(1 << 40), (DEFAULT_BLOCKS, 512));
    }
}
