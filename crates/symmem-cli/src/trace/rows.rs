//! Which row of the picture an operation is drawn in: those of a row never overlap.
//!
//! A track has one row, and more where several threads of a rank did something at once.

use symmem::trace::{Arrival, Trace};

/// The rows of a trace, numbered through from its first track to its last.
pub(super) struct Rows {
    /// Of each track: its first row, and the row of each of its operations.
    tracks: Vec<(usize, Vec<usize>)>,
    count: usize,
}

impl Rows {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut rows = Self { tracks: Vec::new(), count: 0 };
        for track in &trace.tracks {
            let times = track.operations.iter().map(|one| (one.begin_ns, one.end_ns.unwrap_or(u64::MAX)));
            let (places, used) = arrange(&times.collect::<Vec<_>>());
            rows.tracks.push((rows.count, places.into_iter().map(|place| rows.count + place).collect()));
            rows.count += used.max(1);
        }
        rows
    }

    /// The rows of `track`; the first one is always there.
    pub(super) fn of_track(&self, track: usize) -> std::ops::Range<usize> {
        let start = |track: usize| self.tracks.get(track).map_or(self.count, |(first, _)| *first);
        start(track)..start(track + 1)
    }

    /// The row of an operation.
    pub(super) fn row(&self, arrival: Arrival) -> usize {
        self.row_of(arrival.track, arrival.operation)
    }

    pub(super) fn row_of(&self, track: usize, operation: usize) -> usize {
        self.tracks[track].1[operation]
    }
}

/// The row of each of these times, from 0 on, and how many rows there are: the first row that is free when
/// one begins.
fn arrange(times: &[(u64, u64)]) -> (Vec<usize>, usize) {
    let mut in_order: Vec<usize> = (0..times.len()).collect();
    in_order.sort_by_key(|at| times[*at]);
    let (mut rows, mut ends) = (vec![0; times.len()], Vec::<u64>::new());
    for at in in_order {
        let (begin, end) = times[at];
        let free = ends.iter().position(|end| *end <= begin).unwrap_or(ends.len());
        if free == ends.len() {
            ends.push(0);
        }
        (ends[free], rows[at]) = (end, free);
    }
    (rows, ends.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_one_after_the_other_has_one_row() {
        assert_eq!(arrange(&[]), (vec![], 0));
        assert_eq!(arrange(&[(0, 5), (5, 5), (5, 7), (9, u64::MAX)]), (vec![0; 4], 1));
    }

    #[test]
    fn what_overlaps_has_rows_of_its_own() {
        // In the order in which they ended, as they are recorded.
        let times = [(2, 3), (0, 4), (3, 5), (1, 6), (6, 7), (4, u64::MAX), (8, u64::MAX)];
        let (rows, count) = arrange(&times);
        assert_eq!((&rows[..], count), (&[2, 0, 2, 1, 1, 0, 1][..], 3));
        for (a, b) in (0..times.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            assert!(rows[a] != rows[b] || times[a].1 <= times[b].0 || times[b].1 <= times[a].0);
        }
    }
}
