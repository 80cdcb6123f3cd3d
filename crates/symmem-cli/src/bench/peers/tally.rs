//! What came of all rounds, and the rows that follow from it.

use super::job::{Job, Output, OutputRow};
use crate::bench::collective::Case;
use crate::bench::report::Row;
use crate::bench::stats::{Percentiles, median};

const OURS: &str = "symmem";

/// The outputs of every system, one for each round, for one number of ranks.
pub(super) struct Tally {
    ranks: usize,
    pinned: bool,
    cases: Vec<Case>,
    systems: Vec<(String, Vec<Output>)>,
}

impl Tally {
    /// Nothing yet.
    pub(super) fn new(job: &Job) -> Self {
        let cases = job.cases.iter().map(|task| task.case).collect();
        Self { ranks: job.ranks, pinned: job.pin, cases, systems: Vec::new() }
    }

    /// What `system` did in its next round.
    pub(super) fn add(&mut self, system: &str, output: Output) {
        match self.systems.iter_mut().find(|(name, _)| name == system) {
            Some((_, outputs)) => outputs.push(output),
            None => self.systems.push((system.to_owned(), vec![output])),
        }
    }

    /// Leaves `system` out.
    pub(super) fn forget(&mut self, system: &str) {
        self.systems.retain(|(name, _)| name != system);
    }

    /// Puts the rows of its launches in the place of those that symmem has in `rows`, and the peers' rows behind each.
    pub(super) fn enter(&self, rows: &mut Vec<Row>) {
        for case in &self.cases {
            let Some(at) = rows.iter().position(|row| self.is_ours(row, case)) else { continue };
            let new = self.rows(case, &rows[at]);
            rows.splice(at..=at, new);
        }
    }

    fn is_ours(&self, row: &Row, case: &Case) -> bool {
        let name = (row.system.as_str(), row.op.as_str(), row.dtype.as_str());
        name == (OURS, case.op.name(), case.dtype.name())
            && (row.ranks, row.bytes) == (self.ranks, case.bytes)
    }

    /// The rows of all systems that have `case`; symmem's first, with what `measured` says beyond times.
    fn rows(&self, case: &Case, measured: &Row) -> Vec<Row> {
        let (ours, theirs): (Vec<_>, Vec<_>) = self
            .systems
            .iter()
            .map(|(name, outputs)| (name, of_case(outputs, case)))
            .partition(|(name, _)| *name == OURS);
        let Some((_, ours)) = ours.into_iter().next() else { return vec![measured.clone()] };
        let mut peers: Vec<Row> = theirs
            .into_iter()
            .filter(|(_, outputs)| outputs.iter().any(Option::is_some))
            .map(|(name, outputs)| Row {
                ratio_to_peer: Some(ratio(&ours, &outputs)),
                ..self.row(name, case, &outputs)
            })
            .collect();
        peers.sort_by(|a, b| a.us.p50.total_cmp(&b.us.p50));
        let ratio_of = |row: &Row| row.ratio_to_peer.unwrap_or(f64::NAN);
        // A wrong result can be had in no time.
        let right = peers.iter().filter(|row| row.verified && ratio_of(row).is_finite());
        let best = right.max_by(|a, b| ratio_of(a).total_cmp(&ratio_of(b)));
        let first = Row {
            ratio_to_limit: measured.ratio_to_limit,
            above_barrier_us: measured.above_barrier_us,
            ratio_to_peer: best.and_then(|best| best.ratio_to_peer),
            best_peer: best.map(|best| best.system.clone()),
            ..self.row(OURS, case, &ours)
        };
        [vec![first], peers].concat()
    }

    /// The row of `system`, whose percentiles are the medians over all rounds.
    fn row(&self, system: &str, case: &Case, rounds: &[Option<&OutputRow>]) -> Row {
        let rounds: Vec<&OutputRow> = rounds.iter().flatten().copied().collect();
        let typical =
            |of: fn(&Percentiles<f64>) -> f64| median(rounds.iter().map(|row| of(&row.us)).collect());
        let row = Row {
            system: system.to_owned(),
            op: case.op.name().to_owned(),
            algorithm: rounds.last().map_or_else(String::new, |row| row.algorithm.clone()),
            dtype: case.dtype.to_string(),
            ranks: self.ranks,
            us: Percentiles {
                min: rounds.iter().map(|row| row.us.min).fold(f64::INFINITY, f64::min),
                p50: typical(|us| us.p50),
                p90: typical(|us| us.p90),
                p99: typical(|us| us.p99),
            },
            verified: rounds.iter().all(|row| row.verified),
            samples: rounds.iter().map(|row| row.samples).sum(),
            pinned: self.pinned,
            p50_by_round: rounds.iter().map(|row| row.us.p50).collect(),
            ..Row::default()
        };
        row.with_bandwidth(case)
    }
}

/// What each round says about `case`.
fn of_case<'a>(outputs: &'a [Output], case: &Case) -> Vec<Option<&'a OutputRow>> {
    outputs.iter().map(|output| output.rows.iter().find(|row| row.case == *case)).collect()
}

/// The median over all rounds of our typical time over theirs.
fn ratio(ours: &[Option<&OutputRow>], theirs: &[Option<&OutputRow>]) -> f64 {
    let pairs = ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some((ours.as_ref()?, theirs.as_ref()?)));
    median(pairs.map(|(ours, theirs)| ours.us.p50 / theirs.us.p50).collect())
}

#[cfg(test)]
mod tests {
    use super::super::job::Task;
    use super::*;
    use crate::bench::collective::Collective;
    use symmem::DType;

    fn output(case: Case, p50: f64, verified: bool) -> Output {
        let us = Percentiles { min: p50 / 2.0, p50, p90: p50, p99: p50 };
        let row = OutputRow { case, us, samples: 10, verified, algorithm: "-".to_owned() };
        Output { system: String::new(), version: String::new(), rows: vec![row] }
    }

    #[test]
    fn ratios_are_medians_over_rounds_and_the_best_right_peer_counts() {
        let case = Case::new(Collective::AllReduce, DType::F32, 1024, 2);
        let job = Job { ranks: 2, pin: false, cores: Vec::new(), cases: vec![Task { case, iters: 10 }] };
        let mut tally = Tally::new(&job);
        // The second round is slow for everybody.
        for factor in [1.0, 10.0, 1.5] {
            tally.add("symmem", output(case, 2.0 * factor, true));
            tally.add("slow", output(case, 8.0 * factor, true));
            tally.add("good", output(case, 4.0 * factor, true));
            tally.add("wrong", output(case, factor, false));
            tally.add("gone", output(case, factor, true));
        }
        tally.forget("gone");
        let ours = Row {
            system: "symmem".to_owned(),
            op: "all_reduce".to_owned(),
            dtype: "f32".to_owned(),
            ranks: 2,
            bytes: 1024,
            ratio_to_limit: Some(1.25),
            ..Row::default()
        };
        let mut rows = vec![Row::default(), ours, Row::default()];
        tally.enter(&mut rows);
        let names: Vec<_> = rows.iter().map(|row| row.system.as_str()).collect();
        assert_eq!(names, ["", "symmem", "wrong", "good", "slow", ""]);
        assert_eq!((rows[1].ratio_to_peer, rows[1].best_peer.as_deref()), (Some(0.5), Some("good")));
        assert_eq!((rows[1].us.p50, rows[1].us.min, rows[1].samples), (3.0, 1.0, 30));
        assert_eq!((rows[1].ratio_to_limit, rows[4].ratio_to_peer), (Some(1.25), Some(0.25)));
        assert_eq!(rows[4].p50_by_round, [8.0, 80.0, 12.0]);
        assert!(!rows[2].verified && rows[3].verified);
    }
}
