//! Captures of graphs that calls beside them must leave alone, and what cannot be done while this thread
//! captures.
//!
//! Called by whoever makes, frees or exchanges memory, here and in the wrapper of NCCL.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};

use super::stream::is_capturing_here;
use crate::{Error, Result};

/// Memory is made and exchanged before a capture: nothing of that can be part of a graph.
pub(crate) fn check_no_capture(what: &str) -> Result<()> {
    if !is_capturing_here() {
        return Ok(());
    }
    Err(Error::invalid(
        what,
        "this thread is capturing a graph. Hint: allocate and rendezvous before begin_capture",
    ))
}

/// While it lives, this thread may query events and free memory even if some stream of the process is being
/// captured: otherwise those calls would fail, and break a capture that has nothing to do with them.
#[derive(Debug)]
pub(crate) struct Relaxed {
    before: Option<CUstreamCaptureMode>,
}

impl Relaxed {
    pub(crate) fn enter() -> Self {
        Self { before: exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(before);
        }
    }
}

/// Sets this thread's capture mode; returns the one before.
fn exchange(mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: reads and writes one enum. Whoever drops or allocates has opened the driver.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    (code == CUresult::CUDA_SUCCESS).then_some(mode)
}
