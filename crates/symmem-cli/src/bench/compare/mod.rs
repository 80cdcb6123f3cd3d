//! `symmem bench compare`: what got slower or faster from one report of the bench to another, and how sure
//! that is.
//!
//! Rows of symmem and of its Python package are judged; those of the limit tell whether the machine itself
//! was in another state. With [`CONFIDENCE`] all intervals together hold what they are about, so that many
//! rows raise no more false alarms than one. The noise they are about is that within the two runs.

mod file;
mod judge;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::file::{File, Key, Row};
use self::judge::{Change, change};
use super::sheet::{Column, Set, Sheet, grouped};
use super::stats::median;
use crate::args::CompareArgs;
use crate::screen::{self, Tone};
use crate::units;

/// How sure it is that every interval holds the true change.
const CONFIDENCE: f64 = 0.95;

/// A row of both reports.
struct Pair {
    key: Key,
    old: f64,
    new: f64,
    change: Option<Change>,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The whole interval lies beyond the threshold.
    Slower,
    Faster,
    /// Not slower beyond the threshold.
    Same,
    /// The interval reaches over the threshold.
    Unsure,
    /// There are too few samples for an interval.
    Unknown,
}

impl Verdict {
    /// What an interval says beside the threshold; `of_machine` is what the machine got slower by, which is
    /// no alarm.
    fn of(change: Option<Change>, threshold: f64, of_machine: f64) -> Self {
        let alarm = (1.0 + threshold) * (1.0 + of_machine) - 1.0;
        match change.and_then(|change| change.interval) {
            None => Self::Unknown,
            Some((low, _)) if low > alarm => Self::Slower,
            // As many times faster as slower would be an alarm.
            Some((_, high)) if high < 1.0 / (1.0 + threshold) - 1.0 => Self::Faster,
            Some((_, high)) if high <= threshold => Self::Same,
            Some(_) => Self::Unsure,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Same => "same",
            Self::Unsure => "unsure",
            Self::Unknown => "unknown",
        }
    }
}

/// Prints the comparison; status 1 if anything is slower beyond the threshold.
pub(super) fn run(args: &CompareArgs) -> Result<ExitCode> {
    let (old, new) = (File::read(&args.old)?, File::read(&args.new)?);
    let found = Comparison::of(&old, &new, args.threshold);
    let names = (args.old.display(), args.new.display());
    ensure!(!found.pairs.is_empty(), "{} and {} have no row of symmem in common", names.0, names.1);
    if args.json {
        screen::print_json(&found.json())?
    } else {
        screen::print(found.text())?
    }
    Ok(if found.count(Verdict::Slower) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Two reports, row by row.
struct Comparison {
    threshold: f64,
    differences: Vec<String>,
    pairs: Vec<Pair>,
    only_old: Vec<Key>,
    only_new: Vec<Key>,
    /// What the limit, which is no part of the library, changed by.
    limit: Option<f64>,
}

impl Comparison {
    fn of(old: &File, new: &File, threshold: f64) -> Self {
        let is_ours = |row: &&Row| ["symmem", "python"].contains(&row.key.system.as_str());
        let of_limit = |row: &&Row| row.key.system == "limit";
        let (pairs, only_old, only_new) =
            matched(old.rows.iter().filter(is_ours).collect(), new.rows.iter().filter(is_ours).collect());
        let risk = (1.0 - CONFIDENCE) / pairs.len().max(1) as f64;
        let judged = |(old, new): &(&Row, &Row)| Pair {
            key: old.key.clone(),
            old: old.us,
            new: new.us,
            change: change(&old.samples, &new.samples, risk),
        };
        let limits =
            matched(old.rows.iter().filter(of_limit).collect(), new.rows.iter().filter(of_limit).collect()).0;
        let limit = median(limits.iter().map(|(old, new)| new.us / old.us - 1.0).collect());
        Self {
            threshold,
            differences: old.differences(new),
            pairs: pairs.iter().map(judged).collect(),
            only_old,
            only_new,
            limit: Some(limit).filter(|limit| limit.is_finite()),
        }
    }

    /// What made the limit slower made symmem slower too.
    fn verdict(&self, pair: &Pair) -> Verdict {
        Verdict::of(pair.change, self.threshold, self.limit.unwrap_or(0.0).max(0.0))
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.pairs.iter().filter(|pair| self.verdict(pair) == verdict).count()
    }

    fn text(&self) -> String {
        let interval = |pair: &Pair| pair.change.and_then(|change| change.interval);
        let columns = [
            Column::new("op", Set::Words, |pair: &Pair| pair.key.words()),
            Column::new("size", Set::Number, |pair: &Pair| pair.key.size()),
            Column::new("dtype", Set::Head, |pair: &Pair| pair.key.dtype.clone()),
            Column::new("ranks", Set::Head, |pair: &Pair| pair.key.ranks.to_string()),
            Column::new("memory", Set::Head, |pair: &Pair| pair.key.memory.clone()),
            Column::new("old", Set::Number, |pair: &Pair| units::time(pair.old)),
            Column::new("new", Set::Number, |pair: &Pair| units::time(pair.new)),
            Column::new("change %", Set::Number, |pair: &Pair| {
                pair.change.map(|change| percent(change.typical)).unwrap_or_default()
            }),
            Column::new("between", Set::Number, |pair: &Pair| {
                let words = |(low, high)| format!("{} to {}", percent(low), percent(high));
                interval(pair).map(words).unwrap_or_default()
            }),
            Column::new("verdict", Set::Words, |pair: &Pair| self.verdict(pair).name().to_owned()),
        ];
        let groups = grouped(&self.pairs, |pair| (pair.key.ranks, pair.key.dtype.clone()));
        let tables = groups.iter().map(|group| Sheet::new(group, &columns).text(false));
        tables.chain(self.remarks()).collect::<Vec<_>>().join("\n")
    }

    /// What there is to say beside the table.
    fn remarks(&self) -> Vec<String> {
        let verdicts = [
            (Verdict::Slower, Tone::Bad),
            (Verdict::Faster, Tone::Good),
            (Verdict::Same, Tone::Strong),
            (Verdict::Unsure, Tone::Doubtful),
            (Verdict::Unknown, Tone::Quiet),
        ];
        let counts = verdicts.iter().map(|(verdict, tone)| (self.count(*verdict), verdict.name(), *tone));
        let counts = counts.filter(|(count, ..)| *count > 0);
        let counts: Vec<String> =
            counts.map(|(count, name, tone)| screen::paint(tone, &format!("{count} {name}"))).collect();
        let mut remarks = vec![format!(
            "of {} rows: {} (threshold {} %, confidence {:.0} % for all rows together)",
            self.pairs.len(),
            counts.join(", "),
            (self.threshold * 1e4).round() / 1e2,
            CONFIDENCE * 100.0
        )];
        if self.count(Verdict::Unknown) > 0 {
            remarks.push(
                "unknown: too few samples; measure with more --blocks, or --rounds beside peers".to_owned(),
            );
        }
        if let Some(limit) = self.limit.filter(|limit| limit.abs() > self.threshold) {
            remarks.push(format!(
                "the machine was in another state: the limit, which is not part of symmem, changed by {} %",
                percent(limit)
            ));
        }
        remarks.extend(self.differences.iter().map(|what| format!("not the same machine or build: {what}")));
        let only = |file: &'static str| move |key: &Key| format!("only in the {file} report: {key}");
        remarks.extend(self.only_old.iter().map(only("old")).chain(self.only_new.iter().map(only("new"))));
        remarks
    }

    fn json(&self) -> Value {
        let row = |pair: &Pair| {
            let interval = pair.change.and_then(|change| change.interval);
            let mut row = json!(pair.key);
            row["old_us"] = json!(pair.old);
            row["new_us"] = json!(pair.new);
            row["change"] = json!(pair.change.map(|change| change.typical));
            row["low"] = json!(interval.map(|interval| interval.0));
            row["high"] = json!(interval.map(|interval| interval.1));
            row["verdict"] = json!(self.verdict(pair).name().replace(' ', "_"));
            row
        };
        json!({
            "threshold": self.threshold,
            "confidence": CONFIDENCE,
            "slower": self.count(Verdict::Slower),
            "different_machines": self.differences,
            "limit_change": self.limit,
            "rows": self.pairs.iter().map(row).collect::<Vec<_>>(),
            "only_old": self.only_old,
            "only_new": self.only_new,
        })
    }
}

/// Rows with the same key, and keys of those that have no partner. Of several with one key, the first goes
/// with the first.
fn matched<'a>(old: Vec<&'a Row>, new: Vec<&'a Row>) -> (Vec<(&'a Row, &'a Row)>, Vec<Key>, Vec<Key>) {
    let (mut pairs, mut only_old, mut left) = (Vec::new(), Vec::new(), new);
    for row in old {
        match left.iter().position(|other| other.key == row.key) {
            Some(at) => pairs.push((row, left.remove(at))),
            None => only_old.push(row.key.clone()),
        }
    }
    (pairs, only_old, left.iter().map(|row| row.key.clone()).collect())
}

/// "+5.2".
fn percent(share: f64) -> String {
    format!("{:+.1}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let verdict = |low, high, of_machine| {
            Verdict::of(Some(Change { typical: 0.0, interval: Some((low, high)) }), 0.05, of_machine)
        };
        assert_eq!(verdict(0.06, 0.2, 0.0), Verdict::Slower);
        assert_eq!(verdict(0.04, 0.2, 0.0), Verdict::Unsure);
        assert_eq!(verdict(-0.2, -0.06, 0.0), Verdict::Faster);
        assert_eq!(verdict(-0.2, 0.04, 0.0), Verdict::Same);
        assert_eq!(verdict(-0.2, 0.2, 0.0), Verdict::Unsure);
        assert_eq!(verdict(0.2, 0.3, 0.2), Verdict::Unsure, "the machine got slower by as much");
        assert_eq!(verdict(0.3, 0.4, 0.2), Verdict::Slower);
        assert_eq!(Verdict::of(None, 0.05, 0.0), Verdict::Unknown);
    }
}
