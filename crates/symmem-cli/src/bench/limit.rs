//! The limit: a barrier with nothing in it but the exchange of flags that every barrier needs.
//!
//! No deadline, no check of arguments, nobody noticed dying, no word about who waits. What a barrier of the
//! library costs beside it is the price of all that.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::sched_yield;
use symmem::{Error, Result, SymmetricMemory};

/// Words from one flag to the next: two cache lines, because processors fetch them in pairs.
pub(super) const STRIDE: usize = 16;

/// The flags between this rank and each of its peers: the one to raise, and the one to watch.
pub(super) struct Limit<'a> {
    flags: Vec<(&'a AtomicU64, &'a AtomicU64)>,
    epoch: u64,
    crowded: bool,
}

impl<'a> Limit<'a> {
    /// Flags in `mem`, which has `STRIDE` words for every rank and is used for nothing else.
    /// `crowded` says that ranks outnumber the cores.
    pub(super) fn new(mem: &'a SymmetricMemory<u64>, crowded: bool) -> Self {
        let (buffers, me) = (mem.base_ptrs(), mem.rank());
        assert!(mem.len() >= buffers.len() * STRIDE);
        // SAFETY: in range, aligned, mapped while `mem` is borrowed, and nobody uses them but as atomics.
        let flag = |at: usize, from: usize| unsafe { &*buffers[at].cast::<AtomicU64>().add(from * STRIDE) };
        let peers = (0..buffers.len()).filter(|peer| *peer != me);
        Self { flags: peers.map(|peer| (flag(peer, me), flag(me, peer))).collect(), epoch: 0, crowded }
    }

    /// Returns once every rank is here, or false if one has not come for many seconds. With a core for every
    /// rank it does nothing between two looks at a flag, else it yields at once.
    #[inline(always)]
    fn meet(&mut self) -> bool {
        if self.crowded { self.exchange(1 << 23, sched_yield) } else { self.exchange(1 << 35, || ()) }
    }

    /// [`Limit::meet`], where a rank that does not come is an error.
    #[inline(always)]
    pub(super) fn meet_all(&mut self) -> Result<()> {
        if self.meet() { Ok(()) } else { Err(nobody_came()) }
    }

    #[inline(always)]
    fn exchange(&mut self, looks: u64, pause: impl Fn()) -> bool {
        self.epoch += 1;
        for (theirs, _) in &self.flags {
            theirs.store(self.epoch, Ordering::Release);
        }
        self.flags.iter().all(|(_, mine)| {
            (0..looks).any(|_| {
                let here = mine.load(Ordering::Acquire) >= self.epoch;
                if !here {
                    pause();
                }
                here
            })
        })
    }
}

#[cold]
fn nobody_came() -> Error {
    let source = std::io::ErrorKind::TimedOut.into();
    Error::Sys { call: "the limit's barrier", source, hint: "has a rank died?" }
}
