//! `symmem doctor`: what this machine offers and what stands in the way.
//!
//! A section is a function that gives facts, in a file of its own; how to read a text of the kernel is apart
//! from reading it, so that tests give it any machine's. What may hang or crash (GPUs, Python, the
//! self-tests) runs as processes with a limit on their time.

mod gpu;
mod kernel;
mod limits;
mod memory;
mod part;
mod processor;
mod python;
mod row;
mod security;
mod self_test;
mod settings;
mod show;
mod text;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;
use serde_json::json;
use symmem::machine;

pub(crate) use self::part::run_part;
use self::row::{Fact, Row, Section, Status, Summary};
use symmem::cuda::{PlaceKind, Provider};

use crate::args::{DoctorArgs, DoctorPart};
use crate::screen;

/// Looks at everything and prints it. Fails if any row does.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let rows = examine(args);
    let summary = Summary::of(&rows);
    if args.json {
        let report = json!({"version": env!("CARGO_PKG_VERSION"), "summary": summary, "rows": rows});
        screen::print_json(&report)?;
    } else {
        screen::print(show::text(&rows, screen::width()))?;
    }
    Ok(if summary.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(args: &DoctorArgs) -> Vec<Row> {
    // On stderr, if that is a terminal.
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(100));
    let ranks = args.ranks.map_or_else(|| machine::usable_cores().max(2), |ranks| ranks as usize);
    progress.set_message("looking at GPUs and Python");
    let (gpus, python) = thread::scope(|scope| {
        // Both wait for processes most of the time.
        let gpus = scope.spawn(|| part::ask(DoctorPart::Gpus, "GPUs", args.gpu_limit()));
        let python = scope.spawn(|| python::facts(args.python.as_deref(), args.limit()));
        (joined(gpus), joined(python))
    });
    let has_gpu = gpus.iter().any(|fact| fact.status != Status::Skip);
    let mut rows = Vec::new();
    let mut add = |section, facts: Vec<Fact>| {
        rows.extend(facts.into_iter().map(|fact| Row { section, fact }));
    };
    add(Section::Kernel, kernel::facts());
    add(Section::Limits, limits::facts(ranks));
    add(Section::Memory, [memory::facts(), processor::facts()].concat());
    add(Section::Containers, security::facts());
    add(Section::Gpus, gpus);
    add(Section::Python, python);
    add(Section::Settings, settings::facts(ranks));
    progress.set_message("trying each provider");
    add(Section::SelfTest, self_tests(args, has_gpu));
    progress.finish_and_clear();
    rows
}

fn joined(thread: thread::ScopedJoinHandle<'_, Vec<Fact>>) -> Vec<Fact> {
    thread.join().unwrap_or_else(|_| vec![Fact::failure("doctor", "looking for it failed")])
}

/// One provider after the other, so that they do not slow each other down.
fn self_tests(args: &DoctorArgs, has_gpu: bool) -> Vec<Fact> {
    if args.no_self_test {
        return vec![Fact::skip("self-test", "not asked for (--no-self-test)")];
    }
    let ask = |provider: Provider, limit| part::ask(DoctorPart::Provider(provider), provider.name(), limit);
    let mut facts: Vec<Fact> =
        Provider::of(PlaceKind::Host).flat_map(|provider| ask(provider, args.limit())).collect();
    if has_gpu {
        facts.extend(Provider::of(PlaceKind::Device).flat_map(|provider| ask(provider, args.gpu_limit())));
    } else {
        let names: Vec<&str> = Provider::of(PlaceKind::Device).map(Provider::name).collect();
        facts.push(Fact::skip(names.join(", "), "no GPU to try them on"));
    }
    facts
}
