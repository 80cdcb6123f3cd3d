//! `symmem run`, mostly with shells as ranks.

mod ending;
mod nodes;
mod output;
mod starting;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

use crate::program::{Outcome, Running, TempFolder, symmem};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `script` on so many ranks, with these options.
fn ranks(count: &str, options: &[&str], script: &str) -> Outcome {
    symmem(&[&["run", "-n", count], options, &["--", "sh", "-c", script]].concat(), &[])
}

/// Starts `script`, which finds its folder in `DIR`.
fn begun(count: &str, options: &[&str], folder: &TempFolder, script: &str) -> Running {
    let args = [&["run", "-n", count], options, &["--", "sh", "-c", script]].concat();
    Running::start(&args, &[("DIR", folder.arg())])
}

/// The lines, sorted: ranks write in any order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Waits for a condition, but not for ever.
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The process that a rank has written into a file of the folder.
fn process(folder: &TempFolder, name: &str) -> Pid {
    until(name, || folder.read(name).ends_with('\n'));
    Pid::from_raw(folder.read(name).trim().parse().expect("a number")).expect("a process")
}

/// Whether it is gone, or only its entry is left.
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim().chars().next();
    test_kill_process(pid).is_err() || matches!(state, None | Some('Z' | 'X'))
}

/// The arguments of `symmem` that run this test program as ranks that meet each other.
fn run_and_meet(options: &[&str]) -> Vec<String> {
    run_this("run::be_a_rank_that_meets", options)
}

/// The same with the ranks that this test is.
fn run_this(rank: &str, options: &[&str]) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("UTF-8").to_owned();
    // Never without the name of the one test: it would run all of them again, those that start ranks too.
    let test = [&program, rank, "--exact", "--ignored", "--nocapture"];
    ["run"].iter().chain(options).chain(&["--"]).chain(&test).map(|word| (*word).to_owned()).collect()
}

/// No test: what a rank of other tests runs.
#[test]
#[ignore = "is a rank of other tests"]
fn be_a_rank_that_meets() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = symmem::Group::from_env().expect("a group");
    let ranks = group.all_gather(&(group.rank() as u64)).expect("all ranks");
    assert_eq!(ranks, (0..group.size() as u64).collect::<Vec<_>>());
    println!("met {}", group.size());
}

/// No test: a rank that reduces for ever, and says which process it is.
#[test]
#[ignore = "is a rank of other tests"]
fn be_a_rank_that_reduces() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = symmem::Group::from_env().expect("a group");
    println!("\nprocess {}", std::process::id());
    let mut x = vec![1.0_f32; 1000];
    while group.all_reduce(symmem::ReduceOp::Max, &mut x).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    // The launcher ends the ranks that are left.
    thread::sleep(LIMIT);
}
