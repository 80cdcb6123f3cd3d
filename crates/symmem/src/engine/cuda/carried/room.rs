//! A room: private memory that operations of NCCL's go by way of, where it cannot be given symmetric memory itself.
//!
//! Bound to a table when its memory rendezvouses at offsets that differ, or made when an operation first needs it; kept with the table.
//! Used by the rendezvous of device memory and by `carried.rs`. What it guarantees: once made it stays where it is, and all ranks make it or none
//! does where they do it together.

use std::sync::OnceLock;

use crate::cuda::capture::{Relaxed, check_no_capture};
use crate::cuda::{Buffer, Device, Stream};
use crate::engine::cuda::Engine;
use crate::error::Halt;
use crate::group::Running;
use crate::table::Column;
use crate::{Error, Result};

/// As much private memory as a rank brought of one table's.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: usize,
    made: OnceLock<Buffer<u8>>,
}

impl Room {
    /// None yet, for memory of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, made: OnceLock::new() }
    }

    /// Where it is; 0 where there is none.
    pub(super) fn address(&self) -> u64 {
        self.made.get().map_or(0, Buffer::device_ptr)
    }

    fn make(&self, device: &Device) -> Result<()> {
        if self.made.get().is_none() {
            // Another thread may have been faster; then this one's goes.
            drop(self.made.set(Buffer::new(device, self.bytes)?));
        }
        Ok(())
    }

    /// Local. Where it is, made if need be; not while `stream` is captured.
    pub(super) fn need(&self, stream: &Stream) -> Result<u64> {
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

impl Engine {
    /// Collective, for handles whose offsets differ. NCCL takes what lies in a window to be at the same place on every rank,
    /// and mixes up elements where it is not; so operations that it carries go by way of memory that it does not know.
    pub(crate) fn bind(&self, running: &Running<'_>, data: &Column, room: &Room) -> Result<()> {
        let is_carried = !(data.is_direct && self.is_direct());
        if !is_carried || data.registration.is_none() {
            return Ok(());
        }
        // This rank may have made it before, for an operation of its own; the vote is everybody's all the same.
        running.conclude(running.next_tag()?, room.make(self.device()).map_err(Halt::from))
    }
}
