//! `symmem bench`: what it reports, and what it says about input it cannot use.

use std::collections::BTreeSet;
use std::fs;

use crate::program::{TempFile, symmem};
use serde_json::Value;

pub(crate) fn rows(report: &Value) -> &Vec<Value> {
    report["results"].as_array().expect("a list of results")
}

/// Each row's system, op and bytes, for one number of ranks.
fn measured(report: &Value, ranks: u64) -> Vec<String> {
    let of_ranks = rows(report).iter().filter(|row| row["ranks"] == ranks);
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    of_ranks.map(|row| format!("{} {} {}", text(&row["system"]), text(&row["op"]), row["bytes"])).collect()
}

pub(crate) fn check_row(row: &Value) {
    assert_eq!(row["verified"], true, "{row}");
    for name in ["system", "op", "algorithm", "dtype"] {
        assert!(row[name].as_str().is_some_and(|text| !text.is_empty()), "{name} of {row}");
    }
    let us = |name: &str| row["us"][name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
    assert!(us("min") > 0.0, "{row}");
    assert!(us("min") <= us("p50") && us("p50") <= us("p90") && us("p90") <= us("p99"), "{row}");
}

#[test]
fn a_quick_run_verifies_with_two_and_four_ranks_and_leaves_nothing_behind() {
    let shm = || -> BTreeSet<_> {
        let entries = fs::read_dir("/dev/shm").into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
    };
    let before = shm();
    let file = TempFile::new("quick.json");
    let outcome =
        symmem(&["bench", "--quick", "--ops", "barrier,signal,copy", "--json", file.arg()], &[]).ok();
    let left: Vec<_> = shm().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(outcome.stdout.contains("x limit"), "the table goes to stdout: {}", outcome.stdout);

    let text = fs::read_to_string(&file.0).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    for name in ["cpu", "kernel", "os", "version", "date"] {
        assert!(report["machine"][name].is_string(), "{name}");
    }
    let all = [
        "limit barrier 0",
        "symmem barrier 0",
        "symmem signal 0",
        "symmem copy 8",
        "symmem copy 65536",
        "symmem copy 1048576",
    ];
    assert_eq!(measured(&report, 2), all);
    assert_eq!(measured(&report, 4), all);
    rows(&report).iter().for_each(check_row);
    for row in rows(&report).iter().filter(|row| row["op"] == "barrier") {
        assert!(row["ratio_to_limit"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
    }
}

#[test]
fn json_on_stdout_leaves_the_table_to_stderr() {
    let args = ["bench", "--quick", "--ranks", "3", "--ops", "signal,copy", "--no-pin", "--json", "-"];
    let outcome = symmem(&args, &[]).ok();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("nothing but JSON");
    assert_eq!(rows(&report).len(), 4);
    assert!(rows(&report).iter().all(|row| row["ranks"] == 3 && row["pinned"] == false));
    assert!(outcome.stderr.contains("verified"), "{}", outcome.stderr);
}

#[test]
fn the_number_of_blocks_and_operations_can_be_chosen() {
    let args = ["bench", "--ranks", "2", "--ops", "barrier", "--blocks", "2", "--iters", "10", "--json", "-"];
    let report: Value = serde_json::from_str(&symmem(&args, &[]).ok().stdout).expect("JSON");
    assert!(rows(&report).iter().all(|row| row["samples"] == 20), "{report}");
}

#[test]
fn input_that_cannot_be_used_is_named() {
    for (args, words) in [
        (&["--ranks", "0"][..], "'0' for '--ranks"),
        (&["--ranks", "1"], "'1' for '--ranks"),
        (&["--ranks", "x"], "'x' for '--ranks"),
        (&["--ranks", "2,"], "'' for '--ranks"),
        (&["--ranks", "1000"], "'1000' for '--ranks"),
        (&["--ops", "dance"], "'dance' for '--ops"),
        (&["--blocks", "0"], "'0' for '--blocks"),
        (&["--iters", "-5"], "'-5'"),
        (&["--sizes", "0"], "'0' for '--sizes"),
        (&["--sizes", "8,1Q"], "'1Q' for '--sizes"),
        (&["--sizes", "1KX"], "1K, 1KB and 1KiB are 1024 bytes"),
        (&["--sizes", "8,5"], "--sizes 5: elements of f32 have 4 bytes each"),
        (&["--sizes", "12", "--dtypes", "f32,float64"], "--sizes 12: elements of f64 have 8 bytes each"),
        (&["--sizes", "999999G"], "choose smaller --sizes"),
        (&["--sizes", "8", "--full"], "cannot be used with"),
        (&["--dtypes", "f31"], "'f31' for '--dtypes"),
        (&["--dtypes", "float31"], "f32 (float32)"),
        (&["--rounds", "0"], "'0' for '--rounds"),
        (&["--peer-timeout", "0"], "'0' for '--peer-timeout"),
        (&["--ops", "barrier", "--plot", "/dev/null"], "--ops names none"),
        (&["--ops", "barrier", "--peers", "all"], "--ops names none"),
        (&["--plot", "/no/such/folder/file"], "/no/such/folder/file cannot be written"),
        (&["--json", "/no/such/folder/file"], "/no/such/folder/file cannot be written"),
        (&["--json", "/"], "/ cannot be written"),
        (&["--html", "/no/such/folder/file"], "/no/such/folder/file cannot be written"),
        (&["--html", "-"], "--html -: the table is on stdout; name a file"),
        (&["--preset", "fast"], "'fast' for '--preset"),
    ] {
        let complaint = symmem(&[&["bench"], args].concat(), &[]).complaint();
        assert!(complaint.contains(words), "{args:?}: {complaint}");
    }
}

#[test]
fn a_setting_that_cannot_be_understood_is_named_by_the_bench_too() {
    let complaint = symmem(&["bench", "--quick"], &[("SYMMEM_SPIN", "many")]).complaint();
    assert!(complaint.contains("SYMMEM_SPIN"), "{complaint}");
}

#[test]
fn sizes_and_types_can_be_written_in_every_usual_way() {
    let args = [
        "bench",
        "--quick",
        "--ranks",
        "2",
        "--ops",
        "all_reduce",
        "--memory",
        "symmetric",
        "--sizes",
        "1K,2KB,4KiB,8",
        "--dtypes",
        "bfloat16,f64",
        "--json",
        "-",
    ];
    let report: Value = serde_json::from_str(&symmem(&args, &[]).ok().stdout).expect("JSON");
    let ours = rows(&report).iter().filter(|row| row["system"] == "symmem");
    let measured: BTreeSet<_> =
        ours.map(|row| (row["dtype"].as_str().unwrap_or(""), row["bytes"].as_u64().unwrap_or(0))).collect();
    let expected =
        ["bf16", "f64"].into_iter().flat_map(|dtype| [8, 1024, 2048, 4096].map(|bytes| (dtype, bytes)));
    assert_eq!(measured, expected.collect());
}
