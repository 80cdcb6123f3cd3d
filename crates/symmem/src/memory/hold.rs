//! What operations do to keep the memory that they work on: they hold it from the start to the end, and
//! poison it when they panic.
//!
//! An operation that panics gives its borrow back while peers may still work on the memory, so the memory is
//! poisoned before that. The guards of the user's own borrows (`Local`, `LocalMut`) do not poison: no peer
//! works on the memory then.

use std::sync::Arc;

use super::MemoryBlock;
use crate::Result;
use crate::sys::unwind;

impl MemoryBlock {
    /// Poisons the memory, because a panic is leaving an operation on it.
    #[cold]
    pub(super) fn panicked(&self) {
        self.poison("an operation on it panicked".to_owned());
    }
}

/// The memory of an allocation, kept alive and borrowed until this is dropped. Bound to no handle, for
/// operations that go on after the call that started them.
#[derive(Debug)]
pub(crate) struct Hold {
    block: Arc<MemoryBlock>,
    exclusive: bool,
}

impl Hold {
    /// Borrows for writing.
    pub(crate) fn exclusive(block: &Arc<MemoryBlock>, op: &'static str) -> Result<Self> {
        block.borrow_exclusive(op)?;
        Ok(Self { block: Arc::clone(block), exclusive: true })
    }

    /// Borrows for reading.
    pub(crate) fn shared(block: &Arc<MemoryBlock>, op: &'static str) -> Result<Self> {
        block.borrow_shared(op)?;
        Ok(Self { block: Arc::clone(block), exclusive: false })
    }

    /// Whether the memory can still be used.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.block.check_usable(op)
    }

    /// Runs `work`, the operation that the memory is held for. A panic that leaves it poisons the memory.
    pub(crate) fn guarded<R>(&self, work: impl FnOnce() -> R) -> R {
        unwind::guard(|| self.block.panicked(), work)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self.exclusive {
            true => self.block.release_exclusive(),
            false => self.block.release_shared(),
        }
    }
}
