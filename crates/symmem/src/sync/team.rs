//! The threads that share a rank's part of a large collective.
//!
//! A rank has `Config::threads_per_rank` of them, the one that calls included. The others are made by the
//! first collective that is large enough, sleep without using the processor between collectives (after a
//! short spin, where there is a core for everybody), and end when the group goes; nobody waits for that. Work
//! is divided by ranges of elements, so the number of threads never changes a bit of the result, and may
//! differ between ranks.
//!
//! They inherit the affinity mask of the thread whose collective made them. To give a rank several cores,
//! start it with a mask of that many (`taskset -c 0-3`, `numactl --physcpubind=0-3`) or with none. With one
//! core per rank they only cost time. A forked child never comes here: its operations end before.
//!
//! Used by `collective` while an operation of the group runs.

#![allow(unsafe_code, reason = "work that is borrowed by other threads")]

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::sys::{fork, limits};

/// Bytes to be read and written by a rank from which on several threads are worth their wake-up.
const LARGE: usize = 1 << 20;
/// Polls between two looks at the clock.
const POLLS: u32 = 64;

/// The threads of a rank in a group, made when first needed.
#[derive(Debug)]
pub(crate) struct RankThreads {
    /// The calling one included.
    threads: usize,
    rank: usize,
    /// Ranks of the group on this host.
    ranks: usize,
    spin: Duration,
    team: OnceLock<Team>,
}

impl RankThreads {
    /// For `rank`, one of `ranks` on this host.
    pub(crate) fn new(rank: usize, ranks: usize, config: &Config) -> Self {
        let (threads, spin) = (*config.threads_per_rank, *config.spin);
        Self { threads, rank, ranks, spin, team: OnceLock::new() }
    }

    /// Calls `work(part, parts)` for every part, by as many threads, if reading and writing `bytes` bytes is
    /// worth it; else `work(0, 1)`. Returns when all parts are done. A panic in a part is a panic here.
    #[inline]
    pub(crate) fn share(&self, bytes: usize, work: impl Fn(usize, usize) + Sync) {
        if self.threads == 1 || bytes < LARGE {
            return work(0, 1);
        }
        self.team().run(&work);
    }

    #[cold]
    fn team(&self) -> &Team {
        self.team.get_or_init(|| {
            let fits = self.ranks.saturating_mul(self.threads) <= limits::usable_cores();
            Team::start(self.rank, self.threads - 1, if fits { self.spin } else { Duration::ZERO })
        })
    }
}

/// Helper threads. Dropping it lets them end.
struct Team {
    shared: Arc<TeamShared>,
    helpers: usize,
    /// Held by whoever has work done.
    turn: Mutex<()>,
}

/// What the helpers share with the one who calls.
///
/// # Memory ordering
/// `round` and `left` are for spinning. A round is taken up under the lock of `state`, which orders the work
/// after whatever the caller did; `left` is counted down with Release and seen to be 0 with Acquire, which
/// orders the caller after the work.
struct TeamShared {
    state: Mutex<TeamState>,
    started: Condvar,
    ended: Condvar,
    /// The last round, or [`CLOSED`].
    round: AtomicU64,
    /// Helpers that have not ended this round.
    left: AtomicUsize,
    spin: Duration,
}

/// The round that never comes: the team is no longer needed.
const CLOSED: u64 = u64::MAX;

#[derive(Default)]
struct TeamState {
    work: Option<TeamWork>,
    /// What the first part that panicked said.
    panic: Option<Box<dyn Any + Send>>,
}

/// What the helpers do in a round.
#[derive(Clone, Copy)]
struct TeamWork {
    /// Valid until the last helper has counted `left` down.
    call: *const (dyn Fn(usize, usize) + Sync),
    parts: usize,
}

// SAFETY: what it points to may be called from any thread (`Sync`), for as long as the helpers do.
unsafe impl Send for TeamWork {}

impl Team {
    /// Starts `helpers` threads, or as many as the system lets.
    fn start(rank: usize, helpers: usize, spin: Duration) -> Self {
        let shared = Arc::new(TeamShared {
            state: Mutex::default(),
            started: Condvar::new(),
            ended: Condvar::new(),
            round: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            spin,
        });
        let start = |part: &usize| {
            let (shared, part) = (Arc::clone(&shared), *part);
            let name = format!("rank {rank} part {part}");
            let thread = std::thread::Builder::new().name(name).spawn(move || shared.help(part));
            thread
                .inspect_err(|error| tracing::warn!(rank, %error, "a rank has fewer threads than asked for"))
        };
        // Fewer threads do the same work: a reason to be slower, not to fail.
        let helpers = (1..=helpers).take_while(|part| start(part).is_ok()).count();
        Self { shared, helpers, turn: Mutex::default() }
    }

    fn run(&self, work: &(dyn Fn(usize, usize) + Sync)) {
        let _turn = lock(&self.turn);
        let parts = self.helpers + 1;
        self.shared.begin(work, self.helpers);
        // Whatever happens, the helpers must be done with `work` before this returns.
        let own = catch_unwind(AssertUnwindSafe(|| work(0, parts)));
        let helped = self.shared.end();
        if let Some(panic) = own.err().or(helped) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // A forked child has no threads to end, and may have got the lock locked.
        if fork::is_child() {
            return;
        }
        let state = lock(&self.shared.state);
        self.shared.round.store(CLOSED, Ordering::Relaxed);
        drop(state);
        self.shared.started.notify_all();
    }
}

impl TeamShared {
    /// Hands `work` to the helpers, none of which is at work.
    fn begin<'a>(&self, work: &'a (dyn Fn(usize, usize) + Sync + 'a), helpers: usize) {
        // SAFETY: the lifetime is only forgotten: `end` is called before the caller's reference goes.
        let call: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(work) };
        let mut state = lock(&self.state);
        state.work = Some(TeamWork { call, parts: helpers + 1 });
        self.left.store(helpers, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.started.notify_all();
    }

    /// Waits for all helpers; the panic of one of them.
    fn end(&self) -> Option<Box<dyn Any + Send>> {
        let all_ended = || self.left.load(Ordering::Acquire) == 0;
        self.spin_until(all_ended);
        let mut state = lock(&self.state);
        while !all_ended() {
            state = self.ended.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
        state.work = None;
        state.panic.take()
    }

    /// The life of the helper that does `part`.
    fn help(&self, part: usize) {
        let mut round = 0;
        while let Some(work) = self.next(&mut round) {
            // SAFETY: the caller keeps the work alive until this helper has counted `left` down.
            let call = unsafe { &*work.call };
            let outcome = catch_unwind(AssertUnwindSafe(|| call(part, work.parts)));
            if let Err(panic) = outcome {
                lock(&self.state).panic.get_or_insert(panic);
            }
            if self.left.fetch_sub(1, Ordering::Release) == 1 {
                // Not between the caller's look and its sleep.
                drop(lock(&self.state));
                self.ended.notify_all();
            }
        }
    }

    /// The work of the round after `round`; `None` when there is none to come. The caller begins no round
    /// before every helper has ended the last one, so none is missed.
    fn next(&self, round: &mut u64) -> Option<TeamWork> {
        let seen = *round;
        let has_begun = || self.round.load(Ordering::Relaxed) != seen;
        self.spin_until(has_begun);
        let mut state = lock(&self.state);
        while !has_begun() {
            state = self.started.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
        *round = self.round.load(Ordering::Relaxed);
        state.work.filter(|_| *round != CLOSED)
    }

    fn spin_until(&self, ready: impl Fn() -> bool) {
        if self.spin.is_zero() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.spin {
            for _ in 0..POLLS {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("helpers", &self.helpers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads of this process with this name.
    fn threads_called(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|comm| comm.trim() == name).count()
    }

    #[test]
    fn every_part_is_done_once_in_every_round() {
        for spin in [Duration::ZERO, Duration::from_micros(50)] {
            let team = Team::start(700, 3, spin);
            let done: [AtomicUsize; 4] = std::array::from_fn(|_| AtomicUsize::new(0));
            for round in 1..=500 {
                team.run(&|part, parts| {
                    assert_eq!(parts, 4);
                    done[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == round));
            }
        }
    }

    #[test]
    fn callers_take_turns() {
        let team = Team::start(701, 2, Duration::ZERO);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        team.run(&|part, _| {
                            sum.fetch_add(part + 1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 400 * (1 + 2 + 3));
    }

    #[test]
    fn a_panic_in_any_part_is_the_callers_after_all_parts_ended() {
        let team = Team::start(702, 2, Duration::ZERO);
        for guilty in 0..3 {
            let ended = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|part, _| {
                    if part == guilty {
                        panic!("part {part}");
                    }
                    std::thread::sleep(Duration::from_millis(5));
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let panic = outcome.unwrap_err();
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("part {guilty}")));
            assert_eq!(ended.into_inner(), 2);
        }
        // It goes on working.
        team.run(&|_, parts| assert_eq!(parts, 3));
    }

    #[test]
    fn threads_are_made_by_the_first_large_work_and_end_with_the_rank() {
        let threads = RankThreads::new(703, 1, &Config::from_env().unwrap().threads_per_rank(2));
        // A thread gives itself its name, and is gone from the list a little after its end.
        let wait_for = |threads: usize| {
            let start = Instant::now();
            while threads_called("rank 703 part 1") != threads {
                assert!(start.elapsed() < Duration::from_secs(20), "not {threads} threads");
                std::thread::yield_now();
            }
        };
        threads.share(LARGE - 1, |part, parts| assert_eq!((part, parts), (0, 1)));
        assert!(threads.team.get().is_none());
        threads.share(LARGE, |_, parts| assert_eq!(parts, 2));
        wait_for(1);
        drop(threads);
        wait_for(0);
    }

    #[test]
    fn one_thread_needs_no_team() {
        let threads = RankThreads::new(704, 1, &Config::from_env().unwrap().threads_per_rank(1));
        threads.share(usize::MAX, |part, parts| assert_eq!((part, parts), (0, 1)));
        assert!(threads.team.get().is_none());
    }
}
