//! A report that `symmem bench --json` wrote, of host memory or of GPUs, as a comparison needs it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::units;

/// What must be the same in both reports, or times are not comparable.
const MACHINE: [&str; 7] = ["cpu", "cores", "memory_bytes", "os", "kernel", "arch", "debug"];

/// A report.
pub(super) struct File {
    pub(super) rows: Vec<Row>,
    machine: Value,
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) key: Key,
    /// What counts of its times, in microseconds: the median, or the mean beside busy loops.
    pub(super) us: f64,
    /// The same of its parts, or of its rounds; empty if the report does not say.
    pub(super) samples: Vec<f64>,
}

/// What tells rows apart. The algorithm is no part of it: another choice is what a comparison may be about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Key {
    pub(super) system: String,
    pub(super) op: String,
    pub(super) bytes: u64,
    pub(super) dtype: String,
    pub(super) ranks: u64,
    pub(super) memory: String,
    /// Everything else that is not as usual.
    pub(super) terms: String,
}

impl Key {
    /// The system and the operation, in a few words.
    pub(super) fn words(&self) -> String {
        let python = if self.system == "python" { "python " } else { "" };
        let terms = if self.terms.is_empty() { String::new() } else { format!(" ({})", self.terms) };
        format!("{python}{}{terms}", self.op)
    }

    /// Bytes in their unit; nothing where there are none.
    pub(super) fn size(&self) -> String {
        if self.bytes == 0 { String::new() } else { units::size(self.bytes as usize) }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [self.words(), self.size(), self.dtype.clone(), self.memory.clone()];
        words.iter().filter(|word| !word.is_empty()).try_for_each(|word| write!(f, "{word} "))?;
        write!(f, "{} ranks", self.ranks)
    }
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
        Self::parse(&text).with_context(|| format!("{name} is not a report of `symmem bench --json`"))
    }

    fn parse(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).context("it is not JSON")?;
        let Some(rows) = report["results"].as_array() else { bail!("it has no list of results") };
        let rows = rows.iter().map(Row::of).collect::<Result<_>>()?;
        Ok(Self { rows, machine: report["machine"].clone() })
    }

    /// What is not the same about the machines of two reports, and would be seen in times.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let differs = |name: &&&str| self.machine[name] != other.machine[name];
        let words = |name: &str| format!("{name} {} and {}", self.machine[name], other.machine[name]);
        MACHINE.iter().filter(differs).map(|name| words(name)).collect()
    }
}

impl Row {
    fn of(row: &Value) -> Result<Self> {
        let load = row["load"].as_u64().unwrap_or(0);
        let what = if load > 0 { "mean" } else { "p50" };
        let us = row["us"][what].as_f64().filter(|us| *us > 0.0);
        let us = us.with_context(|| format!("this row has no time: {row}"))?;
        ensure!(row["verified"] == true, "this row was not verified, so its times mean nothing: {row}");
        let lists = [format!("{what}_by_round"), format!("{what}_by_part"), "us_by_round".to_owned()];
        let samples = lists.iter().find_map(|name| row[name.as_str()].as_array());
        let samples =
            samples.into_iter().flatten().filter_map(Value::as_f64).filter(|us| *us > 0.0).collect();
        Ok(Self { key: key(row, load), us, samples })
    }
}

fn key(row: &Value, load: u64) -> Key {
    let text = |name: &str| row[name].as_str().unwrap_or("").to_owned();
    let number = |name: &str| row[name].as_u64();
    let mut terms = vec![text("form")];
    // What is no choice of the library's.
    match (text("system").as_str(), row["dispatched"].as_bool()) {
        ("python" | "limit", _) => terms.push(text("algorithm")),
        (_, Some(false)) => {
            terms.push(text("choice"));
            terms.extend(
                ["grid", "threads"].map(|name| number(name).map_or(String::new(), |n| format!("{name} {n}"))),
            );
        }
        _ => {}
    }
    terms.extend(number("share").map(|share| format!("{share} %")));
    if row["cold"] == true {
        terms.push("cold".to_owned());
    }
    if row["pinned"] == false && text("system") != "python" {
        terms.push("not pinned".to_owned());
    }
    if load > 0 {
        terms.push(format!("load {load}"));
    }
    terms.retain(|term| !term.is_empty());
    Key {
        system: text("system"),
        op: text("op"),
        bytes: number("bytes").unwrap_or(0),
        dtype: text("dtype"),
        ranks: number("ranks").unwrap_or(0),
        memory: text("memory"),
        terms: terms.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(more: &str) -> Row {
        let text = r#"{"machine": {}, "results": [{"system": "symmem", "op": "all_reduce", "bytes": 8192, "dtype": "f32",
            "ranks": 4, "us": {"p50": 2.0, "mean": 3.0}, "verified": true, MORE}]}"#;
        File::parse(&text.replace("MORE", more)).expect("a report").rows.remove(0)
    }

    #[test]
    fn rows_are_told_apart_by_all_but_the_algorithm() {
        let host = row(
            r#""memory": "private", "algorithm": "push", "pinned": false, "load": 0, "p50_by_part": [1, 2]"#,
        );
        assert_eq!(host.key.to_string(), "all_reduce (not pinned) 8 KB f32 private 4 ranks");
        assert_eq!((host.us, &host.samples[..]), (2.0, &[1.0, 2.0][..]));
        let gpu = row(
            r#""form": "out", "dispatched": true, "grid": 8, "share": 25, "cold": true, "us_by_round": [4]"#,
        );
        assert_eq!(
            (gpu.key.words().as_str(), &gpu.samples[..]),
            ("all_reduce (out, 25 %, cold)", &[4.0][..])
        );
        let forced =
            row(r#""form": "out", "dispatched": false, "choice": "two_shot", "grid": 8, "algorithm": "x""#);
        assert_eq!(forced.key.words(), "all_reduce (out, two_shot, grid 8)");
    }

    #[test]
    fn beside_busy_loops_means_count_and_rounds_count_more_than_parts() {
        let loaded =
            row(r#""load": 2, "p50_by_round": [9], "mean_by_round": [1, 2, 3], "mean_by_part": [4]"#);
        assert_eq!((loaded.us, loaded.samples), (3.0, vec![1.0, 2.0, 3.0]));
    }

    #[test]
    fn what_is_no_report_or_was_not_verified_is_refused() {
        for text in ["", "[]", "{}", r#"{"results": [{}]}"#] {
            assert!(File::parse(text).is_err(), "{text}");
        }
        let wrong = r#"{"results": [{"us": {"p50": 1.0}, "verified": false}]}"#;
        assert!(File::parse(wrong).err().is_some_and(|error| error.to_string().contains("not verified")));
    }
}
