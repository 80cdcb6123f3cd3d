//! Which core a thread runs on, letting others have it, and how soon who was woken has it again.
//!
//! Called by the wait ladder, and where a thread is about to enter the kernel anyhow: by who wakes a sleeper,
//! and by who was woken. Whatever happens here, the kernel gives every thread the same share of a core.

#![allow(unsafe_code, reason = "system calls")]

use std::cell::Cell;

/// The shortest turn that the kernel gives. Its own is 0.7 ms and more, and who is woken waits for the end of
/// somebody else's turn unless its own is shorter.
const TURN_NS: u64 = 100_000;
/// What a thread starts is scheduled as usual. The price: from then on Linux lets nobody without privileges
/// change the thread's policy, unless with this flag.
const RESET_ON_FORK: u64 = 1;

/// The kernel's `sched_attr` in its first and shortest form. Of an ordinary thread, `turn_ns` is its turn.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    turn_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

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

/// Asks the kernel for short turns for this thread, once. Older kernels than 6.12 have one length for all,
/// and who has chosen a policy, a priority or turns that are as short is left alone. Longer turns that
/// somebody chose cannot be told from the kernel's own.
#[inline]
pub(crate) fn ask_for_short_turns() {
    if !ASKED.replace(true) {
        ask();
    }
}

#[cold]
fn ask() {
    let Some(mut scheduling) = scheduling() else { return };
    let is_usual = scheduling.policy as i32 == libc::SCHED_OTHER && scheduling.nice == 0;
    if is_usual && scheduling.turn_ns > TURN_NS {
        scheduling.turn_ns = TURN_NS;
        scheduling.flags |= RESET_ON_FORK;
        // Where it is refused, turns are as long as before.
        let _ = call(libc::SYS_sched_setattr, &mut scheduling, 0);
    }
}

/// The turn of this thread; 0 where the system does not tell.
#[cfg(test)]
pub(crate) fn turn_ns() -> u64 {
    scheduling().map_or(0, |scheduling| scheduling.turn_ns)
}

/// How this thread is scheduled. Kernels that know no turns say 0.
fn scheduling() -> Option<Scheduling> {
    let size = size_of::<Scheduling>();
    let mut scheduling = Scheduling { size: size as u32, ..Scheduling::default() };
    call(libc::SYS_sched_getattr, &mut scheduling, size).then_some(scheduling)
}

/// The system call `number` of those two for this thread; whether it was carried out.
fn call(number: libc::c_long, scheduling: &mut Scheduling, third: usize) -> bool {
    // SAFETY: both read or write no more than the structure's own size says, and one has no fourth argument.
    unsafe { libc::syscall(number, 0, std::ptr::from_mut(scheduling), third, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

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

    /// On a thread of its own, which ends with the test.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn turns_are_short_and_those_of_what_a_thread_starts_are_not() {
        on_a_thread(|| {
            let before = scheduling();
            ask_for_short_turns();
            let after = scheduling();
            // Not there, or not allowed here: then nothing changes.
            let (Some(before), Some(after)) = (before, after) else { return };
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
            assert!(after.turn_ns == before.turn_ns || after.turn_ns == TURN_NS);
            on_a_thread(move || assert_eq!(turn_ns(), before.turn_ns));
        });
    }

    #[test]
    fn who_has_chosen_is_left_alone() {
        for chosen in [
            Scheduling { policy: libc::SCHED_IDLE as u32, ..Scheduling::default() },
            Scheduling { policy: libc::SCHED_BATCH as u32, ..Scheduling::default() },
            Scheduling { nice: 5, ..Scheduling::default() },
            Scheduling { turn_ns: TURN_NS, flags: RESET_ON_FORK, ..Scheduling::default() },
        ] {
            on_a_thread(move || {
                let mut chosen = Scheduling { size: size_of::<Scheduling>() as u32, ..chosen };
                if call(libc::SYS_sched_setattr, &mut chosen, 0) {
                    let before = scheduling().unwrap();
                    ask_for_short_turns();
                    assert_eq!(format!("{:?}", scheduling().unwrap()), format!("{before:?}"));
                }
            });
        }
    }
}
