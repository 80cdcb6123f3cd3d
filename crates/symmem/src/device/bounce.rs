//! A room: private memory that operations of NCCL's go by way of, where it cannot be given symmetric memory
//! itself.
//!
//! Bound to a table when its memory rendezvouses at offsets that differ, or made when an operation first
//! needs it; kept with the table. Used by engines (`engine/cuda/carried.rs`). What it guarantees: once made
//! it stays where it is, and all ranks make it or none does where they do it together.

use std::sync::OnceLock;

use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::{Buffer, Device, Stream};
use crate::{Error, Result};

/// As much private memory as a rank brought of one table's.
#[derive(Debug)]
pub(crate) struct BounceBuffer {
    bytes: usize,
    made: OnceLock<Buffer<u8>>,
}

impl BounceBuffer {
    /// None yet, for memory of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, made: OnceLock::new() }
    }

    /// Where it is; 0 where there is none.
    pub(crate) fn address(&self) -> u64 {
        self.made.get().map_or(0, Buffer::device_ptr)
    }

    /// Local. Makes it, if it is not there.
    pub(crate) fn make(&self, device: &Device) -> Result<()> {
        if self.made.get().is_none() {
            // Another thread may have been faster; then this one's goes.
            drop(self.made.set(Buffer::new(device, self.bytes)?));
        }
        Ok(())
    }

    /// Local. Where it is, made if need be; not while `stream` is captured.
    pub(crate) fn need(&self, stream: &Stream) -> Result<u64> {
        if self.made.get().is_none() {
            let what = "private memory for an operation of NCCL's";
            check_no_capture(what)?;
            if stream.capture_id()?.is_some() {
                let problem = "it cannot be made while the stream is captured. Hint: run the operation once before the capture";
                return Err(Error::invalid(what, problem));
            }
            let _relaxed = Relaxed::enter();
            self.make(stream.device())?;
        }
        Ok(self.address())
    }
}
