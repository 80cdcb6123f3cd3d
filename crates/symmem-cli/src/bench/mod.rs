//! `symmem bench`: verifies and times symmetric memory on host memory, ranks being processes of this program.
//!
//! The launcher starts the program again for every rank; a rank comes to [`measure`] with the same arguments,
//! and all it reports are rows. The slowest rank counts for every single operation. A comparison with
//! [`peers`] comes after that, and starts each system again for every round.

mod barrier;
mod clock;
mod collective;
mod compare;
mod copy;
mod cores;
mod fused;
mod futex;
mod gpu;
mod html;
mod lab;
mod limit;
mod load;
mod machine;
mod peers;
mod plot;
mod progress;
mod python;
mod report;
mod sheet;
mod signal;
mod stats;
mod summary;
mod table;
mod tune;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;
use symmem::ProcessSpawner;

use self::collective::{Case, Collective};
pub(crate) use self::gpu::run_rank as run_gpu_rank;
use self::html::Page;
use self::lab::Lab;
use self::load::Load;
pub(crate) use self::load::run as run_load;
use self::machine::Machine;
use self::peers::Comparison;
pub(crate) use self::peers::run_rank;
use self::progress::Progress;
use self::report::Row;
use self::sheet::Sheet;
pub(crate) use self::tune::run as run_tune;
use crate::args::{BenchArgs, BenchCommand, Condition, Op, short};

/// Tells ranks how much of the work was done before they came, in how many milliseconds, and under which
/// condition they work.
const DONE: &str = "SYMMEM_BENCH_DONE";
const ELAPSED: &str = "SYMMEM_BENCH_ELAPSED";
const CONDITION: &str = "SYMMEM_BENCH_CONDITION";

/// Does what was asked for, and prints what it found; how the program ends.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    if let Some(BenchCommand::Compare(args)) = &args.command {
        return compare::run(args);
    }
    check(args)?;
    match args.is_of_gpus() {
        true => gpu::run(args)?,
        false => run_on_host(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_on_host(args: &BenchArgs) -> Result<()> {
    let mut comparison = Comparison::prepare(args)?;
    let mut rows = Vec::new();
    let (start, mut done) = (Instant::now(), 0);
    for (at, condition) in args.terms.conditions().into_iter().enumerate() {
        // Ranks come here too; the loops beside them are the launcher's.
        let is_rank = number(CONDITION).is_some();
        let load = Load::start(if is_rank { 0 } else { condition.load })?;
        for ranks in args.ranks.iter().map(|ranks| usize::from(*ranks)) {
            let mut found = measure(args, ranks, (done, start), at, &|case| comparison.compares(case))?;
            done += steps(args, ranks);
            comparison.run(args, ranks, condition, &load, &mut found)?;
            rows.extend(found);
        }
    }
    if let Some(python) = &args.gpu.python {
        rows.extend(python::rows(args, python)?);
    }
    let (machine, peers) = (Machine::this(), comparison.statuses());
    let json = json!({"machine": machine, "peers": peers, "results": rows});
    report::print(&table::text(&rows, args.wide), &json, args.json.as_deref())?;
    if let Some(path) = &args.plot {
        report::write(path, &plot::draw(&rows, &machine.words()))?;
    }
    if let Some(path) = &args.html {
        report::write(path, &page(&rows, &machine).text())?;
    }
    let ours = || rows.iter().filter(|row| !peers.iter().any(|peer| peer.name == row.system));
    match ours().filter(|row| !row.verified).count() {
        0 => Ok(()),
        wrong => bail!("{wrong} of {} rows were not verified", ours().count()),
    }
}

/// The report for people.
fn page(rows: &[Row], machine: &Machine) -> Page {
    let groups = table::groups(rows);
    let tables = groups.iter().flat_map(|group| {
        let all = table::all(group);
        [Sheet { head: format!("In short: {}", all.head), ..summary::all(group) }, all]
    });
    let terms = |row: &Row| {
        let pinned = if row.pinned { "pinned" } else { "not pinned" };
        format!("{} ranks, {pinned}, {} busy loops", row.ranks, row.load)
    };
    let terms: Vec<String> = sheet::grouped(rows, terms).iter().map(|group| terms(group[0])).collect();
    let mut facts = machine.facts();
    facts.push(("terms", terms.join("; ")));
    Page { facts, tables: tables.collect(), plots: plot::each(rows) }
}

/// Whether what was asked for can be done, before anything is.
fn check(args: &BenchArgs) -> Result<()> {
    for (option, path) in [("--plot", &args.plot), ("--html", &args.html)] {
        ensure!(path.as_deref() != Some("-".as_ref()), "{option} -: the table is on stdout; name a file");
    }
    let mut files = [&args.json, &args.plot, &args.html].into_iter().flatten();
    files.try_for_each(|path| report::check_writable(path))?;
    let provider = args.measurable();
    if let Some(op) = args.ops().iter().find(|op| !provider.contains(op)) {
        let has = provider.iter().map(Op::to_string).collect::<Vec<_>>().join(", ");
        bail!("--ops {op} is not for this provider, which has {has}");
    }
    if args.is_of_gpus() {
        return Ok(());
    }
    let collectives = args.ops().iter().filter(|op| Collective::of(**op).is_some()).count();
    ensure!(args.plot.is_none() || collectives > 0, "--plot draws collectives, and --ops names none");
    let comparable = collectives > 0 || args.ops().contains(&Op::Signal);
    ensure!(
        args.peers.is_empty() || comparable,
        "--peers compares collectives and signals, and --ops names none"
    );
    let mut cases =
        args.sizes().into_iter().flat_map(|bytes| args.dtypes().iter().map(move |dtype| (bytes, dtype)));
    if let Some((bytes, dtype)) =
        cases.find(|(bytes, dtype)| collectives > 0 && !bytes.is_multiple_of(dtype.size()))
    {
        bail!(
            "--sizes {bytes}: elements of {dtype} have {} bytes each, and a size is a multiple of that",
            dtype.size()
        );
    }
    let typed = args.ops().iter().find(|op| args.names(**op) && fused::has(**op));
    if let Some(op) = typed.filter(|op| fused::steps(args, **op, 1) == 0) {
        bail!("--ops {op} is of f32, bf16 and f16, and --dtypes names none of them");
    }
    let largest = args.sizes().into_iter().max().filter(|_| collectives > 0).unwrap_or(0);
    let ranks = args.ranks.iter().copied().max().unwrap_or(0);
    // Every rank has an input and an output in each memory, and by hand one more.
    let buffers = args.memories().len().max(1) * 3 - 1;
    let need = largest.saturating_mul(buffers * usize::from(ranks));
    let free = machine::free_memory();
    ensure!(
        need <= free,
        "{} bytes on {ranks} ranks take {} MB of memory, and {} MB are free: choose smaller --sizes or fewer --ranks",
        short(largest),
        need >> 20,
        free >> 20
    );
    Ok(())
}

/// Steps of progress that measuring with `ranks` ranks takes.
fn steps(args: &BenchArgs, ranks: usize) -> usize {
    let of = |op: &Op| match op {
        Op::Barrier => barrier::steps(args),
        Op::Signal => signal::steps(args),
        Op::Copy => copy::steps(args),
        op if fused::has(*op) => fused::steps(args, *op, ranks),
        op => Collective::of(*op).map_or(0, |op| collective::steps(args, op, ranks)),
    };
    args.ops().iter().map(of).sum()
}

/// The rows of `ranks` ranks. All calls have one name, so that a rank's process takes part in the first it
/// comes to: how many ranks there are it knows from its group, and which condition it works under from its
/// environment.
fn measure(
    args: &BenchArgs,
    ranks: usize,
    (done, start): (usize, Instant),
    condition: usize,
    compared: &dyn Fn(&Case) -> bool,
) -> Result<Vec<Row>> {
    let spawner = ProcessSpawner::new("bench", ranks).env(DONE, done).env(CONDITION, condition);
    let spawner = spawner.env(ELAPSED, start.elapsed().as_millis());
    let by_rank = spawner.run(|group| {
        let conditions = args.terms.conditions();
        let condition = number(CONDITION).and_then(|at| conditions.get(at).copied());
        let condition = condition.unwrap_or(Condition { pin: true, load: 0 });
        let all: usize = args.ranks.iter().map(|ranks| steps(args, (*ranks).into())).sum();
        let elapsed = Duration::from_millis(number(ELAPSED).unwrap_or(0) as u64);
        let progress = Progress { done: number(DONE).unwrap_or(0), steps: all * conditions.len(), elapsed };
        let lab = Lab::new(&group, args, condition, progress);
        let mut rows = Vec::new();
        for op in args.ops() {
            rows.extend(match op {
                Op::Barrier => barrier::run(&lab)?,
                Op::Signal if compared(&Case::SIGNAL) => Vec::new(),
                Op::Signal => signal::run(&lab)?,
                Op::Copy => copy::run(&lab)?,
                op if fused::has(*op) => fused::run(&lab, *op)?,
                op => Collective::of(*op).map_or(Ok(Vec::new()), |op| collective::run(&lab, op, compared))?,
            });
        }
        Ok(rows)
    })?;
    // All ranks worked out the same rows from the same samples.
    Ok(by_rank.into_iter().next().unwrap_or_default())
}

/// What the launcher told this rank.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}
