//! Numbers that differ from run to run, and sequences of them that are equal on all ranks.

use std::hash::{BuildHasher, RandomState};

/// A number nobody can foresee.
pub(crate) fn entropy() -> u64 {
    RandomState::new().hash_one(0)
}

/// A sequence that depends on its seed only (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Some of the ranks below `ranks`, at least one, in any order.
    pub(crate) fn members(&mut self, ranks: usize) -> Vec<usize> {
        let mut members: Vec<usize> = (0..ranks).collect();
        for at in (1..ranks).rev() {
            members.swap(at, self.below(at + 1));
        }
        members.truncate(1 + self.below(ranks));
        members
    }
}
