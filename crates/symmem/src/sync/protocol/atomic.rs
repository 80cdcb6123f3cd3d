//! Atomics, fences and the futex, real or loom's; and the list of places where their order matters.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Each place whose memory order, or whose being there at all, a proof relies on. The models remove one at a
/// time and must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(loom), allow(dead_code))]
pub(crate) enum Site {
    /// The fence between a publisher's store and its look at `waiters`.
    RingFence,
    /// The fence between a sleeper's `waiters` and its last look at the condition.
    SleepFence,
    /// Publishing an epoch in a slot.
    SlotRelease,
    /// Seeing an epoch in a slot.
    SlotAcquire,
    /// Raising a signal.
    PutRelease,
    /// Seeing that the previous signal was consumed.
    PutAcquire,
    /// Consuming a signal.
    TakeAcquire,
    /// Handing the slot back.
    TakeRelease,
    /// Waiting, before the next epoch, for whoever was not heard in the current one.
    ConsumedWait,
    /// Borrowing for reading, after who wrote.
    ShareAcquire,
    /// Giving back what was borrowed for reading.
    UnshareRelease,
    /// Borrowing for writing, after who read or wrote.
    BorrowAcquire,
    /// Giving back what was borrowed for writing.
    GiveBackRelease,
    /// Poisoning, after why was stored.
    PoisonRelease,
    /// Seeing the poison, before why is read.
    PoisonAcquire,
    /// Looking at the poison after the borrow was taken.
    PoisonLook,
    /// Handing over a slot of a ring that was filled.
    HeadRelease,
    /// Seeing that a slot was filled.
    HeadAcquire,
    /// Handing back a slot of a ring that was emptied.
    TailRelease,
    /// Seeing that a slot was emptied.
    TailAcquire,
    /// The fence between the odd round of a ballot and its words.
    CastFence,
    /// Making the round of a ballot even.
    CastRelease,
    /// Seeing an even round.
    BallotAcquire,
    /// The fence between the words of a ballot and the second look at its round.
    BallotFence,
}

/// A fence of `order` at `site`.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn fence(_site: Site, order: Ordering) {
    std::sync::atomic::fence(order);
}

/// Whether what is done at `site` is done: always, but for the one whose absence the stress test must notice.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn is_kept(site: Site) -> bool {
    !(matches!(site, Site::ConsumedWait) && crate::sys::fault::leaves_out_consumed_wait())
}

/// `order`, which the proof for `site` relies on.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn order(_site: Site, order: Ordering) -> Ordering {
    order
}

#[cfg(loom)]
pub(crate) use mutant::{fence, is_kept, order, remove};

#[cfg(loom)]
mod mutant {
    use super::{Ordering, Site};
    use std::sync::Mutex;

    static REMOVED: Mutex<Option<Site>> = Mutex::new(None);

    pub(crate) fn is_kept(site: Site) -> bool {
        *REMOVED.lock().unwrap_or_else(|poison| poison.into_inner()) != Some(site)
    }

    /// From now on `site` has no fence, or the weakest order, or does nothing.
    pub(crate) fn remove(site: Option<Site>) {
        *REMOVED.lock().unwrap_or_else(|poison| poison.into_inner()) = site;
    }

    pub(crate) fn fence(site: Site, order: Ordering) {
        if is_kept(site) {
            loom::sync::atomic::fence(order);
        }
    }

    pub(crate) fn order(site: Site, order: Ordering) -> Ordering {
        if is_kept(site) { order } else { Ordering::Relaxed }
    }
}
