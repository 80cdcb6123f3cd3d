//! From ticks of the quick clock to nanoseconds, by looking at both clocks when a trace begins and when it
//! ends.

use crate::sys::clock::{Ticks, boottime_ns};

/// What both clocks showed, when the trace began and when it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    start: (u64, u64),
    end: (u64, u64),
}

/// Both clocks at once, or nearly: of several looks the quickest.
fn look() -> (u64, u64) {
    let ticks = Ticks::quickest();
    let looks = (0..16).map(|_| {
        let (before, ns, after) = (ticks.now(), boottime_ns(), ticks.now());
        (after - before, (before + (after - before) / 2, ns))
    });
    looks.min_by_key(|(took, _)| *took).map_or((0, 0), |(_, both)| both)
}

impl Scale {
    pub(super) fn start() -> Self {
        let start = look();
        Self { start, end: start }
    }

    /// The scale at the end of the trace.
    pub(super) fn end(self) -> Self {
        Self { end: look(), ..self }
    }

    /// `now` of `clock`, in nanoseconds since boot.
    pub(super) fn nanoseconds(&self, clock: Ticks, now: u64) -> u64 {
        if clock == Ticks::Boot {
            return now;
        }
        let ((from, from_ns), (to, to_ns)) = (self.start, self.end);
        let rate = (to_ns - from_ns) as f64 / (to - from).max(1) as f64;
        // Rank and tracer may have started in any order.
        let since = (now as i128 - from as i128) as f64 * rate;
        (from_ns as i128 + since as i128).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_the_time_that_the_system_shows() {
        let scale = Scale::start();
        let clock = Ticks::quickest();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (before, ticks, after) = (boottime_ns(), clock.now(), boottime_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let ns = scale.end().nanoseconds(clock, ticks);
        let slack = 100_000;
        assert!(before - slack < ns && ns < after + slack, "{before} {ns} {after}");
    }
}
