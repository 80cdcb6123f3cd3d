//! What every measurement of a rank needs: its group, its clock, its core, and the exchange of samples.

use indicatif::ProgressBar;
use symmem::{Group, Result};

use super::clock::Clock;
use super::cores;
use super::progress::Progress;
use super::report::Row;
use super::stats::{Percentiles, slowest};
use crate::args::{BenchArgs, Condition};

/// Parts of a measurement that are reported for themselves: as many as collectives have blocks. More of them
/// would be shorter than what disturbs a machine, and not be independent of each other.
const PARTS: usize = 11;

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
    /// Settles this rank on its core. Comes after the group was made: a group whose rank is pinned to one
    /// core already takes that for the only one, and does not spin.
    pub(super) fn new(
        group: &'a Group,
        args: &'a BenchArgs,
        condition: Condition,
        progress: Progress,
    ) -> Self {
        let cores = cores::available();
        let pinned = condition.pin && cores::pin(&cores, group.rank());
        let crowded = group.size() > cores.len();
        // The first rank draws (on stderr, if that is a terminal), only between measurements.
        let bar = match group.rank() {
            0 => progress.bar(format!("{} ranks", group.size())),
            _ => ProgressBar::hidden(),
        };
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

    /// Times each of `count` calls of `op`, with two looks at the clock each; the slowest rank counts for
    /// every call.
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

    /// The row of `op` for what `samples` say, which are in the order in which they were taken.
    pub(super) fn row(&self, op: &str, algorithm: &str, samples: &mut [u64], verified: bool) -> Row {
        let parts = samples.chunks(samples.len().div_ceil(PARTS).max(1));
        let parts: Vec<_> = parts.map(|part| self.us(Percentiles::of(&mut part.to_vec()))).collect();
        Row {
            system: "symmem".to_owned(),
            op: op.to_owned(),
            algorithm: algorithm.to_owned(),
            dtype: "u64".to_owned(),
            ranks: self.group.size(),
            us: self.us(Percentiles::of(samples)),
            verified,
            samples: samples.len(),
            pinned: self.pinned,
            load: self.load,
            p50_by_part: parts.iter().map(|part| part.p50).collect(),
            mean_by_part: parts.iter().map(|part| part.mean).collect(),
            ..Row::default()
        }
    }

    fn us(&self, ticks: Percentiles<u64>) -> Percentiles<f64> {
        ticks.map(|ticks| self.clock.us(ticks))
    }
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
