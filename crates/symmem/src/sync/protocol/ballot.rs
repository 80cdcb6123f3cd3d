//! The ballot: a few words that one rank writes and others read whole, however often it writes them again.
//!
//! In the control segment; `group::survivors` says what the words mean. One thread of the owner writes;
//! anybody reads at any time, also after the owner died in the middle of a write.
//!
//! # Memory ordering
//! A sequence lock. The writer makes `round` odd, stores the words, and makes it even with Release. A reader
//! that loads an even round (Acquire) sees at least that round's words. If it sees a word of a later round,
//! the Release fence before that word and the reader's Acquire fence behind its loads make the later, odd
//! round visible to its second look at `round`: it has read a mix, and gets nothing.

use super::atomic::{AtomicU32, AtomicU64, Ordering, Site, fence, order};

/// Words of 64 ranks each. For loom two, which are enough to see a mix.
pub(crate) const ALIVE_WORDS: usize = if cfg!(loom) { 2 } else { 16 };

/// What is on a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sheet {
    /// Which election it belongs to; 0 for none.
    pub(crate) generation: u64,
    /// A bit for each rank.
    pub(crate) alive: [u64; ALIVE_WORDS],
    /// Port of the new store, on the ballot of the lowest living rank.
    pub(crate) port: u32,
    /// A random number that names the new group, with the port.
    pub(crate) nonce: u64,
}

/// The owner's vote on who is alive. All zero: nothing was cast.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Ballot {
    /// Even: the fields below are whole; odd: being written. Grows with every vote.
    round: AtomicU64,
    generation: AtomicU64,
    alive: [AtomicU64; ALIVE_WORDS],
    port: AtomicU32,
    nonce: AtomicU64,
}

impl Ballot {
    /// Publishes `sheet`. The owner's, one thread at a time.
    pub(crate) fn cast(&self, sheet: &Sheet) {
        let odd = self.round.load(Ordering::Relaxed) | 1;
        self.round.store(odd, Ordering::Relaxed);
        fence(Site::CastFence, Ordering::Release);
        for (word, bits) in self.alive.iter().zip(sheet.alive) {
            word.store(bits, Ordering::Relaxed);
        }
        self.generation.store(sheet.generation, Ordering::Relaxed);
        self.port.store(sheet.port, Ordering::Relaxed);
        self.nonce.store(sheet.nonce, Ordering::Relaxed);
        self.round.store(odd + 1, order(Site::CastRelease, Ordering::Release));
    }

    /// What was cast last; none if nothing was, or if the owner is writing: come back.
    pub(crate) fn read(&self) -> Option<Sheet> {
        let round = self.round.load(order(Site::BallotAcquire, Ordering::Acquire));
        if round == 0 || round % 2 == 1 {
            return None;
        }
        let mut alive = [0; ALIVE_WORDS];
        for (bits, word) in alive.iter_mut().zip(&self.alive) {
            *bits = word.load(Ordering::Relaxed);
        }
        let generation = self.generation.load(Ordering::Relaxed);
        let port = self.port.load(Ordering::Relaxed);
        let nonce = self.nonce.load(Ordering::Relaxed);
        fence(Site::BallotFence, Ordering::Acquire);
        let whole = self.round.load(Ordering::Relaxed) == round;
        whole.then_some(Sheet { generation, alive, port, nonce })
    }

    /// A ballot on which nothing was cast.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        let alive = std::array::from_fn(|_| word());
        Self { round: word(), generation: word(), alive, port: AtomicU32::new(0), nonce: word() }
    }
}
