//! Percentiles and medians.

use serde::{Deserialize, Serialize};

/// The shape of a set of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Percentiles<T> {
    pub(super) min: T,
    pub(super) p50: T,
    pub(super) p90: T,
    pub(super) p99: T,
}

impl Percentiles<u64> {
    /// The percentiles of `samples`, which it sorts. All zero if there are none.
    pub(super) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let nearest = (samples.len() * percent).div_ceil(100).max(1) - 1;
            samples.get(nearest).copied().unwrap_or_default()
        };
        Self { min: at(0), p50: at(50), p90: at(90), p99: at(99) }
    }

    /// The same in another unit.
    pub(super) fn map(self, unit: impl Fn(u64) -> f64) -> Percentiles<f64> {
        let Self { min, p50, p90, p99 } = self;
        Percentiles { min: unit(min), p50: unit(p50), p90: unit(p90), p99: unit(p99) }
    }
}

/// The largest of all ranks' samples, operation by operation; `all` holds `count` of each rank, one rank after the other.
pub(super) fn slowest(all: &[u64], count: usize) -> Vec<u64> {
    let slowest = |at| all.iter().skip(at).step_by(count).copied().max().unwrap_or_default();
    (0..count).map(slowest).collect()
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
        assert_eq!(Percentiles::of(&mut samples), Percentiles { min: 1, p50: 100, p90: 180, p99: 198 });
        assert_eq!(Percentiles::of(&mut [7]), Percentiles { min: 7, p50: 7, p90: 7, p99: 7 });
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    }

    #[test]
    fn the_slowest_rank_counts() {
        assert_eq!(slowest(&[1, 5, 3, 4, 2, 6], 3), [4, 5, 6]);
        assert!(slowest(&[], 0).is_empty());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
