//! What lives in the fake driver of this process.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::graph::UserObject;
use crate::result::{Code, INVALID_HANDLE};

/// Everything, under one lock.
#[derive(Default)]
pub(crate) struct State {
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
    /// Ordinary allocations: bytes by first address.
    pub(crate) allocations: BTreeMap<u64, usize>,
    /// Registered host memory: bytes by first address.
    pub(crate) registered: BTreeMap<u64, usize>,
    /// Streams, and the graph that is captured on them.
    pub(crate) streams: HashMap<u64, Option<u64>>,
    pub(crate) events: HashMap<u64, Instant>,
    /// The kernels of each, with their names.
    pub(crate) modules: HashMap<u64, Vec<(u64, CString)>>,
    /// Graphs and their executable forms: what they keep.
    pub(crate) graphs: HashMap<u64, Vec<(u64, usize)>>,
    pub(crate) objects: HashMap<u64, UserObject>,
    /// Memory that is part of a multicast object.
    pub(crate) bindings: Vec<Binding>,
    /// Things done in an order that real drivers suffer from.
    pub(crate) violations: usize,
    pub(crate) launches: usize,
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

/// A mapping.
pub(crate) struct Mapped {
    pub(crate) bytes: usize,
    pub(crate) backing: Arc<Backing>,
    pub(crate) accessible: bool,
}

/// Memory bound into a multicast object.
pub(crate) struct Binding {
    pub(crate) object: u64,
    pub(crate) memory: u64,
}

impl State {
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
        let holds = |start: u64, length: usize| {
            let end = address.checked_add(bytes as u64);
            end.is_some_and(|end| end <= start + length as u64)
        };
        let below = |table: &BTreeMap<u64, usize>| {
            table.range(..=address).next_back().is_some_and(|(start, length)| holds(*start, *length))
        };
        let mapped = self.mappings.range(..=address).next_back();
        bytes == 0
            || below(&self.allocations)
            || below(&self.registered)
            || mapped.is_some_and(|(start, mapped)| mapped.accessible && holds(*start, mapped.bytes))
    }
}

/// The state, locked.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}
