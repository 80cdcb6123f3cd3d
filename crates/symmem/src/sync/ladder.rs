//! The wait ladder: spin, yield, sleep. Every wait on shared memory in the library climbs it.
//!
//! Spinning is for peers that run on other cores, so there is none when ranks outnumber the cores; yielding lets
//! a peer run on this core; sleeping is a futex of at most one tick, after which the caller's [`Wait`] looks at
//! deadline, cancel token, abort, left and death.

use std::time::{Duration, Instant};

use symmem_store::{Interrupt, Wait};

use super::control::CounterWords;
use super::protocol::Bell;

/// How long to stay on each rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ladder {
    pub(crate) spins: u32,
    pub(crate) yielding: Duration,
}

impl Ladder {
    /// The rungs for `local_ranks` ranks on `cores` cores, `spins` being what the configuration asks for.
    pub(crate) fn for_ranks(local_ranks: usize, cores: usize, spins: u32) -> Self {
        if local_ranks > cores {
            // A pure spinner here loses whole scheduler quanta; a yield gives the core to the peer waited for.
            return Self { spins: 0, yielding: Duration::from_millis(1) };
        }
        Self { spins, yielding: Duration::from_micros(50) }
    }

    /// The first rung: polls, without any system call.
    #[inline]
    pub(crate) fn spin<T>(&self, counters: &CounterWords, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spins = 0;
        // One place that calls `poll`, so that it is inlined.
        loop {
            let found = poll();
            if found.is_some() || spins == self.spins {
                CounterWords::add(&counters.spins, spins.into());
                return found;
            }
            spins += 1;
            std::hint::spin_loop();
        }
    }

    /// The second rung: gives the core to somebody else between polls. Bounded by the clock, because one yield can
    /// take a whole scheduler quantum and nobody looks at the group meanwhile.
    pub(crate) fn give_way<T>(
        &self,
        counters: &CounterWords,
        since: Instant,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            rustix::thread::sched_yield();
            CounterWords::add(&counters.yields, 1);
            if let Some(value) = poll() {
                return Some(value);
            }
            if since.elapsed() > self.yielding {
                return None;
            }
        }
    }

    /// The last rung, once: sleeps on `bell` for at most `slice`, unless `poll` gives a value.
    pub(crate) fn nap<T>(
        bell: &Bell,
        counters: &CounterWords,
        slice: Duration,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if slice == Duration::ZERO {
            return poll();
        }
        CounterWords::add(&counters.sleeps, 1);
        let mut found = None;
        bell.sleep(slice, || {
            found = poll();
            found.is_some()
        });
        found
    }

    /// The last rung: sleeps on `bell` until `poll` gives a value or `wait` ends.
    pub(crate) fn sleep<T>(
        bell: &Bell,
        counters: &CounterWords,
        wait: &Wait<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Interrupt> {
        wait.until(|slice| Ok(Self::nap(bell, counters, slice, &mut poll)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_outnumber_the_cores_do_not_spin() {
        assert_eq!(Ladder::for_ranks(4, 2, 1000).spins, 0);
        assert_eq!(Ladder::for_ranks(2, 2, 1000).spins, 1000);
    }
}
