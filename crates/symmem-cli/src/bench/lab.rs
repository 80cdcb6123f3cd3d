//! What every measurement of a rank needs: its group, its clock, its core, and the exchange of samples.

use indicatif::{ProgressBar, ProgressStyle};
use symmem::{Group, Result};

use super::clock::Clock;
use super::cores;
use super::report::Row;
use super::stats::{Percentiles, slowest};
use crate::args::{BenchArgs, Condition};

/// A rank's place of work.
pub(super) struct Lab<'a> {
    pub(super) group: &'a Group,
    pub(super) args: &'a BenchArgs,
    /// Busy loops that run beside the ranks.
    pub(super) load: usize,
    pub(super) clock: Clock,
    /// Whether ranks outnumber the cores, so that one must yield to let another run.
    pub(super) crowded: bool,
    pinned: bool,
    bar: ProgressBar,
}

impl<'a> Lab<'a> {
    /// Settles this rank on its core. Comes after the group was made: a group whose rank is pinned to one core
    /// already takes that for the only one, and does not spin. `done` of `steps`
    /// steps of progress have been made before.
    pub(super) fn new(
        group: &'a Group,
        args: &'a BenchArgs,
        condition: Condition,
        (done, steps): (usize, usize),
    ) -> Self {
        let cores = cores::available();
        let pinned = condition.pin && cores::pin(&cores, group.rank());
        let crowded = group.size() > cores.len();
        // The first rank draws (on stderr, if that is a terminal), only between measurements.
        let bar = if group.rank() == 0 { progress(steps) } else { ProgressBar::hidden() };
        bar.set_prefix(format!("{} ranks", group.size()));
        bar.set_position(done as u64);
        Self { group, args, load: condition.load, clock: Clock::calibrated(), crowded, pinned, bar }
    }

    /// Shows that `what` comes next.
    pub(super) fn start(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Shows one step more.
    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    /// Times each of `count` calls of `op`, with two looks at the clock each; the slowest rank counts for every call.
    pub(super) fn time(&self, count: usize, mut op: impl FnMut() -> Result<()>) -> Result<Vec<u64>> {
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let start = self.clock.now();
            op()?;
            samples.push(self.clock.now() - start);
        }
        self.slowest(&samples)
    }

    /// Collective. The largest of all ranks' samples, call by call.
    pub(super) fn slowest(&self, samples: &[u64]) -> Result<Vec<u64>> {
        Ok(slowest(&gather_words(self.group, samples)?, samples.len()))
    }

    /// Collective. Whether it is right on all ranks.
    pub(super) fn all_right(&self, right: bool) -> Result<bool> {
        Ok(self.group.all_gather(&u8::from(right))?.iter().all(|right| *right == 1))
    }

    /// The row of `op` for what `samples` say.
    pub(super) fn row(&self, op: &str, algorithm: &str, samples: &mut [u64], verified: bool) -> Row {
        Row {
            system: "symmem".to_owned(),
            op: op.to_owned(),
            algorithm: algorithm.to_owned(),
            dtype: "u64".to_owned(),
            ranks: self.group.size(),
            us: Percentiles::of(samples).map(|ticks| self.clock.us(ticks)),
            verified,
            samples: samples.len(),
            pinned: self.pinned,
            load: self.load,
            ..Row::default()
        }
    }
}

/// A bar of `steps` steps on stderr, if that is a terminal.
pub(super) fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {percent}% {msg}") {
        bar.set_style(style);
    }
    bar
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Collective. Everybody's `words`, in rank order.
pub(super) fn gather_words(group: &Group, words: &[u64]) -> Result<Vec<u64>> {
    let all = group.all_gather_bytes(bytemuck::cast_slice(words))?.concat();
    Ok(all.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect())
}
