//! Symmetric memory for torch's memory pools: the two C functions that its pluggable allocators call.
//!
//! torch's caching allocator takes segments by them and cuts tensors from those. A segment is an allocation
//! as any: a tensor is found by its address (`registry`), wherever in its segment it is. What they guarantee:
//! they never touch the interpreter, which the caller may hold or not, never unwind, and a segment lives
//! until torch gives it back.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io::Write;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use symmem::cuda::Device;
use symmem::{Error, Result};

use super::allocation::allocate;
use super::engine::prune;
use crate::context;
use crate::fork;
use crate::registry::AllocatedBlock;

/// The segments that torch has, by address.
static SEGMENTS: Mutex<Option<HashMap<usize, Arc<AllocatedBlock>>>> = Mutex::new(None);

/// The process, by its forks, that has filled it last.
static FILLED_IN: AtomicU32 = AtomicU32::new(0);

fn segments() -> MutexGuard<'static, Option<HashMap<usize, Arc<AllocatedBlock>>>> {
    SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(bytes: isize, ordinal: i32) -> Result<usize> {
    let bytes = usize::try_from(bytes)
        .map_err(|_| Error::Invalid { what: "memory pool".to_owned(), problem: format!("{bytes} bytes") })?;
    let block = allocate(&context::current_quietly()?, ordinal, bytes)?;
    let address = block.address();
    FILLED_IN.store(fork::epoch(), Ordering::Relaxed);
    segments().get_or_insert_default().insert(address, block);
    Ok(address)
}

/// A segment of `bytes` on the device `ordinal`; null if there is none, which torch takes for a lack of
/// memory: the reason is on stderr.
extern "C" fn allocate_segment(bytes: isize, ordinal: i32, _stream: *mut c_void) -> *mut c_void {
    let made = catch_unwind(|| take(bytes, ordinal));
    match made {
        Ok(Ok(address)) => ptr::with_exposed_provenance_mut(address),
        Ok(Err(error)) => {
            let _ = writeln!(std::io::stderr(), "symmem: no memory for a pool of torch's: {error}");
            ptr::null_mut()
        }
        Err(_) => ptr::null_mut(),
    }
}

/// Gives a segment back, once all work on the device is done: torch counts on that, as `cudaFree` waits too,
/// and unmapping does not. Handles and views keep it.
extern "C" fn free_segment(segment: *mut c_void, _bytes: usize, ordinal: i32, _stream: *mut c_void) {
    // What is another process' is not this one's to give back, and a thread that is not there may hold the
    // lock.
    if FILLED_IN.load(Ordering::Relaxed) != fork::epoch() {
        return;
    }
    let _ = catch_unwind(|| {
        let gone = segments().as_mut().and_then(|segments| segments.remove(&segment.addr()));
        if gone.is_some() {
            // One that fails has lost its context, and its memory with it.
            let _ = usize::try_from(ordinal).map(|ordinal| Device::new(ordinal)?.synchronize());
        }
        drop(gone);
        // Groups that know the segment have mapped it too.
        prune();
    });
}

/// The addresses of the C functions by which torch's memory pools take and give back memory:
/// `void *(ssize_t size, int device, cudaStream_t stream)` and
/// `void (void *, size_t size, int device, cudaStream_t stream)`.
#[pyfunction]
fn _mempool_functions() -> (usize, usize) {
    let take: extern "C" fn(isize, i32, *mut c_void) -> *mut c_void = allocate_segment;
    let give: extern "C" fn(*mut c_void, usize, i32, *mut c_void) = free_segment;
    (take as usize, give as usize)
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_mempool_functions, module)?)
}
