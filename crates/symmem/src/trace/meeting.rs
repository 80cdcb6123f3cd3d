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
    /// The meetings that more than one rank was recorded at, those of a group one after the other. The last to arrive is the one that
    /// the others waited for.
    pub fn meetings(&self) -> Vec<Meeting> {
        let mut found: BTreeMap<(&str, Option<usize>, u64), Vec<Arrival>> = BTreeMap::new();
        for (track, operations) in self.tracks.iter().enumerate() {
            for (operation, one) in operations.operations.iter().enumerate() {
                let Some(number) = one.meeting else { continue };
                // Devices of a group meet by themselves, lane by lane, whatever their numbers on each rank.
                let key = (operations.id.as_str(), operations.lane, number);
                found.entry(key).or_default().push(Arrival { track, operation });
            }
        }
        let meetings = found.into_iter().filter(|(_, arrivals)| arrivals.len() > 1);
        let in_order = |(key, mut arrivals): ((&str, Option<usize>, u64), Vec<Arrival>)| {
            arrivals.sort_by_key(|arrival| self.operation(*arrival).begin_ns);
            Meeting { number: key.2, arrivals }
        };
        meetings.map(in_order).collect()
    }

    /// What a rank did at a meeting, or with a message, of this trace.
    pub fn operation(&self, arrival: Arrival) -> &Operation {
        &self.tracks[arrival.track].operations[arrival.operation]
    }

    /// Those of `meeting` who were there when the last one arrived, and for how many nanoseconds they had been.
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
