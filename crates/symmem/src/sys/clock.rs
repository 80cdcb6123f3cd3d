//! The clock that all processes of one boot share, for time stamps that peers compare.
//!
//! Anybody may call it. It counts nanoseconds since boot, suspend included, and never goes back. (A time
//! namespace may shift it: good for showing how long ago, not for deciding anything.)

#![allow(unsafe_code, reason = "the processor's clock")]

use rustix::time::{ClockId, clock_gettime};

/// A clock that takes a few nanoseconds to read, for who looks at it in every operation. All processes of
/// this host read the same one; who wants nanoseconds compares it with [`boottime_ns`] twice, see
/// `trace::scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ticks {
    /// Nanoseconds since boot.
    Boot,
    /// The processor's counter, where the kernel itself takes it for a clock: then it runs evenly, and alike
    /// on all cores.
    Counter,
}

impl Ticks {
    /// The quickest clock of this machine.
    pub(crate) fn quickest() -> Self {
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let has_counter = cfg!(target_arch = "aarch64")
            || cfg!(target_arch = "x86_64")
                && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc");
        if has_counter { Self::Counter } else { Self::Boot }
    }

    /// What it shows.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        match self {
            Self::Boot => boottime_ns(),
            Self::Counter => counter(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every processor of this architecture has the instruction, and the kernel uses it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let count: u64;
    // SAFETY: reads a register that the kernel lets every program read, and nothing else.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    boottime_ns()
}

/// Nanoseconds since boot (`CLOCK_BOOTTIME`).
pub(crate) fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Both fields are non-negative on this clock.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_forward() {
        let before = boottime_ns();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(boottime_ns() >= before + 2_000_000);
    }

    #[test]
    fn ticks_move_forward_on_all_threads() {
        for ticks in [Ticks::Boot, Ticks::quickest()] {
            let before = ticks.now();
            let there = std::thread::spawn(move || ticks.now()).join().unwrap();
            assert!(before < there && there < ticks.now());
        }
    }
}
