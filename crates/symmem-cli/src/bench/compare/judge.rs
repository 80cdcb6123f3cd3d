//! How much one set of times is longer than another, and within which bounds that is known. Nothing is drawn
//! at random: the same samples are judged the same every time.
//!
//! The change is the median of all ratios of a new time to an old one (Hodges and Lehmann). Its interval are
//! the ratios between which the true one lies by the exact distribution of Mann and Whitney's U, whatever the
//! shape of the noise. It supposes that samples are independent and that a change makes all of them longer by
//! the same factor.

/// Samples beyond this many are joined to so many medians of neighbours: the exact distribution stays cheap.
const MOST: usize = 30;

/// What became of a time. 0.1 is 10 % longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) typical: f64,
    /// The bounds of the interval; none where there are too few samples for the confidence that was asked
    /// for.
    pub(super) interval: Option<(f64, f64)>,
}

/// The change from `old` to `new`, all above zero; its interval is wrong with probability `risk` at most.
/// None without samples.
pub(super) fn change(old: &[f64], new: &[f64], risk: f64) -> Option<Change> {
    let (old, new) = (joined(old), joined(new));
    let mut ratios: Vec<f64> =
        new.iter().flat_map(|new| old.iter().map(move |old| new / old - 1.0)).collect();
    ratios.sort_by(f64::total_cmp);
    let last = ratios.len().checked_sub(1)?;
    let typical = (ratios[last / 2] + ratios[last.div_ceil(2)]) / 2.0;
    let outside = outside(old.len(), new.len(), risk / 2.0);
    // The true ratio lies below the k-th smallest with the probability of U < k.
    let interval = outside.checked_sub(1).map(|at| (ratios[at], ratios[last - at]));
    Some(Change { typical, interval })
}

/// The largest k with P(U < k) <= `risk`, if two sets of so many samples do not differ; 0 if there is none.
fn outside(old: usize, new: usize, risk: f64) -> usize {
    let ways = ways(old, new);
    let all: u128 = ways.iter().sum();
    let mut below = 0;
    let is_rare = |ways: &&u128| {
        below += **ways;
        below as f64 <= risk * all as f64
    };
    ways.iter().take_while(is_rare).count()
}

/// In how many orders of `a` and `b` samples U is 0, 1, 2 and so on: the coefficients of the Gaussian
/// binomial, which is the product of (1 - x^(b + i)) / (1 - x^i) over i from 1 to `a`.
fn ways(a: usize, b: usize) -> Vec<u128> {
    let mut ways = vec![0i128; a * b + 1];
    ways[0] = 1;
    for i in 1..=a {
        for u in (b + i..ways.len()).rev() {
            ways[u] -= ways[u - b - i];
        }
        for u in i..ways.len() {
            ways[u] += ways[u - i];
        }
    }
    ways.into_iter().map(i128::unsigned_abs).collect()
}

fn joined(samples: &[f64]) -> Vec<f64> {
    let together = samples.len().div_ceil(MOST).max(1);
    samples.chunks(together).map(|part| crate::bench::stats::median(part.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64, as numbers from 0 to 1.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
        }

        /// Eleven times around `typical`: most within 3 %, one of ten up to twice as long.
        fn times(&mut self, typical: f64) -> Vec<f64> {
            let mut time = || match self.next() {
                rare if rare < 0.1 => typical * (1.0 + self.next()),
                _ => typical * (0.97 + 0.06 * self.next()),
            };
            (0..11).map(|_| time()).collect()
        }
    }

    /// In how many of 400 comparisons the whole interval lies above `threshold`, and in how many it holds the
    /// truth: 380 are expected, and fewer than 365 in one of a thousand tests with other random numbers.
    fn alarms(factor: f64, threshold: f64) -> (usize, usize) {
        let mut random = Random(7);
        let mut found = (0, 0);
        for _ in 0..400 {
            let change = change(&random.times(5.0), &random.times(5.0 * factor), 0.05).expect("samples");
            let (low, high) = change.interval.expect("enough samples");
            found.0 += usize::from(low > threshold);
            found.1 += usize::from(low <= factor - 1.0 && factor - 1.0 <= high);
        }
        found
    }

    #[test]
    fn equal_times_are_no_alarm_even_without_a_threshold() {
        let (alarms, held) = alarms(1.0, 0.0);
        assert!(alarms <= 20 && held >= 365, "{alarms} alarms, {held} hold the truth");
    }

    #[test]
    fn ten_per_cent_more_are_an_alarm_and_two_are_none() {
        let (slower, held) = alarms(1.1, 0.05);
        assert!(slower >= 360 && held >= 365, "{slower} alarms, {held} hold the truth");
        assert!(alarms(1.02, 0.05).0 <= 4 && alarms(0.9, 0.0).0 == 0);
    }

    #[test]
    fn the_distribution_of_u_is_exact() {
        assert_eq!(ways(2, 2), [1, 1, 2, 1, 1]);
        assert_eq!(ways(3, 2), [1, 1, 2, 2, 2, 1, 1]);
        assert_eq!(ways(11, 11).iter().sum::<u128>(), 705_432);
        assert_eq!(ways(30, 30).iter().sum::<u128>(), 118_264_581_564_861_424);
        // Printed in every table: of 8 and 8 samples, U is 13 or less in 2.5 % of cases.
        assert_eq!(outside(8, 8, 0.025), 14);
    }

    #[test]
    fn few_samples_give_a_change_without_an_interval() {
        let one = change(&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0], 0.05).expect("samples");
        assert_eq!(one, Change { typical: 1.0, interval: None });
        assert_eq!(change(&[], &[1.0], 0.05), None);
        let four = change(&[1.0; 4], &[2.0; 4], 0.05).expect("samples");
        assert_eq!(four.interval, Some((1.0, 1.0)));
    }

    #[test]
    fn many_samples_are_joined() {
        assert_eq!(joined(&(0..90).map(f64::from).collect::<Vec<_>>()).len(), 30);
        assert_eq!(joined(&[1.0, 2.0]), [1.0, 2.0]);
        assert!(change(&[1.0; 1000], &[1.2; 1000], 0.05).is_some_and(|one| (one.typical - 0.2).abs() < 1e-9));
    }
}
