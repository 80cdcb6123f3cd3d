//! Events: points in the work of a stream.
//!
//! Public. What it guarantees: an event can be waited for from any stream of any device, and times only if it
//! was made to.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUevent_record_flags, CUresult};

use super::device::Bound;
use super::driver::{check, driver};
use super::{Device, Stream, queues};
use crate::Result;

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event(Arc<SharedEvent>);

/// Shared with the graphs that set the point.
#[derive(Debug)]
struct SharedEvent {
    device: Device,
    /// The driver's handle: it takes events from every thread.
    raw: usize,
}

impl SharedEvent {
    fn raw(&self) -> CUevent {
        self.raw as CUevent
    }
}

impl Event {
    /// An event that only orders. Cheaper than one that times.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with(device, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    /// An event that also notes the time.
    pub fn timed(device: &Device) -> Result<Self> {
        Self::with(device, CUevent_flags::CU_EVENT_DEFAULT as u32)
    }

    fn with(device: &Device, flags: u32) -> Result<Self> {
        let _bound = device.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self(Arc::new(SharedEvent { device: device.clone(), raw: raw as usize })))
    }

    /// Sets the point after all work that is on `stream` now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.record_in(&self.0.device.bind()?, stream)
    }

    /// The same where the context is bound already.
    #[inline]
    pub(crate) fn record_in(&self, bound: &Bound<'_>, stream: &Stream) -> Result<()> {
        let _turn = queues::turn();
        self.record_now(bound, stream)
    }

    /// The same for who has the turn already ([`queues::turn`]).
    #[inline]
    pub(super) fn record_now(&self, _bound: &Bound<'_>, stream: &Stream) -> Result<()> {
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0.raw(), stream.raw()) })
    }

    /// The same event once more.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Whether `other` is this event.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether nobody else has this event.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// In a capture: sets the point each time the graph comes here, as [`Event::record`] does outside. The
    /// graph keeps the event.
    pub fn record_in_graph(&self, stream: &Stream) -> Result<()> {
        let flags = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        stream.keep_if_captured(&[Some(&self.0)])?;
        let _bound = self.0.device.bind()?;
        // SAFETY: both are live.
        check("cuEventRecordWithFlags", unsafe {
            sys::cuEventRecordWithFlags(self.0.raw(), stream.raw(), flags)
        })
    }

    /// Whether the point was reached; also true if it was never set.
    pub fn query(&self) -> Result<bool> {
        let _bound = self.0.device.bind()?;
        // SAFETY: a live event.
        match unsafe { sys::cuEventQuery(self.0.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until the point is reached.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.0.device.bind()?;
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0.raw()) })
    }

    /// Milliseconds from `earlier` to this one. Both must have been made by [`Event::timed`] and be reached.
    pub fn elapsed_ms_since(&self, earlier: &Event) -> Result<f32> {
        let function = driver()?.elapsed_time;
        let _bound = self.0.device.bind()?;
        let mut elapsed = 0.0;
        // SAFETY: both are live; writes one number.
        check("cuEventElapsedTime", unsafe { function(&mut elapsed, earlier.0.raw(), self.0.raw()) })?;
        Ok(elapsed)
    }

    /// The driver's handle, valid as long as this event.
    pub fn raw(&self) -> CUevent {
        self.0.raw()
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: made here. The driver keeps what streams still wait for.
        self.device.release("cuEventDestroy", || unsafe { sys::cuEventDestroy_v2(self.raw()) });
    }
}
