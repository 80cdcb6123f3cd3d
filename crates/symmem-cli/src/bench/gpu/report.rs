//! The results of a bench on GPUs: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::conductor::{Known, LeftOut};
use super::tally::{Row, Summary, summarise};
use crate::args::short;
use crate::bench::machine::Machine;
use crate::bench::report;

/// Everything that came of a run.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) mps: String,
    pub(super) systems: Vec<Known>,
    pub(super) results: Vec<Row>,
    pub(super) summary: Vec<Summary>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Report {
    /// An empty one.
    pub(super) fn new(mps: &str) -> Self {
        Self {
            machine: Machine::this(),
            mps: mps.to_owned(),
            systems: Vec::new(),
            results: Vec::new(),
            summary: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Takes note of what systems said of themselves.
    pub(super) fn know<'a>(&mut self, systems: impl Iterator<Item = &'a Known>) {
        for known in systems {
            if !self.systems.contains(known) {
                self.systems.push(known.clone());
            }
        }
    }

    /// Writes what there is so far: a run that is cut short must not have been in vain.
    pub(super) fn save(&mut self, json: Option<&Path>) -> Result<()> {
        self.summary = summarise(&self.results);
        match json {
            Some(path) if path != Path::new("-") => report::write(path, &self.text()?),
            _ => Ok(()),
        }
    }

    /// Prints the tables, and the JSON if it goes to stdout.
    pub(super) fn print(&mut self, json: Option<&Path>) -> Result<()> {
        self.save(json)?;
        let tables = format!("{}\n{}\n", table(&self.results), summary(&self.summary));
        if json == Some(Path::new("-")) {
            std::io::stderr().write_all(tables.as_bytes())?;
            return Ok(std::io::stdout().write_all(self.text()?.as_bytes())?);
        }
        Ok(std::io::stdout().write_all(tables.as_bytes())?)
    }

    fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// One race in one line.
pub(super) fn line(rows: &[Row]) -> String {
    let one = |row: &Row| {
        let ratios = row.ratios.iter().map(|(system, ratio)| format!(" ({ratio:.2}x {system})"));
        format!("{} {} {} us{}", row.system, row.algorithm, us(row.us.p50), ratios.collect::<String>())
    };
    rows.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A column of numbers, and what it says of a row.
type Column = (String, bool, Box<dyn Fn(&Row) -> String>);

fn columns(rows: &[Row]) -> Vec<Column> {
    fn column(name: &str, number: bool, of: impl Fn(&Row) -> String + 'static) -> Column {
        (name.to_owned(), number, Box::new(of))
    }
    let mut all = vec![
        column("system", false, |row| row.system.clone()),
        column("op", false, |row| row.case.op.clone()),
        column("form", false, |row| row.case.form.map(|form| form.to_string()).unwrap_or_default()),
        column("ranks", true, |row| row.ranks.to_string()),
        column("share", true, |row| share(row.share)),
        column("bytes", true, |row| if row.case.bytes > 0 { short(row.case.bytes) } else { String::new() }),
        column("memory", false, |row| memory(row.case.cold)),
        column("algorithm", false, |row| row.algorithm.clone()),
        column("grid", true, |row| optional(row.grid)),
        column("threads", true, |row| optional(row.threads)),
        column("registers", true, |row| optional(row.registers)),
        column("p50 us", true, |row| us(row.us.p50)),
        column("spread", true, |row| format!("{:.0} %", row.us.spread * 100.0)),
        column("GB/s", true, |row| row.gb_per_s.map(|rate| format!("{rate:.0}")).unwrap_or_default()),
    ];
    let systems: BTreeSet<_> = rows.iter().flat_map(|row| row.ratios.keys().cloned()).collect();
    all.extend(systems.into_iter().map(|system| {
        let of = system.clone();
        let ratio =
            move |row: &Row| row.ratios.get(&of).map(|ratio| format!("{ratio:.3}")).unwrap_or_default();
        column(&format!("/ {system}"), true, ratio)
    }));
    all
}

/// All rows, and the columns that say something.
fn table(rows: &[Row]) -> Table {
    let says = |column: &Column| rows.iter().any(|row| !column.2(row).is_empty());
    let columns: Vec<_> = columns(rows).into_iter().filter(says).collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(columns.iter().map(|column| &column.0));
    for row in rows {
        table.add_row(columns.iter().map(|column| column.2(row)));
    }
    for (shown, _) in table.column_iter_mut().zip(&columns).filter(|(_, column)| column.1) {
        shown.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn summary(rows: &[Summary]) -> Table {
    let mut table = Table::new();
    let header = ["symmem /", "ranks", "share", "form", "memory", "sizes", "rows", "geometric mean", "worst"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for row in rows {
        table.add_row([
            row.system.clone(),
            row.ranks.to_string(),
            share(row.share),
            row.form.clone(),
            memory(row.cold),
            row.band.to_owned(),
            row.rows.to_string(),
            format!("{:.3}", row.mean),
            format!("{:.3}", row.worst),
        ]);
    }
    table
}

fn us(us: f64) -> String {
    if us >= 1000.0 { format!("{us:.0}") } else { format!("{us:.2}") }
}

fn share(share: Option<u32>) -> String {
    share.map_or_else(|| "unset".to_owned(), |share| format!("{share} %"))
}

fn memory(cold: bool) -> String {
    if cold { "cold" } else { "warm" }.to_owned()
}

fn optional(value: Option<u32>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::gpu::tally::compare;
    use crate::bench::gpu::tally::tests::row;

    #[test]
    fn tables_and_json_have_the_ratios() {
        let mut report = Report::new("none");
        report.results = vec![row("symmem", 8 << 10, 2.0), row("torch", 8 << 10, 4.0)];
        compare(&mut report.results);
        report.save(None).expect("nothing to write");
        let text = table(&report.results).to_string();
        assert!(text.contains("/ torch") && text.contains("0.500") && text.contains("8K"), "{text}");
        assert!(!text.contains("GB/s"), "an empty column: {text}");
        let json: serde_json::Value = serde_json::from_str(&report.text().expect("JSON")).expect("JSON");
        let ours = &json["results"][0];
        for name in [
            "system",
            "op",
            "form",
            "bytes",
            "cold",
            "ranks",
            "algorithm",
            "grid",
            "threads",
            "registers",
            "verified",
        ] {
            assert!(!ours[name].is_null(), "{name} of {ours}");
        }
        assert_eq!(ours["ratios"]["torch"], 0.5);
        assert_eq!(json["summary"][0]["mean"], 0.5);
        assert_eq!(line(&report.results), "symmem one_shot 2.00 us (0.50x torch); torch one_shot 4.00 us");
    }
}
