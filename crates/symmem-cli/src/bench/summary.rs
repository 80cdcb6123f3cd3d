//! The results in short: a line for each collective and size, whoever carried it, narrow enough for a terminal.
//!
//! Times are medians, and means where busy loops ran beside the ranks. Below the lines: geometric mean and worst row of
//! each ratio.

use comfy_table::{CellAlignment, Table, presets};

use super::report::Row;
use super::stats::geometric_mean;
use crate::args::{Memory, short};

/// The rows of one collective, type, size, number of ranks and condition.
struct Line<'a> {
    rows: Vec<&'a Row>,
}

/// Table and judgement; empty where there is nothing to set side by side.
pub(super) fn of(rows: &[Row]) -> String {
    let lines = lines(rows);
    if !lines.iter().any(Line::says_more) {
        return String::new();
    }
    let says = |column: &&Column| lines.iter().any(|line| !column.1(line).is_empty());
    let differs =
        |column: &&Column| !column.2 || lines.iter().any(|line| column.1(line) != column.1(&lines[0]));
    let columns: Vec<&Column> = COLUMNS.iter().filter(says).filter(differs).collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(columns.iter().map(|column| column.0));
    for line in &lines {
        table.add_row(columns.iter().map(|column| column.1(line)));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let judgements = JUDGEMENTS.iter().flat_map(|judgement| judgement.words(&lines));
    let unit = if lines.iter().any(|line| line.first().load > 0) { "means" } else { "medians" };
    let head = format!("in short, microseconds ({unit}):");
    [head, table.to_string()].into_iter().chain(judgements).collect::<Vec<_>>().join("\n")
}

/// The rows that have a collective or a signal in common.
fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let key = |row: &Row| (row.op.clone(), row.dtype.clone(), row.bytes, row.ranks, row.pinned, row.load);
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.bus_gb_per_s.is_some() || row.op == "signal") {
        match lines.iter_mut().find(|line| key(line.rows[0]) == key(row)) {
            Some(line) => line.rows.push(row),
            None => lines.push(Line { rows: vec![row] }),
        }
    }
    lines
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

    fn condition(&self) -> (usize, bool, usize) {
        let row = self.first();
        (row.ranks, row.pinned, row.load)
    }
}

fn time(row: Option<&Row>) -> String {
    let us = row.map(|row| if row.load > 0 { row.us.mean } else { row.us.p50 });
    us.map(digits).unwrap_or_default()
}

/// About three digits.
fn digits(us: f64) -> String {
    match us {
        _ if us < 10.0 => format!("{us:.2}"),
        _ if us < 100.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

/// A name, what it says of a line, and whether it can go where all lines say the same.
struct Column(&'static str, fn(&Line<'_>) -> String, bool);

const COLUMNS: [Column; 15] = [
    Column("op", |line| line.first().op.clone(), false),
    Column("dtype", |line| line.first().dtype.clone(), true),
    Column("bytes", |line| short(line.first().bytes), false),
    Column("ranks", |line| line.first().ranks.to_string(), true),
    Column("pin", |line| if line.first().pinned { "yes" } else { "no" }.to_owned(), true),
    Column("load", |line| line.first().load.to_string(), true),
    Column("limit", |line| time(line.limit()), false),
    Column("symm.", |line| time(line.ours(Memory::Symmetric)), false),
    Column("private", |line| time(line.ours(Memory::Private)), false),
    Column("by hand", |line| time(line.ours(Memory::ByHand)), false),
    Column("best peer", |line| line.best_peer().map(named).unwrap_or_default(), false),
    Column("s/limit", |line| ratio(line.to_limit(Memory::Symmetric)), false),
    Column("s/peer", |line| ratio(line.to_peer(Memory::Symmetric)), false),
    Column("p/peer", |line| ratio(line.to_peer(Memory::Private)), false),
    Column("p/hand", |line| ratio(line.to_hand()), false),
];

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
    /// A sentence for each number of ranks and condition.
    fn words(&self, lines: &[Line<'_>]) -> Vec<String> {
        let mut conditions: Vec<_> = lines.iter().map(Line::condition).collect();
        conditions.dedup();
        conditions.iter().filter_map(|condition| self.sentence(lines, *condition)).collect()
    }

    fn sentence(&self, lines: &[Line<'_>], condition: (usize, bool, usize)) -> Option<String> {
        let of_condition = lines.iter().filter(|line| line.condition() == condition);
        let found = of_condition.filter_map(|line| Some((line, self.1(line)?)));
        let found: Vec<_> = found.filter(|(_, ratio)| ratio.is_finite()).collect();
        let (worst, most) = found.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let mean = geometric_mean(&found.iter().map(|(_, ratio)| *ratio).collect::<Vec<_>>());
        let (ranks, pinned, load) = condition;
        let (pinned, loops) =
            (if pinned { "pinned" } else { "not pinned" }, if load == 1 { "loop" } else { "loops" });
        Some(format!(
            "{}, {ranks} ranks, {pinned}, {load} busy {loops}: mean {mean:.2} of {}, worst {most:.2} ({})",
            self.0,
            found.len(),
            worst.name()
        ))
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

    #[test]
    fn lines_are_short_and_ratios_are_judged() {
        let text = of(&[case(1024, 0, 0.5), case(65536, 0, 0.125)].concat());
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        for words in ["in short, microseconds (medians):", "64K", "mpi 8.00", "3.00"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let words = "private / best peer, 2 ranks, pinned, 0 busy loops: mean 0.25 of 2, worst 0.50 (all_reduce f32 1K)";
        assert!(text.contains(words), "{text}");
        assert!(text.contains("private / by hand") && !text.contains("/ limit,"), "{text}");
        assert!(
            !text.contains("dtype") && !text.contains("load "),
            "what is the same is not repeated: {text}"
        );
    }

    #[test]
    fn beside_busy_loops_means_count() {
        let text = of(&case(1024, 1, 0.5));
        assert!(text.contains("mpi 80.0") && text.contains("worst 1.00 (all_reduce f32 1K)"), "{text}");
    }

    #[test]
    fn symmetric_memory_alone_needs_no_summary() {
        assert_eq!(of(&[row("limit", "", 8, 1.0), row("symmem", "symmetric", 8, 1.0)]), "");
        assert_eq!(of(&[]), "");
    }
}
