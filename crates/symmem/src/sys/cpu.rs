//! Which core a thread runs on, and letting others have it.
//!
//! Called by the wait ladder, and where a thread is about to enter the kernel anyhow: by who wakes a sleeper,
//! and by who was woken.

#![allow(unsafe_code, reason = "system calls")]

/// The core that this thread runs on now, or none where the system does not tell.
pub(crate) fn current() -> Option<u32> {
    // SAFETY: takes nothing and touches nothing. With glibc it is a load from the thread's rseq area, or a
    // call of the vDSO.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Lets other threads run that wait for this core. The kernel lets who calls this run last.
#[inline]
pub(crate) fn give_way() {
    rustix::thread::sched_yield();
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_thread_is_on_the_core_that_it_is_bound_to() {
        let allowed = sched_getaffinity(None).unwrap();
        for core in (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)) {
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).unwrap();
            assert_eq!(super::current(), Some(core as u32));
        }
        sched_setaffinity(None, &allowed).unwrap();
    }
}
