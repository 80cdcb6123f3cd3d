//! `symmem tune --device`: measures up to which sizes each algorithm of devices is the best, by the races of
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
use super::plan::{Race, Wanted};
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

/// Powers of two around all crossovers that are built in.
fn sizes() -> Vec<usize> {
    let known = bench_support::crossovers();
    let least = known.iter().min().map_or(1, |least| least / MARGIN);
    let most = known.iter().max().map_or(1, |most| most * MARGIN);
    std::iter::successors(Some(least.next_power_of_two().max(16)), |bytes| Some(bytes * 2))
        .take_while(|bytes| *bytes <= most)
        .collect()
}

/// Every form at every size, between all algorithms that the dispatcher chooses from and that can carry it.
fn races(ranks: usize) -> Vec<Race> {
    let wanted = Wanted {
        ops: vec![Op::AllReduce],
        forms: Form::value_variants().to_vec(),
        sizes: sizes(),
        cold: false,
        algorithms: Algorithm::ALL.iter().map(|algorithm| algorithm.name().to_owned()).collect(),
        grids: vec![None],
        threads: vec![None],
        peers: Vec::new(),
        is_quick: false,
    };
    let mut races = wanted.races(ranks);
    for race in &mut races {
        let bytes = race.case.bytes;
        let can = |algorithm, form: Form| bench_support::carries(algorithm, form.into(), ranks, bytes);
        race.contenders.retain(|one| {
            let algorithm = one.task.variant.parse::<Algorithm>();
            algorithm.is_ok_and(|algorithm| can(algorithm, one.task.form))
        });
    }
    races
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
            times.insert((race.case.form, race.case.bytes, row.choice), row.us.p50);
        }
        bar.inc(1);
    }
    let left_out = conductor.end();
    if !left_out.is_empty() {
        // Everybody can who is asked, so this is a failure, and bounds beside it would be wrong.
        bail!("symmem could not do, or did wrong, {} of what was measured", left_out.len());
    }
    let time = |form, bytes, algorithm: &str| times.get(&(Some(form), bytes, algorithm.to_owned())).copied();
    let bounds = Form::value_variants()
        .iter()
        .map(|form| (form.to_string(), bounds_of(races, *form, &|bytes, name| time(*form, bytes, name))));
    let devices = devices.context("no rank said what its device is called")?;
    Ok(Finding { ranks, devices, bounds: bounds.collect() })
}

/// Up to how many bytes each algorithm that was measured in this form is used, but the last, which takes the
/// rest.
fn bounds_of(
    races: &[Race],
    form: Form,
    time: &dyn Fn(usize, &str) -> Option<f64>,
) -> BTreeMap<String, usize> {
    let sizes: Vec<usize> =
        races.iter().filter(|race| race.case.form == Some(form)).map(|race| race.case.bytes).collect();
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

/// As a table, or as JSON.
pub(in crate::bench) fn print(args: &TuneArgs, findings: &[Finding]) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(findings)?);
        return Ok(());
    }
    println!("{}", table(findings));
    Ok(())
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new();
    let columns = Algorithm::ALL.iter().map(|algorithm| format!("{algorithm} up to"));
    let head = ["ranks", "devices", "all_reduce"].map(str::to_owned);
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(head.into_iter().chain(columns));
    for found in findings {
        for (form, bounds) in &found.bounds {
            let cell = |algorithm: &Algorithm| match bounds.get(algorithm.name()) {
                None => String::new(),
                Some(&usize::MAX) => "any size".to_owned(),
                Some(bytes) => short(*bytes),
            };
            let row = [found.ranks.to_string(), found.devices.clone(), form.clone()];
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
                let raced = |form: Form| {
                    let of_form = races.iter().filter(|race| race.case.form == Some(form));
                    let runs = of_form.flat_map(|race| &race.contenders);
                    runs.filter(|one| one.task.variant == algorithm.name()).count()
                };
                let can = |form: Form, bytes: &usize| {
                    bench_support::carries(algorithm, OfLibrary::from(form), ranks, *bytes)
                };
                for form in Form::value_variants().iter().copied() {
                    let expected = sizes().iter().filter(|bytes| can(form, bytes)).count();
                    assert_eq!(raced(form), expected, "{algorithm} {form} {ranks}");
                }
                assert!(
                    Form::value_variants().iter().any(|form| raced(*form) > 0),
                    "{algorithm} is never measured"
                );
            }
            assert!(races.iter().all(|race| !race.contenders.is_empty()));
        }
    }

    #[test]
    fn sizes_lie_around_every_crossover() {
        let (sizes, known) = (sizes(), bench_support::crossovers());
        assert!(!known.is_empty());
        for bytes in known {
            let (less, more) = (bytes / MARGIN, bytes * MARGIN);
            assert!(sizes.iter().any(|size| (less..bytes).contains(size)), "{bytes} {sizes:?}");
            assert!(sizes.iter().any(|size| (bytes + 1..=more).contains(size)), "{bytes} {sizes:?}");
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
                        case "$line" in *low_latency*) us=$((elements / 512 * 40));; *) us=3000;; esac
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
