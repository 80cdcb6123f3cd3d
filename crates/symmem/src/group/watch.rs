//! The watchdog: one thread per process that tells devices of failures on the host, and the host of those on
//! devices.
//!
//! Started with the first engine, ends when there is none. It sleeps, and looks at the status of every engine
//! of the process once per tick. It makes no CUDA call, nor may a status that it looks at, so nothing that a
//! device does can stop it; and it never owns an engine, so it never drops one.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmem_store::TICK;

use crate::sys::fork;
use crate::{Error, Result};

/// What the watchdog looks at.
pub(crate) trait Look: Any + fmt::Debug + Send + Sync {
    /// One look, on the watchdog's thread. Must not wait, and makes no CUDA call.
    fn look(&self);
}

#[derive(Debug)]
struct WatchList {
    watched: Vec<Arc<dyn Look>>,
    is_awake: bool,
}

static WATCHED: Mutex<WatchList> = Mutex::new(WatchList { watched: Vec::new(), is_awake: false });

fn watch_list() -> MutexGuard<'static, WatchList> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What it was made of is watched as long as this lives.
#[derive(Debug)]
pub(crate) struct WatchGuard(Arc<dyn Look>);

impl WatchGuard {
    pub(crate) fn new(watched: Arc<dyn Look>) -> Result<Self> {
        let mut list = watch_list();
        if !list.is_awake {
            let thread = std::thread::Builder::new().name("symmem-watchdog".to_owned());
            thread.spawn(watch).map_err(|error| Error::sys("start of the watchdog thread", error))?;
            list.is_awake = true;
        }
        list.watched.push(Arc::clone(&watched));
        Ok(Self(watched))
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        // In a forked child there is no watchdog, and the lock may be held for ever.
        if !fork::is_child() {
            watch_list().watched.retain(|watched| !Arc::ptr_eq(watched, &self.0));
        }
    }
}

/// What `look` finds, if anything, at the first of those that are watched.
pub(crate) fn find<R>(look: impl FnMut(&dyn Look) -> Option<R>) -> Option<R> {
    watch_list().watched.iter().map(AsRef::as_ref).find_map(look)
}

fn watch() {
    loop {
        std::thread::sleep(TICK);
        // Looked at under the lock: an engine that is dropped waits for a look, instead of being dropped by
        // it.
        let mut list = watch_list();
        if list.watched.is_empty() {
            list.is_awake = false;
            return;
        }
        for watched in &list.watched {
            // It may tell a subscriber of what it found, which is the user's code. All others need the next
            // look, and so does this one.
            let _ = catch_unwind(AssertUnwindSafe(|| watched.look()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// Counts the looks, and panics at each if told to.
    #[derive(Debug, Default)]
    struct Looked {
        times: AtomicUsize,
        panics: bool,
    }

    impl Look for Looked {
        fn look(&self) {
            self.times.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics, "a look panics, on purpose");
        }
    }

    #[test]
    fn the_watchdog_outlives_a_look_that_panics() {
        let wild = Arc::new(Looked { panics: true, ..Looked::default() });
        let calm = Arc::new(Looked::default());
        let watched: [Arc<dyn Look>; 2] = [Arc::clone(&wild) as _, Arc::clone(&calm) as _];
        let _guards = watched.map(|looked| WatchGuard::new(looked).unwrap());
        let end = Instant::now() + Duration::from_secs(20);
        while [&wild, &calm].iter().any(|looked| looked.times.load(Ordering::Relaxed) < 3) {
            assert!(Instant::now() < end, "nobody looks any more: {wild:?} {calm:?}");
            std::thread::sleep(TICK);
        }
    }
}
