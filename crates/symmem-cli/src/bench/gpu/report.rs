//! The results of a bench on GPUs: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::conductor::{LeftOut, SystemFacts};
use super::tally::{Row, Summary, summarise};
use crate::args::{BenchArgs, short};
use crate::bench::html::Page;
use crate::bench::machine::Machine;
use crate::bench::sheet::{Column, Set, Sheet, grouped};
use crate::bench::{plot, report};
use crate::units;

/// Everything that came of a run.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) mps: String,
    pub(super) systems: Vec<SystemFacts>,
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
    pub(super) fn know<'a>(&mut self, systems: impl Iterator<Item = &'a SystemFacts>) {
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
            Some(path) if path != Path::new("-") => {
                report::write(path, &(serde_json::to_string_pretty(self)? + "\n"))
            }
            _ => Ok(()),
        }
    }

    /// Prints the tables, and writes the files that were asked for.
    pub(super) fn print(&mut self, args: &BenchArgs) -> Result<()> {
        self.save(None)?;
        let groups = groups(&self.results);
        let sheets = groups.iter().map(|group| sheet(group, args.wide)).chain([summary(&self.summary)]);
        let shown = sheets.filter(|sheet| !sheet.rows.is_empty());
        let tables: Vec<String> = shown.map(|sheet| sheet.text(args.wide)).collect();
        report::print(&tables.join("\n"), self, args.json.as_deref())?;
        args.html.iter().try_for_each(|path| report::write(path, &self.page().text()))
    }

    fn page(&self) -> Page {
        let mut facts = self.machine.facts();
        let system = |known: &SystemFacts| format!("{} {} on {}", known.system, known.version, known.device);
        facts.push(("systems", self.systems.iter().map(system).collect::<Vec<_>>().join("; ")));
        facts.push(("sharing", self.mps.clone()));
        let left_out =
            |out: &LeftOut| format!("{} of {}, {} ranks: {}", out.system, out.case, out.ranks, out.why);
        facts.extend(self.left_out.iter().map(|out| ("left out", left_out(out))));
        let tables = groups(&self.results).into_iter().map(|group| sheet(&group, true));
        let plotted: Vec<report::Row> = self.results.iter().filter_map(Row::plotted).collect();
        let tables = [summary(&self.summary)].into_iter().chain(tables).collect();
        Page { facts, tables, plots: plot::each(&plotted) }
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

/// The rows of one table each: those on the same terms.
fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    grouped(rows, |row| (row.ranks, row.share))
}

/// The columns that answer a person's question, or all of them.
fn sheet(rows: &[&Row], wide: bool) -> Sheet {
    let terms = [
        Column::new("system", Set::Head, |row: &Row| row.system.clone()),
        Column::new("ranks", Set::Head, |row: &Row| row.ranks.to_string()),
        Column::new("share", Set::Head, |row: &Row| share(row.share)),
    ];
    let more = if wide { all(rows) } else { few() };
    Sheet::new(rows, &terms.into_iter().chain(more).collect::<Vec<_>>())
}

fn few() -> Vec<Column<'static, Row>> {
    let best = |row: &Row| {
        row.ratios
            .iter()
            .max_by(|one, other| one.1.total_cmp(other.1))
            .map(|(name, ratio)| (name.clone(), *ratio))
    };
    vec![
        Column::new("op", Set::Words, |row: &Row| {
            let form = row.case.form.map(|form| format!(" {form}")).unwrap_or_default();
            format!("{}{form}{}", row.case.op, if row.case.cold { " cold" } else { "" })
        }),
        Column::new("size", Set::Number, |row: &Row| size(row.case.bytes)),
        Column::new("typical", Set::Number, |row: &Row| units::time(row.us.p50)),
        Column::new("slowest", Set::Number, |row: &Row| units::time(row.us.max)),
        Column::new("bandwidth", Set::Number, |row: &Row| {
            row.bandwidth().map(units::rate).unwrap_or_default()
        }),
        Column::new("best peer", Set::Words, move |row: &Row| {
            best(row).map(|best| best.0).unwrap_or_default()
        }),
        Column::new("/ peer", Set::Number, move |row: &Row| {
            best(row).map(|best| units::digits(best.1)).unwrap_or_default()
        }),
    ]
}

fn all(rows: &[&Row]) -> Vec<Column<'static, Row>> {
    let mut all = vec![
        Column::new("op", Set::Words, |row: &Row| row.case.op.clone()),
        Column::new("form", Set::Words, |row: &Row| {
            row.case.form.map(|form| form.to_string()).unwrap_or_default()
        }),
        Column::new("bytes", Set::Number, |row: &Row| {
            if row.case.bytes > 0 { short(row.case.bytes) } else { String::new() }
        }),
        Column::new("memory", Set::Head, |row: &Row| memory(row.case.cold)),
        Column::new("algorithm", Set::Words, |row: &Row| row.algorithm.clone()),
        Column::new("grid", Set::Number, |row: &Row| optional(row.grid)),
        Column::new("threads", Set::Number, |row: &Row| optional(row.threads)),
        Column::new("registers", Set::Number, |row: &Row| optional(row.registers)),
        Column::new("min us", Set::Number, |row: &Row| us(row.us.min)),
        Column::new("p50 us", Set::Number, |row: &Row| us(row.us.p50)),
        Column::new("max us", Set::Number, |row: &Row| us(row.us.max)),
        Column::new("spread", Set::Number, |row: &Row| format!("{:.0} %", row.us.spread * 100.0)),
        Column::new("GB/s", Set::Number, |row: &Row| row.bandwidth().map(units::digits).unwrap_or_default()),
    ];
    let systems: BTreeSet<_> = rows.iter().flat_map(|row| row.ratios.keys().cloned()).collect();
    all.extend(systems.into_iter().map(|system| {
        Column::new(&format!("/ {system}"), Set::Number, move |row: &Row| {
            row.ratios.get(&system).map(|ratio| format!("{ratio:.3}")).unwrap_or_default()
        })
    }));
    all
}

fn summary(rows: &[Summary]) -> Sheet {
    let columns = [
        Column::new("symmem /", Set::Words, |row: &Summary| row.system.clone()),
        Column::new("ranks", Set::Number, |row: &Summary| row.ranks.to_string()),
        Column::new("share", Set::Number, |row: &Summary| share(row.share)),
        Column::new("form", Set::Words, |row: &Summary| row.form.clone()),
        Column::new("memory", Set::Words, |row: &Summary| memory(row.cold)),
        Column::new("sizes", Set::Words, |row: &Summary| row.band.to_owned()),
        Column::new("rows", Set::Number, |row: &Summary| row.rows.to_string()),
        Column::new("geometric mean", Set::Number, |row: &Summary| format!("{:.3}", row.mean)),
        Column::new("worst", Set::Number, |row: &Summary| format!("{:.3}", row.worst)),
    ];
    Sheet::new(&rows.iter().collect::<Vec<_>>(), &columns)
}

fn size(bytes: usize) -> String {
    if bytes > 0 { units::size(bytes) } else { String::new() }
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
        let text = |wide| {
            let group = &groups(&report.results)[0];
            sheet(group, wide).text(wide)
        };
        assert!(text(true).contains("/ torch") && text(true).contains("0.500") && text(true).contains("8K"));
        for words in
            ["ranks 2, share unset\n", "all_reduce out", "8 KB", "2.00 us", "torch", "0.500", "4.10 GB/s"]
        {
            assert!(text(false).contains(words), "{words}: {}", text(false));
        }
        let json = serde_json::to_value(&report).expect("JSON");
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

    #[test]
    fn the_widest_rows_fit_in_a_hundred_columns_and_a_page_has_all_of_them_and_their_plot() {
        let mut report = Report::new("MPS <daemon>");
        let sizes = [8 << 10, 512 << 20];
        report.results = sizes
            .iter()
            .flat_map(|bytes| [row("symmem", *bytes, 123.4), row("torch", *bytes, 0.4)])
            .collect();
        compare(&mut report.results);
        report.results.iter_mut().for_each(|row| row.case.cold = true);
        report.save(None).expect("nothing to write");
        let group = &groups(&report.results)[0];
        let (few, short) = (sheet(group, false).text(false), summary(&report.summary).text(false));
        assert!(few.lines().chain(short.lines()).all(|line| line.chars().count() <= 100), "{few}\n{short}");
        assert!(few.contains("all_reduce out cold"), "{few}");

        let text = report.page().text();
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let document = roxmltree::Document::parse_with_options(&text, options).expect("XML");
        let count = |tag: &str| document.descendants().filter(|node| node.has_tag_name(tag)).count();
        assert_eq!(count("circle"), 2 * report.results.len());
        assert_eq!(count("tr"), 1 + report.results.len() + 1 + report.summary.len());
    }
}
