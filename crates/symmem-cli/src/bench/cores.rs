//! The cores ranks run on.

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
