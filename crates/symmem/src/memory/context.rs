//! What a rank allocates: its blocks, the persistent ones by id, and the provider they come from.
//!
//! Called by users, through their context or group. The rank's own state ([`RankContext`]) keeps it, so it is
//! per rank, as that is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::{Allocation, MemoryBlock};
use crate::config::Config;
use crate::group::{Group, RankContext};
use crate::numeric::Element;
use crate::provider::{MemoryProvider, registry};
use crate::{Error, Result};

/// The allocations of a rank.
#[derive(Debug)]
struct Arena {
    provider: Arc<dyn MemoryProvider>,
    /// Live blocks by address, for look-up by pointer.
    blocks: Mutex<BTreeMap<usize, Weak<MemoryBlock>>>,
    persistent: Mutex<HashMap<String, Arc<MemoryBlock>>>,
}

impl Arena {
    fn new(config: &Config) -> Self {
        Self { provider: registry::on_host(config), blocks: Mutex::default(), persistent: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl RankContext {
    /// The name of the provider that memory comes from.
    pub fn backend(&self) -> &'static str {
        self.arena().provider.name()
    }

    /// Whether this provider has addresses that reach all ranks at once.
    pub fn has_multicast_support(&self) -> bool {
        self.arena().provider.has_multicast()
    }

    /// Local. Allocates `len` zeroed elements that can be rendezvoused later.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        let block = self.new_block(bytes_of::<T>(len)?)?;
        Ok(Allocation::of(block, len))
    }

    /// Local. The persistent allocation `id`: the same memory each time, and so the same cached rendezvous.
    /// Made at the first call; later calls must ask for the same size while no earlier handle of it is alive.
    /// Kept until [`RankContext::release_persistent`].
    pub fn alloc_persistent<T: Element>(&self, id: &str, len: usize) -> Result<Allocation<T>> {
        let bytes = bytes_of::<T>(len)?;
        let mut persistent = lock(&self.arena().persistent);
        let problem = |problem: String| Error::Persistent { id: id.to_owned(), problem };
        let Some(block) = persistent.get(id) else {
            let block = self.new_block(bytes)?;
            persistent.insert(id.to_owned(), Arc::clone(&block));
            return Ok(Allocation::of(block, len));
        };
        if block.is_in_use() {
            return Err(problem(
                "an earlier allocation with this id is still active. Hint: drop it first".to_owned(),
            ));
        }
        if block.bytes() != bytes {
            return Err(problem(format!("asked for {bytes} bytes, but it has {}", block.bytes())));
        }
        Ok(Allocation::of(Arc::clone(block), len))
    }

    /// Local. Forgets the persistent allocation `id`; its memory goes when the last handle does. True if
    /// there was one.
    pub fn release_persistent(&self, id: &str) -> bool {
        lock(&self.arena().persistent).remove(id).is_some()
    }

    /// Whether `pointer` points into a live allocation of this rank.
    pub fn is_symmetric<T>(&self, pointer: *const T) -> bool {
        let address = pointer as usize;
        let blocks = lock(&self.arena().blocks);
        let block = blocks.range(..=address).next_back().and_then(|(_, block)| block.upgrade());
        block.is_some_and(|block| address - block.address() < block.bytes().max(1))
    }

    pub(super) fn provider(&self) -> &dyn MemoryProvider {
        &*self.arena().provider
    }

    fn arena(&self) -> &Arena {
        self.above(Arena::new)
    }

    pub(super) fn new_block(&self, bytes: usize) -> Result<Arc<MemoryBlock>> {
        let memory = self.arena().provider.alloc(bytes)?;
        let block = Arc::new(MemoryBlock::new(memory, bytes, self.signal_pad_size()));
        let mut blocks = lock(&self.arena().blocks);
        blocks.retain(|_, block| block.strong_count() > 0);
        blocks.insert(block.address(), Arc::downgrade(&block));
        Ok(block)
    }
}

impl Group {
    /// Local. Allocates `len` zeroed elements in this rank's context.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        self.context().alloc(len)
    }
}

pub(super) fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(
            "allocation",
            format!("{len} elements of {} bytes are more than there is address space", size_of::<T>()),
        )
    })
}
