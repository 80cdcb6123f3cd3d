//! Graphs: captured work, ready to be launched again and again.
//!
//! Public, made by [`Stream::end_capture`]. What it guarantees: what was handed to [`Graph::keep`] lives as
//! long as the graph, and as any graph that it was captured into by [`Graph::launch`]; what an operation put
//! into a capture with `Stream::keep_in_capture` lives as long as any executable form of that graph, also
//! where somebody else (PyTorch) captured it.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeType, CUuserObject_flags, CUuserObjectRetain_flags,
};

use super::driver::{check, trace_release};
use super::owner::GraphKeep;
use super::stream::is_capturing_here;
use super::{Device, Event, Stream, activity, queues};
use crate::Result;

/// What graphs no longer need. The driver says so on a thread that must not call CUDA, and the last owner of
/// memory frees it; so it lies here until [`reap`].
static DONE: Mutex<Vec<GraphKeep>> = Mutex::new(Vec::new());

/// Captured work, ready to launch.
pub struct Graph(Arc<SharedGraph>);

/// Shared with the graphs that launch it.
struct SharedGraph {
    device: Device,
    raw: CUgraphExec,
    kernels: usize,
    /// The end of its last launch. The driver runs launches of one graph one after the other, so it is the
    /// end of all of them.
    end: Event,
    /// What is kept alive. Also held during a launch: the driver wants the calls on one graph one after the
    /// other.
    keep: Mutex<Vec<GraphKeep>>,
}

// SAFETY: the driver takes graphs from every thread; the handle is only a number here.
unsafe impl Send for SharedGraph {}
// SAFETY: as above; calls on the handle are made one after the other, under the lock.
unsafe impl Sync for SharedGraph {}

impl Graph {
    /// Makes `graph` ready to launch, and consumes it.
    pub(super) fn instantiate(device: &Device, graph: CUgraph) -> Result<Self> {
        reap();
        activity::forget_replays();
        let template = Template(graph);
        let kernels = template.kernel_count()?;
        let end = Event::new(device)?;
        let mut raw = ptr::null_mut();
        // SAFETY: a live graph; writes one handle.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) })?;
        let device = device.clone();
        Ok(Self(Arc::new(SharedGraph { device, raw, kernels, end, keep: Mutex::default() })))
    }

    /// Launches all its work on `stream`, which may be another than it was captured on. One replay at a time:
    /// replays that share state (a lane of an engine) must be ordered by the caller. On a stream that is
    /// captured it becomes a part of that graph, which keeps it.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let _bound = self.device().bind()?;
        stream.keep_if_captured(&[Some(&self.0)])?;
        let _one_at_a_time = self.0.keep.lock().unwrap_or_else(PoisonError::into_inner);
        queues::admit(stream)?;
        let _turn = queues::turn();
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0.raw, stream.raw()) })?;
        activity::replayed(stream, &self.0.end)
    }

    /// Number of kernels in it.
    pub fn kernel_count(&self) -> usize {
        self.0.kernels
    }

    /// Keeps `what` alive as long as this graph.
    pub fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        self.0.keep.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.0.device)
            .field("kernels", &self.0.kernels)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SharedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedGraph")
    }
}

impl Drop for SharedGraph {
    fn drop(&mut self) {
        // SAFETY: made here. Launches that are under way go on.
        self.device.release("cuGraphExecDestroy", || unsafe { sys::cuGraphExecDestroy(self.raw) });
        reap();
    }
}

/// A graph that is not executable; destroyed on drop. The context is bound.
struct Template(CUgraph);

impl Template {
    fn kernel_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: a live graph; without an array only the number is written.
        check("cuGraphGetNodes", unsafe { sys::cuGraphGetNodes(self.0, ptr::null_mut(), &mut count) })?;
        let mut nodes: Vec<CUgraphNode> = vec![ptr::null_mut(); count];
        if count > 0 {
            // SAFETY: room for `count` handles.
            check("cuGraphGetNodes", unsafe {
                sys::cuGraphGetNodes(self.0, nodes.as_mut_ptr(), &mut count)
            })?;
        }
        let mut kernels = 0;
        for node in nodes.into_iter().take(count) {
            // Kinds of nodes that newer drivers have are no kernels; as a number they do no harm.
            let mut kind = u32::MAX;
            // SAFETY: a live node; the kind is an enum of 32 bits.
            check("cuGraphNodeGetType", unsafe {
                sys::cuGraphNodeGetType(node, (&raw mut kind).cast::<CUgraphNodeType>())
            })?;
            kernels += usize::from(kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as u32);
        }
        Ok(kernels)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // SAFETY: owned; executable forms made from it live on.
        trace_release("cuGraphDestroy", unsafe { sys::cuGraphDestroy(self.0) });
    }
}

/// Keeps `what` alive as long as `graph` and everything made from it.
///
/// # Safety
/// `graph` is live, and a context is current.
pub(super) unsafe fn keep_in(graph: CUgraph, what: GraphKeep) -> Result<()> {
    let parcel = Box::into_raw(Box::new(what));
    let mut object = ptr::null_mut();
    let flags = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    // SAFETY: writes one handle; the driver calls `done` exactly once, if the object was made.
    let code = unsafe { sys::cuUserObjectCreate(&mut object, parcel.cast(), Some(done), 1, flags) };
    if let Err(error) = check("cuUserObjectCreate", code) {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(parcel) });
        return Err(error);
    }
    let flags = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: both are live; the one reference moves into the graph.
    let code = unsafe { sys::cuGraphRetainUserObject(graph, object, 1, flags) };
    if let Err(error) = check("cuGraphRetainUserObject", code) {
        // SAFETY: the reference was not moved, so it is still ours.
        trace_release("cuUserObjectRelease", unsafe { sys::cuUserObjectRelease(object, 1) });
        return Err(error);
    }
    Ok(())
}

/// Called by the driver when no graph needs the parcel any more; must not call CUDA.
unsafe extern "C" fn done(parcel: *mut c_void) {
    // SAFETY: made by `keep_in`, and handed out once.
    let what = unsafe { Box::from_raw(parcel.cast::<GraphKeep>()) };
    DONE.lock().unwrap_or_else(PoisonError::into_inner).push(*what);
}

/// Lets go of what graphs no longer need. Called where memory is made and where graphs come and go; not while
/// this thread captures, because the last owner of a communicator ends it, and what NCCL calls then breaks
/// the capture.
pub(crate) fn reap() {
    if crate::sys::fork::is_child() || is_capturing_here() {
        return;
    }
    // Dropped after the lock is given back: a drop may end in another call of this.
    let done = std::mem::take(&mut *DONE.lock().unwrap_or_else(PoisonError::into_inner));
    drop(done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_graph_gave_up_is_freed_by_the_next_reap() {
        let kept: GraphKeep = Arc::new(42u32);
        let parcel: *mut GraphKeep = Box::into_raw(Box::new(kept.clone()));
        // SAFETY: as the driver calls it.
        unsafe { done(parcel.cast()) };
        assert!(Arc::strong_count(&kept) <= 2);
        reap();
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
