//! The results: rows, and where they go. Both benches print through this; their tables are in
//! [`super::table`] and [`super::gpu`].

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::collective::Case;
use super::stats::{Percentiles, Ratio};
use crate::screen;

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
    /// Of what is not told apart by bytes: the shape, and the way it is done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) form: String,
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
    /// This system's time over the limit's. Beside busy loops the limit is a futex ping-pong, else a bare
    /// loop.
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
    /// Of a peer: symmem's typical time, in the first memory that was asked for, over this one's. Of symmem:
    /// over the best peer's.
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
    /// Of what is measured in one launch: the typical time of each of up to eleven parts of it, one after the
    /// other, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) p50_by_part: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mean_by_part: Vec<f64>,
}

impl Row {
    /// Whether it is of a collective, so that it has a size and an element type.
    pub(super) fn is_collective(&self) -> bool {
        self.bus_gb_per_s.is_some()
    }

    /// Whether its elements have a type that was chosen.
    pub(super) fn has_type(&self) -> bool {
        self.is_collective() || !self.form.is_empty()
    }

    /// What the busiest link carries, or the bytes over the time where there is no such thing, in gigabytes
    /// per second.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        self.bus_gb_per_s.or(self.gb_per_s)
    }

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

/// Prints `table`, and `json` where it was asked for: a table that goes to stdout leaves it to no file but
/// "-".
pub(super) fn print(table: &str, json: &impl Serialize, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else {
        return screen::print(table);
    };
    if is_stdout(path) {
        writeln!(std::io::stderr(), "{table}")?;
        return screen::print_json(json);
    }
    screen::print(table)?;
    write(path, &(serde_json::to_string_pretty(json)? + "\n"))
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}
