//! Whom a rank waits for, for people who wonder why nothing happens. Written when a wait goes to sleep, never
//! before.
//!
//! One thread writes, or several that wait at once (for mail): then the last one counts. Anybody reads, at
//! any time.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::protocol::ALIVE_WORDS;
use crate::operation::Op;
use crate::sys::clock;

/// A wait in a control segment. All zero: none.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Waiting {
    /// 0: not waiting; else op in the low byte, then the peer + 1, or 0 if it is nobody in particular.
    what: AtomicU64,
    sequence: AtomicU64,
    since_ns: AtomicU64,
    /// The epoch at which the peer had not arrived; 0 where the wait is for something else.
    epoch: AtomicU64,
    /// The channel + 1; 0 for none.
    channel: AtomicU64,
    /// `since_ns` of the wait that `awaited` is of.
    awaited_of: AtomicU64,
    /// A bit for each rank without which the wait does not end.
    awaited: [AtomicU64; ALIVE_WORDS],
}

/// What a wait is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitSubject {
    pub(crate) op: Op,
    /// None: nobody in particular.
    pub(crate) peer: Option<usize>,
    pub(crate) sequence: u64,
    /// Of the meeting that the peer is missed at, if it is one.
    pub(crate) epoch: u64,
    pub(crate) channel: Option<usize>,
}

/// A wait as who looks on sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenWait {
    pub(crate) wanted: WaitSubject,
    pub(crate) since_ns: u64,
    /// A bit for each rank, if the wait has lasted long enough for its owner to say so.
    pub(crate) awaited: Option<[u64; ALIVE_WORDS]>,
}

impl Waiting {
    pub(crate) fn set(&self, wanted: WaitSubject) {
        let number = |number: Option<usize>| number.map_or(0, |number| number as u64 + 1);
        self.sequence.store(wanted.sequence, Ordering::Relaxed);
        self.since_ns.store(clock::boottime_ns(), Ordering::Relaxed);
        self.epoch.store(wanted.epoch, Ordering::Relaxed);
        self.channel.store(number(wanted.channel), Ordering::Relaxed);
        self.what.store(wanted.op as u64 | number(wanted.peer) << 8, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.what.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn clear(&self) {
        self.what.store(0, Ordering::Release);
    }

    /// Says for which of `world` ranks the wait is that was set.
    pub(crate) fn set_awaited(&self, world: usize, is_awaited: impl Fn(usize) -> bool) {
        for (index, word) in self.awaited.iter().enumerate().take(world.div_ceil(64)) {
            let ranks = 64 * index..world.min(64 * (index + 1));
            let bits = ranks.filter(|rank| is_awaited(*rank)).fold(0, |bits, rank| bits | 1 << (rank % 64));
            word.store(bits, Ordering::Relaxed);
        }
        self.awaited_of.store(self.since_ns.load(Ordering::Relaxed), Ordering::Release);
    }

    /// The wait that goes on, if one does.
    pub(crate) fn get(&self) -> Option<SeenWait> {
        // A wait that ends and another that begins meanwhile would mix; the next look sees one of them.
        for _ in 0..4 {
            let what = self.what.load(Ordering::Acquire);
            if what == 0 {
                return None;
            }
            let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let number = |word: u64| usize::try_from(word).ok()?.checked_sub(1);
            let since_ns = read(&self.since_ns);
            let is_told = self.awaited_of.load(Ordering::Acquire) == since_ns;
            let wanted = WaitSubject {
                op: Op::from_u8(what as u8)?,
                peer: number(what >> 8),
                sequence: read(&self.sequence),
                epoch: read(&self.epoch),
                channel: number(read(&self.channel)),
            };
            let awaited = is_told.then(|| std::array::from_fn(|index| read(&self.awaited[index])));
            fence(Ordering::Acquire);
            if (read(&self.what), read(&self.since_ns)) == (what, since_ns) {
                return Some(SeenWait { wanted, since_ns, awaited });
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "makes words of zeros")]
mod tests {
    use super::*;

    fn waiting() -> Waiting {
        // SAFETY: atomics of integers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn what_is_set_is_seen_until_it_is_cleared() {
        let waiting = waiting();
        assert!(waiting.get().is_none() && !waiting.is_set());
        let wanted =
            WaitSubject { op: Op::AllReduce, peer: Some(0), sequence: 41, epoch: 7, channel: Some(0) };
        waiting.set(wanted);
        let seen = waiting.get().unwrap();
        assert_eq!((seen.wanted, seen.awaited), (wanted, None));
        waiting.set_awaited(70, |rank| [1, 63, 69].contains(&rank));
        let awaited = waiting.get().unwrap().awaited.unwrap();
        assert_eq!(awaited[..3], [1 << 1 | 1 << 63, 1 << 5, 0]);
        waiting.clear();
        assert!(waiting.get().is_none());
        // The ranks were those of the wait before.
        std::thread::sleep(std::time::Duration::from_millis(1));
        waiting.set(WaitSubject { peer: None, ..wanted });
        let seen = waiting.get().unwrap();
        assert_eq!((seen.wanted.peer, seen.awaited), (None, None));
    }
}
