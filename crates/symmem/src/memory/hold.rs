//! A borrow of one's own memory that is bound to no handle.
//!
//! For operations that go on after the call that started them: they hold the memory from the start to the end.

use std::sync::Arc;

use super::Block;
use crate::Result;

/// The memory of an allocation, kept alive and borrowed until this is dropped.
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
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Peers may still be at work on what the operation left midway.
        if std::thread::panicking() {
            self.block.poison("an operation on it panicked".to_owned());
        }
        match self.exclusive {
            true => self.block.release_exclusive(),
            false => self.block.release_shared(),
        }
    }
}
