//! Who is to blame: follows who waits for whom to those who wait for nobody, or cannot go on.

use std::time::Duration;

use super::{GroupState, Life, RankState, WaitState};

/// How long ago a rank must have launched what others have not for its GPU to count as waiting: hosts run
/// ahead of their GPUs, and of each other, all the time.
const LATE: Duration = Duration::from_secs(1);

/// Fills in what follows from what the ranks do.
pub(super) fn judge(group: &mut GroupState) {
    let on_devices: Vec<Option<WaitState>> =
        group.ranks.iter().map(|rank| wait_on_device(rank, &group.ranks)).collect();
    for (rank, wait) in group.ranks.iter_mut().zip(on_devices) {
        rank.waiting = rank.waiting.take().or(wait);
    }
    let awaited = awaited(&group.ranks);
    let mut culprits: Vec<usize> =
        awaited.iter().copied().filter(|rank| is_root(&group.ranks[*rank])).collect();
    culprits.sort_by_key(|rank| (severity(&group.ranks[*rank]), *rank));
    if culprits.is_empty() {
        group.cycle = cycle(&group.ranks, awaited.first().copied());
    }
    if let Some(failure) = &group.failure {
        culprits.retain(|rank| *rank != failure.culprit);
        culprits.insert(0, failure.culprit);
    }
    group.culprits = culprits;
}

/// The ranks that somebody waits for, in order.
fn awaited(ranks: &[RankState]) -> Vec<usize> {
    let waits = ranks.iter().filter_map(|rank| rank.waiting.as_ref());
    let mut awaited: Vec<usize> = waits.flat_map(|wait| wait.ranks.iter().copied()).collect();
    awaited.sort_unstable();
    awaited.dedup();
    awaited.retain(|rank| *rank < ranks.len());
    awaited
}

/// Whether it is no use to ask whom this rank waits for in turn.
fn is_root(rank: &RankState) -> bool {
    rank.life.is_gone() || rank.life == Life::Stopped || rank.waiting.is_none()
}

fn severity(rank: &RankState) -> usize {
    match rank.life {
        Life::Dead => 0,
        Life::Left => 1,
        Life::Stopped => 2,
        _ => 3,
    }
}

/// The ranks that wait for each other that one comes to from `start`.
fn cycle(ranks: &[RankState], start: Option<usize>) -> Vec<usize> {
    let mut way = Vec::new();
    let mut next = start;
    while let Some(rank) = next {
        if let Some(first) = way.iter().position(|seen| *seen == rank) {
            return way.split_off(first);
        }
        way.push(rank);
        next = ranks.get(rank).and_then(|rank| rank.waiting.as_ref()?.ranks.first().copied());
    }
    Vec::new()
}

/// For whom a GPU of `rank` waits, as far as launches tell: for who has launched less on the same lane.
fn wait_on_device(rank: &RankState, ranks: &[RankState]) -> Option<WaitState> {
    if rank.waiting.is_some() || rank.life.is_gone() {
        return None;
    }
    let lanes = rank.devices.iter().enumerate().flat_map(|(device, state)| {
        state.lanes.iter().enumerate().map(move |(lane, state)| ((device, lane), state))
    });
    let waits = lanes.filter_map(|((device, lane), mine)| {
        let since = mine.ago.filter(|ago| *ago >= LATE)?;
        let launched = |other: &&RankState| {
            let theirs = other.devices.get(device).and_then(|device| device.lanes.get(lane));
            theirs.is_some_and(|theirs| theirs.meetings < mine.meetings)
        };
        let behind: Vec<usize> = ranks.iter().filter(launched).map(|other| other.rank).collect();
        let wait = WaitState { operation: mine.last?, ranks: behind, since, lane: Some((device, lane)) };
        (!wait.ranks.is_empty()).then_some(wait)
    });
    waits.max_by_key(|wait| wait.since)
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceState, Failure, LaneState};
    use super::*;
    use crate::error::Cause;

    fn rank(rank: usize, life: Life, waits_for: &[usize]) -> RankState {
        let (ranks, since) = (waits_for.to_vec(), Duration::from_secs(5));
        let wait = WaitState { operation: "barrier", ranks, since, lane: None };
        RankState {
            rank,
            pid: Some(100 + rank as u32),
            life,
            operation: None,
            waiting: (!waits_for.is_empty()).then_some(wait),
            last: Vec::new(),
            counters: None,
            devices: Vec::new(),
        }
    }

    fn judged(ranks: Vec<RankState>, failure: Option<Failure>) -> GroupState {
        let mut group = GroupState {
            name: "g".to_owned(),
            id: "1".to_owned(),
            world: ranks.len(),
            made: Duration::ZERO,
            ranks,
            failure,
            culprits: Vec::new(),
            cycle: Vec::new(),
        };
        judge(&mut group);
        group
    }

    fn blamed(ranks: Vec<RankState>) -> (Vec<usize>, Vec<usize>) {
        let group = judged(ranks, None);
        (group.culprits, group.cycle)
    }

    use Life::{Dead, Running, Sleeping, Stopped};

    #[test]
    fn nobody_is_to_blame_where_nobody_waits() {
        assert_eq!(blamed(vec![rank(0, Running, &[]), rank(1, Stopped, &[])]), (vec![], vec![]));
    }

    #[test]
    fn the_chain_is_followed_to_its_end() {
        let ranks = vec![
            rank(0, Sleeping, &[1]),
            rank(1, Sleeping, &[2]),
            rank(2, Sleeping, &[3]),
            rank(3, Running, &[]),
        ];
        assert_eq!(blamed(ranks), (vec![3], vec![]));
    }

    #[test]
    fn the_dead_come_before_the_stopped_and_those_before_the_busy() {
        let ranks = vec![
            rank(0, Sleeping, &[1, 2, 3]),
            rank(1, Running, &[]),
            rank(2, Stopped, &[]),
            rank(3, Dead, &[]),
        ];
        assert_eq!(blamed(ranks), (vec![3, 2, 1], vec![]));
    }

    #[test]
    fn a_stopped_rank_is_not_to_blame_if_nobody_waits_for_it() {
        let ranks = vec![rank(0, Sleeping, &[2]), rank(1, Stopped, &[2]), rank(2, Sleeping, &[])];
        assert_eq!(blamed(ranks), (vec![2], vec![]));
        // It waits, and cannot see that what it waits for is there.
        let ranks = vec![rank(0, Sleeping, &[1]), rank(1, Stopped, &[0])];
        assert_eq!(blamed(ranks), (vec![1], vec![]));
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_a_cycle() {
        let ranks = vec![
            rank(0, Sleeping, &[1]),
            rank(1, Sleeping, &[2]),
            rank(2, Sleeping, &[1]),
            rank(3, Running, &[]),
        ];
        assert_eq!(blamed(ranks), (vec![], vec![1, 2]));
    }

    #[test]
    fn numbers_of_no_rank_do_no_harm() {
        assert_eq!(blamed(vec![rank(0, Sleeping, &[7]), rank(1, Running, &[])]).0, [0; 0]);
    }

    #[test]
    fn who_failed_the_group_comes_first() {
        let failure = Failure { culprit: 1, cause: Cause::Died, reason: String::new() };
        let group =
            judged(vec![rank(0, Sleeping, &[2]), rank(1, Dead, &[]), rank(2, Running, &[])], Some(failure));
        assert_eq!(group.culprits, [1, 2]);
    }

    fn with_lane(mut rank: RankState, meetings: u64, seconds: u64) -> RankState {
        let ago = Some(Duration::from_secs(seconds));
        let lane = LaneState { launches: meetings + 7, meetings, last: Some("all_reduce"), ago };
        rank.devices.push(DeviceState { device: 0, lanes: vec![lane], failure: None, is_aborted: false });
        rank
    }

    #[test]
    fn who_has_launched_less_is_waited_for_on_the_device() {
        let ranks = |seconds: u64| {
            vec![
                with_lane(rank(0, Sleeping, &[]), 5, seconds),
                with_lane(rank(1, Sleeping, &[]), 4, 60),
                with_lane(rank(2, Sleeping, &[]), 5, seconds),
            ]
        };
        let group = judged(ranks(9), None);
        assert_eq!(group.culprits, [1]);
        let wait = group.ranks[0].waiting.as_ref().expect("it waits");
        assert_eq!((&wait.ranks[..], wait.lane, wait.operation), (&[1][..], Some((0, 0)), "all_reduce"));
        // Hosts run ahead of each other.
        assert_eq!(blamed(ranks(0)), (vec![], vec![]));
    }
}
