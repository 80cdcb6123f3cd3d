//! What goes from whom to whom when elements move, as one rank sees it.
//!
//! A rank lays out a stream of elements for the others, window by window, and takes from each rank's stream
//! what is for it. Where each rank gets something else, the stream starts with what is for the rank after
//! this one: so ranks read from different ranks at any time. What a rank has for itself is in no stream
//! ([`Traffic::kept`]).

use std::ops::Range;

use super::splits::{Splits, before};

/// A stretch of a stream, and the element of the input or output where it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    /// In the stream.
    pub(super) range: Range<usize>,
    /// In the input of who gives, or the output of who takes.
    pub(super) start: usize,
}

impl Stretch {
    pub(super) fn new(from: usize, len: usize, start: usize) -> Self {
        Self { range: from..from + len, start }
    }

    /// What of it is in `window`: where in the window, and where in the input or output.
    pub(super) fn within(&self, window: &Range<usize>) -> (usize, Range<usize>) {
        let (from, end) = (self.range.start.max(window.start), self.range.end.min(window.end));
        if from >= end {
            return (0, 0..0);
        }
        let at = self.start + from - self.range.start;
        (from - window.start, at..at + end - from)
    }
}

/// Which elements everybody gives to whom.
#[derive(Debug)]
pub(in crate::collective) enum Pattern<'a> {
    /// Everybody the same to everybody, or one `root` to everybody.
    Same { root: Option<usize>, len: usize },
    /// Everybody all to the root.
    Gather { root: usize, len: usize },
    /// The root a chunk to each.
    Scatter { root: usize, chunk: usize },
    /// Everybody a chunk to each.
    Chunks { chunk: usize },
    /// Everybody what it likes to each.
    Splits(Splits),
    /// Everybody all to everybody, as many elements as it has a count of.
    AllCounts(&'a [usize]),
    /// The same to the root.
    GatherCounts { root: usize, counts: &'a [usize] },
    /// The root to each as many as there is a count of.
    ScatterCounts { root: usize, counts: &'a [usize] },
}

/// The traffic of `me`, one of `world` ranks.
#[derive(Debug)]
pub(super) struct Traffic<'a> {
    pub(super) pattern: Pattern<'a>,
    pub(super) me: usize,
    pub(super) world: usize,
}

impl Traffic<'_> {
    /// Elements of the longest stream of any rank.
    pub(super) fn longest(&self) -> usize {
        let others = self.world - 1;
        match &self.pattern {
            _ if others == 0 => 0,
            Pattern::Same { len, .. } | Pattern::Gather { len, .. } => *len,
            Pattern::Scatter { chunk, .. } | Pattern::Chunks { chunk } => others * chunk,
            Pattern::Splits(splits) => splits.longest,
            Pattern::AllCounts(counts) | Pattern::GatherCounts { counts, .. } => {
                counts.iter().copied().max().unwrap_or(0)
            }
            Pattern::ScatterCounts { root, counts } => counts.iter().sum::<usize>() - counts[*root],
        }
    }

    /// Whether several ranks take the same elements.
    pub(super) fn is_shared(&self) -> bool {
        self.world > 2 && matches!(self.pattern, Pattern::Same { .. } | Pattern::AllCounts(_))
    }

    /// Whether only one rank gives.
    pub(super) fn is_one_way(&self) -> bool {
        use Pattern::*;
        matches!(self.pattern, Same { root: Some(_), .. } | Scatter { .. } | ScatterCounts { .. })
    }

    /// The others, each rank's in an order of its own.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        let (me, world) = (self.me, self.world);
        (1..world).map(move |step| (me + step) % world)
    }

    /// Calls `lay` with every stretch of this rank's stream.
    pub(super) fn given(&self, mut lay: impl FnMut(Stretch)) {
        match &self.pattern {
            Pattern::Same { root, len } if root.is_none_or(|root| root == self.me) => {
                lay(Stretch::new(0, *len, 0));
            }
            Pattern::Gather { root, len } if *root != self.me => lay(Stretch::new(0, *len, 0)),
            Pattern::Scatter { root, .. } if *root != self.me => {}
            Pattern::Scatter { chunk, .. } | Pattern::Chunks { chunk } => {
                for rank in self.others() {
                    lay(Stretch::new(self.turn(self.me, rank) * chunk, *chunk, rank * chunk));
                }
            }
            Pattern::Splits(splits) => splits.given.iter().cloned().for_each(lay),
            Pattern::AllCounts(counts) => lay(Stretch::new(0, counts[self.me], 0)),
            Pattern::GatherCounts { root, counts } if *root != self.me => {
                lay(Stretch::new(0, counts[self.me], 0));
            }
            Pattern::ScatterCounts { root, counts } if *root == self.me => {
                let mut end = 0;
                for rank in self.others() {
                    lay(Stretch::new(end, counts[rank], before(counts, rank)));
                    end += counts[rank];
                }
            }
            Pattern::Same { .. }
            | Pattern::Gather { .. }
            | Pattern::GatherCounts { .. }
            | Pattern::ScatterCounts { .. } => {}
        }
    }

    /// What this rank takes from the stream of `source`.
    pub(super) fn taken(&self, source: usize) -> Stretch {
        let from_each = |len: usize| Stretch::new(0, len, source * len);
        match &self.pattern {
            Pattern::Same { root: None, len } => from_each(*len),
            Pattern::Same { root: Some(root), len } if *root == source => Stretch::new(0, *len, 0),
            Pattern::Gather { root, len } if *root == self.me => from_each(*len),
            Pattern::Scatter { root, chunk } if *root == source => {
                Stretch::new(self.turn(source, self.me) * chunk, *chunk, 0)
            }
            Pattern::Chunks { chunk } => {
                Stretch::new(self.turn(source, self.me) * chunk, *chunk, source * chunk)
            }
            Pattern::Splits(splits) => splits.taken[source].clone(),
            Pattern::AllCounts(counts) => Stretch::new(0, counts[source], before(counts, source)),
            Pattern::GatherCounts { root, counts } if *root == self.me => {
                Stretch::new(0, counts[source], before(counts, source))
            }
            Pattern::ScatterCounts { root, counts } if *root == source && source != self.me => {
                let ahead =
                    (1..self.turn(source, self.me) + 1).map(|step| counts[(source + step) % self.world]);
                Stretch::new(ahead.sum(), counts[self.me], 0)
            }
            _ => Stretch::default(),
        }
    }

    /// Where in the input of `source` that is which this rank takes, and where in its own output it goes. For
    /// what everybody gives to everybody.
    pub(super) fn pulled(&self, source: usize) -> (usize, Range<usize>) {
        let Stretch { range, start } = self.taken(source);
        let from = match &self.pattern {
            Pattern::Chunks { chunk } => self.me * chunk,
            Pattern::Splits(splits) => splits.starts[source],
            _ => 0,
        };
        (from, start..start + range.len())
    }

    /// How many elements this rank has for itself, where in its input and where in its output.
    pub(super) fn kept(&self) -> (usize, usize, usize) {
        let me = self.me;
        match &self.pattern {
            Pattern::Same { root: None, len } => (*len, 0, me * len),
            Pattern::Gather { root, len } if *root == me => (*len, 0, me * len),
            Pattern::Scatter { root, chunk } if *root == me => (*chunk, me * chunk, 0),
            Pattern::Chunks { chunk } => (*chunk, me * chunk, me * chunk),
            Pattern::Splits(splits) => splits.own,
            Pattern::AllCounts(counts) => (counts[me], 0, before(counts, me)),
            Pattern::GatherCounts { root, counts } if *root == me => (counts[me], 0, before(counts, me)),
            Pattern::ScatterCounts { root, counts } if *root == me => (counts[me], before(counts, me), 0),
            _ => (0, 0, 0),
        }
    }

    /// How many ranks' chunks are before that of `taker` in the stream of `source`.
    fn turn(&self, source: usize, taker: usize) -> usize {
        (taker + self.world - source - 1) % self.world
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_cut_to_the_window() {
        let stretch = Stretch::new(10, 5, 100);
        assert_eq!(stretch.within(&(0..10)), (0, 0..0));
        assert_eq!(stretch.within(&(8..12)), (2, 100..102));
        assert_eq!(stretch.within(&(12..14)), (0, 102..104));
        assert_eq!(stretch.within(&(14..40)), (0, 104..105));
        assert_eq!(stretch.within(&(15..40)), (0, 0..0));
    }

    #[test]
    fn what_one_gives_is_what_the_other_takes() {
        let world = 4;
        let at = |me| Traffic { pattern: Pattern::Chunks { chunk: 3 }, me, world };
        for giver in 0..world {
            let mut given = vec![Range::default(); world];
            at(giver).given(|stretch| given[stretch.start / 3] = stretch.range);
            for taker in (0..world).filter(|taker| *taker != giver) {
                assert_eq!(at(taker).taken(giver), Stretch { range: given[taker].clone(), start: giver * 3 });
            }
        }
    }
}
