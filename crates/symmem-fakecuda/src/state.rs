//! What lives in the fake driver of this process.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::graph::{Graph, UserObject};
use crate::result::{Code, INVALID_HANDLE};

/// Everything, under one lock.
#[derive(Default)]
pub(crate) struct DriverState {
    pub(crate) initialised: bool,
    last: u64,
    /// Retained primary contexts, by device: how often.
    pub(crate) contexts: HashMap<i32, usize>,
    /// Physical memory and multicast objects, by handle.
    pub(crate) handles: HashMap<u64, Arc<Backing>>,
    /// Reserved address ranges: bytes by first address.
    pub(crate) ranges: BTreeMap<u64, usize>,
    /// Mappings in them, by first address.
    pub(crate) mappings: BTreeMap<u64, Mapped>,
    /// Ordinary allocations, by first address.
    pub(crate) allocations: BTreeMap<u64, Region>,
    /// Addresses of allocations that are gone, with their bytes: the next one of that size is put there
    /// again.
    pub(crate) vacant: Vec<(u64, usize)>,
    /// Registered host memory, by first address.
    pub(crate) registered: BTreeMap<u64, Region>,
    /// Streams, and the graph that is captured on them.
    pub(crate) streams: HashMap<u64, Option<u64>>,
    pub(crate) events: HashMap<u64, Recorded>,
    /// The kernels of each, with their names.
    pub(crate) modules: HashMap<u64, Vec<(u64, CString)>>,
    /// Graphs and their executable forms.
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) objects: HashMap<u64, UserObject>,
    /// Memory that is part of a multicast object.
    pub(crate) bindings: Vec<Binding>,
    /// Things done in an order that real drivers suffer from.
    pub(crate) violations: usize,
    pub(crate) launches: usize,
    /// Uses, by replays, of something that was given back since it was captured.
    pub(crate) stale: usize,
    /// Imports so far: by descriptor, by fabric handle.
    pub(crate) imports: [usize; 2],
    /// Memory made so far: without GPUDirect RDMA, with it.
    pub(crate) made: [usize; 2],
}

/// What is behind a handle.
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    pub(crate) bytes: usize,
    /// The kinds of handle it may be exported as.
    pub(crate) kinds: u32,
    pub(crate) multicast: bool,
}

/// Memory that is neither mapped nor reserved piece by piece.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) bytes: usize,
    /// Tells it apart from what is at its address later.
    pub(crate) serial: u64,
}

/// An event.
pub(crate) struct Recorded {
    pub(crate) at: Instant,
    /// The graph in whose capture it was recorded last.
    pub(crate) graph: Option<u64>,
    /// Whether the work before it is held.
    pub(crate) held: bool,
}

/// A mapping.
pub(crate) struct Mapped {
    pub(crate) bytes: usize,
    /// Tells it apart from what is mapped there later.
    pub(crate) serial: u64,
    pub(crate) backing: Arc<Backing>,
    pub(crate) accessible: bool,
}

/// Memory bound into a multicast object.
pub(crate) struct Binding {
    pub(crate) object: u64,
    pub(crate) memory: u64,
}

impl DriverState {
    /// A number that was not given out before. Never 0, and no stream number is one of the default streams'.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 16;
        self.last + 0x1000
    }

    pub(crate) fn backing(&self, handle: u64) -> Result<&Arc<Backing>, Code> {
        self.handles.get(&handle).ok_or(INVALID_HANDLE)
    }

    /// Whether all of `bytes` from `address` on can be accessed.
    pub(crate) fn is_accessible(&self, address: u64, bytes: usize) -> bool {
        bytes == 0 || self.serial_at(address, bytes).is_some()
    }

    /// What tells the memory with `bytes` from `address` on apart from what is there at other times; `None`
    /// if they cannot be accessed.
    pub(crate) fn serial_at(&self, address: u64, bytes: usize) -> Option<u64> {
        let end = address.checked_add(bytes as u64)?;
        let below = |table: &BTreeMap<u64, Region>| {
            let (start, region) = table.range(..=address).next_back()?;
            (end <= start + region.bytes as u64).then_some(region.serial)
        };
        let mapped = || {
            let (start, mapped) = self.mappings.range(..=address).next_back()?;
            (mapped.accessible && end <= start + mapped.bytes as u64).then_some(mapped.serial)
        };
        below(&self.allocations).or_else(|| below(&self.registered)).or_else(mapped)
    }
}

/// The state, locked.
pub(crate) fn state() -> MutexGuard<'static, DriverState> {
    static STATE: OnceLock<Mutex<DriverState>> = OnceLock::new();
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}
