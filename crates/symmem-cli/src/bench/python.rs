//! The Python package beside the program: what the same calls cost from there.
//!
//! `python -m symmem.bench` does the measuring, with loops in Python and in Rust that alternate in the same
//! processes; this asks for its rows.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::report::Row;
use super::stats::Percentiles;
use crate::args::BenchArgs;

#[derive(Deserialize)]
struct Report {
    rows: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    op: String,
    /// From where, or on what.
    how: String,
    ranks: usize,
    bytes: usize,
    us: Percentiles<f64>,
    samples: usize,
    verified: bool,
}

/// The rows for every number of ranks.
pub(super) fn rows(args: &BenchArgs, python: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for ranks in &args.ranks {
        rows.extend(ask(python, *ranks, args.is_quick())?.rows.into_iter().map(row));
    }
    Ok(rows)
}

fn ask(python: &Path, ranks: u16, quick: bool) -> Result<Report> {
    let mut command = Command::new(python);
    command.args(["-m", "symmem.bench", "--json", "-", "--ranks"]).arg(ranks.to_string());
    command.args(quick.then_some("--quick")).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("{} cannot be started", python.display()))?;
    if !output.status.success() {
        bail!(
            "`{} -m symmem.bench` failed. Hint: is the package installed there? `pip install .` does that",
            python.display()
        );
    }
    serde_json::from_slice(&output.stdout).context("`python -m symmem.bench` did not write its report")
}

fn row(found: Found) -> Row {
    let Found { op, how, ranks, bytes, us, samples, verified } = found;
    let dtype = if bytes > 0 { "f32".to_owned() } else { String::new() };
    Row {
        system: "python".to_owned(),
        op,
        algorithm: how,
        dtype,
        ranks,
        bytes,
        us,
        verified,
        samples,
        ..Row::default()
    }
}
