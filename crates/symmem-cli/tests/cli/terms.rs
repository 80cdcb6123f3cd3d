//! `symmem bench` on other terms than the best: private memory, ranks that are not pinned, busy loops beside
//! them.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{check_row, rows};
use crate::program::symmem;
use serde_json::{Value, json};

fn bench(args: &[&str]) -> Value {
    let fixed = ["bench", "--quick", "--json", "-"];
    let outcome = symmem(&[&fixed, args].concat(), &[]).ok();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn every_collective_is_verified_in_every_memory() {
    let ops = "all_reduce,all_reduce_out,reduce,reduce_scatter,all_gather,broadcast,all_to_all";
    let fixed = ["--dtypes", "f32,bf16", "--memory", "symmetric,private,by_hand", "--iters", "5"];
    let sizes = ["--ranks", "2,3", "--sizes", "100,1M"];
    let report = bench(&[&["--ops", ops], &fixed[..], &sizes[..]].concat());
    rows(&report).iter().for_each(check_row);
    for memory in ["symmetric", "private", "by_hand"] {
        let of_memory = || rows(&report).iter().filter(|row| row["memory"] == memory);
        assert_eq!(of_memory().count(), 7 * 2 * 2 * 2, "{memory}");
        assert!(of_memory().all(|row| row["to_hand"].is_object() == (memory == "private")), "{memory}");
    }
}

#[test]
fn every_pinning_is_measured_beside_every_load_and_the_limit_there_is_a_futex() {
    let terms = ["--load", "0,1", "--pin", "yes,no", "--ranks", "2"];
    let report = bench(&[&["--ops", "barrier,signal,all_reduce", "--sizes", "1K"][..], &terms].concat());
    rows(&report).iter().for_each(check_row);
    for (pinned, load) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let here = |row: &&Value| row["pinned"] == pinned && row["load"] == load;
        let limits = |op: &str| -> Vec<String> {
            let of_op = rows(&report).iter().filter(here).filter(|row| row["op"] == op);
            let limits = of_op.filter(|row| row["system"] == "limit");
            limits.map(|row| row["algorithm"].as_str().unwrap_or("").to_owned()).collect()
        };
        let both = ["futex ping-pong", "futex exchange"];
        if load == 1 {
            assert_eq!(limits("barrier"), ["futex exchange"]);
            assert_eq!(
                (limits("signal"), limits("all_reduce")),
                (both.map(Into::into).into(), both.map(Into::into).into())
            );
        } else {
            assert_eq!((limits("signal").len(), limits("all_reduce").len()), (0, 1));
        }
        let ours = rows(&report).iter().filter(here).filter(|row| row["system"] == "symmem");
        for row in ours {
            assert!(row["us"]["mean"].as_f64().is_some_and(|mean| mean > 0.0), "{row}");
            assert_eq!(row["mean_ratio_to_limit"].is_f64(), load == 1 || row["op"] == "all_reduce", "{row}");
        }
    }
}

#[test]
fn what_all_rows_share_is_said_above_the_table() {
    let args = ["bench", "--quick", "--ranks", "2", "--ops", "signal", "--load", "1", "--no-pin"];
    let outcome = symmem(&args, &[]).ok();
    assert!(
        outcome.stdout.starts_with("dtype u64, ranks 2, pinned no, load 1, verified yes\n"),
        "{}",
        outcome.stdout
    );
}

/// The busy loops that process `bench` has started.
fn loops(bench: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_loop = |pid: &String| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let parent = read("stat")
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1).map(str::to_owned));
        parent == Some(bench.to_string()) && read("cmdline").contains("bench-load")
    };
    pids.filter(is_loop).collect()
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn busy_loops_end_with_a_bench_that_is_killed() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_symmem"))
        .args([
            "bench",
            "--ranks",
            "2",
            "--ops",
            "all_reduce",
            "--sizes",
            "1M",
            "--load",
            "2",
            "--blocks",
            "900",
        ])
        .args(["--iters", "100000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let started = wait_for("two loops", || Some(loops(bench.id())).filter(|loops| loops.len() == 2));
    bench.kill().expect("a running child can be killed");
    bench.wait().expect("a child can be waited for");
    let is_gone = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    };
    wait_for("the loops end", || started.iter().all(is_gone).then_some(()));
}

#[test]
fn terms_that_cannot_be_used_are_named() {
    for (args, words) in [
        (&["--memory", "shared"][..], "'shared' for '--memory"),
        (&["--load", "x"], "'x' for '--load"),
        (&["--load", "257"], "'257' for '--load"),
        (&["--pin", "maybe"], "'maybe' for '--pin"),
        (&["--provider", "vmm", "--load", "1"], "--load"),
        (&["--provider", "vmm", "--memory", "private"], "--memory"),
        (&["--provider", "vmm", "--pin", "yes,no"], "for host memory only"),
    ] {
        let complaint = symmem(&[&["bench"], args].concat(), &[]).complaint();
        assert!(complaint.contains(words), "{args:?}: {complaint}");
    }
}

#[test]
fn a_launch_of_ours_measures_each_memory_and_the_limit() {
    let root = crate::program::TempFolder::new("memories");
    let case = json!({"op": "all_reduce", "dtype": "f32", "bytes": 4096, "iters": 20});
    let job =
        json!({"ranks": 2, "pin": false, "load": 1, "memories": ["by_hand", "private"], "cases": [case]});
    root.write("job.json", &job.to_string());
    let (job, out) = (format!("{}/job.json", root.arg()), format!("{}/out.json", root.arg()));
    symmem(&["bench-rank", "--symmem", "--job", &job, "--out", &out], &[]).ok();
    let output: Value = serde_json::from_str(&root.read("out.json")).expect("JSON");
    let told = |list: &str, name: &str| -> Vec<Value> {
        let rows = output[list].as_array().expect("a list");
        assert!(rows.iter().all(|row| row["verified"] == true && row["samples"] == 20), "{output}");
        rows.iter().map(|row| row[name].clone()).collect()
    };
    assert_eq!(told("rows", "memory"), [json!("by_hand"), json!("private")]);
    assert_eq!(told("limits", "algorithm"), [json!("futex ping-pong"), json!("futex exchange")]);
}
