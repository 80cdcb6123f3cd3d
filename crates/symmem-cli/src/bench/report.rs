//! The results: rows, as a table for people and as JSON for programs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::machine::Machine;
use super::stats::Percentiles;

/// One measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    /// Whose operation it is: `symmem` or `limit`.
    pub(super) system: String,
    pub(super) op: String,
    pub(super) algorithm: String,
    pub(super) dtype: String,
    pub(super) ranks: usize,
    /// Bytes a rank moves.
    pub(super) bytes: usize,
    /// Microseconds of an operation on the slowest rank.
    pub(super) us: Percentiles<f64>,
    /// Whether everything that was checked was right on every rank.
    pub(super) verified: bool,
    pub(super) samples: usize,
    pub(super) pinned: bool,
    /// Bytes of one rank over the median time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gb_per_s: Option<f64>,
    /// The median over all blocks of this system's typical time over the limit's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_limit: Option<f64>,
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
pub(super) fn print(rows: &[Row], json: Option<&Path>) -> Result<()> {
    let table = table(rows);
    let Some(path) = json else {
        return Ok(writeln!(std::io::stdout(), "{table}")?);
    };
    let text = serde_json::to_string_pretty(&json!({"machine": Machine::this(), "results": rows}))? + "\n";
    if is_stdout(path) {
        writeln!(std::io::stderr(), "{table}")?;
        return Ok(std::io::stdout().write_all(text.as_bytes())?);
    }
    writeln!(std::io::stdout(), "{table}")?;
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

const COLUMNS: [&str; 13] = [
    "system",
    "op",
    "algorithm",
    "dtype",
    "ranks",
    "bytes",
    "min us",
    "p50 us",
    "p90 us",
    "p99 us",
    "GB/s",
    "x limit",
    "verified",
];

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(COLUMNS);
    rows.iter().for_each(|row| {
        table.add_row(cells(row));
    });
    for column in table.column_iter_mut().skip(4).take(8) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let us = |us: f64| format!("{us:.3}");
    let optional = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    [
        row.system.clone(),
        row.op.clone(),
        row.algorithm.clone(),
        row.dtype.clone(),
        row.ranks.to_string(),
        row.bytes.to_string(),
        us(row.us.min),
        us(row.us.p50),
        us(row.us.p90),
        us(row.us.p99),
        optional(row.gb_per_s),
        optional(row.ratio_to_limit),
        if row.verified { "yes" } else { "NO" }.to_owned(),
    ]
}
