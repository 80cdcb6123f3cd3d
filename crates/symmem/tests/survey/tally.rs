//! What came of all rounds.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use super::arguments::Arguments;

/// Problems after which a survey is not worth its time any more.
const ENOUGH: usize = 20;

pub(crate) struct Tally {
    bound: Duration,
    rounds: u64,
    /// Kills and detection times by activity.
    activities: BTreeMap<&'static str, (usize, Vec<Duration>)>,
    /// In which operations survivors noticed.
    ops: BTreeMap<String, usize>,
    hangs: Vec<String>,
    leaks: Vec<String>,
    wrongs: Vec<String>,
    shown: Option<Instant>,
}

impl Tally {
    pub(crate) fn new(bound: Duration) -> Self {
        let (activities, ops) = (BTreeMap::new(), BTreeMap::new());
        let (hangs, leaks, wrongs) = (Vec::new(), Vec::new(), Vec::new());
        Self { bound, rounds: 0, activities, ops, hangs, leaks, wrongs, shown: None }
    }

    /// The number of the next round.
    pub(crate) fn begin(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    pub(crate) fn kills(&self) -> usize {
        self.activities.values().map(|(kills, _)| kills).sum()
    }

    /// Counts kills of which the last survivor knew after `delay`; whether that is too late.
    pub(crate) fn killed(&mut self, activity: &'static str, kills: usize, delay: Duration) -> bool {
        let (count, delays) = self.activities.entry(activity).or_default();
        *count += kills;
        delays.push(delay);
        delay > self.bound
    }

    pub(crate) fn noticed(&mut self, op: &str) {
        *self.ops.entry(op.to_owned()).or_default() += 1;
    }

    pub(crate) fn hung(&mut self, what: String) {
        eprintln!("HANG {what}");
        self.hangs.push(what);
    }

    pub(crate) fn leaked(&mut self, what: String) {
        eprintln!("LEAK {what}");
        self.leaks.push(what);
    }

    pub(crate) fn wrong(&mut self, what: String) {
        eprintln!("WRONG {what}");
        self.wrongs.push(what);
    }

    fn problems(&self) -> usize {
        self.hangs.len() + self.leaks.len() + self.wrongs.len()
    }

    pub(crate) fn is_good(&self) -> bool {
        self.problems() == 0
    }

    pub(crate) fn gives_up(&self) -> bool {
        self.problems() >= ENOUGH
    }

    /// Says how far it is, every few seconds.
    pub(crate) fn show_progress(&mut self, arguments: &Arguments, started: Instant) {
        if self.shown.is_some_and(|shown| shown.elapsed() < Duration::from_secs(5)) {
            return;
        }
        self.shown = Some(Instant::now());
        let (kills, elapsed) = (self.kills(), started.elapsed().as_secs_f64());
        println!("{kills} of {} kills in {elapsed:.0} s, {} problems", arguments.kills, self.problems());
        let _ = std::io::stdout().flush();
    }

    /// Worst and median.
    fn times(delays: &[Duration]) -> (Duration, Duration) {
        let mut sorted = delays.to_vec();
        sorted.sort_unstable();
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        (at(sorted.len().saturating_sub(1)), at(sorted.len() / 2))
    }

    pub(crate) fn print(&self, arguments: &Arguments) {
        let all: Vec<Duration> = self.activities.values().flat_map(|(_, delays)| delays.clone()).collect();
        let (worst, median) = Self::times(&all);
        if arguments.json {
            return println!("{}", self.json(arguments, worst, median));
        }
        for (activity, (kills, delays)) in &self.activities {
            let (worst, median) = Self::times(delays);
            println!("{activity:>12}: {kills:5} kills, detection worst {worst:.1?}, median {median:.1?}");
        }
        println!("noticed in: {:?}", self.ops);
        println!(
            "survey: {}: {} kills, {} hangs, {} leaks, {} wrong answers; detection worst {worst:.1?}, median {median:.1?}; --seed {}",
            if self.is_good() { "passed" } else { "FAILED" },
            self.kills(),
            self.hangs.len(),
            self.leaks.len(),
            self.wrongs.len(),
            arguments.seed
        );
    }

    fn json(&self, arguments: &Arguments, worst: Duration, median: Duration) -> serde_json::Value {
        let micros = |time: Duration| time.as_micros() as u64;
        let row = |(activity, (kills, delays)): (&&str, &(usize, Vec<Duration>))| {
            let (worst, median) = Self::times(delays);
            let row =
                serde_json::json!({"kills": kills, "worst_us": micros(worst), "median_us": micros(median)});
            ((*activity).to_owned(), row)
        };
        serde_json::json!({
            "passed": self.is_good(),
            "seed": arguments.seed,
            "kills": self.kills(),
            "worst_us": micros(worst),
            "median_us": micros(median),
            "activities": self.activities.iter().map(row).collect::<serde_json::Map<_, _>>(),
            "noticed_in": self.ops,
            "hangs": self.hangs,
            "leaks": self.leaks,
            "wrong": self.wrongs,
        })
    }
}
