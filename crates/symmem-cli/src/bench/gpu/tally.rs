//! From rounds to rows: who is slowest, what is typical, and how ours compares.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::{Case, Contender, Race};
use super::protocol::Answer;
use crate::bench::report;
use crate::bench::stats::median;

/// Ranks of a barrier may seem to leave so much before the last one came: the device's clock ticks coarsely.
const CLOCK_TICK_NS: u64 = 5_000;

/// Up to how many bytes rows are summed up together, and what that is called.
const BANDS: [(&str, usize); 3] = [("up to 128K", 128 << 10), ("up to 8M", 8 << 20), ("above", usize::MAX)];

/// Microseconds of an operation, over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) max: f64,
    /// From the first to the third quartile, over the median.
    pub(super) spread: f64,
}

impl Times {
    /// Those of `rounds`; all zero where there are none.
    pub(super) fn of(rounds: &[f64]) -> Self {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return Self::default() };
        let at = |quarters: usize| sorted[(last * quarters + 2) / 4];
        let p50 = median(rounds.to_vec());
        Self { min: at(0), p50, max: at(4), spread: (at(3) - at(1)) / p50 }
    }
}

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) system: String,
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) dtype: &'static str,
    pub(super) ranks: usize,
    /// Per cent of the multiprocessors that MPS gave every rank.
    pub(super) share: Option<u32>,
    /// What was asked for: an algorithm or an operation.
    pub(super) choice: String,
    /// What ran.
    pub(super) algorithm: String,
    pub(super) grid: Option<u32>,
    pub(super) threads: Option<u32>,
    pub(super) registers: Option<u32>,
    pub(super) us: Times,
    pub(super) us_by_round: Vec<f64>,
    pub(super) verified: bool,
    /// Whether it is ours, and neither algorithm nor launch shape was forced.
    pub(super) dispatched: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gb_per_s: Option<f64>,
    /// Of ours: its time over the best time of each system beside it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ratios: BTreeMap<String, f64>,
    #[serde(skip)]
    pub(super) ours: bool,
}

impl Row {
    /// What `contender` did in `race`, of which `info` is its own description.
    pub(super) fn new(
        race: &Race,
        contender: &Contender,
        info: &Answer,
        rounds: &[f64],
        ranks: usize,
    ) -> Self {
        let us = Times::of(rounds);
        let task = &contender.task;
        let gigabytes = |bytes| bytes as f64 / us.p50 / 1e3;
        Self {
            system: contender.name.clone(),
            case: race.case.clone(),
            dtype: "bf16",
            ranks,
            share: None,
            choice: task.variant.clone(),
            algorithm: info.algorithm.clone().unwrap_or_else(|| task.variant.clone()),
            grid: info.grid,
            threads: info.threads,
            registers: info.registers,
            us,
            us_by_round: rounds.to_vec(),
            verified: false,
            dispatched: contender.ours
                && task.variant == "auto"
                && task.grid.is_none()
                && task.threads.is_none(),
            gb_per_s: race.traffic(ranks).map(gigabytes),
            ratios: BTreeMap::new(),
            ours: contender.ours,
        }
    }
}

impl Row {
    /// Gigabytes per second: what was measured, or what the busiest link of an all-reduce carries.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        let ranks = self.ranks as f64;
        let bus = 2.0 * (ranks - 1.0) / ranks * self.case.bytes as f64 / self.us.p50 / 1e3;
        self.gb_per_s.or((self.case.op == "all_reduce").then_some(bus))
    }

    /// What a plot shows of it, if it is an all-reduce of which there are several sizes. Choices that were
    /// forced are lines of their own.
    pub(super) fn plotted(&self) -> Option<report::Row> {
        let form = self.case.form.filter(|_| self.case.op == "all_reduce")?;
        let choice = if self.ours && !self.dispatched { format!(" {}", self.choice) } else { String::new() };
        let share = self.share.map(|share| format!(" at {share} %")).unwrap_or_default();
        let mut row = report::Row {
            system: format!("{}{choice}", self.system),
            op: format!("all_reduce {form}{}{share}", if self.case.cold { " cold" } else { "" }),
            dtype: self.dtype.to_owned(),
            ranks: self.ranks,
            bytes: self.case.bytes,
            bus_gb_per_s: self.bandwidth(),
            ..report::Row::default()
        };
        row.us.p50 = self.us.p50;
        Some(row)
    }
}

/// Microseconds of one of `nodes` operations on the slowest rank; `None` if some rank did not tell.
pub(super) fn slowest(answers: &[Answer], nodes: usize) -> Option<f64> {
    let of = |answer: &Answer| Some((answer.with_us? - answer.without_us.unwrap_or(0.0)) / nodes as f64);
    answers.iter().map(of).collect::<Option<Vec<_>>>()?.into_iter().max_by(f64::total_cmp)
}

/// What is wrong with what ranks found in a check, in words.
pub(super) fn complaint(answers: &[Answer]) -> Option<String> {
    if answers.iter().any(|answer| answer.wrong.is_none()) {
        return Some("some ranks did not say whether they are right".to_owned());
    }
    let wrong: Vec<_> = answers.iter().map(|answer| answer.wrong.unwrap_or(0)).collect();
    if wrong.iter().any(|count| *count > 0) {
        return Some(format!("wrong elements by rank: {wrong:?}"));
    }
    let last = answers.iter().filter_map(|answer| answer.came_ns).max();
    let first = answers.iter().filter_map(|answer| answer.left_ns).min();
    match (last, first) {
        (Some(last), Some(first)) if last > first + CLOCK_TICK_NS => {
            Some(format!("a rank left {} ns before the last one came", last - first))
        }
        _ => None,
    }
}

/// Compares ours with the best row of each other system; all rows are of one race.
pub(super) fn compare(rows: &mut [Row]) {
    let mut best: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.ours) {
        let best = best.entry(row.system.clone()).or_insert(row.us.p50);
        *best = best.min(row.us.p50);
    }
    for row in rows.iter_mut().filter(|row| row.ours) {
        row.ratios = best.iter().map(|(system, theirs)| (system.clone(), row.us.p50 / theirs)).collect();
    }
}

/// All sizes of one form together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) system: String,
    pub(super) ranks: usize,
    pub(super) share: Option<u32>,
    pub(super) form: String,
    pub(super) cold: bool,
    pub(super) band: &'static str,
    pub(super) rows: usize,
    /// Geometric mean of ours over theirs.
    pub(super) mean: f64,
    pub(super) worst: f64,
}

/// What the dispatcher's rows come to, band by band.
pub(super) fn summarise(rows: &[Row]) -> Vec<Summary> {
    let mut found: Vec<(Summary, Vec<f64>)> = Vec::new();
    for row in rows.iter().filter(|row| row.dispatched && row.case.op == "all_reduce") {
        for (system, ratio) in &row.ratios {
            let band = BANDS.iter().find(|(_, most)| row.case.bytes <= *most).map_or("", |(name, _)| name);
            let form = row.case.form.map(|form| form.to_string()).unwrap_or_default();
            let key = Summary {
                system: system.clone(),
                ranks: row.ranks,
                share: row.share,
                form,
                cold: row.case.cold,
                band,
                rows: 0,
                mean: 0.0,
                worst: 0.0,
            };
            match found.iter_mut().find(|(known, _)| *known == key) {
                Some((_, ratios)) => ratios.push(*ratio),
                None => found.push((key, vec![*ratio])),
            }
        }
    }
    let fill = |(key, ratios): (Summary, Vec<f64>)| {
        let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        let mean = (logarithms / ratios.len() as f64).exp();
        Summary { rows: ratios.len(), mean, worst: ratios.iter().copied().fold(f64::MIN, f64::max), ..key }
    };
    found.into_iter().map(fill).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::args::Form;

    /// A row of a race.
    pub(in crate::bench::gpu) fn row(system: &str, bytes: usize, p50: f64) -> Row {
        let case = Case { op: "all_reduce".to_owned(), form: Some(Form::Out), bytes, cold: false };
        Row {
            system: system.to_owned(),
            case,
            dtype: "bf16",
            ranks: 2,
            share: None,
            choice: "auto".to_owned(),
            algorithm: "one_shot".to_owned(),
            grid: Some(8),
            threads: Some(512),
            registers: Some(32),
            us: Times { min: p50, p50, max: p50, spread: 0.0 },
            us_by_round: vec![p50],
            verified: true,
            dispatched: system == "symmem",
            gb_per_s: None,
            ratios: BTreeMap::new(),
            ours: system == "symmem",
        }
    }

    #[test]
    fn times_are_over_rounds() {
        let times = Times::of(&[9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!((times.min, times.p50, times.max), (1.0, 5.0, 9.0));
        assert_eq!(times.spread, (7.0 - 3.0) / 5.0);
        assert_eq!(Times::of(&[]), Times::default());
        assert_eq!(Times::of(&[4.0]), Times { min: 4.0, p50: 4.0, max: 4.0, spread: 0.0 });
    }

    #[test]
    fn the_slowest_rank_counts_and_fills_are_taken_off() {
        let answer =
            |with, without| Answer { with_us: Some(with), without_us: Some(without), ..Answer::default() };
        assert_eq!(slowest(&[answer(100.0, 60.0), answer(120.0, 20.0)], 20), Some(5.0));
        assert_eq!(slowest(&[answer(1.0, 0.0), Answer::default()], 1), None);
        assert_eq!(slowest(&[], 1), None);
    }

    #[test]
    fn wrong_elements_and_early_leavers_are_named() {
        let right = Answer { wrong: Some(0), ..Answer::default() };
        let wrong = Answer { wrong: Some(3), ..Answer::default() };
        assert_eq!(complaint(&[right.clone(), right.clone()]), None);
        assert_eq!(complaint(&[right.clone(), wrong]).as_deref(), Some("wrong elements by rank: [0, 3]"));
        assert!(complaint(&[right.clone(), Answer::default()]).is_some());
        let barrier = |came, left| Answer { came_ns: Some(came), left_ns: Some(left), ..right.clone() };
        assert_eq!(complaint(&[barrier(100, 90_000), barrier(90_000, 90_500)]), None);
        let why = complaint(&[barrier(100, 10_000), barrier(90_000, 90_500)]);
        assert_eq!(why.as_deref(), Some("a rank left 80000 ns before the last one came"));
    }

    #[test]
    fn ours_is_compared_with_the_best_of_each_system() {
        let mut rows =
            [row("symmem", 8, 2.0), row("torch", 8, 5.0), row("torch", 8, 4.0), row("nccl", 8, 8.0)];
        compare(&mut rows);
        let ratios: Vec<_> = rows[0].ratios.iter().map(|(system, ratio)| (system.as_str(), *ratio)).collect();
        assert_eq!(ratios, [("nccl", 0.25), ("torch", 0.5)]);
        assert!(rows[1..].iter().all(|row| row.ratios.is_empty()));
    }

    #[test]
    fn a_summary_is_the_geometric_mean_of_a_band() {
        let ratio = |bytes, ratio| Row {
            ratios: BTreeMap::from([("torch".to_owned(), ratio)]),
            ..row("symmem", bytes, 1.0)
        };
        let rows = [ratio(2 << 10, 0.25), ratio(128 << 10, 1.0), ratio(512 << 10, 0.5), ratio(32 << 20, 0.9)];
        let found: Vec<_> =
            summarise(&rows).into_iter().map(|one| (one.band, one.rows, one.mean, one.worst)).collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].0, found[0].1, found[0].3), ("up to 128K", 2, 1.0));
        assert!((found[0].2 - 0.5).abs() < 1e-12);
        assert_eq!((found[1].0, found[1].3), ("up to 8M", 0.5));
        assert_eq!((found[2].0, found[2].3), ("above", 0.9));
    }

    #[test]
    fn forced_rows_are_not_part_of_the_summary() {
        let forced = Row {
            dispatched: false,
            ratios: BTreeMap::from([("torch".to_owned(), 1.0)]),
            ..row("symmem", 8, 1.0)
        };
        assert!(summarise(&[forced]).is_empty());
    }
}
