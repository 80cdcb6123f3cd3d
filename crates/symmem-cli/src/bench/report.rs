//! The results: rows, as a table for people and as JSON for programs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::collective::Case;
use super::machine::Machine;
use super::peers::Status;
use super::stats::{Percentiles, Ratio};
use super::summary;

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    /// Whose operation it is: `symmem`, `limit` or a peer.
    pub(super) system: String,
    pub(super) op: String,
    /// Where the elements of a collective lie: `symmetric`, `private` or `by_hand`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) memory: String,
    pub(super) algorithm: String,
    pub(super) dtype: String,
    pub(super) ranks: usize,
    /// Bytes of a copy, or of a collective's whole memory.
    pub(super) bytes: usize,
    /// Microseconds of an operation on the slowest rank.
    pub(super) us: Percentiles<f64>,
    /// Whether everything that was checked was right on every rank.
    pub(super) verified: bool,
    pub(super) samples: usize,
    pub(super) pinned: bool,
    /// Busy loops that ran beside the ranks.
    pub(super) load: usize,
    /// Bytes over the median time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gb_per_s: Option<f64>,
    /// The same times the collective's factor: what the busiest link carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bus_gb_per_s: Option<f64>,
    /// This system's time over the limit's. Beside busy loops the limit is a futex ping-pong, else a bare loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_limit: Option<f64>,
    /// The same of means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mean_ratio_to_limit: Option<f64>,
    /// The median over all blocks of the typical time less that of the barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) above_barrier_us: Option<f64>,
    /// Of private memory: its time over that of copying in and out by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to_hand: Option<Ratio>,
    /// Of a peer: symmem's typical time, in the first memory that was asked for, over this one's. Of symmem: over the best peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_peer: Option<f64>,
    /// The peer that symmem's ratio is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) best_peer: Option<String>,
    /// The same two of means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mean_ratio_to_peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mean_best_peer: Option<String>,
    /// The typical time of each round of a comparison, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) p50_by_round: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mean_by_round: Vec<f64>,
}

impl Row {
    /// As a row of the limit itself.
    pub(super) fn of_limit(self) -> Self {
        let one = Some(1.0);
        Self { system: "limit".to_owned(), ratio_to_limit: one, mean_ratio_to_limit: one, ..self }
    }

    /// With what it is of the limit.
    pub(super) fn beside_limit(self, ratio: Option<Ratio>) -> Self {
        let (p50, mean) = (ratio.map(|ratio| ratio.p50), ratio.map(|ratio| ratio.mean));
        Self { ratio_to_limit: p50, mean_ratio_to_limit: mean, ..self }
    }

    /// With the bytes of `case`, and the bandwidths that follow.
    pub(super) fn with_bandwidth(self, case: &Case) -> Self {
        if case.bytes == 0 {
            return self;
        }
        let (algorithm, bus) = case.bandwidth(self.ranks, self.us.p50);
        Self { bytes: case.bytes, gb_per_s: Some(algorithm), bus_gb_per_s: Some(bus), ..self }
    }
}

/// Finds out before the run whether its results can be written to `path` after it.
pub(super) fn check_writable(path: &Path) -> Result<()> {
    if !is_stdout(path) {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

/// Prints the table, and writes the JSON where it was asked for.
pub(super) fn print(rows: &[Row], peers: &[Status], json: Option<&Path>) -> Result<()> {
    let table = [head(rows), table(rows).to_string(), summary::of(rows)];
    let table = table.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n");
    let Some(path) = json else {
        return Ok(writeln!(std::io::stdout(), "{table}")?);
    };
    let report = json!({"machine": Machine::this(), "peers": peers, "results": rows});
    let text = serde_json::to_string_pretty(&report)? + "\n";
    if is_stdout(path) {
        writeln!(std::io::stderr(), "{table}")?;
        return Ok(std::io::stdout().write_all(text.as_bytes())?);
    }
    writeln!(std::io::stdout(), "{table}")?;
    write(path, &text)
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A column: its name, how it is set, and what it says of a row.
struct Column(&'static str, Set, fn(&Row) -> String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    Words,
    Number,
    /// Above the table instead, where all rows say the same.
    Head,
}

const COLUMNS: [Column; 20] = [
    Column("system", Set::Words, |row| row.system.clone()),
    Column("op", Set::Words, |row| row.op.clone()),
    Column("memory", Set::Head, |row| row.memory.clone()),
    Column("algorithm", Set::Words, |row| row.algorithm.clone()),
    Column("dtype", Set::Head, |row| row.dtype.clone()),
    Column("ranks", Set::Head, |row| row.ranks.to_string()),
    Column("pinned", Set::Head, |row| yes(row.pinned, "no")),
    Column("load", Set::Head, |row| row.load.to_string()),
    Column("bytes", Set::Number, |row| row.bytes.to_string()),
    Column("min us", Set::Number, |row| us(row.us.min)),
    Column("p50 us", Set::Number, |row| us(row.us.p50)),
    Column("mean us", Set::Number, |row| us(row.us.mean)),
    Column("p90 us", Set::Number, |row| us(row.us.p90)),
    Column("p99 us", Set::Number, |row| us(row.us.p99)),
    Column("GB/s", Set::Number, |row| optional(row.bus_gb_per_s.or(row.gb_per_s))),
    Column("x limit", Set::Number, limit),
    Column("us above barrier", Set::Number, |row| optional(row.above_barrier_us)),
    Column("x by hand", Set::Number, |row| optional(row.to_hand.map(|ratio| ratio.p50))),
    Column("symmem / peer", Set::Number, peer),
    Column("verified", Set::Head, |row| yes(row.verified, "NO")),
];

fn yes(is_so: bool, no: &str) -> String {
    if is_so { "yes" } else { no }.to_owned()
}

fn us(us: f64) -> String {
    format!("{us:.3}")
}

fn optional(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.2}")).unwrap_or_default()
}

/// Beside busy loops means count.
fn limit(row: &Row) -> String {
    optional(if row.load > 0 { row.mean_ratio_to_limit } else { row.ratio_to_limit })
}

fn peer(row: &Row) -> String {
    let (ratio, best) = match row.load {
        0 => (row.ratio_to_peer, &row.best_peer),
        _ => (row.mean_ratio_to_peer, &row.mean_best_peer),
    };
    let name = best.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    // Some peers are hundreds of times slower.
    ratio.map(|ratio| format!("{ratio:.3}{name}")).unwrap_or_default()
}

/// Whether all rows say the same in a column that can be spared for that.
fn is_common(column: &Column, rows: &[Row]) -> bool {
    let first = rows.first().map(column.2);
    column.1 == Set::Head && rows.iter().all(|row| Some(column.2(row)) == first)
}

/// What is the same in all rows.
fn head(rows: &[Row]) -> String {
    let common = COLUMNS.iter().filter(|column| is_common(column, rows));
    let words = common.filter_map(|column| Some((column.0, column.2(rows.first()?))));
    let words: Vec<String> =
        words.filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}")).collect();
    words.join(", ")
}

/// All rows, and the columns that say something.
fn table(rows: &[Row]) -> Table {
    let says =
        |column: &&Column| rows.iter().any(|row| !column.2(row).is_empty()) && !is_common(column, rows);
    let columns: Vec<&Column> = COLUMNS.iter().filter(says).collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(columns.iter().map(|column| column.0));
    for row in rows {
        table.add_row(columns.iter().map(|column| column.2(row)));
    }
    for (shown, _) in table.column_iter_mut().zip(columns).filter(|(_, column)| column.1 == Set::Number) {
        shown.set_cell_alignment(CellAlignment::Right);
    }
    table
}
