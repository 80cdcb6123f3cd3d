//! The results in short: a line for each collective and size, whoever carried it, narrow enough for a
//! terminal.
//!
//! Times are medians, and means where busy loops ran beside the ranks. Below the lines: geometric mean and
//! worst row of each ratio.

use super::report::Row;
use super::sheet::{Column, Set, Sheet, grouped};
use super::stats::geometric_mean;
use crate::args::{Memory, short};
use crate::units;

/// The rows of one collective, type and size.
struct Line<'a> {
    rows: Vec<&'a Row>,
}

/// Table and judgement of rows on the same terms; empty where there is nothing to set side by side.
pub(super) fn text(rows: &[&Row], wide: bool) -> String {
    let lines = lines(rows);
    let sheet = sheet(&lines, wide);
    if sheet.rows.is_empty() {
        return String::new();
    }
    let judgements = JUDGEMENTS.iter().filter_map(|judgement| judgement.sentence(&lines));
    [sheet.text(wide)].into_iter().chain(judgements).collect::<Vec<_>>().join("\n")
}

/// The table alone, with all columns.
pub(super) fn all(rows: &[&Row]) -> Sheet {
    sheet(&lines(rows), true)
}

/// The rows that have a collective or a signal in common.
fn lines<'a>(rows: &[&'a Row]) -> Vec<Line<'a>> {
    let comparable = rows.iter().copied().filter(|row| row.is_collective() || row.op == "signal");
    let groups = grouped(comparable, |row| (row.op.clone(), row.dtype.clone(), row.bytes));
    groups.into_iter().map(|rows| Line { rows }).collect()
}

impl Line<'_> {
    fn first(&self) -> &Row {
        self.rows[0]
    }

    /// Symmem's row with the elements in `memory`.
    fn ours(&self, memory: Memory) -> Option<&Row> {
        let is_it = |row: &&&Row| row.system == "symmem" && row.memory == memory.name();
        // What is no collective has no elements, only memory.
        let signal =
            |row: &&&Row| row.system == "symmem" && row.memory.is_empty() && memory == Memory::Symmetric;
        self.rows.iter().find(|row| is_it(row) || signal(row)).copied()
    }

    /// Whether more was measured than symmetric memory beside a bare loop.
    fn says_more(&self) -> bool {
        self.first().load > 0
            || self.rows.iter().any(|row| row.memory != "symmetric" && !row.memory.is_empty())
    }

    fn limit(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == "limit").copied()
    }

    /// The peer that is the best one for our private memory, or for the other if there is none.
    fn best_peer(&self) -> Option<&Row> {
        let ours = self.ours(Memory::Private).or_else(|| self.ours(Memory::Symmetric))?;
        let name = if ours.load > 0 { &ours.mean_best_peer } else { &ours.best_peer };
        self.rows.iter().find(|row| Some(&row.system) == name.as_ref()).copied()
    }

    fn to_peer(&self, memory: Memory) -> Option<f64> {
        let row = self.ours(memory)?;
        if row.load > 0 { row.mean_ratio_to_peer } else { row.ratio_to_peer }
    }

    fn to_limit(&self, memory: Memory) -> Option<f64> {
        let row = self.ours(memory)?;
        if row.load > 0 { row.mean_ratio_to_limit } else { row.ratio_to_limit }
    }

    fn to_hand(&self) -> Option<f64> {
        let row = self.ours(Memory::Private)?;
        row.to_hand.map(|ratio| if row.load > 0 { ratio.mean } else { ratio.p50 })
    }

    /// Which one it is among those with the same ranks and condition.
    fn name(&self) -> String {
        let row = self.first();
        if row.bytes == 0 { row.op.clone() } else { format!("{} {} {}", row.op, row.dtype, short(row.bytes)) }
    }
}

/// Beside busy loops means count.
fn time(row: Option<&Row>) -> String {
    let us = row.map(|row| if row.load > 0 { row.us.mean } else { row.us.p50 });
    us.map(units::time).unwrap_or_default()
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map(units::digits).unwrap_or_default()
}

/// Beside peers it is narrow only without what has nothing to do with them.
fn sheet(lines: &[Line<'_>], wide: bool) -> Sheet {
    if !lines.iter().any(Line::says_more) {
        return Sheet::default();
    }
    let compared = !wide && lines.iter().any(|line| line.best_peer().is_some());
    let unless = |hidden: bool, text: String| if hidden { String::new() } else { text };
    let ours = |name, memory| Column::new(name, Set::Number, move |line: &Line<'_>| time(line.ours(memory)));
    let columns = [
        Column::new("in short", Set::Words, |line: &Line<'_>| line.first().op.clone()),
        Column::new("size", Set::Number, |line: &Line<'_>| {
            unless(line.first().bytes == 0, units::size(line.first().bytes))
        }),
        Column::new("limit", Set::Number, |line: &Line<'_>| unless(compared, time(line.limit()))),
        ours("symm.", Memory::Symmetric),
        ours("private", Memory::Private),
        ours("by hand", Memory::ByHand),
        Column::new("best peer", Set::Number, |line: &Line<'_>| {
            line.best_peer().map(named).unwrap_or_default()
        }),
        Column::new("s/limit", Set::Number, |line: &Line<'_>| {
            unless(compared, ratio(line.to_limit(Memory::Symmetric)))
        }),
        Column::new("s/peer", Set::Number, |line: &Line<'_>| ratio(line.to_peer(Memory::Symmetric))),
        Column::new("p/peer", Set::Number, |line: &Line<'_>| ratio(line.to_peer(Memory::Private))),
        Column::new("p/hand", Set::Number, |line: &Line<'_>| unless(compared, ratio(line.to_hand()))),
    ];
    Sheet::new(&lines.iter().collect::<Vec<_>>(), &columns)
}

fn named(row: &Row) -> String {
    format!("{} {}", row.system, time(Some(row)))
}

/// A ratio that is judged over many lines.
struct Judgement(&'static str, fn(&Line<'_>) -> Option<f64>);

const JUDGEMENTS: [Judgement; 5] = [
    Judgement("symmetric / limit", |line| line.to_limit(Memory::Symmetric)),
    Judgement("private / limit", |line| line.to_limit(Memory::Private)),
    Judgement("symmetric / best peer", |line| line.to_peer(Memory::Symmetric)),
    Judgement("private / best peer", |line| line.to_peer(Memory::Private)),
    Judgement("private / by hand", |line| line.to_hand()),
];

impl Judgement {
    fn sentence(&self, lines: &[Line<'_>]) -> Option<String> {
        let found = lines.iter().filter_map(|line| Some((line, self.1(line)?)));
        let found: Vec<_> = found.filter(|(_, ratio)| ratio.is_finite()).collect();
        let (worst, most) = found.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let mean = geometric_mean(&found.iter().map(|(_, ratio)| *ratio).collect::<Vec<_>>());
        Some(format!("{}: mean {mean:.2} of {}, worst {most:.2} ({})", self.0, found.len(), worst.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Ratio;

    fn row(system: &str, memory: &str, bytes: usize, p50: f64) -> Row {
        let mut row = Row { system: system.to_owned(), memory: memory.to_owned(), bytes, ..Row::default() };
        row.us.p50 = p50;
        row.us.mean = 10.0 * p50;
        let (op, dtype) = ("all_reduce".to_owned(), "f32".to_owned());
        Row { op, dtype, ranks: 2, pinned: true, bus_gb_per_s: Some(1.0), ..row }
    }

    fn case(bytes: usize, load: usize, to_peer: f64) -> Vec<Row> {
        let private = Row {
            ratio_to_peer: Some(to_peer),
            best_peer: Some("mpi".to_owned()),
            mean_ratio_to_peer: Some(2.0 * to_peer),
            mean_best_peer: Some("mpi".to_owned()),
            to_hand: Some(Ratio { p50: 1.5, mean: 1.0, above_us: 1.0 }),
            ..row("symmem", "private", bytes, 3.0)
        };
        let rows = [row("symmem", "symmetric", bytes, 1.0), private, row("mpi", "private", bytes, 8.0)];
        rows.map(|row| Row { load, ..row }).into()
    }

    fn of(rows: &[Row]) -> String {
        text(&rows.iter().collect::<Vec<_>>(), false)
    }

    #[test]
    fn lines_are_short_and_ratios_are_judged() {
        let text = of(&[case(1024, 0, 0.5), case(65536, 0, 0.125)].concat());
        for words in ["in short", "64 KB", "mpi 8.00 us", "3.00 us"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let words = "private / best peer: mean 0.25 of 2, worst 0.50 (all_reduce f32 1K)";
        assert!(text.contains(words), "{text}");
        assert!(text.contains("private / by hand") && !text.contains("/ limit:"), "{text}");
    }

    #[test]
    fn beside_busy_loops_means_count() {
        let text = of(&case(1024, 1, 0.5));
        assert!(text.contains("mpi 80.0 us") && text.contains("worst 1.00 (all_reduce f32 1K)"), "{text}");
    }

    #[test]
    fn symmetric_memory_alone_needs_no_summary() {
        assert_eq!(of(&[row("limit", "", 8, 1.0), row("symmem", "symmetric", 8, 1.0)]), "");
        assert_eq!(of(&[]), "");
    }
}
