//! What a launch is told, and what it answers: files that the bench, its ranks and scripts agree on.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::Memory;
use crate::bench::collective::Case;
use crate::bench::stats::Percentiles;

/// What a launch does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaunchJob {
    pub(super) ranks: usize,
    /// Whether rank r stays on the r-th of `cores`, modulo their number.
    pub(super) pin: bool,
    /// The cores of the launcher; those a rank finds may be what the peer's own launcher left it.
    #[serde(default)]
    pub(super) cores: Vec<usize>,
    /// Busy loops that run beside it.
    #[serde(default)]
    pub(super) load: usize,
    /// How many seconds to measure a case; the number of operations does not count then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timed_s: Option<f64>,
    /// Where symmem has its elements; others know private memory only.
    #[serde(default = "symmetric")]
    pub(super) memories: Vec<Memory>,
    pub(super) cases: Vec<Task>,
}

fn symmetric() -> Vec<Memory> {
    vec![Memory::Symmetric]
}

/// A case, and how many operations of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) iters: usize,
}

/// What came of a launch. Cases that a system cannot do are missing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Output {
    pub(super) system: String,
    pub(super) version: String,
    pub(super) rows: Vec<OutputRow>,
    /// What the same processes measured of the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) limits: Vec<OutputRow>,
}

/// What came of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OutputRow {
    #[serde(flatten)]
    pub(super) case: Case,
    #[serde(default)]
    pub(super) memory: Memory,
    pub(super) us: Percentiles<f64>,
    pub(super) samples: usize,
    pub(super) verified: bool,
    #[serde(default = "unknown")]
    pub(super) algorithm: String,
}

fn unknown() -> String {
    "-".to_owned()
}

/// Reads one of these files.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} cannot be understood", path.display()))
}

/// Writes one of these files.
pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)?;
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}
