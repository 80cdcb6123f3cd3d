//! What tests call besides the driver's functions: counts of what is alive, and failures to order.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::node::{NodeWork, record};
use crate::state::state;
use crate::stream::captured;

thread_local! {
    /// Calls that this thread has made.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// The call of this thread that is to fail, counted from its first; 0: none.
    static FAIL_AT: Cell<u64> = const { Cell::new(0) };
    /// The call that was made to fail last.
    static FAILED: Cell<*const c_char> = const { Cell::new(ptr::null()) };
    /// The kernel that this thread launched last: its name, and the first words of its parameter.
    static LAUNCHED: RefCell<(CString, [u64; 12])> = RefCell::default();
}

/// Calls that all threads have made.
static ALL_CALLS: AtomicU64 = AtomicU64::new(0);

/// Whether work that is given from now on does not end.
static HOLDS: AtomicBool = AtomicBool::new(false);

/// Whether a point that is set now is not reached yet.
pub(crate) fn holds() -> bool {
    HOLDS.load(Ordering::Relaxed)
}

/// Lets no work of this process end that is given from now on; false: all of it has ended.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_hold(hold: bool) {
    HOLDS.store(hold, Ordering::Relaxed);
}

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Descriptors of device memory that this process has open, wherever they are.
    Fds = 0,
    /// Handles of physical memory and of multicast objects.
    Handles = 1,
    /// Reserved address ranges.
    Ranges = 2,
    /// Mappings.
    Mappings = 3,
    /// Memory bound into a multicast object.
    Bindings = 4,
    /// Ordinary allocations.
    Allocations = 5,
    /// Registered host memory.
    Registered = 6,
    /// Streams.
    Streams = 7,
    /// Events.
    Events = 8,
    /// Modules.
    Modules = 9,
    /// Graphs and their executable forms.
    Graphs = 10,
    /// References to contexts.
    Contexts = 11,
    /// Kernels launched so far.
    Launches = 12,
    /// Things done in an order that real drivers suffer from, so far.
    Violations = 13,
    /// Imports by fabric handle, so far.
    FabricImports = 14,
    /// Imports by descriptor, so far.
    FdImports = 15,
    /// Memory made with GPUDirect RDMA, so far.
    RdmaMemory = 16,
    /// Memory made without it, so far.
    PlainMemory = 17,
    /// Uses, by replays of graphs, of memory, events or modules that were given back since they were
    /// captured, so far.
    Stale = 18,
}

/// Makes the `n`-th call of this thread from now on fail, once; 1 is the next one, 0 none.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_fail(n: u64) {
    FAIL_AT.set(if n == 0 { 0 } else { CALLS.get() + n });
    FAILED.set(ptr::null());
}

/// The name of the call that failed since the last [`fakecuda_fail`] of this thread; null if none has.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_failed() -> *const c_char {
    FAILED.get()
}

/// The name of the kernel that this thread launched last, until it launches another; empty if it has launched
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_launched() -> *const c_char {
    LAUNCHED.with_borrow(|(name, _)| name.as_ptr())
}

/// The `index`-th word of that kernel's parameter; 0 beyond the twelfth.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_launched_word(index: u32) -> u64 {
    LAUNCHED.with_borrow(|(_, words)| words.get(index as usize).copied().unwrap_or(0))
}

/// Records work of another library, on memory at these addresses, in the graph that `stream` is captured
/// into. False, and nothing is recorded, if it is not captured.
///
/// # Safety
/// `count` addresses are at `addresses`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_capture(stream: u64, addresses: *const u64, count: usize) -> bool {
    let mut state = state();
    let Ok(Some(graph)) = captured(&state, stream) else { return false };
    // SAFETY: as the caller promises.
    let addresses = unsafe { std::slice::from_raw_parts(addresses, count) };
    let used: Vec<_> = addresses.iter().filter(|at| **at != 0).map(|at| (*at, 1)).collect();
    record(&mut state, graph, &used, NodeWork::Foreign).is_ok()
}

/// Notes a launch.
pub(crate) fn launched(name: CString, words: [u64; 12]) {
    LAUNCHED.set((name, words));
}

/// How many calls this thread has made.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_calls() -> u64 {
    CALLS.get()
}

/// How many of a [`Kind`] there are in this process; -1 for a kind that there is not.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_live(kind: u32) -> i64 {
    let state = state();
    let count = match kind {
        0 => open_fds(),
        1 => state.handles.len(),
        2 => state.ranges.len(),
        3 => state.mappings.len(),
        4 => state.bindings.len(),
        5 => state.allocations.len(),
        6 => state.registered.len(),
        7 => state.streams.len(),
        8 => state.events.len(),
        9 => state.modules.len(),
        10 => state.graphs.len(),
        11 => state.contexts.values().sum(),
        12 => state.launches,
        13 => state.violations,
        14 => state.imports[1],
        15 => state.imports[0],
        16 => state.made[1],
        17 => state.made[0],
        18 => state.stale,
        _ => return -1,
    };
    count as i64
}

/// Descriptors that refer to a file of [`crate::memory::new_file`].
fn open_fds() -> usize {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("/memfd:fakecuda")).count()
}

/// Whether this call, which is counted, is to fail.
pub(crate) fn must_fail(name: &'static CStr) -> bool {
    let mine = CALLS.get() + 1;
    CALLS.set(mine);
    let all = ALL_CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let fails = FAIL_AT.get() == mine || fail_in_process() == all;
    if fails {
        FAILED.set(name.as_ptr());
    }
    fails
}

/// The call of the process that is to fail; 0: none.
fn fail_in_process() -> u64 {
    static FAIL: OnceLock<u64> = OnceLock::new();
    *FAIL.get_or_init(|| crate::device::number("FAKECUDA_FAIL", 0))
}
