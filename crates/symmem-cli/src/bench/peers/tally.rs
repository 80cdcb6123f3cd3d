//! What came of all rounds, and the rows that follow from it.

use super::job::{LaunchJob, Output, OutputRow};
use crate::args::Memory;
use crate::bench::collective::Case;
use crate::bench::futex::Form;
use crate::bench::report::Row;
use crate::bench::stats::{Percentiles, Ratio, median};

const OURS: &str = "symmem";

/// The outputs of every system, one for each round, for one number of ranks.
pub(super) struct Tally {
    ranks: usize,
    pinned: bool,
    load: usize,
    memories: Vec<Memory>,
    cases: Vec<Case>,
    systems: Vec<(String, Vec<Output>)>,
}

/// What each round says about one case of one system; nothing where that has none.
type Rounds<'a> = Vec<Option<&'a OutputRow>>;

impl Tally {
    /// Nothing yet.
    pub(super) fn new(job: &LaunchJob) -> Self {
        let cases = job.cases.iter().map(|task| task.case).collect();
        let memories = job.memories.clone();
        Self { ranks: job.ranks, pinned: job.pin, load: job.load, memories, cases, systems: Vec::new() }
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

    /// Puts the rows of its launches in the place of the one that symmem has in `rows`, or at the end where
    /// it has none, and the peers' rows behind them.
    pub(super) fn enter(&self, rows: &mut Vec<Row>) {
        for case in &self.cases {
            let at = rows.iter().position(|row| self.is_ours(row, case));
            let measured = at.map(|at| rows[at].clone());
            let place = at.map_or(rows.len()..rows.len(), |at| at..at + 1);
            rows.splice(place, self.rows(case, measured));
        }
    }

    fn is_ours(&self, row: &Row, case: &Case) -> bool {
        let name = (row.system.as_str(), row.op.as_str(), row.dtype.as_str());
        name == (OURS, case.op.name(), case.dtype.name())
            && (row.ranks, row.bytes) == (self.ranks, case.bytes)
    }

    /// The rows of all systems that have `case`: the limit's, then symmem's with what `measured` says beyond
    /// times, then the peers'.
    fn rows(&self, case: &Case, measured: Option<Row>) -> Vec<Row> {
        let Some((_, ours)) = self.systems.iter().find(|(name, _)| name == OURS) else {
            return measured.into_iter().collect();
        };
        let in_memory = |memory: Memory| of_case(ours, |row| row.case == *case && row.memory == memory);
        let limits = Form::ALL.map(|form| limit_of(ours, case, form.name()));
        let to_limit = |rounds: &Rounds<'_>| ratio(rounds, &limits[0]);
        let bare = limits
            .iter()
            .filter(|rounds| rounds.iter().any(Option::is_some))
            .map(|rounds| self.row("limit", case, rounds).of_limit().beside_limit(to_limit(rounds)));

        let memories = case.memories(&self.memories);
        let first = memories.first().map_or_else(Vec::new, |memory| in_memory(*memory));
        let others = self.systems.iter().filter(|(name, _)| name != OURS);
        let rounds = others.map(|(name, outputs)| (name, of_case(outputs, |row| row.case == *case)));
        let peers: Vec<(&String, Rounds<'_>)> =
            rounds.filter(|(_, rounds)| rounds.iter().any(Option::is_some)).collect();
        let mut theirs: Vec<Row> = peers
            .iter()
            .map(|(name, rounds)| {
                let to_first = ratio(&first, rounds);
                Row {
                    memory: Memory::Private.name().to_owned(),
                    ratio_to_peer: to_first.map(|ratio| ratio.p50),
                    mean_ratio_to_peer: to_first.map(|ratio| ratio.mean),
                    ..self.row(name, case, rounds)
                }
            })
            .collect();
        theirs.sort_by(|a, b| a.us.p50.total_cmp(&b.us.p50));

        let by_hand = in_memory(Memory::ByHand);
        let ours = memories.iter().map(|memory| {
            let rounds = in_memory(*memory);
            let p50 = best(&rounds, &peers, |ratio| ratio.p50);
            let mean = best(&rounds, &peers, |ratio| ratio.mean);
            let row = self.row(OURS, case, &rounds).beside_limit(to_limit(&rounds));
            let measured = measured.as_ref().filter(|measured| measured.memory == memory.name());
            Row {
                memory: memory.name().to_owned(),
                ratio_to_limit: row.ratio_to_limit.or(measured.and_then(|row| row.ratio_to_limit)),
                above_barrier_us: measured.and_then(|row| row.above_barrier_us),
                to_hand: (*memory == Memory::Private).then(|| ratio(&rounds, &by_hand)).flatten(),
                ratio_to_peer: p50.map(|best| best.1),
                best_peer: p50.map(|best| best.0.to_owned()),
                mean_ratio_to_peer: mean.map(|best| best.1),
                mean_best_peer: mean.map(|best| best.0.to_owned()),
                ..row
            }
        });
        bare.chain(ours).chain(theirs).collect()
    }

    /// The row of `system`, whose times are the medians over all rounds.
    fn row(&self, system: &str, case: &Case, rounds: &Rounds<'_>) -> Row {
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
                mean: typical(|us| us.mean),
            },
            verified: rounds.iter().all(|row| row.verified),
            samples: rounds.iter().map(|row| row.samples).sum(),
            pinned: self.pinned,
            load: self.load,
            p50_by_round: rounds.iter().map(|row| row.us.p50).collect(),
            mean_by_round: rounds.iter().map(|row| row.us.mean).collect(),
            ..Row::default()
        };
        row.with_bandwidth(case)
    }
}

/// The first row of each round that `is_it`.
fn of_case(outputs: &[Output], is_it: impl Fn(&OutputRow) -> bool) -> Rounds<'_> {
    outputs.iter().map(|output| output.rows.iter().find(|row| is_it(row))).collect()
}

fn limit_of<'a>(outputs: &'a [Output], case: &Case, name: &str) -> Rounds<'a> {
    let is_it = |row: &&OutputRow| row.case == *case && row.algorithm == name;
    outputs.iter().map(|output| output.limits.iter().find(is_it)).collect()
}

/// What one system's times are of another's, round by round.
fn ratio(ours: &Rounds<'_>, theirs: &Rounds<'_>) -> Option<Ratio> {
    let pairs = ours.iter().zip(theirs);
    Ratio::of(pairs.filter_map(|(ours, theirs)| Some((&ours.as_ref()?.us, &theirs.as_ref()?.us))))
}

/// The peer that comes nearest to `ours`, or is furthest ahead, and the ratio to it. A wrong result can be
/// had in no time, so peers with one do not count.
fn best<'a>(
    ours: &Rounds<'_>,
    peers: &'a [(&String, Rounds<'_>)],
    of: fn(&Ratio) -> f64,
) -> Option<(&'a str, f64)> {
    let right = peers.iter().filter(|(_, rounds)| rounds.iter().flatten().all(|row| row.verified));
    let ratios = right.filter_map(|(name, rounds)| Some((name.as_str(), of(&ratio(ours, rounds)?))));
    ratios.filter(|(_, ratio)| ratio.is_finite()).max_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::super::job::Task;
    use super::*;
    use crate::bench::collective::Collective;
    use symmem::DType;

    fn row(case: Case, memory: Memory, p50: f64, verified: bool) -> OutputRow {
        let us = Percentiles { min: p50 / 2.0, p50, p90: p50, p99: p50, mean: 2.0 * p50 };
        OutputRow { case, memory, us, samples: 10, verified, algorithm: "-".to_owned() }
    }

    fn output(rows: Vec<OutputRow>) -> Output {
        Output { system: String::new(), version: String::new(), rows, limits: Vec::new() }
    }

    fn tally(case: Case, load: usize, memories: &[Memory]) -> Tally {
        let (cases, memories) = (vec![Task { case, iters: 10 }], memories.to_vec());
        Tally::new(&LaunchJob {
            ranks: 2,
            pin: false,
            cores: Vec::new(),
            load,
            timed_s: None,
            memories,
            cases,
        })
    }

    #[test]
    fn ratios_are_medians_over_rounds_and_the_best_right_peer_counts() {
        let case = Case::new(Collective::AllReduce, DType::F32, 1024, 2);
        let mut tally = tally(case, 0, &[Memory::Symmetric]);
        let theirs = |p50, verified| output(vec![row(case, Memory::Private, p50, verified)]);
        // The second round is slow for everybody.
        for factor in [1.0, 10.0, 1.5] {
            tally.add("symmem", output(vec![row(case, Memory::Symmetric, 2.0 * factor, true)]));
            tally.add("slow", theirs(8.0 * factor, true));
            tally.add("good", theirs(4.0 * factor, true));
            tally.add("wrong", theirs(factor, false));
            tally.add("gone", theirs(factor, true));
        }
        tally.forget("gone");
        let ours = Row {
            system: "symmem".to_owned(),
            op: "all_reduce".to_owned(),
            memory: "symmetric".to_owned(),
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

    #[test]
    fn each_memory_has_a_row_and_private_is_judged_by_peers_and_by_hand() {
        let case = Case::new(Collective::Broadcast, DType::BF16, 1024, 2);
        let mut tally = tally(case, 0, &[Memory::Symmetric, Memory::Private, Memory::ByHand]);
        for factor in [1.0, 10.0, 1.5] {
            let ours = [(Memory::Private, 3.0), (Memory::ByHand, 2.0), (Memory::Symmetric, 1.0)];
            let rows = ours.map(|(memory, p50)| row(case, memory, p50 * factor, true));
            tally.add("symmem", output(rows.into()));
            tally.add("good", output(vec![row(case, Memory::Private, 4.0 * factor, true)]));
        }
        let mut rows = Vec::new();
        tally.enter(&mut rows);
        let told: Vec<_> = rows.iter().map(|row| (&*row.memory, row.us.p50, row.ratio_to_peer)).collect();
        let expected = [
            ("symmetric", 1.5, Some(0.25)),
            ("private", 4.5, Some(0.75)),
            ("by_hand", 3.0, Some(0.5)),
            ("private", 6.0, Some(0.25)),
        ];
        assert_eq!(told, expected);
        let to_hand = rows[1].to_hand.expect("both were measured");
        assert_eq!((to_hand.p50, to_hand.mean, to_hand.above_us), (1.5, 1.5, 1.5));
        assert!(rows[0].to_hand.is_none() && rows[2].to_hand.is_none());
    }

    #[test]
    fn beside_busy_loops_the_limit_is_that_of_the_same_launch() {
        let case = Case::new(Collective::AllReduce, DType::F32, 1024, 2);
        let mut tally = tally(case, 1, &[Memory::Symmetric]);
        for factor in [1.0, 10.0, 1.5] {
            let limit = |algorithm: &str, p50: f64| OutputRow {
                algorithm: algorithm.to_owned(),
                ..row(case, Memory::Symmetric, p50 * factor, true)
            };
            let limits = vec![limit(Form::Exchange.name(), 1.0), limit(Form::PingPong.name(), 2.0)];
            let rows = vec![row(case, Memory::Symmetric, 3.0 * factor, true)];
            tally.add("symmem", Output { limits, ..output(rows) });
        }
        let mut rows = Vec::new();
        tally.enter(&mut rows);
        let told: Vec<_> = rows.iter().map(|row| (&*row.algorithm, row.mean_ratio_to_limit)).collect();
        let [ping_pong, exchange] = Form::ALL.map(Form::name);
        assert_eq!(told, [(ping_pong, Some(1.0)), (exchange, Some(0.5)), ("-", Some(1.5))]);
        assert!(rows.iter().all(|row| row.load == 1));
    }
}
