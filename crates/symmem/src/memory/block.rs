//! The block behind an allocation: its memory, who borrows it, whether it is poisoned, and its rendezvous so
//! far.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::Tables;
use super::rendezvous::HostTable;
use crate::provider::LocalMemory;
use crate::sync::protocol::{BorrowRefusal, Borrows};
use crate::sys::channel::Offer;
use crate::sys::fork;
use crate::{Error, Result};

/// One allocation's memory and state, with the tables of its rendezvous: the host's, or `T`. Shared by the
/// allocation, its handles and the persistent map.
#[derive(Debug)]
pub struct MemoryBlock<T = HostTable> {
    /// `None` where a rank brings nothing to a rendezvous.
    memory: Option<Arc<dyn LocalMemory>>,
    bytes: usize,
    signal_pad_size: usize,
    borrows: Borrows,
    /// Why the memory can no longer be trusted; set once, before the poison of `borrows`.
    cause: OnceLock<String>,
    /// Live `Allocation`s of this block.
    users: AtomicUsize,
    /// Whether it is for atomic cells, and for nothing else.
    is_cells: AtomicBool,
    /// Its rendezvous so far.
    pub(super) tables: Tables<T>,
    /// There once it is shared outside of groups.
    pub(super) offer: Mutex<Option<Offer>>,
}

impl<T> MemoryBlock<T> {
    pub(crate) fn new(memory: Arc<dyn LocalMemory>, bytes: usize, signal_pad_size: usize) -> Self {
        Self::with(Some(memory), bytes, signal_pad_size)
    }

    /// From now on it is for atomic cells: a rendezvous says so, and comes about with such memory only.
    pub(super) fn mark_as_cells(&self) {
        self.is_cells.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cells(&self) -> bool {
        self.is_cells.load(Ordering::Relaxed)
    }

    /// What a rank brings that brings nothing.
    pub(super) fn nothing(signal_pad_size: usize) -> Self {
        Self::with(None, 0, signal_pad_size)
    }

    fn with(memory: Option<Arc<dyn LocalMemory>>, bytes: usize, signal_pad_size: usize) -> Self {
        Self {
            memory,
            bytes,
            signal_pad_size,
            borrows: Borrows::new(),
            cause: OnceLock::new(),
            is_cells: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            tables: Tables::default(),
            offer: Mutex::default(),
        }
    }

    pub(crate) fn memory(&self) -> Option<&Arc<dyn LocalMemory>> {
        self.memory.as_ref()
    }

    /// Its first byte; 0 where there is none.
    pub(crate) fn address(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.address() as usize)
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

    /// Borrows for reading, until [`MemoryBlock::release_shared`].
    #[inline]
    pub(super) fn borrow_shared(&self, op: &'static str) -> Result<()> {
        check_process(op)?;
        self.borrows.share().map_err(|refusal| self.refused(op, refusal))
    }

    #[inline]
    pub(super) fn release_shared(&self) {
        self.borrows.unshare();
    }

    /// Borrows for writing, until [`MemoryBlock::release_exclusive`].
    #[inline]
    pub(super) fn borrow_exclusive(&self, op: &'static str) -> Result<()> {
        check_process(op)?;
        self.borrows.take().map_err(|refusal| self.refused(op, refusal))
    }

    #[inline]
    pub(super) fn release_exclusive(&self) {
        self.borrows.give_back();
    }

    /// Marks the memory as left in an unknown state by a group that failed. Final. An operation that let
    /// peers work on the memory calls this before it gives its borrow back, see [`Borrows`].
    pub(super) fn poison(&self, cause: String) {
        let _ = self.cause.set(cause);
        self.borrows.poison();
    }

    /// Whether this process may use the memory: it is the rank's own, and no group failed under it.
    pub(super) fn check_usable(&self, op: &'static str) -> Result<()> {
        check_process(op)?;
        if self.borrows.is_poisoned() { Err(self.refused(op, BorrowRefusal::Poisoned)) } else { Ok(()) }
    }

    #[cold]
    fn refused(&self, op: &'static str, refusal: BorrowRefusal) -> Error {
        match refusal {
            BorrowRefusal::Shared => Error::Borrowed { op, borrowed_by: "local" },
            BorrowRefusal::Exclusive => {
                Error::Borrowed { op, borrowed_by: "local_mut or a running operation" }
            }
            BorrowRefusal::Poisoned => {
                Error::Poisoned { op, cause: self.cause.get().cloned().unwrap_or_default() }
            }
        }
    }
}

/// Refuses a forked child, which shares the memory, but no borrow of it that either takes.
#[inline]
pub(super) fn check_process(op: &'static str) -> Result<()> {
    if fork::is_child() { Err(Error::Forked { op }) } else { Ok(()) }
}
