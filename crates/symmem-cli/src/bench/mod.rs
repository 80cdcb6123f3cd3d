//! `symmem bench`: verifies and times symmetric memory on host memory, ranks being processes of this program.
//!
//! The launcher starts the program again for every rank; a rank comes to [`measure`] with the same arguments, and all
//! it reports are rows. The slowest rank counts for every single operation.

mod barrier;
mod clock;
mod copy;
mod lab;
mod limit;
mod machine;
mod report;
mod signal;
mod stats;

use anyhow::{Result, bail};
use symmem::ProcessSpawner;

use self::lab::Lab;
use self::report::Row;
use crate::args::{BenchArgs, Op};

/// Runs the whole bench and prints what it found.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(path) = &args.json {
        report::check_writable(path)?;
    }
    let mut rows = Vec::new();
    for ranks in &args.ranks {
        rows.extend(measure(args, (*ranks).into())?);
    }
    report::print(&rows, args.json.as_deref())?;
    match rows.iter().filter(|row| !row.verified).count() {
        0 => Ok(()),
        wrong => bail!("{wrong} of {} rows were not verified", rows.len()),
    }
}

/// The rows of `ranks` ranks. All calls have one name, so that a rank's process takes part in the first it comes to:
/// how many ranks there are it knows from its group.
fn measure(args: &BenchArgs, ranks: usize) -> Result<Vec<Row>> {
    let by_rank = ProcessSpawner::new("bench", ranks).run(|group| {
        let lab = Lab::new(&group, args);
        let mut rows = Vec::new();
        for op in &args.ops {
            rows.extend(match op {
                Op::Barrier => barrier::run(&lab)?,
                Op::Signal => signal::run(&lab)?,
                Op::Copy => copy::run(&lab)?,
            });
        }
        Ok(rows)
    })?;
    // All ranks worked out the same rows from the same samples.
    Ok(by_rank.into_iter().next().unwrap_or_default())
}
