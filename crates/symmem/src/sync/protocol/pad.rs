//! The signal pad protocol: a slot is 0 (idle) or 1 (signal pending), as in PyTorch.
//!
//! A put waits until the previous signal was consumed. Each slot has one writer and one reader, so plain
//! loads and stores do what a compare-and-swap does, and foreign kernels that do use one still fit.
//!
//! # Memory ordering
//! `put` stores 1 with Release and `take` loads with Acquire: what the sender wrote before is visible to who
//! took the signal. `take` stores 0 with Release and `put` loads with Acquire: what the receiver read before
//! it handed the slot back cannot be overtaken by what the sender writes for the next signal.

use super::atomic::{AtomicU32, Ordering, Site, order};

/// Raises the signal; false if the previous one is still pending.
#[inline]
pub(crate) fn try_put(slot: &AtomicU32) -> bool {
    if slot.load(order(Site::PutAcquire, Ordering::Acquire)) != 0 {
        return false;
    }
    slot.store(1, order(Site::PutRelease, Ordering::Release));
    true
}

/// Consumes the signal; false if there is none.
#[inline]
pub(crate) fn try_take(slot: &AtomicU32) -> bool {
    if slot.load(order(Site::TakeAcquire, Ordering::Acquire)) != 1 {
        return false;
    }
    slot.store(0, order(Site::TakeRelease, Ordering::Release));
    true
}
