//! Where the handles of all ranks begin in their allocations.
//!
//! The rendezvous makes it of what the ranks said; the handle finds the elements of its peers by it. What it
//! guarantees: a handle that begins at the same byte on all ranks holds nothing and looks nothing up. It does
//! not check that a peer's elements are within its memory: the code that uses the byte does.

use std::sync::Arc;

/// The byte at which each rank's handle begins, unless it is the same one on all.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets(Option<Arc<[usize]>>);

impl Offsets {
    /// Handles that begin at these bytes, by rank.
    pub(super) fn new(starts: &[usize]) -> Self {
        let differ = starts.iter().any(|start| *start != starts[0]);
        Self(differ.then(|| starts.into()))
    }

    /// Where the handle of `rank` begins, if that of rank `me` was cut since the rendezvous to begin at
    /// `own`: all ranks cut alike.
    #[inline]
    pub(super) fn of(&self, rank: usize, (me, own): (usize, usize)) -> usize {
        match &self.0 {
            None => own,
            // A handle is cut from its front: it begins where it began, or behind that.
            Some(starts) => starts[rank] + (own - starts[me]),
        }
    }

    /// The ranks whose offsets must be looked at, because they differ.
    pub(super) fn ranks(&self) -> std::ops::Range<usize> {
        0..self.0.as_ref().map_or(0, |starts| starts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybodys_start_moves_with_ones_own() {
        let offsets = Offsets::new(&[0, 12, 4]);
        let all = |own| offsets.ranks().map(|rank| offsets.of(rank, (2, own))).collect::<Vec<_>>();
        assert_eq!(all(4), [0, 12, 4]);
        assert_eq!(all(9), [5, 17, 9]);
    }

    #[test]
    fn what_is_the_same_everywhere_is_not_kept() {
        for offsets in [Offsets::new(&[8, 8, 8]), Offsets::new(&[8]), Offsets::default()] {
            assert!(offsets.0.is_none() && offsets.ranks().is_empty());
            assert_eq!((offsets.of(2, (0, 8)), offsets.of(1, (1, 20))), (8, 20));
        }
    }
}
