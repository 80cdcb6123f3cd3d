//! The wait ladder: spin, yield, sleep. Every wait on shared memory in the library climbs it.
//!
//! Spinning is for peers that run on other cores, so there is none when ranks outnumber the cores; yielding lets
//! a peer run on this core; sleeping is a futex of at most one tick, after which the caller's [`Wait`] looks at
//! deadline, cancel token, abort, left and death.

use std::time::Duration;

use symmem_store::{Interrupt, Wait};

use super::control::CounterWords;
use super::protocol::Bell;

/// How long to stay on each rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ladder {
    pub(crate) spins: u32,
    pub(crate) yields: u32,
}

impl Ladder {
    /// The rungs for `local_ranks` ranks on `cores` cores, `spins` being what the configuration asks for.
    pub(crate) fn for_ranks(local_ranks: usize, cores: usize, spins: u32) -> Self {
        if local_ranks > cores {
            // A pure spinner here loses whole scheduler quanta; a yield gives the core to the peer waited for.
            return Self { spins: 0, yields: 400 };
        }
        Self { spins, yields: 20 }
    }

    /// The first two rungs: polls without a system call other than `sched_yield`, looking at no clock.
    #[inline]
    pub(crate) fn climb<T>(&self, counters: &CounterWords, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        let (mut spins, mut yields) = (0, 0);
        // One call of `poll`, so that it is inlined.
        let found = loop {
            let found = poll();
            if found.is_some() {
                break found;
            }
            if spins < self.spins {
                spins += 1;
                std::hint::spin_loop();
            } else if yields < self.yields {
                yields += 1;
                rustix::thread::sched_yield();
            } else {
                break None;
            }
        };
        CounterWords::add(&counters.spins, spins.into());
        CounterWords::add(&counters.yields, yields.into());
        found
    }

    /// The last rung: sleeps on `bell` until `poll` gives a value or `wait` ends.
    pub(crate) fn sleep<T>(
        bell: &Bell,
        counters: &CounterWords,
        wait: &Wait<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Interrupt> {
        let mut found = None;
        wait.until(|slice| {
            if slice == Duration::ZERO {
                return Ok(poll());
            }
            CounterWords::add(&counters.sleeps, 1);
            bell.sleep(slice, || {
                found = poll();
                found.is_some()
            });
            Ok(found.take())
        })
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
