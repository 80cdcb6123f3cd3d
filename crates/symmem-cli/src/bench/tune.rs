//! `symmem tune`: measures up to which sizes each algorithm is the best, and keeps that for this machine.
//!
//! Every collective runs by each of its algorithms by turns, in the loop of the bench, over powers of two of
//! bytes. A bound is put where the sum of what is lost beside the best algorithm, over all sizes, is least:
//! one noisy size moves nothing.
//!
//! Of the algorithms for private memory the two that take any size are compared, by an all_gather. Those of
//! devices are measured by the bench on GPUs (`gpu/tune.rs`), and their bounds are put by the same rule.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};
use symmem::collectives::Output;
use symmem::tuning::{Algorithm, Bounds, Collective as Tuned, Tuning, TuningFile, machine};
use symmem::{Config, DType, Group, ProcessSpawner, RankContext};

use super::collective::{Case, Collective, Contender, OurContender, Ours, Plan, open, race};
use super::progress::Progress;
use super::stats::Percentiles;
use super::{clock::Clock, cores, gpu};
use crate::args::{Memory, TuneArgs, short};

/// Sizes of a rank's memory: from 2^3 to 2^17 bytes.
const EXPONENTS: std::ops::RangeInclusive<u32> = 3..=17;
/// Those of private memory: from 16 KB to 4 MB.
const PRIVATE_EXPONENTS: std::ops::RangeInclusive<u32> = 14..=22;

/// What was found for one collective.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Finding {
    ranks: usize,
    collective: Tuned,
    bounds: Bounds,
}

/// The typical time of each algorithm at one size.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) bytes: usize,
    /// By the size of messages they are for; infinite where one cannot carry so much.
    pub(super) ticks: Vec<f64>,
}

/// Everything that was found.
#[derive(Default)]
struct Findings {
    host: Vec<Finding>,
    devices: Vec<gpu::Tuned>,
}

/// One of either kind.
#[derive(Serialize)]
#[serde(untagged)]
enum AnyFinding<'a> {
    Host(&'a Finding),
    Devices(&'a gpu::Tuned),
}

/// Measures, keeps and prints: the host, and then the devices, if there are any. What was found before
/// something failed is kept and printed.
pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let path = path(args)?;
    let mut file = path.as_deref().map_or_else(|| Ok(TuningFile::default()), TuningFile::open)?;
    let mut found = Findings::default();
    if !args.device {
        found.host = tune_host(args, &mut file)?;
        keep(path.as_deref(), &file, machine())?;
    }
    // Not before: ranks begin as this process did, and would say it too.
    let has_devices = !args.host && (args.device || gpu::has_devices());
    if !has_devices && !args.host {
        eprintln!(
            "there is no CUDA device on this machine, so only the algorithms of the host were measured"
        );
    }
    let tuned = if has_devices { tune_devices(args, &mut file, path.as_deref()) } else { Ok(Vec::new()) };
    let failed = tuned.map(|tuned| found.devices = tuned);
    if failed.is_ok() || !found.host.is_empty() {
        print(args, &found)?;
    }
    failed
}

fn keep(path: Option<&Path>, file: &TuningFile, whose: &str) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    file.save(path)?;
    eprintln!("kept for \"{whose}\" in {}", path.display());
    Ok(())
}

/// What was found is for this machine.
fn tune_host(args: &TuneArgs, file: &mut TuningFile) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for ranks in &args.ranks {
        let found = measure((*ranks).into(), args.quick)?;
        file.keep(tuning((*ranks).into(), &found));
        findings.extend(found);
    }
    Ok(findings)
}

/// What was found is for devices of this kind.
fn tune_devices(args: &TuneArgs, file: &mut TuningFile, path: Option<&Path>) -> Result<Vec<gpu::Tuned>> {
    let findings = gpu::tune(args)?;
    for found in &findings {
        file.keep_devices(&found.devices, found.ranks, found.bounds.clone());
    }
    let whose = findings.first().map(|found| &*found.devices).unwrap_or_default();
    keep(path, file, whose)?;
    Ok(findings)
}

/// Where to keep what is found; `None` for a dry run.
fn path(args: &TuneArgs) -> Result<Option<PathBuf>> {
    if args.dry_run {
        return Ok(None);
    }
    if let Some(path) = &args.out {
        return Ok(Some(path.clone()));
    }
    let rows = Config::from_env()?.rows();
    let setting =
        rows.iter().find(|row| row.variable == "SYMMEM_TUNING").context("there is no such setting")?;
    if setting.value == "off" {
        bail!("SYMMEM_TUNING is off, so there is no tuning file to write into: give --out or --dry-run");
    }
    Ok(Some(PathBuf::from(&setting.value)))
}

/// What is measured, and what it is measured for.
fn collectives() -> impl Iterator<Item = (Collective, Tuned)> {
    Collective::ALL.iter().filter_map(|collective| Some((*collective, collective.row()?.tuned?)))
}

fn tuning(ranks: usize, findings: &[Finding]) -> Tuning {
    let mut tuning = Tuning::built_in(ranks);
    findings.iter().for_each(|found| tuning.set_bounds(found.collective, found.bounds));
    tuning
}

/// All calls have one name, as in the bench.
fn measure(ranks: usize, quick: bool) -> Result<Vec<Finding>> {
    let by_rank = ProcessSpawner::new("tune", ranks).run(|group| {
        // What is built in depends on the cores that a rank may use: asked before it is kept on one.
        let built_in = Tuning::built_in(group.size());
        // And how a group waits, too.
        let private = [by(&group, Algorithm::Pipelined)?, by(&group, Algorithm::Pull)?];
        cores::pin(&cores::available(), group.rank());
        let steps = Collective::ALL.len() * EXPONENTS.count() + PRIVATE_EXPONENTS.count();
        let bar = match group.rank() {
            0 => Progress::new(steps).bar(format!("{} ranks", group.size())),
            _ => indicatif::ProgressBar::hidden(),
        };
        let mut findings = Vec::new();
        for (collective, tuned) in collectives() {
            bar.set_message(collective.name());
            let mut samples = Vec::new();
            for exponent in EXPONENTS {
                samples.push(sample(&group, collective, tuned, 1 << exponent, quick)?);
                bar.inc(1);
            }
            let bounds = as_bounds(&bounds(&samples), built_in.bounds(tuned));
            findings.push(Finding { ranks: group.size(), collective: tuned, bounds });
        }
        bar.set_message(Tuned::Private.name());
        findings.push(measure_private(&private, built_in.bounds(Tuned::Private), quick, || bar.inc(1))?);
        bar.finish_and_clear();
        Ok(findings)
    })?;
    // All ranks worked out the same from the same samples.
    Ok(by_rank.into_iter().next().unwrap_or_default())
}

/// Up to where private memory is pipelined, by the first of two groups, and pulled by the second beyond; what
/// smaller messages take stays as it is built in.
fn measure_private(
    groups: &[Group; 2],
    built_in: Bounds,
    quick: bool,
    step: impl Fn(),
) -> symmem::Result<Finding> {
    let [one, other] = groups;
    let ranks = one.size();
    let mut samples = Vec::new();
    for exponent in PRIVATE_EXPONENTS {
        let bytes = 1 << exponent;
        let case = Case::new(Collective::AllGather, DType::F32, bytes * ranks, ranks);
        let mut contenders = [open(one, &case, Memory::Private)?, open(other, &case, Memory::Private)?];
        let mut each: Vec<&mut dyn Contender> =
            contenders.iter_mut().map(|contender| &mut **contender as &mut dyn Contender).collect();
        let ticks = times(&mut each, &case, bytes, quick)?;
        contenders.into_iter().try_for_each(OurContender::close)?;
        samples.push(Sample { bytes, ticks });
        step();
    }
    let found = bounds(&samples).first().copied().unwrap_or(built_in.pipelined);
    // What was best up to the largest size that was measured is taken to be so beyond.
    let pipelined = if found == 1 << PRIVATE_EXPONENTS.end() { usize::MAX } else { found };
    Ok(Finding { ranks, collective: Tuned::Private, bounds: Bounds { pipelined, ..built_in } })
}

/// Collective. The same ranks as a group in which private memory takes `algorithm`.
fn by(group: &Group, algorithm: Algorithm) -> symmem::Result<Group> {
    let context = RankContext::new(Config::from_env()?.algorithm(&format!("private={algorithm}"))?);
    let name = format!("{algorithm}/{}", group.id());
    Group::from_store_in(&context, Arc::clone(group.store()), group.rank(), group.size(), &name)
}

/// Times the algorithms of a collective with about `bytes` in each rank's memory.
fn sample(
    group: &Group,
    collective: Collective,
    tuned: Tuned,
    bytes: usize,
    quick: bool,
) -> symmem::Result<Sample> {
    let is_whole = collective.row().is_some_and(|row| row.output == Output::Whole);
    let whole = if is_whole { bytes * group.size() } else { bytes };
    let case = Case::new(collective, DType::F32, whole, group.size());
    let memory = group.alloc::<f32>(case.input(group.size()))?;
    let bytes = memory.len() * size_of::<f32>();
    let ours = Ours::over(&memory, group, &case)?;
    let algorithms = tuned.algorithms();
    let possible = |algorithm: &Algorithm| fits(group.size(), tuned, *algorithm, bytes);
    let mut contenders: Vec<Ours<f32>> = algorithms
        .iter()
        .filter(|algorithm| possible(algorithm))
        .map(|algorithm| ours.using(*algorithm))
        .collect();
    let mut each: Vec<&mut dyn Contender> =
        contenders.iter_mut().map(|contender| contender as &mut dyn Contender).collect();
    let mut typical = times(&mut each, &case, bytes, quick)?.into_iter();
    drop(contenders);
    Box::new(ours).close()?;
    let ticks = algorithms.iter().map(|algorithm| match possible(algorithm) {
        true => typical.next().unwrap_or(f64::INFINITY),
        false => f64::INFINITY,
    });
    Ok(Sample { bytes, ticks: ticks.collect() })
}

/// The typical time of each of `contenders`.
fn times(
    contenders: &mut [&mut dyn Contender],
    case: &Case,
    bytes: usize,
    quick: bool,
) -> symmem::Result<Vec<f64>> {
    let blocks = if quick { 3 } else { 7 };
    let iters = ((4 << 20) / bytes.max(1)).clamp(20, if quick { 20 } else { 400 });
    let plan = Plan { blocks, iters, limit: None, timed: None };
    let records = race(contenders, case, plan, &Clock::calibrated(), || ())?;
    Ok(records.iter().map(|record| Percentiles::of(&mut record.blocks.concat()).p50.max(1) as f64).collect())
}

/// Whether `algorithm` can carry so many bytes.
fn fits(ranks: usize, tuned: Tuned, algorithm: Algorithm, bytes: usize) -> bool {
    let mut tuning = Tuning::built_in(ranks);
    tuning.force(tuned, algorithm).is_ok() && tuning.choose(tuned, bytes) == algorithm
}

/// Up to how many bytes each algorithm but the last is used, so that least is lost: from the last but one
/// down, each beside what runs beyond it.
pub(super) fn bounds(samples: &[Sample]) -> Vec<usize> {
    let last = samples.first().map_or(0, |sample| sample.ticks.len().saturating_sub(1));
    let mut bounds = vec![0; last];
    for algorithm in (0..last).rev() {
        let beyond = |sample: &Sample| {
            let next = (algorithm + 1..last).find(|next| sample.bytes <= bounds[*next]);
            sample.ticks[next.unwrap_or(last)]
        };
        bounds[algorithm] = bound(samples, |sample| sample.ticks[algorithm], beyond);
    }
    bounds
}

/// What was found, in the order of the algorithms, in place of what is `built_in`.
fn as_bounds(found: &[usize], built_in: Bounds) -> Bounds {
    let mut bounds = built_in;
    let places = [&mut bounds.push, &mut bounds.staged, &mut bounds.pipelined];
    places.into_iter().zip(found).for_each(|(place, found)| *place = *found);
    bounds
}

/// Up to how many bytes to use the algorithm that takes `small` rather than the one that takes `large`.
fn bound(samples: &[Sample], small: impl Fn(&Sample) -> f64, large: impl Fn(&Sample) -> f64) -> usize {
    let loss = |bound: usize| -> f64 {
        let lost = samples.iter().map(|sample| {
            let (small, large) = (small(sample), large(sample));
            // Where neither can, nothing is lost by the choice.
            if small.min(large) == f64::INFINITY {
                return 0.0;
            }
            (if sample.bytes <= bound { small } else { large } / small.min(large)).ln()
        });
        lost.sum()
    };
    let bounds = std::iter::once(0).chain(samples.iter().map(|sample| sample.bytes));
    bounds.min_by(|one, other| loss(*one).total_cmp(&loss(*other))).unwrap_or(0)
}

/// As tables, or as one list in JSON.
fn print(args: &TuneArgs, found: &Findings) -> Result<()> {
    if args.json {
        let devices = found.devices.iter().map(AnyFinding::Devices);
        let all: Vec<_> = found.host.iter().map(AnyFinding::Host).chain(devices).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    if !found.host.is_empty() {
        println!("{}", table(&found.host));
    }
    if !found.devices.is_empty() {
        println!("{}", gpu::table_of_tuned(&found.devices));
    }
    Ok(())
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "ranks",
        "collective",
        "push up to",
        "staged up to",
        "then",
    ]);
    for found in findings {
        let Bounds { push, staged, pipelined } = found.bounds;
        let then = match found.collective.algorithms() {
            [_, _, then, last] if pipelined < usize::MAX => {
                format!("{then} up to {}, {last}", short(pipelined))
            }
            algorithms => algorithms[2].to_string(),
        };
        table.add_row([
            found.ranks.to_string(),
            found.collective.to_string(),
            short(push),
            short(staged),
            then,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: usize, push: f64, staged: f64, last: f64) -> Sample {
        Sample { bytes, ticks: vec![push, staged, last] }
    }

    #[test]
    fn bounds_lie_where_the_next_algorithm_takes_over() {
        let samples = [
            sample(8, 1.0, 2.0, 3.0),
            sample(64, 1.5, 2.0, 3.0),
            sample(512, f64::INFINITY, 2.0, 3.0),
            sample(4096, f64::INFINITY, 5.0, 3.0),
        ];
        assert_eq!(bounds(&samples), [64, 512]);
        let built_in = Tuning::built_in(2).bounds(Tuned::AllReduce);
        let found = as_bounds(&[64, 512], built_in);
        assert_eq!(found, Bounds { push: 64, staged: 512, ..built_in });
    }

    #[test]
    fn one_noisy_size_moves_no_bound() {
        let samples = [
            sample(8, 1.0, 2.0, 3.0),
            sample(16, 2.1, 2.0, 3.0),
            sample(32, 1.0, 2.0, 3.0),
            sample(64, 3.0, 2.0, 1.0),
        ];
        assert_eq!(bounds(&samples), [32, 32]);
    }

    #[test]
    fn an_algorithm_that_never_wins_is_never_used() {
        let samples = [sample(8, 2.0, 3.0, 1.0), sample(16, 2.0, 3.0, 1.0)];
        assert_eq!(bounds(&samples), [0, 0]);
    }
}
