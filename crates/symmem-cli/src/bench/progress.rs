//! The line on stderr that says what is measured now, how much of how much is done, and how long the rest may
//! take; only if stderr is a terminal.
//!
//! Nobody draws it in the background: it changes between measurements, and disturbs none.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// How far a run is. Ranks of later launches go on where the earlier ones ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) done: usize,
    pub(super) steps: usize,
    pub(super) elapsed: Duration,
}

impl Progress {
    /// Of a run of `steps` steps that begins now.
    pub(super) fn new(steps: usize) -> Self {
        Self { steps, ..Self::default() }
    }

    /// The line; `who` says who is measured.
    pub(super) fn bar(self, who: String) -> ProgressBar {
        let bar = ProgressBar::new(self.steps as u64).with_elapsed(self.elapsed);
        let template = "{prefix} {bar:20} {pos}/{len}, {past} so far{rest}: {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            let past = |state: &ProgressState, out: &mut dyn Write| {
                let _ = out.write_str(&clock(state.elapsed()));
            };
            let rest = |state: &ProgressState, out: &mut dyn Write| {
                if let Some(rest) = rest(state.elapsed(), state.pos(), state.len().unwrap_or(0)) {
                    let _ = write!(out, ", about {} to go", clock(rest));
                }
            };
            bar.set_style(style.with_key("past", past).with_key("rest", rest));
        }
        bar.set_prefix(who);
        bar.set_position(self.done as u64);
        bar
    }
}

/// How long the rest takes if all steps are alike; nobody knows before the first one is done.
fn rest(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_from_what_is_done() {
        let elapsed = Duration::from_secs(65);
        assert_eq!(
            (clock(elapsed), clock(Duration::from_secs(3601))),
            ("1:05".to_owned(), "60:01".to_owned())
        );
        assert_eq!(rest(elapsed, 0, 10), None);
        assert_eq!(rest(elapsed, 5, 15), Some(2 * elapsed));
        assert_eq!(rest(elapsed, 10, 10), Some(Duration::ZERO));
    }
}
