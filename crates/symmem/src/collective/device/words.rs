//! Single words of this rank's memory in the order of a stream, with PyTorch's checks in PyTorch's order.

use crate::Result;
use crate::cuda::Stream;
use crate::memory::device::SymmetricMemory;
use crate::operation::Op;

impl SymmetricMemory<u32> {
    /// In the order of `stream`: sets `count` words of this rank's memory from `offset` on to `value`. Can be
    /// captured.
    pub fn memset32(&self, offset: i64, value: i64, count: i64, stream: &Stream) -> Result<()> {
        self.check_open(Op::Copy.name())?;
        self.region().memset32(offset, value, count, stream)
    }

    /// In the order of `stream`: writes `value` to word `offset` of this rank's memory, after a fence for the
    /// whole system. Cannot be captured; use [`SymmetricMemory::memset32`] for that.
    pub fn stream_write_value32(&self, offset: i64, value: i64, stream: &Stream) -> Result<()> {
        self.check_open(Op::Copy.name())?;
        self.region().stream_write_value32(offset, value, stream)
    }
}
