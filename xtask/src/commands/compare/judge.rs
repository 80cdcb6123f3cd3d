//! What two builds' times say: a ratio per row, and whether it is more than chance.
//!
//! Every turn launches the old build twice and the new one once. New over old, turn by turn, is compared with
//! old over old: how far the median of as many ratios comes from 1 although nothing changed. That is known
//! from the old launches themselves, by drawing ratios of them again and again.

/// The times of one row, turn by turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    pub(super) old: Vec<f64>,
    /// The old build once more.
    pub(super) again: Vec<f64>,
    pub(super) new: Vec<f64>,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Inside the spread of old over old.
    Same,
    /// Outside of it, by no more than [`TOLERATED`].
    Close,
    Slower,
    Faster,
}

/// A row that was judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judged {
    /// Medians.
    pub(super) old: f64,
    pub(super) new: f64,
    /// The median of new over old.
    pub(super) ratio: f64,
    /// Between what the median of old over old lies in 99 of 100 comparisons.
    pub(super) spread: (f64, f64),
    pub(super) verdict: Verdict,
}

/// A difference that nobody minds, even if it is no chance.
pub(super) const TOLERATED: f64 = 0.03;
/// How much more instructions nobody minds.
pub(super) const TOLERATED_INSTRUCTIONS: f64 = 0.02;

/// Comparisons of old with old that are drawn.
const DRAWS: usize = 2000;
/// The share of them that lies on each side outside of the spread.
const TAIL: f64 = 0.005;
/// Twenty ratios do not show how far such ratios come: drawn from them, 3 of 100 comparisons of old with old
/// lie outside. With this exponent it is 1 of 100 (simulated, with even, normal and heavy-tailed noise).
const WIDER: f64 = 1.25;

/// Judges a row; none if a build has no times of it.
pub(super) fn judge(times: &Times) -> Option<Judged> {
    let turns = times.old.len().min(times.new.len()).min(times.again.len());
    if turns == 0 {
        return None;
    }
    let over = |above: &[f64]| -> Vec<f64> { above.iter().zip(&times.old).map(|(a, b)| a / b).collect() };
    let ratio = median(over(&times.new));
    let spread = spread(&over(&times.again), turns);
    let verdict = verdict(ratio, spread, TOLERATED);
    Some(Judged { old: median(times.old.clone()), new: median(times.new.clone()), ratio, spread, verdict })
}

/// Where `ratio` lies.
pub(super) fn verdict(ratio: f64, (low, high): (f64, f64), tolerated: f64) -> Verdict {
    match ratio {
        _ if (low..=high).contains(&ratio) => Verdict::Same,
        _ if (ratio - 1.0).abs() <= tolerated => Verdict::Close,
        _ if ratio < 1.0 => Verdict::Faster,
        // A ratio that is no number is no good news.
        _ => Verdict::Slower,
    }
}

/// Between what the median of `count` ratios lies if they are as `ratios` are, and either build may be the
/// slower one.
fn spread(ratios: &[f64], count: usize) -> (f64, f64) {
    let mut random = Random(1);
    let mut draw = || {
        let ratio = ratios[random.below(ratios.len())];
        if random.below(2) == 0 { ratio } else { ratio.recip() }
    };
    let mut medians: Vec<f64> = (0..DRAWS).map(|_| median((0..count).map(|_| draw()).collect())).collect();
    medians.sort_by(f64::total_cmp);
    let outside = (DRAWS as f64 * TAIL) as usize;
    (medians[outside].powf(WIDER), medians[DRAWS - 1 - outside].powf(WIDER))
}

/// The middle one of `values`, or between the two middle ones; NaN if there are none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] * values[middle]).sqrt(),
    }
}

/// SplitMix64: the same files get the same verdict every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty launches whose times vary by up to `noise`, `factor` times as long.
    fn launches(seed: u64, factor: f64, noise: f64) -> Vec<f64> {
        let mut random = Random(seed);
        let mut one = || factor * (1.0 + noise * (random.below(2001) as f64 / 1000.0 - 1.0));
        (0..20).map(|_| one()).collect()
    }

    fn judged(factor: f64, noise: f64) -> Judged {
        let (old, again) = (launches(10, 1.0, noise), launches(20, 1.0, noise));
        judge(&Times { old, again, new: launches(30, factor, noise) }).expect("a verdict")
    }

    #[test]
    fn the_same_build_is_the_same_whatever_the_noise() {
        for noise in [0.0, 0.01, 0.1, 0.3] {
            assert_eq!(judged(1.0, noise).verdict, Verdict::Same, "noise of {noise}");
        }
    }

    #[test]
    fn the_same_build_is_told_from_itself_in_no_more_than_a_few_of_a_hundred_comparisons() {
        let differs = |seed: u64| {
            let of = |at: u64| launches(1000 * seed + at, 1.0, 0.2);
            let judged = judge(&Times { old: of(1), again: of(2), new: of(3) }).expect("a verdict");
            judged.verdict != Verdict::Same
        };
        assert!((0..100).filter(|seed| differs(*seed)).count() <= 4);
    }

    #[test]
    fn a_difference_beyond_the_spread_and_three_per_cent_is_slower_or_faster() {
        assert_eq!(judged(1.05, 0.01).verdict, Verdict::Slower);
        assert_eq!(judged(0.95, 0.01).verdict, Verdict::Faster);
        assert_eq!(judged(2.0, 0.3).verdict, Verdict::Slower);
    }

    #[test]
    fn a_difference_beyond_the_spread_and_within_three_per_cent_is_close() {
        assert_eq!(judged(1.02, 0.001).verdict, Verdict::Close);
        assert_eq!(judged(0.98, 0.001).verdict, Verdict::Close);
    }

    #[test]
    fn a_difference_inside_the_spread_is_no_difference() {
        assert_eq!(judged(1.05, 0.3).verdict, Verdict::Same);
    }

    #[test]
    fn the_spread_holds_one_and_grows_with_the_noise() {
        let width = |noise| {
            let (low, high) = judged(1.0, noise).spread;
            assert!(low <= 1.0 && 1.0 <= high, "{low} to {high}");
            high - low
        };
        assert_eq!(width(0.0), 0.0);
        assert!(width(0.01) < width(0.1) && width(0.1) < width(0.3));
    }

    #[test]
    fn turns_are_compared_with_each_other_so_a_machine_that_slows_down_does_not_matter() {
        let drift = |factor: f64| (1..=20).map(|turn| factor * f64::from(turn)).collect::<Vec<_>>();
        let times = Times { old: drift(1.0), again: drift(1.0), new: drift(1.1) };
        let judged = judge(&times).expect("a verdict");
        assert!((judged.ratio - 1.1).abs() < 1e-9 && judged.verdict == Verdict::Slower, "{judged:?}");
    }

    #[test]
    fn a_ratio_that_is_no_number_is_not_taken_for_good() {
        assert_eq!(verdict(f64::NAN, (0.9, 1.1), TOLERATED), Verdict::Slower);
    }

    #[test]
    fn a_row_that_a_build_lacks_is_not_judged() {
        assert_eq!(judge(&Times { old: vec![1.0], again: vec![1.0], new: Vec::new() }), None);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![1.0, 4.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
