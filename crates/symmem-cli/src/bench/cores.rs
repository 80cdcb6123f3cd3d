//! The cores ranks run on.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores this process may use.
pub(super) fn available() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
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

/// A core for each of `ranks`, none of which shares a physical one with another; none where there are not enough.
pub(super) fn apart(ranks: usize) -> Vec<usize> {
    let siblings = |core: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        std::fs::read_to_string(Path::new(&path)).unwrap_or_else(|_| core.to_string())
    };
    spread(&available(), siblings, ranks)
}

/// The first thread of each physical core, evenly; the last ones, because the first has the interrupts.
fn spread(cores: &[usize], siblings: impl Fn(usize) -> String, ranks: usize) -> Vec<usize> {
    let mut seen = Vec::new();
    let mut first = Vec::new();
    for core in cores {
        let name = siblings(*core);
        if !seen.contains(&name) {
            seen.push(name);
            first.push(*core);
        }
    }
    let step = first.len() / ranks.max(1);
    if step == 0 { Vec::new() } else { (1..=ranks).map(|rank| first[rank * step - 1]).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_spread_over_physical_cores() {
        let pairs = |core: usize| format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1);
        let cores: Vec<usize> = (0..16).collect();
        assert_eq!(spread(&cores, pairs, 2), [6, 14]);
        assert_eq!(spread(&cores, pairs, 8), [0, 2, 4, 6, 8, 10, 12, 14]);
        assert_eq!(spread(&cores, pairs, 9), [0usize; 0]);
        assert_eq!(spread(&cores, |core| core.to_string(), 2), [7, 15]);
        assert_eq!(spread(&[], pairs, 2), [0usize; 0]);
        assert!(apart(1).len() <= 1);
    }
}
