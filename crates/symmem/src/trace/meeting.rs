//! Which rank came last, meeting by meeting.

use std::collections::BTreeMap;

use super::{Operation, Trace};

/// An operation that all ranks made together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Meeting {
    /// Its number in the group.
    pub number: u64,
    /// Everybody who was recorded, in the order in which they arrived.
    pub arrivals: Vec<Arrival>,
}

/// A rank's part in a meeting, or in a message, as places in a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// The rank's track.
    pub track: usize,
    /// Its operation there.
    pub operation: usize,
}

impl Trace {
    /// The meetings that more than one rank was recorded at, those of a group one after the other. The last
    /// to arrive is the one that the others waited for.
    pub fn meetings(&self) -> Vec<Meeting> {
        // Devices of a group meet by themselves, engine by engine and lane by lane, whatever their numbers on
        // each rank.
        type Key<'a> = (&'a str, Option<usize>, Option<usize>, u64);
        let mut found: BTreeMap<Key<'_>, Vec<Arrival>> = BTreeMap::new();
        for (track, operations) in self.tracks.iter().enumerate() {
            for (operation, one) in operations.operations.iter().enumerate() {
                let Some(number) = one.meeting else { continue };
                let key = (operations.id.as_str(), operations.engine, operations.lane, number);
                found.entry(key).or_default().push(Arrival { track, operation });
            }
        }
        let meetings = found.into_iter().filter(|(_, arrivals)| arrivals.len() > 1);
        let in_order = |((.., number), mut arrivals): (Key<'_>, Vec<Arrival>)| {
            arrivals.sort_by_key(|arrival| self.operation(*arrival).begin_ns);
            Meeting { number, arrivals }
        };
        meetings.map(in_order).collect()
    }

    /// What a rank did at a meeting, or with a message, of this trace.
    pub fn operation(&self, arrival: Arrival) -> &Operation {
        &self.tracks[arrival.track].operations[arrival.operation]
    }

    /// Those of `meeting` who were there when the last one arrived, and for how many nanoseconds they had
    /// been.
    pub fn waiters(&self, meeting: &Meeting) -> Vec<(Arrival, u64)> {
        let Some((last, others)) = meeting.arrivals.split_last() else { return Vec::new() };
        let came = self.operation(*last).begin_ns;
        let waited = |arrival: &Arrival| {
            let one = self.operation(*arrival);
            let is_there = one.end_ns.is_none_or(|end| end >= came);
            is_there.then(|| (*arrival, came.saturating_sub(one.begin_ns)))
        };
        others.iter().filter_map(waited).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::operation;
    use super::super::{Trace, Track};

    /// The track of a lane whose only operation was the one with this number, begun at `begin_ns`.
    fn track(rank: usize, (engine, lane): (usize, usize), number: u64, begin_ns: u64) -> Track {
        let operations = vec![super::Operation { meeting: Some(number), begin_ns, ..operation("barrier") }];
        let (group, id) = ("g".to_owned(), "id".to_owned());
        let (device, lane, engine) = (Some(rank), Some(lane), Some(engine));
        Track { group, id, rank, world: 2, pid: 1, device, lane, engine, mailbox: None, operations }
    }

    #[test]
    fn devices_meet_engine_by_engine_and_lane_by_lane() {
        let places = [(0, 0), (1, 0), (0, 1)];
        // Rank 1 is late on the first of them, rank 0 on the others.
        let times = [[10, 20], [20, 10], [20, 10]];
        let tracks = places.into_iter().zip(times).flat_map(|(place, times)| {
            times.into_iter().enumerate().map(move |(rank, at)| track(rank, place, 2, at))
        });
        let trace = Trace { tracks: tracks.collect(), lost: 0 };
        let meetings = trace.meetings();
        let last = meetings.iter().map(|meeting| {
            assert_eq!((meeting.number, meeting.arrivals.len()), (2, 2));
            let last = &trace.tracks[meeting.arrivals[1].track];
            (last.engine, last.lane, last.rank)
        });
        let expected = [(Some(0), Some(0), 1), (Some(0), Some(1), 0), (Some(1), Some(0), 0)];
        assert_eq!(last.collect::<Vec<_>>(), expected);
    }
}
