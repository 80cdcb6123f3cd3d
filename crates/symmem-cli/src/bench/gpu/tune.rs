//! `symmem tune` on GPUs: measures up to which sizes each algorithm of devices is the best, by the races of
//! the bench.
//!
//! Called by `symmem tune`, which keeps what is found. Which algorithms there are, what they can carry and at
//! which sizes it is worth looking says the library's table, so a new one is measured without a change here.
//! Algorithms that the dispatcher never chooses are not measured.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use comfy_table::{Table, presets};
use indicatif::ProgressBar;
use serde::Serialize;
use symmem::cuda::{Algorithm, Device, Provider, bench_support};
use symmem::tuning::DeviceBounds;

use super::conductor::{Conductor, Limits, Terms};
use super::mps::Mps;
use super::plan::{ELEMENT, NORM_ROW, Race, Task, Wanted};
use super::scratch::ScratchFolder;
use super::system::{Launch, System};
use crate::args::{Form, Op, TuneArgs, short};
use crate::bench::cores;
use crate::bench::progress::Progress;
use crate::bench::tune::{Sample, bounds};

/// How far beyond the crossovers that are built in the sizes go, on both sides.
const MARGIN: usize = 4;
/// Timed runs of each algorithm at each size.
const ROUNDS: usize = 9;

/// What was found with one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::bench) struct Finding {
    pub(in crate::bench) ranks: usize,
    /// Their kind, as engines ask for it.
    pub(in crate::bench) devices: String,
    pub(in crate::bench) bounds: DeviceBounds,
}

/// Whether there is anything to measure.
pub(in crate::bench) fn has_devices() -> bool {
    Device::count().is_ok_and(|count| count > 0)
}

/// Measures with every number of ranks that was asked for.
pub(in crate::bench) fn run(args: &TuneArgs) -> Result<Vec<Finding>> {
    ensure!(Device::count()? > 0, "there is no CUDA device on this machine");
    let scratch = ScratchFolder::open("tune")?;
    let mps = Mps::start(&scratch.0);
    eprintln!("with {}", mps.words());
    let steps = args.ranks.iter().map(|ranks| races((*ranks).into()).len()).sum();
    let bar = Progress::new(steps).bar("GPU".to_owned());
    let each = args.ranks.iter().map(|ranks| {
        let mut launch = Launch::of(System::Symmem, Provider::default(), &scratch.0, None)?;
        launch.env.extend(mps.env(None));
        let rounds = if args.quick { 2 } else { ROUNDS };
        measure(terms((*ranks).into(), rounds, &scratch, &bar), launch, &races((*ranks).into()))
    });
    let findings = each.collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    Ok(findings)
}

fn terms(ranks: usize, rounds: usize, scratch: &ScratchFolder, bar: &ProgressBar) -> Terms {
    Terms {
        ranks,
        share: None,
        rounds,
        arena: Wanted::arena_bytes(&races(ranks)),
        cores: cores::apart(ranks),
        kernels: scratch.0.join("kernels.cubin"),
        folder: scratch.0.clone(),
        limits: Limits::default(),
        bar: bar.clone(),
    }
}

/// Powers of two around all crossovers that are built in: of all-reduces, or of norms.
fn sizes(of_norms: bool) -> Vec<usize> {
    let known = bench_support::crossovers(of_norms);
    let least = known.iter().min().map_or(1, |least| least / MARGIN);
    let most = known.iter().max().map_or(1, |most| most * MARGIN);
    std::iter::successors(Some(least.next_power_of_two().max(16)), |bytes| Some(bytes * 2))
        .take_while(|bytes| *bytes <= most)
        .collect()
}

/// What algorithms are chosen for, as tunings call it: the forms of the all-reduce, and norms.
fn columns() -> Vec<String> {
    Form::value_variants().iter().map(Form::to_string).chain([Op::AllReduceRmsNorm.to_string()]).collect()
}

/// Which of them `race` is about.
fn column(race: &Race) -> String {
    let form = race.case.form.filter(|_| race.case.op == Op::AllReduce.to_string());
    form.map_or_else(|| race.case.op.clone(), |form| form.to_string())
}

/// Every form at every size, and norms of as many rows, between all algorithms that the dispatcher chooses
/// from and that can carry it.
fn races(ranks: usize) -> Vec<Race> {
    let wanted = Wanted {
        ops: vec![Op::AllReduce, Op::AllReduceRmsNorm],
        forms: Form::value_variants().to_vec(),
        sizes: sizes(false),
        norms: sizes(true).into_iter().filter(|bytes| bytes.is_multiple_of(NORM_ROW)).collect(),
        cold: false,
        algorithms: Algorithm::ALL.iter().map(|algorithm| algorithm.name().to_owned()).collect(),
        grids: vec![None],
        threads: vec![None],
        peers: Vec::new(),
        is_quick: false,
    };
    let mut races = wanted.races(ranks);
    // Norms are chosen by their rows alone: where these come from, and as what they are written, is one.
    let (columns, norm) = (columns(), Op::AllReduceRmsNorm.to_string());
    let is_one = |race: &Race| column(race) != norm || race.case.form == Some(Form::Out);
    races.retain(|race| columns.contains(&column(race)) && is_one(race));
    for race in &mut races {
        race.contenders.retain(|one| {
            let algorithm = one.task.variant.parse::<Algorithm>();
            algorithm.is_ok_and(|algorithm| can(algorithm, &one.task, ranks))
        });
    }
    races
}

/// Whether `algorithm` can do what `task` says.
fn can(algorithm: Algorithm, task: &Task, ranks: usize) -> bool {
    let bytes = task.elements * ELEMENT;
    match task.norm {
        Some(_) => bench_support::carries_norm(algorithm, ranks, (bytes / NORM_ROW, NORM_ROW)),
        None => bench_support::carries(algorithm, task.form.into(), ranks, bytes),
    }
}

/// Runs the races, and puts the bounds.
fn measure(terms: Terms, launch: Launch, races: &[Race]) -> Result<Finding> {
    let (ranks, bar) = (terms.ranks, terms.bar.clone());
    bar.set_prefix(format!("{ranks} ranks"));
    bar.set_message("start");
    let mut conductor = Conductor::start(terms, vec![(System::Symmem, launch)])?;
    let devices = conductor.known().find_map(|known| known.kind.clone());
    let mut times = BTreeMap::new();
    for race in races {
        bar.set_message(race.case.to_string());
        for row in conductor.race(race) {
            times.insert((column(race), race.case.bytes, row.choice), row.us.p50);
        }
        bar.inc(1);
    }
    let left_out = conductor.end();
    if !left_out.is_empty() {
        // Everybody can who is asked, so this is a failure, and bounds beside it would be wrong.
        bail!("symmem could not do, or did wrong, {} of what was measured", left_out.len());
    }
    let time = |column: &str, bytes, algorithm: &str| {
        times.get(&(column.to_owned(), bytes, algorithm.to_owned())).copied()
    };
    let bounds = columns().into_iter().map(|name| {
        let found = bounds_of(races, &name, &|bytes, algorithm| time(&name, bytes, algorithm));
        (name, found)
    });
    let devices = devices.context("no rank said what its device is called")?;
    Ok(Finding { ranks, devices, bounds: bounds.collect() })
}

/// Up to how many bytes each algorithm that was measured for `name` is used, but the last, which takes the
/// rest.
fn bounds_of(
    races: &[Race],
    name: &str,
    time: &dyn Fn(usize, &str) -> Option<f64>,
) -> BTreeMap<String, usize> {
    let sizes: Vec<usize> =
        races.iter().filter(|race| column(race) == name).map(|race| race.case.bytes).collect();
    let ran = |algorithm: &&Algorithm| sizes.iter().any(|bytes| time(*bytes, algorithm.name()).is_some());
    let ran: Vec<&str> = Algorithm::ALL.iter().filter(ran).map(|algorithm| algorithm.name()).collect();
    let sample = |bytes: &usize| {
        let ticks = ran.iter().map(|name| time(*bytes, name).unwrap_or(f64::INFINITY));
        Sample { bytes: *bytes, ticks: ticks.collect() }
    };
    let found = bounds(&sizes.iter().map(sample).collect::<Vec<_>>());
    let beyond = |bytes: usize| {
        // What was best up to the largest size that was measured is taken to be so beyond.
        if Some(&bytes) == sizes.iter().max() { usize::MAX } else { bytes }
    };
    ran.into_iter().zip(found).map(|(name, bytes)| (name.to_owned(), beyond(bytes))).collect()
}

/// What was found, for people.
pub(in crate::bench) fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new();
    let algorithms = Algorithm::ALL.iter().map(|algorithm| format!("{algorithm} up to"));
    let head = ["ranks", "devices", "what"].map(str::to_owned);
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(head.into_iter().chain(algorithms));
    for found in findings {
        for name in columns() {
            let Some(bounds) = found.bounds.get(&name) else { continue };
            let cell = |algorithm: &Algorithm| match bounds.get(algorithm.name()) {
                None => String::new(),
                Some(&usize::MAX) => "any size".to_owned(),
                Some(bytes) => short(*bytes),
            };
            let is_form = Form::value_variants().iter().any(|form| form.to_string() == name);
            let what = if is_form { format!("{} {name}", Op::AllReduce) } else { name };
            let row = [found.ranks.to_string(), found.devices.clone(), what];
            table.add_row(row.into_iter().chain(Algorithm::ALL.iter().map(cell)));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use symmem::cuda::Form as OfLibrary;

    use super::*;
    use crate::bench::gpu::fleet::tests::script;

    #[test]
    fn every_algorithm_of_the_table_is_measured_in_every_form_that_it_has() {
        for ranks in [2, 4, 8] {
            let races = races(ranks);
            for algorithm in Algorithm::ALL {
                let raced = |name: &str| {
                    let of_form = races.iter().filter(|race| column(race) == name);
                    let runs = of_form.flat_map(|race| &race.contenders);
                    runs.filter(|one| one.task.variant == algorithm.name()).count()
                };
                let can = |form: Form, bytes: &usize| {
                    bench_support::carries(algorithm, OfLibrary::from(form), ranks, *bytes)
                };
                for form in Form::value_variants().iter().copied() {
                    let expected = sizes(false).iter().filter(|bytes| can(form, bytes)).count();
                    assert_eq!(raced(&form.to_string()), expected, "{algorithm} {form} {ranks}");
                }
                let rows = sizes(true).into_iter().filter(|bytes| bytes.is_multiple_of(NORM_ROW));
                let can = |rows| bench_support::carries_norm(algorithm, ranks, (rows, NORM_ROW));
                let expected = rows.filter(|bytes| can(bytes / NORM_ROW)).count();
                assert_eq!(raced("all_reduce_rms_norm"), expected, "{algorithm} {ranks}");
                assert!(columns().iter().any(|name| raced(name) > 0), "{algorithm} is never measured");
            }
            // Each by turns with whoever else can.
            let norms = races.iter().filter(|race| column(race) == "all_reduce_rms_norm");
            assert!(norms.clone().count() > 4 && norms.clone().all(|race| race.contenders.len() > 1));
            assert!(races.iter().all(|race| !race.contenders.is_empty()));
        }
    }

    #[test]
    fn sizes_lie_around_every_crossover() {
        for of_norms in [false, true] {
            let (sizes, known) = (sizes(of_norms), bench_support::crossovers(of_norms));
            assert!(!known.is_empty());
            for bytes in known {
                let (less, more) = (bytes / MARGIN, bytes * MARGIN);
                assert!(sizes.iter().any(|size| (less..bytes).contains(size)), "{bytes} {sizes:?}");
                assert!(sizes.iter().any(|size| (bytes + 1..=more).contains(size)), "{bytes} {sizes:?}");
            }
        }
    }

    /// Ranks that say what they are asked for, and whose packets are the fastest up to 64 KB: a round takes
    /// 40 us for each KB, of others 3000.
    fn ranks(more: &str) -> Launch {
        script(&format!(
            r#"echo '{{"version": "9"}}'
            while read -r line; do
                slot=${{line##*'"slot":'}}; slot=${{slot%%[,\}}]*}}
                case "$line" in
                    {more}
                    *'"order":"open"'*) echo '{{"device": "a GPU", "kind": "a GPU, ranks on several"}}';;
                    *'"order":"prepare"'*)
                        elements=${{line##*'"elements":'}}; elements=${{elements%%,*}}
                        case "$line" in *low_latency*|*'"norm"'*one_shot*|*one_shot*'"norm"'*) us=$((elements / 512 * 40));; *) us=3000;; esac
                        eval "us_$slot=$us"; echo '{{}}';;
                    *'"order":"round"'*) eval "us=\$us_$slot"; echo "{{\"with_us\": $((us + 100)), \"without_us\": 100}}";;
                    *'"order":"verify"'*) echo '{{"wrong": 0}}';;
                    *'"order":"quit"'*) exit 0;;
                    *) echo '{{}}';;
                esac
            done"#
        ))
    }

    fn found(more: &str, name: &str) -> Result<Finding> {
        let scratch = ScratchFolder::new(name);
        std::fs::write(scratch.0.join("kernels.cubin"), "").expect("a file");
        measure(terms(2, 1, &scratch, &ProgressBar::hidden()), ranks(more), &races(2))
    }

    #[test]
    fn crossovers_lie_where_the_ranks_times_cross() {
        let found = found("", "tune-found").expect("all goes well");
        assert_eq!((found.ranks, found.devices.as_str()), (2, "a GPU, ranks on several"));
        for form in Form::value_variants().iter().map(Form::to_string) {
            assert_eq!(found.bounds[&form]["low_latency"], 64 << 10, "{form}");
            assert!(!found.bounds[&form].contains_key("two_shot"), "{form}");
        }
        assert!(!found.bounds["in_place"].contains_key("one_shot"));
        assert_eq!(found.bounds["all_reduce_rms_norm"]["one_shot"], 64 << 10);
        assert!(!found.bounds["all_reduce_rms_norm"].contains_key("low_latency"));
        let text = table(&[found]).to_string();
        assert!(text.contains("64K") && text.contains("low_latency up to"), "{text}");
    }

    #[test]
    fn nothing_is_found_where_an_algorithm_does_wrong() {
        let wrong = r#"*'"order":"verify"'*'"slot":1}'*) echo '{"wrong": 7}';;"#;
        let error = found(wrong, "tune-wrong").expect_err("two_trip is wrong").to_string();
        assert!(error.starts_with("symmem could not do, or did wrong, "), "{error}");
    }
}
