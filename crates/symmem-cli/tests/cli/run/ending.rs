//! How jobs end: well, by a failure, by signals, with the launcher.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{begun, is_gone, process, ranks, until};
use crate::program::{Running, TempFile, TempFolder};

fn read_json(file: &TempFile) -> Value {
    serde_json::from_str(&fs::read_to_string(&file.0).expect("a report")).expect("JSON")
}

#[test]
fn a_rank_that_fails_ends_the_others_and_is_named() {
    let report = TempFile::new("failed.json");
    let outcome = ranks("4", &["--json", report.arg()], "[ $RANK = 2 ] && exit 3; exec sleep 100");
    assert_eq!(outcome.code, Some(3));
    let complaint = outcome.complaint();
    assert!(complaint.starts_with("error: rank 2 failed first: it exited with 3 after"), "{complaint}");
    assert!(complaint.contains("ranks 0, 1 and 3 were killed by SIGTERM, to end the job"), "{complaint}");
    let report = read_json(&report);
    assert_eq!((&report["status"], &report["first_failure"]["rank"]), (&3.into(), &2.into()));
    assert_eq!(report["ranks"].as_array().map(Vec::len), Some(4));
    assert_eq!(report["ranks"][0]["signal"], "SIGTERM");
    assert_eq!(report["ranks"][2]["exit_code"], 3);
}

#[test]
fn success_as_json_has_no_failure() {
    let report = TempFile::new("good.json");
    ranks("2", &["--json", report.arg()], "exit 0").ok();
    let report = read_json(&report);
    assert_eq!((&report["status"], &report["first_failure"]), (&0.into(), &Value::Null));
    assert_eq!(report["ranks"][1]["exit_code"], 0);
}

#[test]
fn a_signal_that_kills_a_rank_is_named() {
    let outcome = ranks("2", &[], "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 100");
    assert_eq!(outcome.code, Some(139));
    let complaint = outcome.complaint();
    assert!(complaint.contains("rank 1 failed first: it was killed by SIGSEGV"), "{complaint}");
}

#[test]
fn a_rank_that_does_not_heed_sigterm_is_killed_after_the_grace() {
    let folder = TempFolder::new("grace");
    let script = r#"if [ $RANK = 0 ]; then trap "" TERM; echo $$ > $DIR/ready; while :; do sleep 0.1; done; fi
        while [ ! -e $DIR/ready ]; do sleep 0.05; done; exit 1"#;
    let outcome = begun("2", &["--grace", "0.3"], &folder, script).end();
    assert_eq!(outcome.code, Some(1));
    let complaint = outcome.complaint();
    assert!(complaint.contains("rank 0 was killed by SIGKILL, to end the job"), "{complaint}");
}

#[test]
fn signals_are_passed_on() {
    let folder = TempFolder::new("signals");
    let script = r#"trap "echo got USR1" USR1; trap "echo got TERM; exit 0" TERM; echo $$ > $DIR/$RANK
        while :; do sleep 0.05; done"#;
    let running = begun("2", &[], &folder, script);
    process(&folder, "0");
    process(&folder, "1");
    running.signal(Signal::USR1);
    // The shells' own sleeps are killed by it, as in a terminal.
    until("USR1 on both", || running.stdout().matches("got USR1").count() == 2);
    running.signal(Signal::TERM);
    // Both end well, and so does the job.
    assert_eq!(running.end().ok().stdout.matches("got TERM").count(), 2);
}

#[test]
fn a_job_that_is_ended_by_a_signal_says_so() {
    let folder = TempFolder::new("ended");
    let running = begun("2", &[], &folder, "echo $$ > $DIR/$RANK; exec sleep 100");
    process(&folder, "0");
    process(&folder, "1");
    running.signal(Signal::TERM);
    let outcome = running.end();
    assert_eq!(outcome.code, Some(143));
    let complaint = outcome.complaint();
    assert!(complaint.contains("SIGTERM had been sent to this program"), "{complaint}");
}

#[test]
fn ranks_that_do_not_heed_a_signal_are_killed_by_the_third() {
    let folder = TempFolder::new("stubborn");
    let script = r#"trap "" TERM INT; echo $$ > $DIR/$RANK; while :; do sleep 0.1; done"#;
    let running = begun("2", &["--grace", "1000"], &folder, script);
    let (one, other) = (process(&folder, "0"), process(&folder, "1"));
    for _ in 0..3 {
        running.signal(Signal::TERM);
        // Signals that come together may count as one.
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(running.end().code, Some(137));
    assert!(is_gone(one) && is_gone(other));
}

#[test]
fn a_stopped_job_goes_on_when_it_is_told() {
    let folder = TempFolder::new("stopped");
    // Without a child: a shell whose child is stopped between vfork and exec is not stopped, but waits for
    // it.
    let running = begun("2", &[], &folder, "echo $$ > $DIR/$RANK; while [ ! -e $DIR/go ]; do :; done");
    let pids = ["0", "1"].map(|name| process(&folder, name));
    let state = |pid: rustix::process::Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    running.signal(Signal::TSTP);
    until("stopped ranks", || pids.iter().all(|pid| state(*pid) == Some('T')));
    running.signal(Signal::CONT);
    until("running ranks", || pids.iter().all(|pid| state(*pid) != Some('T')));
    folder.write("go", "");
    running.end().ok();
}

#[test]
fn what_a_rank_leaves_behind_does_not_keep_the_launcher() {
    let folder = TempFolder::new("daemon");
    let outcome = begun("2", &[], &folder, "sleep 1000 & echo $! > $DIR/$RANK").end().ok();
    assert_eq!(outcome.stdout, "");
    // After success they may go on.
    for name in ["0", "1"] {
        let left = process(&folder, name);
        assert!(!is_gone(left));
        kill_process(left, Signal::KILL).expect("it runs");
    }
}

#[test]
fn after_a_failure_nothing_is_left_behind() {
    let folder = TempFolder::new("orphans");
    let script = r#"sleep 1000 & echo $! > $DIR/$RANK; while [ ! -e $DIR/0 -o ! -e $DIR/1 ]; do sleep 0.05; done
        [ $RANK = 0 ] && exit 1; wait"#;
    assert_eq!(begun("2", &[], &folder, script).end().code, Some(1));
    let (one, other) = (process(&folder, "0"), process(&folder, "1"));
    until("no orphans", || is_gone(one) && is_gone(other));
}

#[test]
fn ranks_die_with_the_launcher() {
    let folder = TempFolder::new("killed");
    let running = begun("3", &[], &folder, "echo $$ > $DIR/$RANK; exec sleep 1000");
    let pids = ["0", "1", "2"].map(|name| process(&folder, name));
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None);
    until("no ranks", || pids.iter().all(|pid| is_gone(*pid)));
}

/// The process of each rank, as `be_a_rank_that_reduces` has said it.
fn said(running: &Running, rank: usize) -> Option<i32> {
    let (start, text) = (format!("[{rank}] process "), running.stdout());
    text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok())
}

#[test]
fn the_report_names_the_last_operation_of_a_rank_that_was_killed() {
    let args = super::run_this("run::be_a_rank_that_reduces", &["-n", "4"]);
    let running = Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    until("all ranks are there", || (0..4).all(|rank| said(&running, rank).is_some()));
    let pid = said(&running, 2).and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::STOP).expect("it runs");
    let names_it = |group: &symmem::inspect::GroupState| {
        group.explain().contains("rank 2") && group.explain().contains("all_reduce") && group.culprits == [2]
    };
    let pids = [pid.as_raw_nonzero().get() as u32];
    until("rank 2 is to blame", || {
        symmem::inspect::groups_of(&pids).is_ok_and(|all| all.iter().any(names_it))
    });
    kill_process(pid, Signal::KILL).expect("it is there");
    let outcome = running.end();
    assert_eq!(outcome.code, Some(137));
    let complaint = outcome.complaint();
    assert!(
        complaint.contains("rank 2") && complaint.contains("its last operation: all_reduce"),
        "{complaint}"
    );
}
