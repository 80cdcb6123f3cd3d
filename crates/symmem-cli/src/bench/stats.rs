//! Percentiles and medians.

use serde::{Deserialize, Serialize};

/// The shape of a set of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Percentiles<T> {
    pub(super) min: T,
    pub(super) p50: T,
    pub(super) p90: T,
    pub(super) p99: T,
    /// Beside them, because a wait that is rare and long is in no percentile.
    #[serde(default)]
    pub(super) mean: T,
}

impl Percentiles<u64> {
    /// The percentiles of `samples`, which it sorts. All zero if there are none.
    pub(super) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let nearest = (samples.len() * percent).div_ceil(100).max(1) - 1;
            samples.get(nearest).copied().unwrap_or_default()
        };
        let sum: u128 = samples.iter().map(|sample| u128::from(*sample)).sum();
        let mean = (sum / samples.len().max(1) as u128) as u64;
        Self { min: at(0), p50: at(50), p90: at(90), p99: at(99), mean }
    }

    /// The same in another unit.
    pub(super) fn map(self, unit: impl Fn(u64) -> f64) -> Percentiles<f64> {
        let Self { min, p50, p90, p99, mean } = self;
        Percentiles { min: unit(min), p50: unit(p50), p90: unit(p90), p99: unit(p99), mean: unit(mean) }
    }
}

/// The largest of all ranks' samples, operation by operation; `all` holds `count` of each rank, one rank
/// after the other.
pub(super) fn slowest(all: &[u64], count: usize) -> Vec<u64> {
    let slowest = |at| all.iter().skip(at).step_by(count).copied().max().unwrap_or_default();
    (0..count).map(slowest).collect()
}

/// What a system's typical or mean time is of another's: the medians over rounds or blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ratio {
    pub(super) p50: f64,
    pub(super) mean: f64,
    /// By how many microseconds the typical time is longer.
    pub(super) above_us: f64,
}

impl Ratio {
    /// The ratio of `ours` to `theirs`, of which each pair is of one round or block. None where there is no
    /// such pair.
    pub(super) fn of<'a>(
        pairs: impl IntoIterator<Item = (&'a Percentiles<f64>, &'a Percentiles<f64>)>,
    ) -> Option<Self> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let typical = |of: fn(&Percentiles<f64>, &Percentiles<f64>) -> f64| {
            median(pairs.iter().map(|(ours, theirs)| of(ours, theirs)).collect())
        };
        let found = !pairs.is_empty();
        found.then(|| Self {
            p50: typical(|ours, theirs| ours.p50 / theirs.p50),
            mean: typical(|ours, theirs| ours.mean / theirs.mean),
            above_us: typical(|ours, theirs| ours.p50 - theirs.p50),
        })
    }
}

/// The geometric mean of `values`; NaN if there are none.
pub(super) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// The middle one of `values`; NaN if there are none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_of_that_rank() {
        let mut samples: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(
            Percentiles::of(&mut samples),
            Percentiles { min: 1, p50: 100, p90: 180, p99: 198, mean: 100 }
        );
        assert_eq!(Percentiles::of(&mut [7]), Percentiles { min: 7, p50: 7, p90: 7, p99: 7, mean: 7 });
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    }

    #[test]
    fn the_slowest_rank_counts() {
        assert_eq!(slowest(&[1, 5, 3, 4, 2, 6], 3), [4, 5, 6]);
        assert!(slowest(&[], 0).is_empty());
    }

    #[test]
    fn a_ratio_is_the_median_over_rounds() {
        let times = |p50, mean| Percentiles { p50, mean, ..Percentiles::default() };
        let ours = [times(2.0, 9.0), times(20.0, 40.0), times(3.0, 4.0)];
        let theirs = [times(4.0, 3.0), times(40.0, 40.0), times(30.0, 8.0)];
        let ratio = Ratio::of(ours.iter().zip(&theirs)).expect("three rounds");
        assert_eq!((ratio.p50, ratio.mean, ratio.above_us), (0.5, 1.0, -20.0));
        assert!(Ratio::of(ours.iter().zip(&theirs[3..])).is_none());
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12 && geometric_mean(&[]).is_nan());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
