//! How ranks wait when there is no core for each of them: never by keeping the core from the one they wait
//! for.
//!
//! Times are bounds that a rank that spins, or yields to a busy loop, is far beyond, and the best of a few
//! tries: other programs may take the cores away at any moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symmem::{Group, Result};

const TRIES: usize = 5;

/// Binds this thread to the first core that it may use.
fn stay_on_the_first_core() {
    // SAFETY: the sets are plain memory of the size told.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &allowed));
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first.expect("a core"), &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
    }
}

/// Calls `work` beside `loops` threads that do nothing but keep a core busy: the first one if `bound`.
fn beside<R>(loops: usize, bound: bool, work: impl FnOnce() -> R) -> R {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                if bound {
                    stay_on_the_first_core();
                }
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also when `work` panics, or the scope waits for ever.
        let _end = End(&over);
        work()
    })
}

/// Time of one of `count` barriers.
fn barriers(group: &Group, count: u32) -> Result<Duration> {
    group.barrier()?;
    let start = Instant::now();
    for _ in 0..count {
        group.barrier()?;
    }
    Ok(start.elapsed() / count)
}

/// Whether a barrier takes at most `bound` in one of a few tries.
fn assert_within(bound: Duration, mut barrier: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    while times.len() < TRIES {
        times.push(barrier());
        if times.last() <= Some(&bound) {
            return;
        }
    }
    panic!("a barrier takes {times:?}");
}

/// Two ranks that joined with a core for each and were then bound to one.
fn on_one_core(count: u32) -> Duration {
    let times = symmem::spawn(2, |group| {
        stay_on_the_first_core();
        barriers(&group, count)
    });
    times.expect("two ranks").into_iter().max().expect("a time")
}

#[test]
fn ranks_on_one_core_give_way_to_each_other() {
    assert_within(Duration::from_micros(100), || on_one_core(1000));
}

#[test]
fn ranks_on_one_core_with_a_busy_loop_do_not_yield_to_it() {
    assert_within(Duration::from_millis(1), || beside(1, true, || on_one_core(1000)));
}

#[test]
fn ranks_that_outnumber_the_cores_do_not_wait_for_busy_loops() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Enough to be crowded, few enough for a large machine.
    let ranks = (cores + 2).min(64);
    let crowd = || {
        let times = symmem::spawn(ranks, |group| barriers(&group, 300));
        times.expect("ranks").into_iter().max().expect("a time")
    };
    assert_within(Duration::from_millis(2), || beside(cores, false, crowd));
}
