//! The bell: the one futex a rank sleeps on, whatever it waits for.
//!
//! A rank waits for words that peers store into (slots, pads, abort and left words). It sleeps on the bell of
//! its own control segment; whoever stored something that the rank may wait for calls
//! [`Bell::ring_if_waited`].
//!
//! # Memory ordering
//! Store-buffering (Dekker) between two words: the publisher stores the word, then loads `waiters`; the
//! sleeper stores `waiters`, then loads the word. A `fence(SeqCst)` between store and load on *both* sides
//! makes it impossible that both loads miss: either the publisher sees a waiter and rings, or the sleeper's
//! last look sees the word. Between that look and the futex the bell's count covers: a ring changes it, so
//! the futex does not sleep.
//!
//! Who rings leaves the number of its core, for the sleeper's guess where its peers run; nothing depends on
//! it.

use std::time::Duration;

use super::atomic::{AtomicU32, Ordering, Site, fence};

/// A futex word and the number of sleepers, alone in a cache line: publishers read it on every op, and it
/// must not bounce when something else is written.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(not(loom), derive(Default))]
pub(crate) struct Bell {
    waiters: AtomicU32,
    count: AtomicU32,
    /// The core of who rang last, plus 1; 0 when nobody has since the owner looked.
    #[cfg(not(loom))]
    ringer: AtomicU32,
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Bell {
    /// The publisher's half, to be called once after the stores and before the bells of all ranks concerned.
    #[inline]
    pub(crate) fn publish_fence() {
        fence(Site::RingFence, Ordering::SeqCst);
    }

    /// Wakes the owner if it sleeps. The caller has stored what the owner waits for and passed
    /// [`Bell::publish_fence`].
    #[inline]
    pub(crate) fn ring_if_waited(&self) {
        // Relaxed: the fence orders it after the store.
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Wakes the owner.
    #[cold]
    pub(crate) fn ring(&self) {
        self.sign();
        // Relaxed: the count carries no data, it only keeps the futex from sleeping through the ring.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.futex_wake();
    }

    /// Sleeps until the bell rings or `timeout` passes, unless `ready` holds already; returns whether it
    /// holds.
    pub(crate) fn sleep(&self, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let seen = self.count.load(Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        fence(Site::SleepFence, Ordering::SeqCst);
        let already = ready();
        if !already {
            self.futex_wait(seen, timeout);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        already || ready()
    }
}

#[cfg(not(loom))]
impl Bell {
    /// Whether the last ring came from the core that the caller runs on; none if there was no ring since it
    /// last asked.
    pub(crate) fn was_rung_here(&self) -> Option<bool> {
        // A ring between the two is not looked at, which does no harm.
        let ringer = self.ringer.load(Ordering::Relaxed).checked_sub(1)?;
        self.ringer.store(0, Ordering::Relaxed);
        Some(crate::sys::cpu::current()? == ringer)
    }

    fn sign(&self) {
        if let Some(core) = crate::sys::cpu::current() {
            self.ringer.store(core + 1, Ordering::Relaxed);
        }
    }

    fn futex_wait(&self, seen: u32, timeout: Duration) {
        crate::sys::futex::wait(&self.count, seen, timeout);
    }

    fn futex_wake(&self) {
        crate::sys::futex::wake_all(&self.count);
    }
}

/// A futex as the kernel does it: compare and go to sleep under one lock. It never times out, so that a lost
/// wake-up is a deadlock that loom reports.
#[cfg(loom)]
impl Bell {
    pub(crate) fn new() -> Self {
        let kernel = (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
        Self { waiters: AtomicU32::new(0), count: AtomicU32::new(0), kernel }
    }

    fn sign(&self) {}

    fn futex_wait(&self, seen: u32, _timeout: Duration) {
        let queue = self.kernel.0.lock().unwrap();
        if self.count.load(Ordering::Relaxed) == seen {
            drop(self.kernel.1.wait(queue).unwrap());
        }
    }

    fn futex_wake(&self) {
        drop(self.kernel.0.lock().unwrap());
        self.kernel.1.notify_all();
    }
}
