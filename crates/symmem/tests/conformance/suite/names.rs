//! The suite's own books: every behaviour has an origin and stages, every left out pair a reason, every
//! exception a behaviour.

use std::collections::BTreeSet;
use std::path::Path;

use super::exceptions;
use super::stage::{self, Place, Stage};
use super::table::{self, Behaviour};

/// Rows of `names.txt`: a test of an earlier suite, or `new`, and the behaviours that state it now.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = include_str!("names.txt").lines().map(str::trim);
    let row = |line: &'static str| {
        let (old, new) = line.split_once(" -> ").unwrap_or_else(|| panic!("no arrow in: {line}"));
        (old.trim(), new.split_whitespace().collect())
    };
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(row).collect()
}

#[test]
fn every_behaviour_has_an_origin() {
    let named: BTreeSet<&str> = rows().into_iter().flat_map(|(_, new)| new).collect();
    let all: BTreeSet<&str> = table::ALL.iter().map(|behaviour| behaviour.name).collect();
    let missing: Vec<_> = all.difference(&named).collect();
    assert!(
        missing.is_empty(),
        "behaviours without a row in names.txt (an old name, or `new`): {missing:#?}"
    );
    let unknown: Vec<_> = named.difference(&all).collect();
    assert!(unknown.is_empty(), "names.txt has behaviours that are not in the table: {unknown:#?}");
    assert_eq!(all.len(), table::ALL.len(), "a name is twice in the table");
}

#[test]
fn no_old_test_is_lost() {
    let mut olds: Vec<&str> = rows().iter().map(|(old, _)| *old).filter(|old| *old != "new").collect();
    // Of the two suites that this one replaces: 66 behaviours of host memory, and 79 of devices.
    let host = olds.iter().filter(|old| old.starts_with("conformance::")).count();
    let devices = olds.iter().filter(|old| old.starts_with("devices::")).count();
    assert_eq!((host, devices), (66, 79), "each had a row");
    let count = olds.len();
    olds.sort_unstable();
    olds.dedup();
    assert_eq!(olds.len(), count, "an old name is there twice");
}

/// Tests of other programs that state the same are there under their names.
#[test]
fn tests_that_stay_are_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    if !folder.is_dir() {
        return println!("skipped: the sources of the tests are not on this machine");
    }
    let replaced = ["new", "conformance", "devices"];
    for (old, _) in rows() {
        let mut words: Vec<&str> = old.split("::").collect();
        let name = words.pop().unwrap_or_default();
        if replaced.contains(words.first().unwrap_or(&"new")) {
            continue;
        }
        let file = folder.join(words.join("/")).with_extension("rs");
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(text.contains(&format!("fn {name}(")), "{old} is gone");
    }
}

#[test]
fn every_behaviour_runs_somewhere_and_every_stage_says_what_it_leaves_out() {
    for behaviour in table::ALL {
        let stages: Vec<&&Stage> = stage::ALL.iter().filter(|stage| behaviour.runs_on(stage)).collect();
        assert!(!stages.is_empty(), "no stage runs {}", behaviour.name);
        for stage in stage::ALL.iter().filter(|stage| !behaviour.runs_on(stage)) {
            assert!(!behaviour.why_not(stage).is_empty(), "{} on {}", behaviour.name, stage.name);
        }
    }
    for stage in stage::ALL {
        assert!(table::ALL.iter().any(|behaviour| behaviour.runs_on(stage)), "{} runs nothing", stage.name);
    }
}

/// What every memory does is stated of host memory and of devices, here and not only on a GPU, unless it is
/// about what needs kernels.
#[test]
fn what_every_memory_does_is_stated_of_every_kind() {
    let lacks = |behaviour: &&Behaviour, place: Place| {
        let mut stages = stage::ALL.iter().filter(|stage| stage.place == place);
        !stages.any(|stage| behaviour.runs_on(stage))
    };
    let of_all = || table::ALL.iter().filter(|behaviour| behaviour.name.starts_with("any::"));
    let without = |place| -> Vec<_> {
        of_all().filter(|behaviour| lacks(behaviour, place)).map(|behaviour| behaviour.name).collect()
    };
    let injected = "any::rendezvous::a_call_that_fails_on_one_rank_is_the_same_error_on_all_and_passes";
    let mut host = without(Place::Host);
    host.retain(|name| cfg!(feature = "faults") || *name != injected);
    assert_eq!(host, ["any::memory::who_is_out_of_reach_is_named"]);
    assert_eq!(
        without(Place::Fakes),
        ["any::barrier::a_late_rank_is_waited_for", "any::signals::channels_and_sources_do_not_mix"]
    );
    assert_eq!(without(Place::Gpu), [injected, "any::failure::a_killed_rank_is_lost_for_all_survivors"]);
}

#[test]
fn every_exception_is_of_a_behaviour_that_runs() {
    for exception in exceptions::ALL {
        let behaviour = table::find(exception.behaviour);
        let stages = stage::ALL.iter().filter(|stage| exceptions::find(stage, behaviour).is_some());
        assert!(
            stages.clone().count() > 0 && !exception.until.is_empty() && !exception.fails_with.is_empty()
        );
        assert!(stages.into_iter().any(|stage| behaviour.runs_on(stage)), "{} runs nowhere", behaviour.name);
    }
}

/// Prints which behaviour runs where: `cargo test --test conformance the_plan -- --nocapture`.
#[test]
fn the_plan_can_be_seen() {
    for stage in stage::ALL {
        let (run, out): (Vec<_>, Vec<_>) = table::ALL.iter().partition(|behaviour| behaviour.runs_on(stage));
        let excepted = run.iter().filter(|behaviour| exceptions::find(stage, behaviour).is_some()).count();
        println!(
            "{}: {} behaviours, {excepted} of them exceptions, in worlds of {:?}",
            stage.name,
            run.len(),
            stage.worlds
        );
        for behaviour in out {
            println!("    without {}: {}", behaviour.name, behaviour.why_not(stage));
        }
    }
    assert!(stage::ALL.len() > 10);
}
