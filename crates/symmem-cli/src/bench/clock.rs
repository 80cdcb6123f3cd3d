//! The clock of all measurements: the processor's counter where it runs at one speed, else the system's.
//!
//! Both systems of a comparison pay for it, so it must cost little next to a barrier of a hundred
//! nanoseconds.

use std::time::{Duration, Instant};

/// Counts ticks. Only differences between two looks of one process mean anything.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
    ticks_per_us: f64,
    counter: bool,
}

impl Clock {
    /// A clock that knows how long its tick is.
    pub(super) fn calibrated() -> Self {
        let mut clock = Self { start: Instant::now(), ticks_per_us: 1000.0, counter: counter::is_steady() };
        if clock.counter {
            let (began, first) = (Instant::now(), clock.now());
            std::thread::sleep(Duration::from_millis(20));
            let (took, last) = (began.elapsed(), clock.now());
            clock.ticks_per_us = (last - first) as f64 / (took.as_secs_f64() * 1e6);
        }
        clock
    }

    /// Ticks since some moment. What comes before it in the program is done before it looks.
    #[inline(always)]
    pub(super) fn now(&self) -> u64 {
        if self.counter { counter::read() } else { self.start.elapsed().as_nanos() as u64 }
    }

    /// `ticks` in microseconds.
    pub(super) fn us(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_us
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

    /// Whether the counter runs at one speed and never stops ("invariant TSC").
    pub(super) fn is_steady() -> bool {
        const POWER: u32 = 0x8000_0007;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has both instructions.
        unsafe {
            _mm_lfence();
            _rdtsc()
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_steady() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_milliseconds_are_about_ten_milliseconds() {
        let clock = Clock::calibrated();
        let (began, first) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(10));
        let (took, ticks) = (began.elapsed(), clock.now() - first);
        // The second look may come late on a busy machine, never early.
        assert!(clock.us(ticks) > 0.9 * took.as_secs_f64() * 1e6);
    }
}
