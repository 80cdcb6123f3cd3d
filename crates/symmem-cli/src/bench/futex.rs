//! The limit beside busy loops: ranks that tell each other by futex, and sleep at once while there is nothing
//! to hear.
//!
//! Where other work wants the cores, who waits must give its core away, and a futex is the barest way to be
//! called back. Nothing else is here: no spinning, no payload, nobody noticed dying. Two forms are measured:
//! - `futex ping-pong`: the even rank of a pair tells the odd one, which answers. Two wakes, one after the
//!   other: what a signal there and back is, and an operation with two meetings. Ratios to the limit are
//!   ratios to this one.
//! - `futex exchange`: everybody tells everybody, then hears from everybody. One wake each, at the same time:
//!   what a barrier is, and an operation with one meeting.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;
use symmem::{Error, Result, SymmetricMemory};

use super::limit::STRIDE;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    PingPong,
    Exchange,
}

impl Form {
    /// Both; the first is the one that ratios are about.
    pub(super) const ALL: [Self; 2] = [Self::PingPong, Self::Exchange];

    /// Its name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "futex ping-pong",
            Self::Exchange => "futex exchange",
        }
    }
}

/// How long a rank may be silent.
const LIMIT: Duration = Duration::from_secs(60);
/// How long one sleep may be, so that the time is looked at.
const NAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The line between this rank and another.
struct Line<'a> {
    /// Counts what was told to the other.
    theirs: &'a AtomicU32,
    told: u32,
    /// Counts what the other told.
    mine: &'a AtomicU32,
    heard: u32,
}

impl Line<'_> {
    #[inline]
    fn tell(&mut self) -> Result<()> {
        self.told = self.told.wrapping_add(1);
        self.theirs.store(self.told, Ordering::Release);
        let woken = futex::wake(self.theirs, futex::Flags::empty(), 1);
        woken.map(drop).map_err(|error| failed(error.into()))
    }

    /// Sleeps until the other has told something more.
    #[inline]
    fn hear(&mut self) -> Result<()> {
        let before = self.heard;
        self.heard = before.wrapping_add(1);
        let mut end = None;
        while self.mine.load(Ordering::Acquire) == before {
            match futex::wait(self.mine, futex::Flags::empty(), before, Some(&NAP)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::TIMEDOUT) => {
                    let now = Instant::now();
                    if now > *end.get_or_insert(now + LIMIT) {
                        return Err(failed(std::io::ErrorKind::TimedOut.into()));
                    }
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }
}

#[cold]
fn failed(source: std::io::Error) -> Error {
    Error::Sys { call: "the limit's futex", source, hint: "has a rank died?" }
}

/// This rank's lines to all others.
pub(super) struct Lines<'a> {
    lines: Vec<Line<'a>>,
    /// The line to the other of a pair, and whether this rank begins.
    partner: Option<(usize, bool)>,
}

impl<'a> Lines<'a> {
    /// Lines in `mem`, which has `STRIDE` words for every rank, all zero, and is used for nothing else.
    pub(super) fn new(mem: &'a SymmetricMemory<u64>) -> Self {
        let (buffers, me) = (mem.base_ptrs(), mem.rank());
        assert!(mem.len() >= buffers.len() * STRIDE);
        // SAFETY: in range, aligned, mapped while `mem` is borrowed, and nobody uses them but as atomics.
        let word =
            |at: usize, from: usize| unsafe { &*buffers[at].cast::<AtomicU32>().add(2 * from * STRIDE) };
        let line = |peer| Line { theirs: word(peer, me), told: 0, mine: word(me, peer), heard: 0 };
        let peers = || (0..buffers.len()).filter(|peer| *peer != me);
        let partner = peers().position(|peer| peer == me ^ 1).map(|at| (at, me.is_multiple_of(2)));
        Self { lines: peers().map(line).collect(), partner }
    }

    /// Everybody tells everybody and hears from everybody.
    #[inline]
    pub(super) fn exchange(&mut self) -> Result<()> {
        self.lines.iter_mut().try_for_each(Line::tell)?;
        self.lines.iter_mut().try_for_each(Line::hear)
    }

    /// There and back between the two of a pair; a rank without a partner sits out.
    #[inline]
    pub(super) fn ping_pong(&mut self) -> Result<()> {
        match self.partner {
            Some((at, true)) => self.lines[at].tell().and_then(|()| self.lines[at].hear()),
            Some((at, false)) => self.lines[at].hear().and_then(|()| self.lines[at].tell()),
            None => Ok(()),
        }
    }
}
