//! Copies between this rank's memory and a peer's, from one side: by the copy engine, or by threads.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use cudarc::driver::sys;

use crate::cuda::driver::check;
use crate::cuda::owner::Place;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream, queues};
use crate::engine::cuda::control::MAX_THREADS;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::DEFAULT_BLOCKS;
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

/// Bytes that a thread of the copying kernel moves at least, where there are as many.
const BYTES_PER_THREAD: usize = 64;

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Engine,
    Threads,
}

impl<T: Element> SymmetricMemory<T> {
    /// In the order of `stream`: reads `out.len()` elements of rank `rank` from `start` on, by the copy engine, beside whatever
    /// kernels run. Not ordered with what `rank` does; use signals or a barrier for that.
    pub fn get<'a>(
        &self,
        rank: usize,
        start: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.read_from(By::Engine, rank, start, out.into(), stream)
    }

    /// [`SymmetricMemory::get`] by threads of a kernel, which has less to set up: for small copies, and any alignment.
    pub fn copy<'a>(
        &self,
        rank: usize,
        start: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.read_from(By::Threads, rank, start, out.into(), stream)
    }

    /// In the order of `stream`: writes `input` to the elements of rank `rank` from `start` on, by the copy engine. Not ordered
    /// with what `rank` does; use signals or a barrier for that.
    pub fn put<'a>(
        &self,
        rank: usize,
        start: usize,
        input: impl Into<DeviceSlice<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        let theirs = self.part_of(Op::Put, rank, start, input.len(), input.device(), stream)?;
        self.move_bytes(Op::Put, By::Engine, (input.place(), Place::bare(theirs)), input.len(), stream)
    }

    fn read_from(
        &self,
        by: By,
        rank: usize,
        start: usize,
        out: DeviceSliceMut<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let theirs = self.part_of(Op::Copy, rank, start, out.len(), out.device(), stream)?;
        self.move_bytes(Op::Copy, by, (Place::bare(theirs), out.place()), out.len(), stream)
    }

    /// Where `len` elements of `rank` from `start` on are, once everything is checked.
    fn part_of(
        &self,
        op: Op,
        rank: usize,
        start: usize,
        len: usize,
        device: &Device,
        stream: &Stream,
    ) -> Result<u64> {
        self.group().check_rank(op.name(), rank)?;
        let (offset, _) = self.span(op.name(), start, len)?;
        self.engine.check_memory("private memory", device)?;
        self.check(op, None, stream)?;
        if self.data[rank] == 0 { Err(self.out_of_reach(rank)) } else { Ok(self.data[rank] + offset) }
    }

    /// Copies from the first place to the second.
    fn move_bytes(
        &self,
        op: Op,
        by: By,
        (input, output): (Place<'_>, Place<'_>),
        len: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (from, to, bytes) = (input.address, output.address, len * size_of::<T>());
        if bytes == 0 || from == to {
            return Ok(());
        }
        if from.abs_diff(to) < bytes as u64 {
            return Err(Error::invalid(op.name(), "both sides overlap. Hint: copy by way of other memory"));
        }
        if by == By::Threads {
            let (grid, threads) = shape(bytes);
            let statement = Statement { grid, ..Statement::plain(op, None, self.statement(), threads) };
            let (count, memory) = (bytes as u64, self.owner());
            let call = Call { count, input, output, memory, ..Call::plain(statement) };
            return self.engine.launch_beside(stream, &self.engine.inner.body.kernels.copy, &call);
        }
        self.engine.beside(stream, &[self.owner(), input.owner, output.owner], |_| {
            let _turn = queues::turn();
            // SAFETY: both ranges are mapped: the peer's as long as the table, which the engine holds until the copy is done, and
            // the private one as its owner, or whoever made the slice, promised; a graph keeps all of them.
            check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) })
        })
    }
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
