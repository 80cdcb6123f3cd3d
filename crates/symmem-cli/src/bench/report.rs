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
use super::stats::Percentiles;

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    /// Whose operation it is: `symmem`, `limit` or a peer.
    pub(super) system: String,
    pub(super) op: String,
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
    /// Bytes over the median time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gb_per_s: Option<f64>,
    /// The same times the collective's factor: what the busiest link carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bus_gb_per_s: Option<f64>,
    /// The median over all blocks of this system's typical time over the limit's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_limit: Option<f64>,
    /// The median over all blocks of the typical time less that of the barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) above_barrier_us: Option<f64>,
    /// Of a peer: the median over all rounds of symmem's typical time over this one's. Of symmem: that of the best peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_peer: Option<f64>,
    /// The peer that symmem's ratio is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) best_peer: Option<String>,
    /// The typical time of each round of a comparison, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) p50_by_round: Vec<f64>,
}

impl Row {
    /// With the bytes of `case`, and the bandwidths that follow.
    pub(super) fn with_bandwidth(self, case: &Case) -> Self {
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
    let table = table(rows);
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

/// A column: its name, whether it holds numbers, and what it says of a row.
struct Column(&'static str, bool, fn(&Row) -> String);

const COLUMNS: [Column; 16] = [
    Column("system", false, |row| row.system.clone()),
    Column("op", false, |row| row.op.clone()),
    Column("algorithm", false, |row| row.algorithm.clone()),
    Column("dtype", false, |row| row.dtype.clone()),
    Column("ranks", true, |row| row.ranks.to_string()),
    Column("bytes", true, |row| row.bytes.to_string()),
    Column("min us", true, |row| us(row.us.min)),
    Column("p50 us", true, |row| us(row.us.p50)),
    Column("p90 us", true, |row| us(row.us.p90)),
    Column("p99 us", true, |row| us(row.us.p99)),
    Column("GB/s", true, |row| optional(row.gb_per_s)),
    Column("bus GB/s", true, |row| optional(row.bus_gb_per_s)),
    Column("x limit", true, |row| optional(row.ratio_to_limit)),
    Column("us above barrier", true, |row| optional(row.above_barrier_us)),
    Column("symmem / peer", true, peer),
    Column("verified", false, |row| if row.verified { "yes" } else { "NO" }.to_owned()),
];

fn us(us: f64) -> String {
    format!("{us:.3}")
}

fn optional(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.2}")).unwrap_or_default()
}

fn peer(row: &Row) -> String {
    let name = row.best_peer.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    // Some peers are hundreds of times slower.
    row.ratio_to_peer.map(|ratio| format!("{ratio:.3}{name}")).unwrap_or_default()
}

/// All rows, and the columns that say something.
fn table(rows: &[Row]) -> Table {
    let says = |column: &&Column| rows.iter().any(|row| !column.2(row).is_empty());
    let columns: Vec<&Column> = COLUMNS.iter().filter(says).collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(columns.iter().map(|column| column.0));
    for row in rows {
        table.add_row(columns.iter().map(|column| column.2(row)));
    }
    for (shown, _) in table.column_iter_mut().zip(columns).filter(|(_, column)| column.1) {
        shown.set_cell_alignment(CellAlignment::Right);
    }
    table
}
