//! The two counts of a ring of slots, which one rank fills and another empties: who may touch which slot.
//!
//! Used by `mail::ring`, which has the slots. Of each rank one thread at a time (the lock of its queues). The
//! counts are in shared memory, and all zero when the ring is new.
//!
//! # Memory ordering
//! `head` counts the slots that the sender has filled, `tail` those that the receiver has emptied; each is
//! written by one rank and only grows. The sender fills a slot only when it has seen (Acquire) that the
//! receiver emptied it (Release, after its last read), and then raises `head` (Release); the receiver reads a
//! slot only when it has seen (Acquire) that. So nobody writes what another reads.

use super::atomic::{AtomicU64, Ordering, Site, order};

/// Slots of a ring: one is filled while another is emptied, and a rank that is late finds something to do.
/// For loom two, so that few messages go round. A power of two, so that counts may wrap.
pub(crate) const SLOTS: u64 = if cfg!(loom) { 2 } else { 4 };

/// A word alone in its cache line.
#[repr(C, align(64))]
#[derive(Debug)]
struct PaddedWord(AtomicU64);

/// How many slots were filled and emptied so far.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SlotCounts {
    head: PaddedWord,
    tail: PaddedWord,
}

impl SlotCounts {
    /// The sender's: the number of the slot to fill next, if it is free. It is the sender's until
    /// [`SlotCounts::fill`].
    #[inline]
    pub(crate) fn free(&self) -> Option<u64> {
        // Relaxed: only this rank writes it, and the lock of its queues orders its threads.
        let head = self.head.0.load(Ordering::Relaxed);
        let tail = self.tail.0.load(order(Site::TailAcquire, Ordering::Acquire));
        (head.wrapping_sub(tail) < SLOTS).then_some(head)
    }

    /// The sender's: hands over slot number `head`, which it has filled.
    #[inline]
    pub(crate) fn fill(&self, head: u64) {
        self.head.0.store(head.wrapping_add(1), order(Site::HeadRelease, Ordering::Release));
    }

    /// The receiver's: the number of the oldest slot that was filled, if there is one. It is the receiver's
    /// until [`SlotCounts::empty`].
    #[inline]
    pub(crate) fn filled(&self) -> Option<u64> {
        // Relaxed: as above.
        let tail = self.tail.0.load(Ordering::Relaxed);
        let head = self.head.0.load(order(Site::HeadAcquire, Ordering::Acquire));
        (head != tail).then_some(tail)
    }

    /// The receiver's: hands back slot number `tail`, which it has read.
    #[inline]
    pub(crate) fn empty(&self, tail: u64) {
        self.tail.0.store(tail.wrapping_add(1), order(Site::TailRelease, Ordering::Release));
    }

    /// The counts of a ring in which `count` slots were filled and emptied.
    #[cfg(loom)]
    pub(crate) fn starting_at(count: u64) -> Self {
        let line = || PaddedWord(AtomicU64::new(count));
        Self { head: line(), tail: line() }
    }
}
