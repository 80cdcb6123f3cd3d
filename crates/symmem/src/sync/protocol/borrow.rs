//! Who borrows a rank's own memory, and whether it can still be trusted: the state behind every guard.
//!
//! Used by `memory::Block` alone, for the threads of one rank; peers never see these words. A borrow is
//! shared (for reading) or exclusive (for writing), and poison is for ever.
//!
//! # What is guaranteed
//! - While an exclusive borrow is held there is no other borrow, and who borrows after another sees what that
//!   one wrote.
//! - An operation that lets peers work on this memory holds a borrow: an exclusive one if they write, a
//!   shared one if they read. If it ends before they are known to be done, it poisons *before* it gives the
//!   borrow back. From then on no borrow succeeds that could meet what such a peer still does: after an
//!   exclusive one none at all, after a shared one no exclusive one.
//! - A borrow fails if [`Borrows::poison`] returned before (in the sense of happens-before) it began, whoever
//!   poisoned.
//! - A borrow that another thread took *before* the poison lives on. It can meet no peer's write: it was
//!   either given back before the operation could take its exclusive borrow, or it kept the operation from
//!   taking it. A poison without a borrow (a barrier on the memory that failed) only says that the contents
//!   are of no use; nobody was let in by it.
//!
//! # Memory ordering
//! A borrow acquires what the release before it published: `take` needs 0, so every borrow before was given
//! back, by a Release that this Acquire reads or that an earlier borrow has acquired (read-modify-writes keep
//! a release sequence going). The poison was stored before that Release, so the look at it *after* the
//! compare-and-swap sees it. A look before alone would be too early: the operation may poison and give back
//! between the look and the swap. No fence is needed, because the one who poisons and the one who must see it
//! meet in one word, the borrow.
//!
//! The poison's own Release and Acquire order something else: why it was poisoned is stored before, and read
//! by whoever was refused, also where no borrow orders the two.

use super::atomic::{AtomicI32, AtomicU32, Ordering, Site, is_kept, order};

/// The borrows of one piece of memory, and its poison.
#[derive(Debug)]
pub(crate) struct Borrows {
    /// 0: free; n > 0: n shared borrows; -1: one exclusive borrow.
    count: AtomicI32,
    /// 0, or 1 once the memory is poisoned.
    poison: AtomicU32,
}

/// Why there is no borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BorrowRefusal {
    /// Others read.
    Shared,
    /// Another writes.
    Exclusive,
    /// For ever.
    Poisoned,
}

impl Borrows {
    pub(crate) fn new() -> Self {
        Self { count: AtomicI32::new(0), poison: AtomicU32::new(0) }
    }

    /// Borrows for reading, until [`Borrows::unshare`].
    #[inline]
    pub(crate) fn share(&self) -> Result<(), BorrowRefusal> {
        let one_more = |count: i32| (count >= 0).then_some(count + 1);
        let acquire = order(Site::ShareAcquire, Ordering::Acquire);
        if self.count.fetch_update(acquire, Ordering::Relaxed, one_more).is_err() {
            return Err(self.refusal(BorrowRefusal::Exclusive));
        }
        if is_kept(Site::PoisonLook) && self.is_poisoned() {
            self.unshare();
            return Err(BorrowRefusal::Poisoned);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn unshare(&self) {
        self.count.fetch_sub(1, order(Site::UnshareRelease, Ordering::Release));
    }

    /// Borrows for writing, until [`Borrows::give_back`].
    #[inline]
    pub(crate) fn take(&self) -> Result<(), BorrowRefusal> {
        let acquire = order(Site::BorrowAcquire, Ordering::Acquire);
        if let Err(count) = self.count.compare_exchange(0, -1, acquire, Ordering::Relaxed) {
            return Err(self.refusal(if count < 0 {
                BorrowRefusal::Exclusive
            } else {
                BorrowRefusal::Shared
            }));
        }
        if is_kept(Site::PoisonLook) && self.is_poisoned() {
            self.give_back();
            return Err(BorrowRefusal::Poisoned);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn give_back(&self) {
        self.count.store(0, order(Site::GiveBackRelease, Ordering::Release));
    }

    /// Refuses every borrow from now on. To be called before the borrow of whoever let peers in is given
    /// back, and after the reason was stored.
    pub(crate) fn poison(&self) {
        self.poison.store(1, order(Site::PoisonRelease, Ordering::Release));
    }

    /// Whether the memory is poisoned; if so, the reason can be read.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison.load(order(Site::PoisonAcquire, Ordering::Acquire)) != 0
    }

    /// Poison says more than that somebody else is at it.
    #[cold]
    fn refusal(&self, otherwise: BorrowRefusal) -> BorrowRefusal {
        if self.is_poisoned() { BorrowRefusal::Poisoned } else { otherwise }
    }
}
