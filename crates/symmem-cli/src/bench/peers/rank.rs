//! `symmem bench-rank`: one launch of a comparison. Either all of symmem, which starts its ranks itself, or
//! one rank of a peer whose launcher started it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use symmem::{Group, ProcessSpawner};

use super::job::{self, LaunchJob, Output, OutputRow, Task};
use super::shim::{Shim, ShimCase};
use crate::args::{Memory, RankArgs};
use crate::bench::clock::Clock;
use crate::bench::collective::{Contender, Limits, Plan, Record, Telling, futex_memory, limits, open, race};
use crate::bench::cores;
use crate::bench::futex::Form;
use crate::bench::stats::Percentiles;

/// Does the job and leaves the results.
pub(crate) fn run(args: &RankArgs) -> Result<()> {
    let job: LaunchJob = job::read(&args.job)?;
    match &args.shim {
        Some(library) => {
            let shim = Shim::load(library)?;
            // After an error this rank ends without a word, and its launcher ends the others.
            let output = measure_shim(&shim, &job).with_context(|| format!("rank {}", shim.rank()))?;
            if shim.rank() == 0 {
                job::write(&args.out, &output)?;
            }
            shim.finalize();
        }
        None => job::write(&args.out, &measure_ours(&job)?)?,
    }
    Ok(())
}

fn measure_ours(job: &LaunchJob) -> Result<Output> {
    let by_rank = ProcessSpawner::new("bench-rank", job.ranks).run(|group| our_rows(&group, job))?;
    let (rows, limits) = by_rank.into_iter().next().unwrap_or_default();
    Ok(Output { system: "symmem".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), rows, limits })
}

/// The rows of the library, in each memory, and those of the limit.
fn our_rows(group: &Group, job: &LaunchJob) -> symmem::Result<(Vec<OutputRow>, Vec<OutputRow>)> {
    let clock = settle(job, group.rank());
    let (mut rows, mut bare) = (Vec::new(), Vec::new());
    for task in &job.cases {
        for memory in task.case.memories(&job.memories) {
            let mut ours = open(group, &task.case, memory)?;
            let record = measure(&mut *ours, job, task, &clock)?;
            rows.push(row(task, memory, record, &clock, ours.algorithm()));
            ours.close()?;
        }
        if limits(&task.case, job.load) == Limits::Futex {
            for form in Form::ALL {
                let lines = futex_memory(group)?;
                let mut telling = Telling::new(&lines, form, task.case.bytes);
                let record = measure(&mut telling, job, task, &clock)?;
                bare.push(row(task, Memory::Symmetric, record, &clock, form.name().to_owned()));
                lines.close()?;
            }
        }
    }
    Ok((rows, bare))
}

fn measure_shim(shim: &Shim, job: &LaunchJob) -> Result<Output> {
    ensure!(shim.ranks() == job.ranks, "{} ranks were started instead of {}", shim.ranks(), job.ranks);
    let clock = settle(job, shim.rank());
    let mut rows = Vec::new();
    for task in job.cases.iter().filter(|task| shim.supports(&task.case)) {
        let mut theirs = ShimCase::new(shim, &task.case);
        let record = measure(&mut theirs, job, task, &clock)?;
        rows.push(row(task, Memory::Private, record, &clock, "-".to_owned()));
    }
    Ok(Output { system: "shim".to_owned(), version: shim.version(), rows, limits: Vec::new() })
}

/// Settles this rank on its core, after its system has started and seen all cores.
fn settle(job: &LaunchJob, rank: usize) -> Clock {
    if job.pin {
        let own = || cores::available();
        cores::pin(&if job.cores.is_empty() { own() } else { job.cores.clone() }, rank);
    }
    Clock::calibrated()
}

fn measure(
    contender: &mut dyn Contender,
    job: &LaunchJob,
    task: &Task,
    clock: &Clock,
) -> symmem::Result<Record> {
    let timed = job.timed_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let plan = Plan { blocks: 1, iters: task.iters, limit: None, timed };
    Ok(race(&mut [contender], &task.case, plan, clock, || ())?.remove(0))
}

fn row(task: &Task, memory: Memory, record: Record, clock: &Clock, algorithm: String) -> OutputRow {
    let mut samples = record.blocks.concat();
    let us = Percentiles::of(&mut samples).map(|ticks| clock.us(ticks));
    OutputRow { case: task.case, memory, us, samples: samples.len(), verified: record.verified, algorithm }
}
