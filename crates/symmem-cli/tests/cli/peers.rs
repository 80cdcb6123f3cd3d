//! `symmem bench --peers`: systems that are launched by turns, and what happens when one fails. The peers
//! here are shell scripts that answer with numbers of their own.

use std::fs;
use std::path::Path;

use crate::bench::rows;
use crate::program::{Outcome, TempFolder, symmem};
use serde_json::{Value, json};

/// A script that leaves a log, makes sure to be alone, and answers that an all_reduce of 1 KB took it `p50`
/// microseconds.
fn answering(name: &str, p50: f64) -> String {
    let us = json!({"min": p50 / 2.0, "p50": p50, "p90": p50 * 2.0, "p99": p50 * 3.0, "mean": p50 * 1.5});
    let row =
        json!({"op": "all_reduce", "dtype": "f32", "bytes": 1024, "us": us, "samples": 10, "verified": true});
    let out = json!({"system": name, "version": "9.9", "rows": [row]});
    format!(
        "set -e\n[ \"$1 $3\" = '--job --out' ]\nmkdir alone\necho {name} $EXTRA >> log\ncp \"$2\" job.json\n\
         echo '{out}' > \"$4\"\nrmdir alone\n"
    )
}

/// A folder with a `.peers` in it, in which each of these scripts is a peer.
fn install(name: &str, scripts: &[(&str, &str)]) -> TempFolder {
    let root = TempFolder::new(name);
    fs::create_dir(root.0.join(".peers")).expect("a folder");
    let peer = |(name, text): &(&str, &str)| {
        root.write(&format!("{name}.sh"), text);
        let launch = ["sh", &format!("{name}.sh")];
        json!({"name": name, "kind": "script", "version": "9.9", "launch": launch, "env": {"EXTRA": "extra"}})
    };
    let peers: Vec<Value> = scripts.iter().map(peer).collect();
    root.write(".peers/peers.json", &json!({"peers": peers}).to_string());
    root
}

fn bench(root: &TempFolder, peers: &str, more: &[&str]) -> Outcome {
    let folder = root.0.join(".peers");
    let folder = folder.to_str().expect("UTF-8");
    let fixed = ["bench", "--quick", "--ranks", "2", "--ops", "all_reduce", "--sizes", "1K", "--json", "-"];
    symmem(&[&fixed, &["--peers", peers, "--peers-dir", folder][..], more].concat(), &[]).ok()
}

fn report(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// The row of `system`.
fn row<'a>(report: &'a Value, system: &str) -> Option<&'a Value> {
    rows(report).iter().find(|row| row["system"] == system)
}

#[test]
fn systems_take_turns_alone_and_ratios_are_over_rounds() {
    let scripts = [("slow", answering("slow", 1e6)), ("fast", answering("fast", 1e-3))];
    let root = install("turns", &scripts.each_ref().map(|(name, text)| (*name, text.as_str())));
    let outcome = bench(&root, "all", &["--rounds", "3"]);
    let report = report(&outcome);
    let systems: Vec<_> = rows(&report).iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
    assert_eq!(systems, ["limit", "symmem", "symmem", "fast", "slow"]);
    let memories: Vec<_> = rows(&report).iter().map(|row| row["memory"].as_str().unwrap_or("")).collect();
    assert_eq!(memories, ["", "symmetric", "private", "private", "private"]);
    // Everybody is the first in turn: symmem, slow, fast.
    let turns: String = root.read("log").split_whitespace().filter_map(|word| word.chars().next()).collect();
    assert_eq!(turns, "sefe".repeat(2) + "fese");

    let ours = row(&report, "symmem").expect("our row");
    assert_eq!((&ours["verified"], &ours["best_peer"]), (&json!(true), &json!("fast")));
    let ratio =
        |system: &str| row(&report, system).and_then(|row| row["ratio_to_peer"].as_f64()).expect("a ratio");
    assert_eq!(ratio("symmem"), ratio("fast"));
    let p50 = ours["us"]["p50"].as_f64().expect("a time");
    assert!((ratio("slow") / (p50 / 1e6) - 1.0).abs() < 1e-6, "{report}");
    assert_eq!(ours["p50_by_round"].as_array().map(Vec::len), Some(3));
    assert_eq!(report["peers"][0], json!({"name": "slow", "version": "9.9", "failed": null}));
    assert!(outcome.stderr.contains("best peer"), "{}", outcome.stderr);

    let job: Value = serde_json::from_str(&root.read("job.json")).expect("a job");
    assert_eq!((&job["ranks"], &job["pin"]), (&json!(2), &json!(true)));
    assert_eq!(job["cases"], json!([{"op": "all_reduce", "dtype": "f32", "bytes": 1024, "iters": 10}]));
}

#[test]
fn peers_run_beside_the_same_busy_loops_and_on_the_same_terms() {
    // Its parent is the bench, and so is that of the loops.
    let count = "for status in $(grep -ls \"^PPid:[[:space:]]*$PPID\\$\" /proc/[0-9]*/status); do \
                 tr '\\0' ' ' < ${status%status}cmdline | grep -c bench-load; done | grep -c 1 >> loops || true\n";
    let script = count.to_owned() + &answering("mpi", 5.0);
    let root = install("loaded", &[("mpi", &script)]);
    let memories = ["--memory", "private,by_hand", "--load", "2", "--pin", "no", "--iters", "10"];
    let outcome = bench(&root, "mpi", &memories);
    assert_eq!(
        root.read("loops").split_whitespace().collect::<Vec<_>>(),
        ["2", "2"],
        "launches spare the loops"
    );
    let job: Value = serde_json::from_str(&root.read("job.json")).expect("a job");
    assert_eq!((&job["pin"], &job["load"]), (&json!(false), &json!(2)));
    let report = report(&outcome);
    let told = |row: &Value| {
        assert_eq!((&row["load"], &row["pinned"]), (&json!(2), &json!(false)), "{row}");
        let text = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        (text("system"), if text("system") == "limit" { text("algorithm") } else { text("memory") })
    };
    let rows: Vec<_> = rows(&report).iter().map(told).collect();
    let expected = [
        ("limit", "futex ping-pong"),
        ("limit", "futex exchange"),
        ("symmem", "private"),
        ("symmem", "by_hand"),
        ("mpi", "private"),
    ];
    assert_eq!(rows, expected.map(|(system, what)| (system.to_owned(), what.to_owned())));
    let private = row(&report, "symmem").expect("our row");
    assert!(private["to_hand"]["p50"].is_f64() && private["mean_ratio_to_limit"].is_f64(), "{private}");
    for words in ["in short", "private / by hand: mean", "ranks 2, pinned no, load 2"] {
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
}

#[test]
fn a_peer_that_fails_is_one_line_and_the_others_go_on() {
    let good = answering("good", 5.0);
    let scripts = [
        ("broken", "echo 'no such fabric' >&2; exit 3"),
        ("silent", "exit 0"),
        ("confused", "echo '{' > \"$4\""),
        ("good", good.as_str()),
    ];
    let root = install("fails", &scripts);
    let outcome = bench(&root, "broken,silent,confused,good,vllm", &[]);
    let line = |words: &str| outcome.stderr.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        line("peer broken is left out: it ended with exit status 3: no such fabric"),
        1,
        "{}",
        outcome.stderr
    );
    assert_eq!(line("peer silent is left out: it left no results"), 1, "{}", outcome.stderr);
    assert_eq!(line("peer confused is left out"), 1, "{}", outcome.stderr);
    assert_eq!(line("peer vllm is not installed"), 1, "{}", outcome.stderr);
    let report = report(&outcome);
    assert!(row(&report, "good").is_some() && row(&report, "broken").is_none());
    assert_eq!(row(&report, "symmem").map(|row| row["best_peer"].clone()), Some(json!("good")));
    assert!(report["peers"][0]["failed"].as_str().is_some_and(|why| why.contains("no such fabric")));
}

#[test]
fn a_peer_that_hangs_is_killed_with_everything_it_started() {
    let hang = "setsid sh -c 'sleep 1000 & echo $! > orphan; sleep 1000' & sleep 1000";
    let root = install("hangs", &[("hang", hang)]);
    let outcome = bench(&root, "hang", &["--peer-timeout", "1"]);
    let words = "peer hang is left out: it had not ended after 1 s and was killed";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    let orphan = root.read("orphan");
    assert!(!orphan.trim().is_empty());
    let command = fs::read_to_string(format!("/proc/{}/comm", orphan.trim())).unwrap_or_default();
    assert_ne!(command.trim(), "sleep", "process {orphan} lives on");
    assert!(row(&report(&outcome), "symmem").is_some());
}

#[test]
fn a_library_that_cannot_be_loaded_is_named() {
    let root = install("shim", &[]);
    let peer = json!({"name": "mpi", "kind": "shim", "shim": "missing.so", "launch": ["env"]});
    root.write(".peers/peers.json", &json!({"peers": [peer]}).to_string());
    let outcome = bench(&root, "mpi", &[]);
    let complaint = outcome.stderr.lines().find(|line| line.starts_with("peer mpi is left out"));
    assert!(complaint.is_some_and(|line| line.contains("missing.so cannot be loaded")), "{}", outcome.stderr);
}

#[test]
fn without_peers_the_bench_says_so_and_goes_on() {
    let root = TempFolder::new("none");
    let outcome = bench(&root, "all", &[]);
    assert!(outcome.stderr.contains("no peers are installed"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cargo xtask peers"), "{}", outcome.stderr);
    assert!(row(&report(&outcome), "symmem").is_some());
}

#[test]
fn a_peer_that_nobody_knows_is_an_error_with_those_that_are_known() {
    let root = install("typo", &[("mine", "exit 0")]);
    let folder = root.0.join(".peers");
    let args = ["bench", "--quick", "--peers", "all,mpi", "--peers-dir", folder.to_str().expect("UTF-8")];
    let complaint = symmem(&args, &[]).complaint();
    let known = "--peers mpi: there is no such peer; there are all, deepspeed, gloo, impi, mine, mpich, openmpi, vllm";
    assert!(complaint.contains(known), "{complaint}");
}

#[test]
fn a_list_of_peers_that_cannot_be_understood_is_named() {
    let root = install("manifest", &[]);
    for (text, words) in [
        ("{", "peers.json cannot be understood"),
        (r#"{"peers": [{"name": "a", "kind": "script", "launch": []}]}"#, "peer a has no launch command"),
        (r#"{"peers": [{"name": "a", "kind": "shim", "launch": ["env"]}]}"#, "peer a has no shim"),
        (r#"{"peers": [{"name": "limit", "kind": "script", "launch": ["sh"]}]}"#, "the name limit"),
    ] {
        root.write(".peers/peers.json", text);
        let folder = root.0.join(".peers");
        let args = ["bench", "--quick", "--peers", "all", "--peers-dir", folder.to_str().expect("UTF-8")];
        let complaint = symmem(&args, &[]).complaint();
        assert!(complaint.contains(words), "{complaint}");
    }
}

#[test]
fn a_launch_of_ours_does_its_job_and_a_job_that_is_none_is_named() {
    let root = TempFolder::new("job");
    let case = json!({"op": "all_gather", "dtype": "bf16", "bytes": 4096, "iters": 20});
    root.write("job.json", &json!({"ranks": 2, "pin": false, "cases": [case]}).to_string());
    let path = |name: &str| Path::new(root.arg()).join(name).to_str().expect("UTF-8").to_owned();
    let (job, out) = (path("job.json"), path("out.json"));
    symmem(&["bench-rank", "--symmem", "--job", &job, "--out", &out], &[]).ok();
    let output: Value = serde_json::from_str(&root.read("out.json")).expect("JSON");
    let row = &output["rows"][0];
    assert_eq!(
        (&output["system"], &row["op"], &row["dtype"]),
        (&json!("symmem"), &json!("all_gather"), &json!("bf16"))
    );
    assert_eq!((&row["bytes"], &row["samples"], &row["verified"]), (&json!(4096), &json!(20), &json!(true)));

    root.write(
        "job.json",
        r#"{"ranks": 2, "pin": false, "cases": [{"op": "dance", "dtype": "f32", "bytes": 8, "iters": 1}]}"#,
    );
    let complaint = symmem(&["bench-rank", "--symmem", "--job", &job, "--out", &out], &[]).complaint();
    assert!(
        complaint.contains("job.json cannot be understood") && complaint.contains("dance"),
        "{complaint}"
    );
}
