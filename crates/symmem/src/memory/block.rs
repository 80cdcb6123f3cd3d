//! The block behind an allocation: its memory, who borrows it, whether it is poisoned, and its rendezvous so far.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::Tables;
use super::rendezvous::Table;
use crate::provider::Memory;
use crate::sys::fork;
use crate::{Error, Result};

/// One allocation's memory and state. Shared by the allocation, its handles and the persistent map.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Arc<dyn Memory>,
    bytes: usize,
    signal_pad_size: usize,
    /// 0: free; n > 0: n shared borrows; -1: one exclusive borrow.
    borrows: AtomicI32,
    /// Why the memory can no longer be trusted; set once.
    poison: OnceLock<String>,
    /// Live `Allocation`s of this block.
    users: AtomicUsize,
    /// Its rendezvous so far.
    pub(super) tables: Tables<Arc<Table>>,
}

impl Block {
    pub(crate) fn new(memory: Arc<dyn Memory>, bytes: usize, signal_pad_size: usize) -> Self {
        Self {
            memory,
            bytes,
            signal_pad_size,
            borrows: AtomicI32::new(0),
            poison: OnceLock::new(),
            users: AtomicUsize::new(0),
            tables: Tables::default(),
        }
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.address() as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn signal_pad_size(&self) -> usize {
        self.signal_pad_size
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    pub(super) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Borrows for reading, until [`Block::release_shared`].
    #[inline]
    pub(super) fn borrow_shared(&self, op: &'static str) -> Result<()> {
        self.check_usable(op)?;
        let one_more = |borrows: i32| (borrows >= 0).then_some(borrows + 1);
        // Acquire: after the exclusive borrower's release, its writes are visible.
        match self.borrows.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Borrowed { op, borrowed_by: "local_mut or a running operation" }),
        }
    }

    #[inline]
    pub(super) fn release_shared(&self) {
        self.borrows.fetch_sub(1, Ordering::Release);
    }

    /// Borrows for writing, until [`Block::release_exclusive`].
    #[inline]
    pub(super) fn borrow_exclusive(&self, op: &'static str) -> Result<()> {
        self.check_usable(op)?;
        match self.borrows.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(-1) => Err(Error::Borrowed { op, borrowed_by: "local_mut or a running operation" }),
            Err(_) => Err(Error::Borrowed { op, borrowed_by: "local" }),
        }
    }

    #[inline]
    pub(super) fn release_exclusive(&self) {
        self.borrows.store(0, Ordering::Release);
    }

    /// Marks the memory as left in an unknown state by a group that failed. Final.
    pub(super) fn poison(&self, cause: String) {
        let _ = self.poison.set(cause);
    }

    /// Whether this process may use the memory: it is the rank's own, and no group failed under it.
    #[inline]
    pub(super) fn check_usable(&self, op: &'static str) -> Result<()> {
        // A forked child shares the memory, but no borrow of it that either takes.
        if fork::is_child() {
            return Err(Error::Forked { op });
        }
        match self.poison.get() {
            None => Ok(()),
            Some(cause) => Err(Error::Poisoned { op, cause: cause.clone() }),
        }
    }
}
