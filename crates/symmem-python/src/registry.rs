//! Live allocations of this process by address: how a view of any kind is found to be symmetric.
//!
//! `memory` registers what it allocates; collectives and `rendezvous` look up. Ranks that are threads share
//! the registry: each has its own allocations in it. An allocation leaves when its last array or view is
//! gone.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, Weak};

use symmem::RankContext;

use crate::array::Keep;
use crate::fork;

static BLOCKS: RwLock<BTreeMap<usize, Weak<AllocatedBlock>>> = RwLock::new(BTreeMap::new());

/// The memory of an allocation.
#[derive(Debug)]
pub(crate) enum Memory {
    Host(symmem::Allocation<u8>),
    Cuda(symmem::cuda::Allocation<u8>),
}

/// An allocation made by the bindings. Arrays of it keep it alive.
#[derive(Debug)]
pub(crate) struct AllocatedBlock {
    pub(crate) memory: Memory,
    /// A rank's state lasts as long as its memory.
    _context: RankContext,
    epoch: u32,
}

impl AllocatedBlock {
    /// Its first byte.
    pub(crate) fn address(&self) -> usize {
        match &self.memory {
            Memory::Host(memory) => memory.as_ptr() as usize,
            Memory::Cuda(memory) => memory.device_ptr() as usize,
        }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Host(memory) => memory.len(),
            Memory::Cuda(memory) => memory.len(),
        }
    }

    /// Whether this process allocated it, and not one that it was forked from.
    pub(crate) fn is_own(&self) -> bool {
        self.epoch == fork::epoch()
    }

    /// Whether a view at `address` is of this allocation. An empty allocation has its first address.
    fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.address()) < self.bytes().max(1)
    }
}

impl Drop for AllocatedBlock {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not there; nobody looks there for this
        // block.
        if !self.is_own() {
            return;
        }
        let mut blocks = write();
        // The address stays this block's until its memory goes, after this.
        blocks.remove(&self.address());
        drop(blocks);
        crate::torch::forget(self.address(), self.bytes());
    }
}

fn write() -> RwLockWriteGuard<'static, BTreeMap<usize, Weak<AllocatedBlock>>> {
    BLOCKS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `memory` known, until the last clone of what is returned is gone.
pub(crate) fn register(memory: Memory, context: &RankContext) -> Arc<AllocatedBlock> {
    let block = Arc::new(AllocatedBlock { memory, _context: context.clone(), epoch: fork::epoch() });
    write().insert(block.address(), Arc::downgrade(&block));
    block
}

/// The live allocation that holds `address`, and how many bytes into it that is.
pub(crate) fn find(address: usize) -> Option<(Arc<AllocatedBlock>, usize)> {
    let blocks = BLOCKS.read().unwrap_or_else(PoisonError::into_inner);
    let (start, block) = blocks.range(..=address).next_back()?;
    let (offset, block) = (address - start, block.upgrade()?);
    // A block that is dropped here wants the lock.
    drop(blocks);
    block.holds(address).then_some((block, offset))
}

/// Whoever has the memory at a device address, for graphs: an allocation of this module's, if it is one.
/// Memory of other libraries is theirs to keep (docs/python.md).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered(pub(crate) u64);

impl symmem::cuda::Owner for Registered {
    fn keep(&self) -> Option<Keep> {
        find(self.0 as usize).map(|(block, _)| block as Keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_find_their_allocation_while_it_lives() {
        let context = RankContext::from_env().unwrap();
        let block = register(Memory::Host(context.alloc::<u8>(100).unwrap()), &context);
        let start = block.address();
        for offset in [0, 1, 99] {
            let (found, at) = find(start + offset).unwrap();
            assert!(Arc::ptr_eq(&found, &block));
            assert_eq!(at, offset);
        }
        assert!(find(start + 100).is_none());
        assert!(find(start - 1).is_none_or(|(found, _)| !Arc::ptr_eq(&found, &block)));
        drop(block);
        assert!(find(start).is_none());
    }

    #[test]
    fn an_empty_allocation_has_an_address() {
        let context = RankContext::from_env().unwrap();
        let block = register(Memory::Host(context.alloc::<u8>(0).unwrap()), &context);
        assert_eq!(find(block.address()).unwrap().1, 0);
    }
}
