//! Memory that nobody owns any more but that the device may still use.
//!
//! Dropping a handle must neither wait for the device nor pull memory from under a running kernel. So what cannot go yet
//! is buried here with the condition under which it may, and every later allocation or burial looks whether somebody's
//! time has come. A group that was poisoned buries its memory the same way: kernels that gave up late find it in place.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::capture::Relaxed;
use super::graph;
use super::stream::is_capturing_here;
use crate::sys::fork;

/// What is buried, and when it may go.
struct Grave {
    done: Box<dyn Fn() -> bool + Send>,
    /// Dropped to give back what is in it.
    _corpse: Box<dyn Any + Send>,
}

impl fmt::Debug for Grave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grave")
    }
}

static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());

fn graves() -> MutexGuard<'static, Vec<Grave>> {
    GRAVES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps `corpse` until `done` says that it may go, which can be now. Takes the chance to [`reap`].
pub(crate) fn bury_until(done: Box<dyn Fn() -> bool + Send>, corpse: Box<dyn Any + Send>) {
    // What a forked child inherited is the rank's, and so may be the lock.
    if fork::is_child() {
        std::mem::forget((done, corpse));
        return;
    }
    graves().push(Grave { done, _corpse: corpse });
    reap();
}

/// How often somebody has asked.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Most looks of one thread: where others ask all the time, one of them will look.
const LOOKS: usize = 3;

/// Lets go of everything whose time has come. Never waits.
pub(crate) fn reap() {
    // A forked child inherited the graves but not the driver. A capture of this thread would not survive what NCCL calls when
    // one of its communicators goes.
    if fork::is_child() || is_capturing_here() {
        return;
    }
    graph::reap();
    ASKED.fetch_add(1, Ordering::SeqCst);
    for _ in 0..LOOKS {
        let asked = ASKED.load(Ordering::SeqCst);
        // Taken out: conditions and drops run without the lock, and may bury in turn.
        let all = std::mem::take(&mut *graves());
        if all.is_empty() {
            return;
        }
        let relaxed = Relaxed::enter();
        let (gone, waiting): (Vec<Grave>, Vec<Grave>) = all.into_iter().partition(|grave| (grave.done)());
        let is_waiting = !waiting.is_empty();
        graves().extend(waiting);
        drop(gone);
        drop(relaxed);
        // Who has asked meanwhile did not find what this thread had taken out, and may have been the last one to ask.
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
            // Where nothing is buried, the driver is not called.
            return reap();
        }
        let (done, corpse) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
        let (ask, buried) = (Arc::clone(&done), Arc::clone(&corpse));
        bury_until(Box::new(move || ask.load(Ordering::Relaxed)), Box::new(buried));
        reap();
        assert_eq!(Arc::strong_count(&corpse), 2);
        done.store(true, Ordering::Relaxed);
        // Another test's thread may have just asked.
        let (start, patience) = (std::time::Instant::now(), std::time::Duration::from_secs(10));
        while Arc::strong_count(&corpse) > 1 {
            assert!(start.elapsed() < patience, "it never went");
            reap();
        }
    }
}
