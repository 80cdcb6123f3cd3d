//! The cores ranks run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use symmem::{Pin, Placement};

/// The cores this process may use: one of each physical one first, so that ranks share one only when they
/// have to.
pub(super) fn available() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let all = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
    physical_first(&Placement::new(1, Some(Pin::Cores)).map_or_else(|_| Vec::new(), |one| one.cores(0)), all)
}

fn physical_first(physical: &[usize], all: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut cores: Vec<usize> = all.collect();
    // Stable: else in the kernel's order.
    cores.sort_by_key(|core| !physical.contains(core));
    cores
}

/// Keeps rank `rank` on one of `cores`; false where that is not allowed.
pub(super) fn pin(cores: &[usize], rank: usize) -> bool {
    let mut set = CpuSet::new();
    let Some(core) = cores.get(rank % cores.len().max(1)).filter(|core| **core < CpuSet::MAX_CPU) else {
        return false;
    };
    set.set(*core);
    sched_setaffinity(None, &set).is_ok()
}

/// A core for each of `ranks`, none of which shares a physical one with another; none where there are not
/// enough.
pub(super) fn apart(ranks: usize) -> Vec<usize> {
    let Ok(placement) = Placement::new(ranks, Some(Pin::Cores)) else { return Vec::new() };
    spread((0..ranks).map(|rank| placement.cores(rank)).collect())
}

/// The last core of each share, because the first has the interrupts.
fn spread(shares: Vec<Vec<usize>>) -> Vec<usize> {
    let mut found: Vec<usize> = shares.iter().filter_map(|share| share.last().copied()).collect();
    let ranks = found.len();
    found.sort_unstable();
    found.dedup();
    if found.len() == ranks { found } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_spread_over_physical_cores() {
        assert_eq!(spread(vec![vec![0, 2, 4, 6], vec![8, 10, 12, 14]]), [6, 14]);
        assert_eq!(spread(vec![vec![0], vec![2], vec![0]]), [0usize; 0]);
        assert_eq!(spread(vec![]), [0usize; 0]);
        assert!(apart(1).len() <= 1);
    }

    #[test]
    fn siblings_come_last() {
        assert_eq!(physical_first(&[0, 2], 0..4), [0, 2, 1, 3]);
        assert_eq!(physical_first(&[], 0..2), [0, 1]);
        assert!(!available().is_empty());
    }
}
