//! The watchdog: one thread per process that tells devices of failures on the host, and the host of those on devices.
//!
//! Started with the first engine, ends when there is none. It sleeps, and looks at every engine of the process once per tick;
//! it makes no CUDA call, so nothing that a device does can stop it, and it never owns an engine, so it never drops one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmem_store::TICK;

use super::status::{Watched, is_same};
use crate::sys::fork;
use crate::{Error, Result};

#[derive(Debug)]
struct Kennel {
    engines: Vec<Arc<Watched>>,
    is_awake: bool,
}

static KENNEL: Mutex<Kennel> = Mutex::new(Kennel { engines: Vec::new(), is_awake: false });

fn kennel() -> MutexGuard<'static, Kennel> {
    KENNEL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine is watched as long as this lives.
#[derive(Debug)]
pub(crate) struct Leash(Arc<Watched>);

impl Leash {
    pub(crate) fn new(watched: &Arc<Watched>) -> Result<Self> {
        let mut kennel = kennel();
        if !kennel.is_awake {
            let thread = std::thread::Builder::new().name("symmem-watchdog".to_owned());
            thread.spawn(watch).map_err(|error| Error::sys("start of the watchdog thread", error))?;
            kennel.is_awake = true;
        }
        kennel.engines.push(Arc::clone(watched));
        Ok(Self(Arc::clone(watched)))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // In a forked child there is no watchdog, and the lock may be held for ever.
        if !fork::is_child() {
            kennel().engines.retain(|watched| !is_same(watched, &self.0));
        }
    }
}

/// The other rank of this process in the group of `own` that used `stream` last on one of its lanes.
pub(crate) fn user_of(own: &Watched, stream: usize) -> Option<usize> {
    let kennel = kennel();
    let others = kennel.engines.iter().filter(|other| {
        other.device == own.device && other.group.rank != own.group.rank && other.group.id == own.group.id
    });
    let uses =
        |other: &&Arc<Watched>| other.streams.iter().any(|last| last.load(Ordering::Relaxed) == stream);
    others.into_iter().find(uses).map(|other| other.group.rank)
}

fn watch() {
    loop {
        std::thread::sleep(TICK);
        // Looked at under the lock: an engine that is dropped waits for a look, instead of being dropped by it.
        let mut kennel = kennel();
        if kennel.engines.is_empty() {
            kennel.is_awake = false;
            return;
        }
        for watched in &kennel.engines {
            watched.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::cuda::status::Words;

    #[test]
    fn failures_reach_devices_without_anybody_asking() {
        crate::spawn(2, |group| {
            let words = Arc::new(Words::new("watched").unwrap());
            let watched = Arc::new(Watched::new(&group.inner, &words, 0, true, 1));
            let leash = Leash::new(&watched)?;
            watched.streams[0].store(1000 + group.rank(), Ordering::Relaxed);
            group.barrier()?;
            let peer = 1 - group.rank();
            assert_eq!(user_of(&watched, 1000 + peer), Some(peer));
            assert_eq!(user_of(&watched, 1000 + group.rank()), None, "one's own stream");
            group.barrier()?;
            if group.rank() == 0 {
                group.abort("enough");
            }
            let start = Instant::now();
            while !words.is_aborted() {
                assert!(start.elapsed() < Duration::from_secs(10), "waiting kernels were not told");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(leash);
            assert!(!kennel().engines.iter().any(|other| is_same(other, &watched)));
            Ok(())
        })
        .unwrap();
    }
}
