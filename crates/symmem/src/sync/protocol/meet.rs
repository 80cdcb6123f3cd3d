//! The meeting: every rank tells every rank "I am here, and this is my op", and waits until all have said so.
//!
//! Barrier, exchange and the fingerprint check of every collective are this one protocol. Each rank owns one
//! [`Slot`] per peer in its control segment; only that peer writes it.
//!
//! # Memory ordering
//! `announce` stores the signature, then the epoch with Release; `arrived` loads the epoch with Acquire, so whatever
//! the peer wrote before announcing (signature, staging, its user memory) is visible to who saw the epoch.
//!
//! An announcement can carry a parcel of a few words in the same cache lines. Each further line is published by an
//! epoch of its own, stored with Release after its words: a line need not become visible as a whole.
//!
//! # Why two halves are enough
//! Rank p writes epoch e+2 into the half of epoch e. It does so only after it saw every rank's e+1; a rank announces
//! e+1 only after it has consumed everybody's e (slot, parcel and staging). So nobody still reads e. This needs that a
//! rank has heard from *every* rank in e+1 before it writes for e+2. An operation that needs to hear from some ranks
//! only (the root of a broadcast from nobody) leaves the rest of that waiting to the rank's next operation: *ready*
//! proves produced, and only a peer's next announcement proves consumed. The same argument covers staging with two
//! parities.

use super::Bell;
use super::atomic::{AtomicU64, Ordering, Site, order};

/// What a rank says it is doing: all ranks of a meeting must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Op, channel, root, dtype and reduce op, packed by the caller.
    pub(crate) word: u64,
    /// Bytes, or whatever number else the caller wants agreed.
    pub(crate) size: u64,
}

/// Words that ride in the line of an announcement.
const HEAD_WORDS: usize = 4;
/// Words of a line that carries nothing but payload, beside its epoch.
const LINE_WORDS: usize = 7;
/// Such lines of a half; loom needs one to see what it must see.
const LINES: usize = if cfg!(loom) { 1 } else { 8 };
/// Most words that an announcement can carry.
pub(crate) const PARCEL_WORDS: usize = HEAD_WORDS + LINES * LINE_WORDS;

/// An announcement: one cache line, published by its epoch.
#[repr(C, align(64))]
#[derive(Debug)]
struct Head {
    epoch: AtomicU64,
    word: AtomicU64,
    size: AtomicU64,
    note: AtomicU64,
    parcel: [AtomicU64; HEAD_WORDS],
}

/// More of the payload: one cache line, published by an epoch of its own, so that a reader polls the data itself.
#[repr(C, align(64))]
#[derive(Debug)]
struct Line {
    parcel: [AtomicU64; LINE_WORDS],
    epoch: AtomicU64,
}

#[repr(C)]
#[derive(Debug)]
struct Half {
    head: Head,
    lines: [Line; LINES],
}

/// One peer's announcements, in cache lines of their own.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    halves: [Half; 2],
}

impl Slot {
    #[inline]
    fn half(&self, epoch: u64) -> &Half {
        &self.halves[(epoch & 1) as usize]
    }

    #[inline]
    fn publish(&self, epoch: u64, signature: Signature, note: u64) {
        let head = &self.half(epoch).head;
        head.word.store(signature.word, Ordering::Relaxed);
        head.size.store(signature.size, Ordering::Relaxed);
        head.note.store(note, Ordering::Relaxed);
        head.epoch.store(epoch, order(Site::SlotRelease, Ordering::Release));
    }

    /// Lays `words` down for `epoch`, which is published next.
    #[inline]
    fn pack(&self, epoch: u64, words: &[u64]) {
        let half = self.half(epoch);
        let (first, rest) = words.split_at(words.len().min(HEAD_WORDS));
        for (to, from) in half.head.parcel.iter().zip(first) {
            to.store(*from, Ordering::Relaxed);
        }
        for (line, piece) in half.lines.iter().zip(rest.chunks(LINE_WORDS)) {
            for (to, from) in line.parcel.iter().zip(piece) {
                to.store(*from, Ordering::Relaxed);
            }
            line.epoch.store(epoch, order(Site::LineRelease, Ordering::Release));
        }
    }

    /// Takes up as many `words` as the peer laid down for `epoch`; false as long as some are under way. The head has
    /// been seen.
    #[inline]
    fn unpack(&self, epoch: u64, words: &mut [u64]) -> bool {
        let half = self.half(epoch);
        let (first, rest) = words.split_at_mut(words.len().min(HEAD_WORDS));
        for (line, piece) in half.lines.iter().zip(rest.chunks_mut(LINE_WORDS)) {
            if line.epoch.load(order(Site::LineAcquire, Ordering::Acquire)) < epoch {
                return false;
            }
            for (from, to) in line.parcel.iter().zip(piece) {
                *to = from.load(Ordering::Relaxed);
            }
        }
        for (from, to) in half.head.parcel.iter().zip(first) {
            *to = from.load(Ordering::Relaxed);
        }
        true
    }

    /// The signature of `epoch`, once the peer announced it.
    #[inline]
    fn read(&self, epoch: u64) -> Option<Signature> {
        let head = &self.half(epoch).head;
        if head.epoch.load(order(Site::SlotAcquire, Ordering::Acquire)) < epoch {
            return None;
        }
        let (word, size) = (head.word.load(Ordering::Relaxed), head.size.load(Ordering::Relaxed));
        Some(Signature { word, size })
    }

    /// A slot in which nobody has announced anything later than `epoch`.
    #[cfg(loom)]
    pub(crate) fn starting_at(epoch: u64) -> Self {
        use std::array::from_fn;
        let word = |value| AtomicU64::new(value);
        let half = || Half {
            head: Head {
                epoch: word(epoch),
                word: word(0),
                size: word(0),
                note: word(0),
                parcel: from_fn(|_| word(0)),
            },
            lines: from_fn(|_| Line { parcel: from_fn(|_| word(0)), epoch: word(epoch) }),
        };
        Self { halves: [half(), half()] }
    }
}

/// The words of all ranks of a group.
pub(crate) trait Meeting {
    /// Number of ranks.
    fn world(&self) -> usize;
    /// The slot of rank `at` that rank `from` writes.
    fn slot(&self, at: usize, from: usize) -> &Slot;
    /// The bell of rank `at`.
    fn bell(&self, at: usize) -> &Bell;
}

/// Tells every peer that `me` is at `epoch` with `signature`, a `note` that need not agree, and at most [`PARCEL_WORDS`]
/// words in the same cache lines.
#[inline]
pub(crate) fn announce(
    meeting: &impl Meeting,
    me: usize,
    epoch: u64,
    signature: Signature,
    note: u64,
    parcel: &[u64],
) {
    let peers = || (0..meeting.world()).filter(move |peer| *peer != me);
    for peer in peers() {
        let slot = meeting.slot(peer, me);
        slot.pack(epoch, parcel);
        slot.publish(epoch, signature, note);
    }
    Bell::publish_fence();
    for peer in peers() {
        meeting.bell(peer).ring_if_waited();
    }
}

/// What `peer` announced to `me` for `epoch`, if it has.
#[inline]
pub(crate) fn arrived(meeting: &impl Meeting, me: usize, peer: usize, epoch: u64) -> Option<Signature> {
    meeting.slot(me, peer).read(epoch)
}

/// The words that `peer` announced to `me` with `epoch`, once [`arrived`] has seen it: true when all are there.
#[inline]
pub(crate) fn unpack(meeting: &impl Meeting, me: usize, peer: usize, epoch: u64, parcel: &mut [u64]) -> bool {
    meeting.slot(me, peer).unpack(epoch, parcel)
}

/// The note of `peer` for `epoch`, once [`arrived`] has seen it and until `me` announces the next epoch.
#[inline]
pub(crate) fn note(meeting: &impl Meeting, me: usize, peer: usize, epoch: u64) -> u64 {
    meeting.slot(me, peer).half(epoch).head.note.load(Ordering::Relaxed)
}
