//! What operations do to keep the memory that they work on: they hold it from the start to the end, and poison it when
//! they panic.
//!
//! A panic of an operation gives its borrow back while peers may still be at work on the memory: so the memory is poisoned
//! before that. The guards of the user's own borrows (`Local`, `LocalMut`) do not, for then nobody else is.

use std::sync::Arc;

use super::Block;
use crate::Result;

/// Poisons the memory when it is dropped, which only a panic does: see [`Block::guarded`].
struct Unwound<'a>(&'a Block);

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.poison("an operation on it panicked".to_owned());
    }
}

impl Block {
    /// Runs `work`, an operation on this memory. A panic that leaves it poisons the memory. It costs an operation that
    /// returns nothing.
    #[inline(always)]
    pub(super) fn guarded<R>(&self, work: impl FnOnce() -> R) -> R {
        let unwound = Unwound(self);
        let result = work();
        std::mem::forget(unwound);
        result
    }
}

/// The memory of an allocation, kept alive and borrowed until this is dropped. Bound to no handle, for operations that go on
/// after the call that started them.
#[derive(Debug)]
pub(crate) struct Hold {
    block: Arc<Block>,
    exclusive: bool,
}

impl Hold {
    /// Borrows for writing.
    pub(crate) fn exclusive(block: &Arc<Block>, op: &'static str) -> Result<Self> {
        block.borrow_exclusive(op)?;
        Ok(Self { block: Arc::clone(block), exclusive: true })
    }

    /// Borrows for reading.
    pub(crate) fn shared(block: &Arc<Block>, op: &'static str) -> Result<Self> {
        block.borrow_shared(op)?;
        Ok(Self { block: Arc::clone(block), exclusive: false })
    }

    /// Whether the memory can still be used.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.block.check_usable(op)
    }

    /// Runs `work`, the operation that the memory is held for. A panic that leaves it poisons the memory.
    pub(crate) fn guarded<R>(&self, work: impl FnOnce() -> R) -> R {
        self.block.guarded(work)
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
