//! The meeting: every rank tells every rank "I am here, and this is my op", and waits until all have said so.
//!
//! Barrier, exchange and the fingerprint check of every collective are this one protocol. Each rank owns one
//! [`Slot`] per peer in its control segment; only that peer writes it.
//!
//! # Memory ordering
//! `announce` stores the signature, then the epoch with Release; `arrived` loads the epoch with Acquire, so
//! whatever the peer wrote before announcing (signature, staging, its user memory) is visible to who saw the
//! epoch.
//!
//! An announcement can carry a parcel of a few words, stored before its epoch like the signature. So is a
//! shape that ranks must agree on, where the signature says that there is one
//! ([`SHAPED`](crate::operation::SHAPED)): most meetings have none, and pay nothing for it.
//!
//! # Why two halves are enough
//! Rank p writes epoch e+2 into the half of epoch e. It does so only after it saw every rank's e+1; a rank
//! announces e+1 only after it has consumed everybody's e (slot, parcel and staging). So nobody still reads
//! e. This needs that a rank has heard from *every* rank in e+1 before it writes for e+2. An operation that
//! needs to hear from some ranks only (the root of a broadcast from nobody) leaves the rest of that waiting
//! to the rank's next operation: *ready* proves produced, and only a peer's next announcement proves
//! consumed. The same argument covers staging with two parities.

use super::Bell;
use super::atomic::{AtomicU64, Ordering, Site, order};
use crate::operation::Signature;

/// Most words that an announcement can carry: three in its own cache line, the rest in the ones behind it.
/// For loom two, which are enough to see what it must see.
pub(crate) const PARCEL_WORDS: usize = if cfg!(loom) { 2 } else { 3 + 8 * 8 };

/// An announcement, published by its epoch.
#[repr(C, align(64))]
#[derive(Debug)]
struct SlotHalf {
    epoch: AtomicU64,
    word: AtomicU64,
    size: AtomicU64,
    note: AtomicU64,
    shape: AtomicU64,
    parcel: [AtomicU64; PARCEL_WORDS],
}

/// One peer's announcements, in cache lines of their own.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    halves: [SlotHalf; 2],
}

impl Slot {
    #[inline]
    fn half(&self, epoch: u64) -> &SlotHalf {
        &self.halves[(epoch & 1) as usize]
    }

    #[inline]
    fn publish(&self, epoch: u64, signature: Signature, note: u64, parcel: &[u64]) {
        let half = self.half(epoch);
        for (to, from) in half.parcel.iter().zip(parcel) {
            to.store(*from, Ordering::Relaxed);
        }
        half.word.store(signature.word, Ordering::Relaxed);
        half.size.store(signature.size, Ordering::Relaxed);
        half.note.store(note, Ordering::Relaxed);
        half.epoch.store(epoch, order(Site::SlotRelease, Ordering::Release));
    }

    /// The signature of `epoch`, once the peer announced it.
    #[inline]
    fn read(&self, epoch: u64) -> Option<Signature> {
        let half = self.half(epoch);
        if half.epoch.load(order(Site::SlotAcquire, Ordering::Acquire)) < epoch {
            return None;
        }
        let (word, size) = (half.word.load(Ordering::Relaxed), half.size.load(Ordering::Relaxed));
        Some(Signature { word, size })
    }

    /// What the peer announced last, with its shape if it has one, for who looks on from outside; none if it
    /// was nothing, or if it is announcing all the time.
    #[cfg(not(loom))]
    pub(crate) fn latest(&self) -> Option<(u64, Signature, u64)> {
        let epoch = |half: &SlotHalf| half.epoch.load(Ordering::Acquire);
        for _ in 0..4 {
            let half = self.halves.iter().max_by_key(|half| epoch(half))?;
            let before = epoch(half);
            let read = |word: &AtomicU64| word.load(Ordering::Acquire);
            let signature = Signature { word: read(&half.word), size: read(&half.size) };
            let shape = read(&half.shape);
            if before != 0 && epoch(half) == before {
                return Some((before, signature, shape));
            }
        }
        None
    }

    /// A slot in which nobody has announced anything later than `epoch`.
    #[cfg(loom)]
    pub(crate) fn starting_at(epoch: u64) -> Self {
        let half = || SlotHalf {
            epoch: AtomicU64::new(epoch),
            word: AtomicU64::new(0),
            size: AtomicU64::new(0),
            note: AtomicU64::new(0),
            shape: AtomicU64::new(0),
            parcel: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self { halves: [half(), half()] }
    }
}

/// The words of all ranks of a group.
pub(crate) trait MeetingWords {
    /// Number of ranks.
    fn world(&self) -> usize;
    /// The slot of rank `at` that rank `from` writes.
    fn slot(&self, at: usize, from: usize) -> &Slot;
    /// The bell of rank `at`.
    fn bell(&self, at: usize) -> &Bell;
}

/// Tells every peer that `me` is at `epoch` with `signature`, a `note` that need not agree, and at most
/// [`PARCEL_WORDS`] words in the same cache lines.
#[inline]
pub(crate) fn announce(
    meeting: &impl MeetingWords,
    me: usize,
    epoch: u64,
    signature: Signature,
    note: u64,
    parcel: &[u64],
) {
    let peers = || (0..meeting.world()).filter(move |peer| *peer != me);
    for peer in peers() {
        meeting.slot(peer, me).publish(epoch, signature, note, parcel);
    }
    Bell::publish_fence();
    for peer in peers() {
        meeting.bell(peer).ring_if_waited();
    }
}

/// Leaves `shape` for every peer, before `me` announces `epoch` with a signature that says so.
pub(crate) fn leave_shape(meeting: &impl MeetingWords, me: usize, epoch: u64, shape: u64) {
    for peer in (0..meeting.world()).filter(|peer| *peer != me) {
        meeting.slot(peer, me).half(epoch).shape.store(shape, Ordering::Relaxed);
    }
}

/// The shape of `peer` for `epoch`, whose signature says that there is one; as for [`note`].
pub(crate) fn shape(meeting: &impl MeetingWords, me: usize, peer: usize, epoch: u64) -> u64 {
    meeting.slot(me, peer).half(epoch).shape.load(Ordering::Relaxed)
}

/// What `me` announced last, at `epoch`; `None` if it is alone.
pub(crate) fn announced(meeting: &impl MeetingWords, me: usize, epoch: u64) -> Option<Signature> {
    // The writer keeps the line of what a peer has read.
    let peer = (0..meeting.world()).find(|peer| *peer != me)?;
    meeting.slot(peer, me).read(epoch)
}

/// What `peer` announced to `me` for `epoch`, if it has.
#[inline]
pub(crate) fn arrived(meeting: &impl MeetingWords, me: usize, peer: usize, epoch: u64) -> Option<Signature> {
    meeting.slot(me, peer).read(epoch)
}

/// Takes up as many words as `peer` announced to `me` with `epoch`; as for [`note`].
#[inline]
pub(crate) fn unpack(meeting: &impl MeetingWords, me: usize, peer: usize, epoch: u64, parcel: &mut [u64]) {
    for (from, to) in meeting.slot(me, peer).half(epoch).parcel.iter().zip(parcel) {
        *to = from.load(Ordering::Relaxed);
    }
}

/// The note of `peer` for `epoch`, once [`arrived`] has seen it and until `me` announces the next epoch.
#[inline]
pub(crate) fn note(meeting: &impl MeetingWords, me: usize, peer: usize, epoch: u64) -> u64 {
    meeting.slot(me, peer).half(epoch).note.load(Ordering::Relaxed)
}
