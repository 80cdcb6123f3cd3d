//! Streams: the order in which a device works.
//!
//! Public. A [`Stream`] is one of ours, one of cudarc's, or anybody's by its handle. What it guarantees: a
//! stream of ours is destroyed after its last clone is gone, one of cudarc's is kept alive, and a foreign one
//! is never destroyed here.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{
    self, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::Bound;
use super::driver::check;
use super::graph::{self, Graph};
use super::{Device, Event, owner, queues};
use crate::{Error, Result};

thread_local! {
    /// Captures that this thread has begun through this crate and not ended.
    static CAPTURES: Cell<usize> = const { Cell::new(0) };
}

/// An order of work on a device. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stream(Arc<SharedStream>);

#[derive(Debug)]
pub(super) struct SharedStream {
    device: Device,
    raw: CUstream,
    owner: StreamOwner,
}

// SAFETY: the driver takes streams from every thread; the handle is only a number here.
unsafe impl Send for SharedStream {}
// SAFETY: as above.
unsafe impl Sync for SharedStream {}

#[derive(Debug)]
enum StreamOwner {
    /// Made here, and destroyed here.
    Ours,
    /// Somebody else's; whoever handed it in keeps it alive.
    Foreign,
    /// cudarc's, kept alive.
    Cudarc(#[allow(dead_code)] Arc<CudaStream>),
}

/// Whether a stream is being captured into a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// No: work runs.
    None,
    /// Yes, by the capture with this number.
    Active(u64),
    /// A capture broke and was not ended yet.
    Invalidated,
}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_priority(device, 0)
    }

    /// A new stream of this priority: lower numbers go first; what the device does not have is clamped.
    ///
    /// An error while ranks of this process share the device, if they have a stream for each of its queues
    /// already.
    pub fn with_priority(device: &Device, priority: i32) -> Result<Self> {
        let _bound = device.bind()?;
        let raw = create(priority)?;
        let stream = Self(Arc::new(SharedStream { device: device.clone(), raw, owner: StreamOwner::Ours }));
        // Refused here rather than when peers wait for what it carries.
        queues::admit(&stream)?;
        Ok(stream)
    }

    /// The stream of `device` for what is waited for at once.
    pub(crate) fn service(device: &Device) -> Result<Self> {
        let raw = device.service()?;
        Ok(Self(Arc::new(SharedStream { device: device.clone(), raw, owner: StreamOwner::Foreign })))
    }

    /// Somebody else's stream on `device`, by its handle. It is not destroyed here.
    ///
    /// # Safety
    /// `raw` is a stream (or one of the default streams' handles), and stays one as long as any clone of what
    /// this returns.
    pub unsafe fn from_raw(device: &Device, raw: CUstream) -> Result<Self> {
        let _bound = device.bind()?;
        let mut context = ptr::null_mut();
        // SAFETY: a stream, as the caller promises; writes one handle.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(raw, &mut context) })?;
        if context != device.context() {
            let problem = format!("the stream belongs to another context than the primary one of {device}");
            return Err(Error::invalid("stream", problem));
        }
        Ok(Self(Arc::new(SharedStream { device: device.clone(), raw, owner: StreamOwner::Foreign })))
    }

    /// A stream of ours without keeping it; others' may go at any time.
    pub(super) fn weak(&self) -> Option<Weak<SharedStream>> {
        matches!(self.0.owner, StreamOwner::Ours).then(|| Arc::downgrade(&self.0))
    }

    /// Whether this is a clone of `other`: a handle may come back as another stream, a clone keeps its own.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether nobody else has a clone of this.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// A stream of cudarc's, kept alive.
    pub fn from_cudarc(stream: &Arc<CudaStream>) -> Result<Self> {
        let device = Device::new(stream.context().ordinal())?;
        if stream.context().cu_ctx() != device.context() {
            let problem = format!("the stream belongs to another context than the primary one of {device}");
            return Err(Error::invalid("stream", problem));
        }
        let raw = stream.cu_stream();
        Ok(Self(Arc::new(SharedStream { device, raw, owner: StreamOwner::Cudarc(stream.clone()) })))
    }

    /// The driver's handle, valid as long as this stream.
    pub fn raw(&self) -> CUstream {
        self.0.raw
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// An error unless it is of the device that memory is on: copies run there, the only one that reaches it
    /// in any case.
    pub(crate) fn check_memory(&self, memory: &Device) -> Result<()> {
        let device = self.device();
        if device == memory {
            return Ok(());
        }
        Err(Error::invalid("stream", format!("it is on {device}, the memory on {memory}")))
    }

    /// Waits until all work is done. Without a deadline: work that waits for a peer on the device has its
    /// own.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.device().bind()?;
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw()) })
    }

    /// Whether all work is done.
    pub fn query(&self) -> Result<bool> {
        let _bound = self.device().bind()?;
        // SAFETY: a live stream.
        match unsafe { sys::cuStreamQuery(self.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Lets later work wait for what `event` recorded. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _bound = self.device().bind()?;
        let _turn = queues::turn();
        // SAFETY: both are live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw(), event.raw(), 0) })
    }

    /// Whether it is being captured.
    pub fn capture(&self) -> Result<Capture> {
        self.capture_in(&self.device().bind()?)
    }

    #[inline]
    fn capture_in(&self, _bound: &Bound<'_>) -> Result<Capture> {
        let (status, id, _) = self.capture_info()?;
        Ok(match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Capture::None,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Capture::Active(id),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => Capture::Invalidated,
        })
    }

    /// The number of the capture that work on this stream goes into; `None` if it runs. A broken capture is
    /// an error.
    pub(crate) fn capture_id(&self) -> Result<Option<u64>> {
        self.capture_id_in(&self.device().bind()?)
    }

    /// The same where the context is bound already.
    #[inline]
    pub(crate) fn capture_id_in(&self, bound: &Bound<'_>) -> Result<Option<u64>> {
        match self.capture_in(bound)? {
            Capture::None => Ok(None),
            Capture::Active(id) => Ok(Some(id)),
            Capture::Invalidated => Err(broken_capture()),
        }
    }

    /// Begins to capture work into a graph instead of running it. Calls that a capture forbids fail on this
    /// thread only.
    pub fn begin_capture(&self) -> Result<()> {
        let _bound = self.device().bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw(), mode) })?;
        CAPTURES.set(CAPTURES.get() + 1);
        Ok(())
    }

    /// Ends the capture, on the thread that began it, and makes the graph ready to launch.
    pub fn end_capture(&self) -> Result<Graph> {
        let _bound = self.device().bind()?;
        let mut graph = ptr::null_mut();
        // SAFETY: a live stream; writes one handle.
        let code = unsafe { sys::cuStreamEndCapture(self.raw(), &mut graph) };
        // A broken capture ends too; only on a stream that was not captured, or from another thread, nothing
        // ended.
        if !matches!(
            code,
            CUresult::CUDA_ERROR_ILLEGAL_STATE | CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        ) {
            CAPTURES.set(CAPTURES.get().saturating_sub(1));
        }
        check("cuStreamEndCapture", code)?;
        if graph.is_null() {
            return Err(broken_capture());
        }
        Graph::instantiate(self.device(), graph)
    }

    /// Keeps `what` alive as long as the graph that is being captured on this stream, and all its executable
    /// forms, whoever made the capture. Returns false, and keeps nothing, if no capture is under way.
    pub fn keep_in_capture(&self, what: Arc<dyn Any + Send + Sync>) -> Result<bool> {
        let _bound = self.device().bind()?;
        let (status, _, graph) = self.capture_info()?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Ok(false);
        }
        // SAFETY: the graph of an active capture.
        unsafe { graph::keep_in(graph, what) }?;
        Ok(true)
    }

    /// Keeps what is about to be captured on this stream; does nothing if no capture is under way.
    pub(crate) fn keep_if_captured(&self, owners: &[Option<&dyn owner::Owner>]) -> Result<()> {
        if owners.iter().all(Option::is_none) || self.capture_id()?.is_none() {
            return Ok(());
        }
        let mut kept = owners.iter().flatten().filter_map(|owner| owner.keep());
        kept.try_for_each(|what| self.keep_in_capture(what).map(drop))
    }

    /// Whether it is the legacy default stream, which waits for the streams of everybody in the process.
    pub(crate) fn is_legacy(&self) -> bool {
        // CU_STREAM_LEGACY is 1; 0 means the same for the calls this crate makes.
        (self.raw() as usize) <= 1
    }

    /// Status, number and graph of the capture; the context is bound.
    #[inline]
    fn capture_info(&self) -> Result<(CUstreamCaptureStatus, u64, sys::CUgraph)> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, ptr::null_mut());
        // SAFETY: a live stream; the outputs that are null are not asked for.
        let code = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.raw(),
                &mut status,
                &mut id,
                &mut graph,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check("cuStreamGetCaptureInfo", code)?;
        Ok((status, id, graph))
    }
}

impl Device {
    /// The priorities its streams can have: the least urgent and the most urgent, which is the lower number.
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        let _bound = self.bind()?;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: writes two integers.
        check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        Ok((least, greatest))
    }
}

/// Whether this thread is inside a capture that it began through this crate.
pub(crate) fn is_capturing_here() -> bool {
    CAPTURES.get() > 0
}

/// A new stream of the current context, which does not wait for the default stream.
pub(super) fn create(priority: i32) -> Result<CUstream> {
    let mut raw = ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: writes one handle.
    check("cuStreamCreate", unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) })?;
    Ok(raw)
}

fn broken_capture() -> Error {
    let problem = "the capture is broken: something was called that cannot be captured. Hint: allocate, rendezvous and prepare before begin_capture";
    Error::invalid("stream capture", problem)
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        if let StreamOwner::Ours = self.owner {
            // SAFETY: made here, and nobody has it any more. Work that is under way goes on.
            self.device.release("cuStreamDestroy", || unsafe { sys::cuStreamDestroy_v2(self.raw) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::super::Buffer;
    use super::*;

    fn device() -> Option<Device> {
        let device = Device::new(0);
        if let Err(error) = &device {
            println!("skipped: {error}");
        }
        device.ok()
    }

    #[test]
    fn events_order_streams_and_tell_the_time() {
        let Some(device) = device() else { return };
        let (one, other) = (Stream::new(&device).unwrap(), Stream::with_priority(&device, -1).unwrap());
        let (start, end) = (Event::timed(&device).unwrap(), Event::timed(&device).unwrap());
        let buffer = Buffer::<u8>::new(&device, 1 << 20).unwrap();
        start.record(&one).unwrap();
        buffer.fill_bytes(3, &one).unwrap();
        end.record(&one).unwrap();
        other.wait(&end).unwrap();
        assert!(buffer.read(&other).unwrap().iter().all(|byte| *byte == 3));
        assert!(end.query().unwrap() && one.query().unwrap());
        assert!(end.elapsed_ms_since(&start).unwrap() > 0.0);
        let (least, greatest) = device.stream_priorities().unwrap();
        assert!(greatest <= least);
    }

    #[test]
    fn a_capture_becomes_a_graph_that_can_be_replayed_elsewhere() {
        let Some(device) = device() else { return };
        let (captured, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
        let buffer = Buffer::from_slice(&device, &[9u8; 64], &captured).unwrap();
        assert_eq!(captured.capture().unwrap(), Capture::None);
        assert!(!captured.keep_in_capture(Arc::new(())).unwrap());

        let kept: Arc<dyn Any + Send + Sync> = Arc::new(7u32);
        let weak: Weak<dyn Any + Send + Sync> = Arc::downgrade(&kept);
        captured.begin_capture().unwrap();
        assert!(is_capturing_here() && captured.capture_id().unwrap().is_some());
        assert!(buffer.write(&[1; 64], &captured).unwrap_err().to_string().contains("captured"));
        assert!(captured.keep_in_capture(kept).unwrap());
        buffer.fill_bytes(5, &captured).unwrap();
        let graph = captured.end_capture().unwrap();
        assert!(!is_capturing_here() && graph.kernel_count() == 0);

        assert_eq!(buffer.read(&other).unwrap(), [9; 64], "nothing ran yet");
        graph.launch(&other).unwrap();
        assert_eq!(buffer.read(&other).unwrap(), [5; 64]);
        assert!(weak.upgrade().is_some());
        drop(graph);
        for _ in 0..1000 {
            graph::reap();
            if weak.upgrade().is_none() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the graph is gone, and what it kept is not");
    }

    #[test]
    fn what_cannot_be_captured_breaks_the_capture_and_says_so() {
        let Some(device) = device() else { return };
        let stream = Stream::new(&device).unwrap();
        stream.begin_capture().unwrap();
        let error = stream.synchronize().unwrap_err();
        assert!(error.to_string().contains("captur"), "{error}");
        assert!(stream.end_capture().is_err());
        assert!(!is_capturing_here());
        assert!(stream.end_capture().is_err(), "there is no capture to end");
        stream.synchronize().unwrap();
    }

    #[test]
    fn streams_of_others_are_adopted() {
        let Some(device) = device() else { return };
        let theirs = cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap();
        let adopted = Stream::from_cudarc(&theirs).unwrap();
        assert_eq!(adopted.raw(), theirs.cu_stream());
        assert!(!adopted.is_legacy());
        // SAFETY: the stream outlives what this returns; so does the default one.
        let (raw, default) = unsafe {
            (Stream::from_raw(&device, theirs.cu_stream()), Stream::from_raw(&device, ptr::null_mut()))
        };
        raw.unwrap().synchronize().unwrap();
        assert!(default.unwrap().is_legacy());
        drop(theirs);
        adopted.synchronize().unwrap();
    }
}
