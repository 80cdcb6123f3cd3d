//! Reads what launches wrote: the JSON of `symmem bench`, on host or GPU, and of the probe.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::judge::Times;

/// Which launch of a turn it was; the names of its file end so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    Old,
    Again,
    New,
}

impl Build {
    pub(super) const ALL: [Self; 3] = [Self::Old, Self::Again, Self::New];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Again => "again",
            Self::New => "new",
        }
    }
}

/// The times of every row, in the order in which rows were first seen.
#[derive(Default)]
pub(super) struct Results {
    pub(super) rows: Vec<(String, Times)>,
}

impl Results {
    /// Reads a folder of files `TURN-old.json`, `TURN-again.json` and `TURN-new.json`.
    pub(super) fn of(folder: &Path) -> Result<Self> {
        let mut turns: BTreeMap<String, Vec<Build>> = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some((turn, build)) = parse(&name) {
                turns.entry(turn.to_owned()).or_default().push(build);
            }
        }
        let mut results = Self::default();
        for turn in turns.iter().filter(|(_, builds)| builds.len() == Build::ALL.len()).map(|(turn, _)| turn)
        {
            let read = |build: Build| read(&folder.join(format!("{turn}-{}.json", build.name())));
            results.add([read(Build::Old)?, read(Build::Again)?, read(Build::New)?]);
        }
        ensure!(!results.rows.is_empty(), "{} has no whole turn with a row", folder.display());
        Ok(results)
    }

    /// Takes one turn: what the old build, the old build again, and the new one measured. Rows that not all
    /// have are left out.
    pub(super) fn add(&mut self, [old, again, new]: [Vec<(String, f64)>; 3]) {
        let find =
            |rows: &[(String, f64)], key: &str| rows.iter().find(|(name, _)| name == key).map(|(_, us)| *us);
        for (key, old) in old {
            let (Some(again), Some(new)) = (find(&again, &key), find(&new, &key)) else { continue };
            let at = self.rows.iter().position(|(name, _)| *name == key).unwrap_or_else(|| {
                self.rows.push((key.clone(), Times::default()));
                self.rows.len() - 1
            });
            let times = &mut self.rows[at].1;
            times.old.push(old);
            times.again.push(again);
            times.new.push(new);
        }
    }
}

/// The turn and the build that a file is of.
fn parse(name: &str) -> Option<(&str, Build)> {
    let (turn, build) = name.strip_suffix(".json")?.rsplit_once('-')?;
    Some((turn, Build::ALL.into_iter().find(|known| known.name() == build)?))
}

/// The rows of a file: a name, and microseconds.
pub(super) fn read(path: &Path) -> Result<Vec<(String, f64)>> {
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    rows(&text).with_context(|| format!("{} is no result of a bench", path.display()))
}

/// What tells rows apart, in this order. The algorithm is no part of it: another choice is what a comparison
/// may be about.
const KEY: [&str; 8] = ["op", "form", "memory", "dtype", "bytes", "ranks", "share", "load"];

fn rows(text: &str) -> Result<Vec<(String, f64)>> {
    let report: Value = serde_json::from_str(text).context("it is not JSON")?;
    let Some(rows) = report["results"].as_array() else { bail!("it has no list of results") };
    let ours = rows.iter().filter(|row| row["system"] == "symmem");
    ours.map(row).collect()
}

fn row(row: &Value) -> Result<(String, f64)> {
    let us = row["us"]["p50"].as_f64().with_context(|| format!("this row has no time: {row}"))?;
    ensure!(row["verified"] == Value::Bool(true), "this row was not verified: {row}");
    let mut key: Vec<String> = KEY.iter().filter_map(|name| part(name, &row[*name])).collect();
    if row["cold"] == Value::Bool(true) {
        key.push("cold".to_owned());
    }
    if row["pinned"] == Value::Bool(false) {
        key.push("not pinned".to_owned());
    }
    Ok((key.join(" "), us))
}

fn part(name: &str, value: &Value) -> Option<String> {
    match (name, value) {
        ("bytes", Value::Number(bytes)) => bytes.as_u64().filter(|bytes| *bytes > 0).map(short),
        ("ranks", Value::Number(ranks)) => Some(format!("x{ranks}")),
        ("share", Value::Number(share)) => Some(format!("{share}%")),
        // What a row was before there was another.
        ("memory", Value::String(memory)) if memory == "symmetric" => None,
        ("load", Value::Number(load)) => {
            load.as_u64().filter(|load| *load > 0).map(|load| format!("load {load}"))
        }
        (_, Value::String(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

/// Bytes in the unit that makes the number short.
pub(super) fn short(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"machine": {}, "results": [
        {"system": "limit", "op": "barrier", "ranks": 2, "us": {"p50": 0.1}, "verified": true},
        {"system": "symmem", "op": "barrier", "ranks": 2, "us": {"p50": 0.5}, "verified": true},
        {"system": "symmem", "op": "all_reduce", "form": "private", "bytes": 8192, "ranks": 4, "share": 25,
         "cold": true, "us": {"p50": 2.5}, "verified": true}]}"#;

    #[test]
    fn the_rows_of_a_bench_are_read_and_those_of_others_are_not() {
        let expected = [("barrier x2", 0.5), ("all_reduce private 8K x4 25% cold", 2.5)];
        let expected = expected.map(|(name, us)| (name.to_owned(), us));
        assert_eq!(rows(REPORT).expect("a report"), expected);
    }

    #[test]
    fn rows_of_other_memory_and_other_conditions_have_names_of_their_own() {
        let row = |more: &str| {
            let text = r#"{"results": [{"system": "symmem", "op": "barrier", "us": {"p50": 1}, "verified": true, MORE}]}"#;
            rows(&text.replace("MORE", more)).expect("a report")[0].0.clone()
        };
        assert_eq!(row(r#""memory": "symmetric", "load": 0, "pinned": true"#), "barrier");
        assert_eq!(
            row(r#""memory": "private", "load": 2, "pinned": false"#),
            "barrier private load 2 not pinned"
        );
    }

    #[test]
    fn a_row_that_was_not_verified_or_has_no_time_is_refused() {
        assert!(rows(&REPORT.replace("true}]", "false}]")).is_err());
        assert!(rows(&REPORT.replace("2.5", "null")).is_err());
        assert!(rows("{}").is_err() && rows("no JSON").is_err());
    }

    #[test]
    fn a_folder_is_read_turn_by_turn_and_half_a_turn_is_left_out() {
        let folder = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a new folder");
        let write = |name: &str, us: &str| {
            fs::write(folder.join(name), REPORT.replace("0.5", us)).expect("a new file");
        };
        for (turn, us) in [("01", "1.0"), ("02", "2.0")] {
            Build::ALL.iter().for_each(|build| write(&format!("{turn}-{}.json", build.name()), us));
        }
        write("03-old.json", "9.0");
        write("notes.json", "9.0");
        let results = Results::of(&folder);
        fs::remove_dir_all(&folder).expect("the folder is ours");
        let rows = results.expect("results").rows;
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].0.as_str(), &rows[0].1.new[..]), ("barrier x2", &[1.0, 2.0][..]));
    }

    #[test]
    fn a_row_that_one_build_lacks_is_left_out() {
        let row = |name: &str| vec![(name.to_owned(), 1.0)];
        let mut results = Results::default();
        results.add([row("a"), row("a"), row("b")]);
        assert!(results.rows.is_empty());
    }
}
