//! Work of streams: done at once, or recorded in a graph and done whenever that is launched.
//!
//! A replay does what was captured with the addresses that were captured, whatever is there by then, as a
//! device does. What a device would not tell is counted: that memory, an event or a module was given back in
//! between (`Kind::Stale`).

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use rustix::mm::{Advice, madvise};

use crate::control::launched;
use crate::cublaslt::ProductNode;
use crate::device::current;
use crate::marks::{self, LaunchNote};
use crate::module::name_of;
use crate::result::{Code, ILLEGAL_ADDRESS, INVALID_HANDLE, Outcome};
use crate::state::DriverState;
use crate::stream::captured;

/// Something that a stream does.
pub(crate) enum NodeWork {
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    FillBytes {
        to: u64,
        value: u8,
        count: usize,
    },
    FillWords {
        to: u64,
        value: u32,
        count: usize,
    },
    /// A kernel, the first words of its parameter, and what those that record need to know.
    Launch {
        function: u64,
        words: [u64; 12],
        said: LaunchNote,
    },
    /// An event that is recorded again with every replay.
    Record {
        event: u64,
    },
    /// A product of matrices.
    Product(ProductNode),
    /// What another graph does.
    Child(Vec<Arc<Node>>),
    /// Work of another library, which does nothing in a graph but use its memory.
    Foreign,
}

impl NodeWork {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Launch { .. } | Self::Product(_) | Self::Foreign => 0,
            Self::Copy { .. } => 1,
            Self::FillBytes { .. } | Self::FillWords { .. } => 2,
            Self::Child(_) => 4,
            Self::Record { .. } => 7,
        }
    }

    /// Does it. What it works on can be accessed.
    fn run(&self, state: &mut DriverState) -> Outcome {
        match *self {
            // SAFETY: accessible, as the caller checked; host memory is that of who called the driver.
            Self::Copy { to, from, bytes } => unsafe {
                ptr::copy(from as *const u8, to as *mut u8, bytes);
                Ok(())
            },
            Self::FillBytes { to, value, count } => {
                fill_bytes(state, to, value, count);
                Ok(())
            }
            // SAFETY: accessible and aligned, as the caller checked; any bits are such a number.
            Self::FillWords { to, value, count } => unsafe {
                std::slice::from_raw_parts_mut(to as *mut u32, count).fill(value);
                Ok(())
            },
            Self::Launch { function, words, said } => {
                let name: CString = name_of(state, function)?.clone();
                marks::run(state, name.to_bytes(), &words, said);
                launched(name, words);
                state.launches += 1;
                Ok(())
            }
            Self::Record { event } => {
                state.events.get_mut(&event).ok_or(INVALID_HANDLE)?.at = Instant::now();
                Ok(())
            }
            Self::Product(ref product) => {
                product.run();
                Ok(())
            }
            Self::Child(ref nodes) => replay(state, nodes),
            Self::Foreign => Ok(()),
        }
    }

    /// Whether something that it needs, besides memory, is gone.
    fn is_orphaned(&self, state: &DriverState) -> bool {
        match self {
            Self::Launch { function, .. } => name_of(state, *function).is_err(),
            Self::Record { event } => !state.events.contains_key(event),
            _ => false,
        }
    }
}

fn fill_bytes(state: &DriverState, to: u64, value: u8, count: usize) {
    // A whole mapping of zeros is given back to the system instead: control blocks are large, and mostly
    // untouched.
    let whole = state.mappings.get(&to).is_some_and(|mapped| mapped.bytes == count);
    if value == 0 && whole {
        // SAFETY: mapped from a memfd, which reads as zeros afterwards.
        let emptied = unsafe { madvise(to as *mut c_void, count, Advice::LinuxRemove) };
        if emptied.is_ok() {
            return;
        }
    }
    if count > 0 {
        // SAFETY: accessible, as the caller checked.
        unsafe { ptr::write_bytes(to as *mut u8, value, count) };
    }
}

/// Memory that a recorded work uses: which it was.
struct Used {
    address: u64,
    bytes: usize,
    serial: u64,
}

/// Recorded work.
pub(crate) struct Node {
    pub(crate) number: u64,
    pub(crate) work: NodeWork,
    used: Vec<Used>,
}

/// Gives `stream` work on these ranges of memory: it is done now, or recorded in the graph that is captured.
pub(crate) fn give(state: &mut DriverState, stream: u64, ranges: &[(u64, usize)], work: NodeWork) -> Outcome {
    current()?;
    let graph = captured(state, stream)?;
    if !ranges.iter().all(|(address, bytes)| state.is_accessible(*address, *bytes)) {
        return Err(ILLEGAL_ADDRESS);
    }
    match graph {
        None => work.run(state),
        Some(graph) => record(state, graph, ranges, work),
    }
}

/// Adds work on these ranges to a graph.
pub(crate) fn record(
    state: &mut DriverState,
    graph: u64,
    ranges: &[(u64, usize)],
    work: NodeWork,
) -> Outcome {
    let used = ranges.iter().filter(|(_, bytes)| *bytes > 0).filter_map(|&(address, bytes)| {
        Some(Used { address, bytes, serial: state.serial_at(address, bytes)? })
    });
    let used = used.collect();
    let number = state.number();
    let nodes = &mut state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?.nodes;
    nodes.push(Arc::new(Node { number, work, used }));
    Ok(())
}

/// Does what was recorded, in the order of the capture.
pub(crate) fn replay(state: &mut DriverState, nodes: &[Arc<Node>]) -> Outcome {
    nodes.iter().try_for_each(|node| node.replay(state))
}

impl Node {
    fn replay(&self, state: &mut DriverState) -> Result<(), Code> {
        let found = |used: &Used| state.serial_at(used.address, used.bytes);
        let stale = self.used.iter().filter(|used| found(used) != Some(used.serial)).count();
        let is_unmapped = self.used.iter().any(|used| found(used).is_none());
        state.stale += stale + usize::from(self.work.is_orphaned(state));
        if is_unmapped { Err(ILLEGAL_ADDRESS) } else { self.work.run(state) }
    }
}
