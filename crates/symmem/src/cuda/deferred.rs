//! Memory that nobody owns any more but that the device may still use.
//!
//! Dropping a handle must neither wait for the device nor pull memory from under a running kernel. So what
//! cannot go yet is kept here with the condition under which it may, and every later allocation or drop looks
//! whether somebody's time has come. A group that was poisoned keeps its memory the same way: kernels that
//! gave up late find it in place.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::capture::Relaxed;
use super::graph;
use super::stream::is_capturing_here;
use crate::sys::fork;

/// A value, and when it may go.
struct Deferred {
    done: Box<dyn Fn() -> bool + Send>,
    /// Dropped to give back what is in it.
    _value: Box<dyn Any + Send>,
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

static DEFERRED: Mutex<Vec<Deferred>> = Mutex::new(Vec::new());

fn deferred() -> MutexGuard<'static, Vec<Deferred>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps `value` until `done` says that it may go, which can be now. Takes the chance to [`reap`].
pub(crate) fn drop_when(done: Box<dyn Fn() -> bool + Send>, value: Box<dyn Any + Send>) {
    // What a forked child inherited is the rank's, and so may be the lock.
    if fork::is_child() {
        std::mem::forget((done, value));
        return;
    }
    deferred().push(Deferred { done, _value: value });
    reap();
}

/// How often somebody has asked.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Most looks of one thread: where others ask all the time, one of them will look.
const LOOKS: usize = 3;

/// Lets go of everything whose time has come. Never waits.
pub(crate) fn reap() {
    // A forked child inherited the list but not the driver. A capture of this thread would not survive what
    // NCCL calls when one of its communicators goes.
    if fork::is_child() || is_capturing_here() {
        return;
    }
    graph::reap();
    ASKED.fetch_add(1, Ordering::SeqCst);
    for _ in 0..LOOKS {
        let asked = ASKED.load(Ordering::SeqCst);
        // Taken out: conditions and drops run without the lock, and may defer others in turn.
        let all = std::mem::take(&mut *deferred());
        if all.is_empty() {
            return;
        }
        let relaxed = Relaxed::enter();
        let (gone, waiting): (Vec<Deferred>, Vec<Deferred>) = all.into_iter().partition(|one| (one.done)());
        let is_waiting = !waiting.is_empty();
        deferred().extend(waiting);
        drop(gone);
        drop(relaxed);
        // Who has asked meanwhile did not find what this thread had taken out, and may have been the last one
        // to ask.
        if !is_waiting || ASKED.load(Ordering::SeqCst) == asked {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nothing_goes_before_its_time() {
        if crate::cuda::driver::driver().is_err() {
            println!("skipped: no CUDA driver");
            // Where nothing is kept, the driver is not called.
            return reap();
        }
        let (done, value) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
        let (ask, kept) = (Arc::clone(&done), Arc::clone(&value));
        drop_when(Box::new(move || ask.load(Ordering::Relaxed)), Box::new(kept));
        reap();
        assert_eq!(Arc::strong_count(&value), 2);
        done.store(true, Ordering::Relaxed);
        // Another test's thread may have just asked.
        let (start, patience) = (std::time::Instant::now(), std::time::Duration::from_secs(10));
        while Arc::strong_count(&value) > 1 {
            assert!(start.elapsed() < patience, "it never went");
            reap();
        }
    }
}
