//! The provider's memory: NCCL's, zeroed, with a mark at its end by which it is known again.
//!
//! What it guarantees: a pointer to a peer's memory is believed only after the mark that the peer left there
//! was read through it.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::sync::Arc;

use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::{Device, Stream, buffer};
use crate::nccl::memory::NcclAllocation;
use crate::provider::LocalMemory;
use crate::sys::ids;
use crate::{Error, Result};

/// What tells a rank's memory apart from all other memory: at its end, behind what was asked for.
type Mark = [u8; 16];

/// Where the mark begins: a multiple of this.
const MARK_ALIGNMENT: usize = 16;

/// Memory of this rank that NCCL has allocated, zeroed.
#[derive(Debug)]
pub(super) struct NcclMemory {
    memory: Arc<NcclAllocation>,
    /// Bytes that were asked for.
    bytes: usize,
    mark: Mark,
}

impl NcclMemory {
    /// Local: `bytes` zeroed bytes on `device`.
    pub(super) fn alloc(device: &Device, bytes: usize) -> Result<Arc<Self>> {
        check_no_capture("allocation of device memory")?;
        let mark = ids::random()?;
        let memory = Arc::new(NcclAllocation::alloc(device, Self::total(bytes))?);
        let memory = Self { memory, bytes, mark };
        memory.begin()?;
        Ok(Arc::new(memory))
    }

    fn mark_at(bytes: usize) -> usize {
        bytes.next_multiple_of(MARK_ALIGNMENT)
    }

    fn total(bytes: usize) -> usize {
        Self::mark_at(bytes) + size_of::<Mark>()
    }

    /// Writes zeros, and the mark behind them, and waits for that.
    fn begin(&self) -> Result<()> {
        // Another thread may be capturing; that is no concern of this memory.
        let _relaxed = Relaxed::enter();
        let stream = Stream::service(self.device())?;
        let mark_at = Self::mark_at(self.bytes);
        // SAFETY: this memory, which is as long as that and which nobody else knows yet.
        unsafe {
            buffer::fill_bytes(self.address(), mark_at, 0, &stream)?;
            buffer::write(self.address() + mark_at as u64, self.mark.len(), &self.mark, &stream)
        }
    }

    fn device(&self) -> &Device {
        self.memory.device()
    }

    pub(super) fn mark(&self) -> Mark {
        self.mark
    }

    /// What NCCL registers: with the mark.
    pub(super) fn whole(&self) -> &Arc<NcclAllocation> {
        &self.memory
    }

    /// Whether `mark` can be read behind the memory, as long as this, that is said to be at `address`.
    pub(super) fn is_marked(&self, address: u64, mark: &[u8]) -> bool {
        let at = address.checked_add(Self::mark_at(self.bytes) as u64);
        let _relaxed = Relaxed::enter();
        let read = Stream::service(self.device()).and_then(|stream| {
            let at = at.ok_or_else(|| Error::invalid("pointer of NCCL", "it is none"))?;
            // SAFETY: the copy of the driver checks the address, and changes nothing.
            unsafe { buffer::read::<u8>(at, mark.len(), &stream) }
        });
        mark.len() == size_of::<Mark>() && read.is_ok_and(|read| read == mark)
    }
}

impl LocalMemory for NcclMemory {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn mapped_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_behind_what_was_asked_for() {
        assert_eq!(NcclMemory::mark_at(1), 16);
        assert_eq!(NcclMemory::mark_at(0), 0);
        assert_eq!(NcclMemory::total(32), 48);
    }
}
