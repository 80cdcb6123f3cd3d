//! The clock that all processes of one boot share, for time stamps that peers compare.
//!
//! Anybody may call it. It counts nanoseconds since boot, suspend included, and never goes back. (A time namespace
//! may shift it: good for showing how long ago, not for deciding anything.)

use rustix::time::{ClockId, clock_gettime};

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
}
