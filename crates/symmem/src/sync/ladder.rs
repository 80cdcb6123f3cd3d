//! The wait ladder: spin, yield, sleep. Every wait on shared memory in the library climbs it.
//!
//! Spinning is for peers that run on other cores, yielding lets a peer run on this core, and sleeping is a
//! futex of at most one tick, after which the caller's [`Wait`] looks at deadline, cancel token, abort, left
//! and death. Which rungs a wait climbs is the [`Outlook`]'s to say.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symmem_store::{Interrupt, Wait};

use super::control::CounterWords;
use super::protocol::Bell;
use crate::sys::{clock, cores, cpu};

/// Polls before the first look at the clock: a few microseconds at most. Short waits never look at it.
const FIRST_POLLS: u32 = 64;
/// Polls between two looks at the clock.
const POLLS: u32 = 16;
/// How long to yield before sleeping: ranks that outnumber the cores, and ranks that happen to share one.
const YIELDING_CROWDED: Duration = Duration::from_millis(1);
const YIELDING_TOGETHER: Duration = Duration::from_micros(50);
/// A yield that took longer than this went to somebody who does not yield in turn, unless a peer was at work.
const STALL: Duration = Duration::from_micros(500);
/// How long a peer works on each byte of an operation at most, with two ranks to a core that all read memory;
/// and on all of them.
const WORK_PER_BYTE: Duration = Duration::from_nanos(2);
const WORK_MOST: Duration = Duration::from_secs(1);
/// What a stall costs in good yields: each saves some 10 us of a sleep's 20, and a stall takes 4 ms.
const STALL_COSTS: u32 = 256;
/// Most good yields that are saved up: stalls come in bursts.
const MOST_CREDIT: u32 = 8 * STALL_COSTS;
/// For how long nobody yields after a stall that no good yields pay for; four times as long after each
/// further one, up to the most.
const PENALTY: Duration = Duration::from_millis(10);
const PENALTY_MOST: Duration = Duration::from_millis(60);
/// For how many times as long as its last move took a rank stays where it is: so it spends a part of its time
/// in moving, however busy the core is that it comes to.
const STAYS: u32 = 4;
/// For how long a rank that was woken from its own core believes to share it; then it spins once to see.
const TOGETHER: Duration = Duration::from_millis(20);
/// How many wake-ups from other cores make it believe the contrary.
const WAKEUPS: u32 = 8;
/// After so many good yields such a rank tries the first rung, and stays there until a wait goes beyond it.
const TRY_AGAIN: u32 = 64;

/// What a rank has seen of the machine lately, and which rungs it climbs by that.
///
/// - *Crowded*: ranks outnumber the cores. A spinner would keep a peer off its core for a slice of the
///   scheduler, so it yields.
/// - *Together*: who woke this rank ran on this very core, and could not have gone on while this rank spun.
///   So it moves to another one. The kernel would leave them together, because ranks that sleep in turns look
///   like one task; it puts who wakes up on a core that is idle, so a rank is woken from its own core only
///   where none is. Where it may not move, or has just done so, it yields, which keeps both ready to run.
/// - *Stalled*: a yield gave the core to other work for a slice, 4 ms mostly. So it sleeps at once: the
///   kernel lets who wakes up run soon, and who yields run last.
///
/// Who sleeps asks for short turns of its core first, or it would be woken and wait for the end of another's
/// turn.
///
/// Each is seen again from time to time, so that ranks come back to spinning when it pays. All of it is this
/// rank's own memory. Words are Relaxed: they are guesses, and whichever thread of the rank wrote last is
/// right enough.
#[derive(Debug)]
struct Outlook {
    crowded: bool,
    spin: Duration,
    /// How often the first rung polls: [`FIRST_POLLS`], or 0 where that is useless.
    polls: AtomicU32,
    /// Yields that did their work, and what is left of them after the stalls.
    good_yields: AtomicU32,
    credit: AtomicU32,
    /// For how long the last stall keeps this rank from yielding; these three in nanoseconds of the ladder's
    /// clock.
    penalty: AtomicU64,
    stalled_until: AtomicU64,
    together_until: AtomicU64,
    /// Until when this rank stays on its core.
    stays_until: AtomicU64,
}

/// How long to stay on each rung before the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rungs {
    spin: Duration,
    yielding: Duration,
}

impl Outlook {
    fn new(crowded: bool, spin: Duration) -> Self {
        let outlook = Self {
            crowded,
            spin,
            polls: AtomicU32::new(0),
            good_yields: AtomicU32::new(0),
            credit: AtomicU32::new(2 * STALL_COSTS),
            penalty: AtomicU64::new(0),
            stalled_until: AtomicU64::new(0),
            together_until: AtomicU64::new(0),
            stays_until: AtomicU64::new(0),
        };
        outlook.rungs(Duration::ZERO);
        outlook
    }

    /// The rungs of a wait that the first polls did not end, at time `now`.
    fn rungs(&self, now: Duration) -> Rungs {
        let together = nanos(now) < self.together_until.load(Ordering::Relaxed);
        let spin = if self.crowded || together { Duration::ZERO } else { self.spin };
        self.set_polling(!spin.is_zero());
        let stalled = nanos(now) < self.stalled_until.load(Ordering::Relaxed);
        let yielding = match (self.crowded, together) {
            _ if stalled => Duration::ZERO,
            (true, _) => YIELDING_CROWDED,
            (false, true) => YIELDING_TOGETHER,
            (false, false) => Duration::ZERO,
        };
        Rungs { spin, yielding }
    }

    fn set_polling(&self, useful: bool) {
        self.polls.store(if useful { FIRST_POLLS } else { 0 }, Ordering::Relaxed);
    }

    /// A yield took from `before` to `now`, and a peer may have worked for `work` of it; whether it is the
    /// last for now.
    fn yielded(&self, before: Duration, now: Duration, work: Duration) -> bool {
        if now.saturating_sub(before) <= STALL + work {
            return false;
        }
        let left = self.credit.load(Ordering::Relaxed).checked_sub(STALL_COSTS);
        let penalty = match left {
            Some(_) => 0,
            None => (4 * self.penalty.load(Ordering::Relaxed)).clamp(nanos(PENALTY), nanos(PENALTY_MOST)),
        };
        self.credit.store(left.unwrap_or(0), Ordering::Relaxed);
        self.penalty.store(penalty, Ordering::Relaxed);
        self.stalled_until.store(nanos(now) + penalty, Ordering::Relaxed);
        left.is_none()
    }

    /// A yield did its work: what was waited for has come.
    fn yielded_well(&self) {
        let credit = self.credit.load(Ordering::Relaxed) + 1;
        self.credit.store(credit.min(MOST_CREDIT), Ordering::Relaxed);
        let good = self.good_yields.load(Ordering::Relaxed).wrapping_add(1);
        self.good_yields.store(good, Ordering::Relaxed);
        if good.is_multiple_of(TRY_AGAIN) {
            self.set_polling(!self.crowded && !self.spin.is_zero());
        }
    }

    /// Whether to leave a core that a peer needs.
    fn may_move(&self, now: Duration) -> bool {
        nanos(now) >= self.stays_until.load(Ordering::Relaxed)
    }

    /// This rank has moved to another core, where it ran at time `now`.
    fn moved(&self, before: Duration, now: Duration) {
        let pause = now.saturating_sub(before) * STAYS;
        self.stays_until.store(nanos(now + pause), Ordering::Relaxed);
        self.together_until.store(0, Ordering::Relaxed);
    }

    /// This rank was woken at time `now`, from its own core or another.
    fn woken(&self, here: bool, now: Duration) {
        // One of several peers may be here and the others not: then the one that is here must get the core.
        let until = match here {
            true => nanos(now + TOGETHER),
            false => self.together_until.load(Ordering::Relaxed).saturating_sub(nanos(TOGETHER / WAKEUPS)),
        };
        self.together_until.store(until, Ordering::Relaxed);
    }
}

/// How long a peer works on `bytes` bytes at most.
fn work_on(bytes: u64) -> Duration {
    u32::try_from(bytes).map_or(WORK_MOST, |bytes| (bytes * WORK_PER_BYTE).min(WORK_MOST))
}

/// 64 bits of them are 584 years.
fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Whether what is waited for is there. The first rung is compiled for each wait and inlined; those below it
/// are one function for all, since a wait that gets there has lost more time than a call takes.
pub(crate) type Poll<'a> = &'a mut dyn FnMut() -> bool;

/// A rank's way to wait in a group.
#[derive(Debug)]
pub(crate) struct Ladder {
    outlook: Outlook,
    /// Where its clock starts, and what the clock that all ranks share shows there.
    start: Instant,
    shared_start: u64,
    /// Whether who sleeps asks for short turns.
    short_turns: bool,
}

impl Ladder {
    /// For `local_ranks` ranks on `cores` cores; `spin` is how long to spin on a quiet machine.
    pub(crate) fn for_ranks(local_ranks: usize, cores: usize, spin: Duration) -> Self {
        let outlook = Outlook::new(local_ranks > cores, spin);
        let (start, shared_start) = (Instant::now(), clock::boottime_ns());
        Self { outlook, start, shared_start, short_turns: true }
    }

    /// Whether who sleeps asks for short turns of its core; it does unless told otherwise.
    pub(crate) fn short_turns(self, short_turns: bool) -> Self {
        Self { short_turns, ..self }
    }

    /// `at` by the clock that all ranks share, to a microsecond or so.
    pub(crate) fn shared_time(&self, at: Instant) -> u64 {
        self.shared(self.time(at))
    }

    fn shared(&self, time: Duration) -> u64 {
        self.shared_start + nanos(time)
    }

    /// A time by the ladder's clock.
    fn time(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    fn now(&self) -> Duration {
        self.time(Instant::now())
    }

    /// The first rung: polls, without any system call and without a look at the clock.
    #[inline]
    pub(crate) fn spin<T>(&self, counters: &CounterWords, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        let most = self.outlook.polls.load(Ordering::Relaxed);
        let mut spins = 0;
        // One place that calls `poll`, so that it is inlined.
        loop {
            let found = poll();
            if found.is_some() || spins == most {
                CounterWords::add(&counters.spins, spins.into());
                return found;
            }
            spins += 1;
            std::hint::spin_loop();
        }
    }

    /// The rungs between the first and the last: spins by the clock, or yields, for as long as that may pay.
    /// Whether `poll` said yes meanwhile. `now` is when it begins, which the caller knows anyhow: looking at
    /// the clock is a good part of a yield. Peers may work on `bytes` bytes, and `worked` says whether one of
    /// them did something else than wait for most of a time, by the clock that all ranks share.
    pub(crate) fn linger(
        &self,
        counters: &CounterWords,
        now: Instant,
        bytes: u64,
        worked: &dyn Fn(u64, u64) -> bool,
        poll: Poll<'_>,
    ) -> bool {
        let start = self.time(now);
        match self.outlook.rungs(start) {
            Rungs { spin, .. } if !spin.is_zero() => self.spin_on(counters, start + spin, poll),
            Rungs { yielding, .. } if !yielding.is_zero() => {
                let work = |before, now| self.work(bytes, (before, now), worked);
                self.give_way(counters, (start, start + yielding), work, poll)
            }
            _ => false,
        }
    }

    fn spin_on(&self, counters: &CounterWords, end: Duration, poll: Poll<'_>) -> bool {
        let mut spins = 0u32;
        let found = loop {
            std::hint::spin_loop();
            let found = poll();
            spins += 1;
            if found || spins.is_multiple_of(POLLS) && self.now() > end {
                break found;
            }
        };
        CounterWords::add(&counters.spins, spins.into());
        found
    }

    /// For how long a peer may have worked on this core in a yield from `before` to `now`. Between operations
    /// peers fill buffers and compute, and only they know how much; where ranks outnumber the cores, whoever
    /// did not wait meanwhile is taken to have had this one.
    fn work(
        &self,
        bytes: u64,
        (before, now): (Duration, Duration),
        worked: impl Fn(u64, u64) -> bool,
    ) -> Duration {
        let work = work_on(bytes);
        let is_long = now.saturating_sub(before) > STALL + work;
        match is_long && self.outlook.crowded && worked(self.shared(before), self.shared(now)) {
            // As long as it took, however long that was; a stall is added to it.
            true => Duration::MAX - STALL,
            false => work,
        }
    }

    /// Gives the core to somebody else between polls. Bounded by the clock, because one yield can take a
    /// whole slice of the scheduler and nobody looks at the group meanwhile.
    fn give_way(
        &self,
        counters: &CounterWords,
        (start, end): (Duration, Duration),
        work: impl Fn(Duration, Duration) -> Duration,
        poll: Poll<'_>,
    ) -> bool {
        let mut before = start;
        loop {
            cpu::give_way();
            CounterWords::add(&counters.yields, 1);
            let found = poll();
            let now = self.now();
            let enough = self.outlook.yielded(before, now, work(before, now)) || now > end;
            if found {
                self.outlook.yielded_well();
            }
            if found || enough {
                return found;
            }
            before = now;
        }
    }

    /// The last rung, once: sleeps on `bell` for at most `slice`, unless `poll` says yes; whether it did.
    pub(crate) fn nap(&self, bell: &Bell, counters: &CounterWords, slice: Duration, poll: Poll<'_>) -> bool {
        if slice == Duration::ZERO {
            return poll();
        }
        CounterWords::add(&counters.sleeps, 1);
        if self.short_turns {
            cpu::ask_for_short_turns();
        }
        let found = bell.sleep(slice, poll);
        // Who outnumbers the cores yields wherever the others are.
        if !self.outlook.crowded
            && let Some(here) = bell.was_rung_here()
        {
            self.woken(here);
        }
        found
    }

    /// This rank was woken, from its own core or another.
    fn woken(&self, here: bool) {
        let before = self.now();
        let moves = here && self.outlook.may_move(before);
        match moves && cpu::current().is_some_and(|core| cores::leave(core as usize)) {
            true => self.outlook.moved(before, self.now()),
            false => self.outlook.woken(here, before),
        }
    }

    /// The last rung: sleeps on `bell` until `poll` says yes or `wait` ends.
    pub(crate) fn sleep(
        &self,
        bell: &Bell,
        counters: &CounterWords,
        wait: &Wait<'_>,
        poll: Poll<'_>,
    ) -> Result<(), Interrupt> {
        wait.until(|slice| Ok(self.nap(bell, counters, slice, poll).then_some(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(200);
    const SLICE: Duration = Duration::from_millis(4);
    const SPINNING: Rungs = Rungs { spin: SPIN, yielding: Duration::ZERO };
    const GIVING_WAY: Rungs = Rungs { spin: Duration::ZERO, yielding: YIELDING_TOGETHER };
    const CROWDED: Rungs = Rungs { spin: Duration::ZERO, yielding: YIELDING_CROWDED };
    const SLEEPING: Rungs = Rungs { spin: Duration::ZERO, yielding: Duration::ZERO };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn first_polls(outlook: &Outlook) -> u32 {
        outlook.polls.load(Ordering::Relaxed)
    }

    #[test]
    fn ranks_that_have_a_core_each_spin() {
        let ladder = Ladder::for_ranks(2, 2, SPIN);
        assert_eq!((first_polls(&ladder.outlook), ladder.outlook.rungs(at(1))), (FIRST_POLLS, SPINNING));
    }

    #[test]
    fn ranks_that_outnumber_the_cores_yield_at_once() {
        let ladder = Ladder::for_ranks(4, 2, SPIN);
        assert_eq!((first_polls(&ladder.outlook), ladder.outlook.rungs(at(1))), (0, CROWDED));
    }

    #[test]
    fn ranks_that_are_told_not_to_spin_sleep_at_once() {
        let outlook = Outlook::new(false, Duration::ZERO);
        assert_eq!((first_polls(&outlook), outlook.rungs(at(1))), (0, SLEEPING));
    }

    #[test]
    fn who_is_told_not_to_ask_for_short_turns_keeps_its_own() {
        let asks = |short_turns: bool| {
            std::thread::spawn(move || {
                let ladder = Ladder::for_ranks(2, 2, SPIN).short_turns(short_turns);
                let (before, counters) = (cpu::turn_ns(), CounterWords::default());
                assert!(!ladder.nap(&Bell::default(), &counters, Duration::from_micros(1), &mut || false));
                cpu::turn_ns() < before
            })
            .join()
            .unwrap()
        };
        assert!(!asks(false));
        println!("short turns can be had here: {}", asks(true));
    }

    #[test]
    fn who_is_woken_from_its_own_core_gives_way_for_a_while() {
        let outlook = Outlook::new(false, SPIN);
        outlook.woken(false, at(1));
        assert_eq!(outlook.rungs(at(1)), SPINNING);
        outlook.woken(true, at(1));
        assert_eq!((outlook.rungs(at(1)), first_polls(&outlook)), (GIVING_WAY, 0));
        assert_eq!((outlook.rungs(at(1) + TOGETHER), first_polls(&outlook)), (SPINNING, FIRST_POLLS));
    }

    #[test]
    fn who_has_moved_spins_again_and_stays_for_a_while() {
        let outlook = Outlook::new(false, SPIN);
        outlook.woken(true, at(1));
        assert!(outlook.may_move(at(1)));
        // It had to wait for its new core for a slice.
        outlook.moved(at(1), at(1) + SLICE);
        assert_eq!(outlook.rungs(at(1) + SLICE), SPINNING);
        assert!(!outlook.may_move(at(1) + STAYS * SLICE));
        // There it shares the core again: it gives way meanwhile.
        outlook.woken(true, at(1) + STAYS * SLICE);
        assert_eq!(outlook.rungs(at(1) + STAYS * SLICE), GIVING_WAY);
        assert!(outlook.may_move(at(1) + (STAYS + 1) * SLICE));
    }

    #[test]
    fn who_gives_way_tries_to_poll_from_time_to_time() {
        let outlook = Outlook::new(false, SPIN);
        outlook.woken(true, at(1));
        let tries = (0..100 * TRY_AGAIN).filter(|_| {
            assert_eq!((outlook.rungs(at(1)), first_polls(&outlook)), (GIVING_WAY, 0));
            outlook.yielded_well();
            first_polls(&outlook) == FIRST_POLLS
        });
        assert_eq!(tries.count(), 100);
    }

    #[test]
    fn who_is_woken_from_other_cores_spins_again() {
        let outlook = Outlook::new(false, SPIN);
        (0..1000).for_each(|_| outlook.woken(true, at(1)));
        // One of the peers is here and another is not.
        (0..1000).for_each(|wakeup| outlook.woken(wakeup % 2 == 1, at(1)));
        assert_eq!(outlook.rungs(at(1)), GIVING_WAY);
        let others = || outlook.woken(false, at(1));
        let wakeups = (0..).take_while(|_| outlook.rungs(at(1)) == GIVING_WAY).map(|_| others()).count();
        assert_eq!(wakeups, WAKEUPS as usize);
    }

    #[test]
    fn nobody_yields_to_work_that_does_not_yield_in_turn() {
        for crowded in [true, false] {
            let outlook = Outlook::new(crowded, SPIN);
            let (mut now, mut lost) = (at(0), Duration::ZERO);
            // For ten seconds a few yields do their work, then one takes a slice.
            while now < at(10_000) {
                outlook.woken(true, now);
                if outlook.rungs(now) != SLEEPING {
                    (0..10).for_each(|_| outlook.yielded_well());
                    let last = outlook.yielded(now, now + SLICE, work_on(1024));
                    (now, lost) = (now + SLICE, lost + SLICE);
                    assert_eq!(outlook.rungs(now) == SLEEPING, last);
                }
                now += at(1);
            }
            assert!(lost < at(800), "lost {lost:?} of ten seconds");
            now += PENALTY_MOST;
            outlook.woken(true, now);
            assert_ne!(outlook.rungs(now), SLEEPING);
        }
    }

    #[test]
    fn good_yields_pay_for_stalls() {
        let outlook = Outlook::new(true, SPIN);
        assert!(!outlook.yielded(at(1), at(1) + STALL, Duration::ZERO));
        (0..10 * MOST_CREDIT).for_each(|_| outlook.yielded_well());
        for _ in 0..MOST_CREDIT / STALL_COSTS {
            assert!(!outlook.yielded(at(10), at(10) + SLICE, Duration::ZERO));
            assert_eq!(outlook.rungs(at(14)), CROWDED);
        }
        assert!(outlook.yielded(at(20), at(20) + SLICE, Duration::ZERO));
        assert_eq!(outlook.rungs(at(24)), SLEEPING);
        assert_eq!(outlook.rungs(at(24) + PENALTY), CROWDED);
    }

    #[test]
    fn a_peer_that_works_on_a_large_message_is_no_stall() {
        let outlook = Outlook::new(true, SPIN);
        for _ in 0..10 * MOST_CREDIT {
            assert!(!outlook.yielded(at(10), at(10) + SLICE, work_on(4 << 20)));
            assert!(!outlook.yielded(at(10), at(10) + WORK_MOST, work_on(u64::MAX)));
        }
        assert_eq!(outlook.rungs(at(14)), CROWDED);
    }

    #[test]
    fn a_peer_that_did_not_wait_is_no_stall_where_ranks_share_cores() {
        for (ranks, is_excused) in [(4, true), (2, false)] {
            let ladder = Ladder::for_ranks(ranks, 2, SPIN);
            let asked = |worked| ladder.work(1024, (at(10), at(14)), |_, _| worked);
            assert_eq!(asked(false), work_on(1024));
            assert!(!ladder.outlook.yielded(at(10), at(14), asked(false)));
            assert_eq!(asked(true) > WORK_MOST, is_excused, "{ranks} ranks");
            for _ in 0..10 * MOST_CREDIT {
                assert!(!is_excused || !ladder.outlook.yielded(at(10), at(14), asked(true)));
            }
            // A short yield asks nobody.
            ladder.work(1024, (at(10), at(10) + STALL), |_, _| unreachable!());
        }
    }

    #[test]
    fn lingering_ends_by_the_clock() {
        for (ranks, cores, least) in [(1, 1, SPIN), (2, 1, STALL)] {
            let ladder = Ladder::for_ranks(ranks, cores, SPIN);
            let (counters, start) = (CounterWords::default(), Instant::now());
            assert!(!ladder.linger(&counters, start, 0, &|_, _| false, &mut || false));
            assert!(start.elapsed() >= least);
            let climbed = if ranks > cores { &counters.yields } else { &counters.spins };
            assert!(climbed.load(Ordering::Relaxed) > 0);
        }
    }
}
