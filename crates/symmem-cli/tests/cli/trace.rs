//! `symmem trace`: a job's operations in a file that Perfetto opens.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Outcome, Running, symmem};

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("trace");
    fs::create_dir_all(&folder).expect("a folder for traces");
    folder.join(name)
}

/// Traces a bench of two ranks, which makes some thousand operations.
fn trace_a_bench(out: &str, more: &[&str]) -> Outcome {
    let bench =
        [env!("CARGO_BIN_EXE_symmem"), "bench", "--quick", "--ranks", "2", "--ops", "barrier,all_reduce"];
    let args: Vec<&str> =
        ["trace", "-o", out].iter().chain(more).chain(&["--"]).chain(&bench).copied().collect();
    symmem(&args, &[])
}

/// The events of a file, after a look at everything that the Trace Event Format wants of them.
fn checked_events(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).expect("JSON");
    let events = file["traceEvents"].as_array().expect("a list of events").clone();
    let mut ends: HashMap<u64, f64> = HashMap::new();
    let mut arrows: HashMap<u64, (usize, usize)> = HashMap::new();
    for event in &events {
        assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        let at = || event["ts"].as_f64().filter(|at| *at >= 0.0).expect("a time in microseconds");
        let tid = event["tid"].as_u64().expect("a track");
        match event["ph"].as_str().expect("a phase") {
            "M" => assert!(event["args"].is_object(), "{event}"),
            "X" => {
                let (begin, length) = (at(), event["dur"].as_f64().expect("a length"));
                let before = ends.insert(tid, begin + length);
                // Slices of a row do not overlap; times are rounded to the nanosecond.
                assert!(
                    length >= 0.0 && before.is_none_or(|end| end <= begin + 0.01),
                    "{event}, after {before:?}"
                );
            }
            "s" => {
                at();
                arrows.entry(event["id"].as_u64().expect("an id")).or_default().0 += 1;
            }
            "f" => {
                at();
                assert_eq!(event["bp"], "e");
                arrows.entry(event["id"].as_u64().expect("an id")).or_default().1 += 1;
            }
            // It had not ended when the tracer stopped: the last one of its track.
            "B" => assert!(ends.insert(tid, f64::INFINITY).is_none_or(|end| end <= at() + 0.01), "{event}"),
            other => panic!("phase {other}: {event}"),
        }
    }
    assert!(arrows.values().all(|arrow| *arrow == (1, 1)), "every arrow begins and ends once");
    assert!(!arrows.is_empty(), "ranks waited for each other");
    events
}

#[test]
fn a_trace_has_every_operation_of_every_rank() {
    let path = file("all.json");
    let outcome = trace_a_bench(path.to_str().expect("UTF-8"), &[]).ok();
    assert!(
        outcome.stdout.contains("all_reduce") && outcome.stdout.contains("last most often"),
        "{}",
        outcome.stdout
    );
    let events = checked_events(&fs::read_to_string(&path).expect("a trace"));
    let ranks: Vec<&Value> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(ranks.len(), 2);
    let reductions = |tid: u64| {
        events
            .iter()
            .filter(move |event| event["ph"] == "X" && event["name"] == "all_reduce" && event["tid"] == tid)
    };
    assert!(reductions(0).count() > 100);
    assert_eq!(reductions(0).count(), reductions(1).count());
    assert!(
        reductions(0).all(|event| event["args"]["bytes"].is_u64() && event["args"]["algorithm"].is_string())
    );
}

#[test]
fn a_summary_as_json_says_who_came_last() {
    let path = file("summary.json");
    let outcome = trace_a_bench(path.to_str().expect("UTF-8"), &["--json"]).ok();
    // The bench has printed its own table before.
    let start = outcome.stdout.find("\n{").expect("a summary");
    let summary: Value = serde_json::from_str(&outcome.stdout[start..]).expect("JSON");
    assert!(summary["operations"].as_u64() > Some(200) && summary["lost"].is_u64(), "{summary}");
    let rows = summary["summary"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["operation"] == "all_reduce").expect("a row");
    assert!(row["calls"].as_u64() > Some(200) && row["last"]["rank"].as_u64() < Some(2), "{row}");
}

#[test]
fn a_program_without_ranks_leaves_an_empty_trace_and_its_exit_status() {
    let path = file("none.json");
    let outcome = symmem(&["trace", "-o", path.to_str().expect("UTF-8"), "--", "sh", "-c", "exit 7"], &[]);
    assert_eq!(outcome.code, Some(7), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no rank recorded anything"), "{}", outcome.stderr);
    let text = fs::read_to_string(&path).expect("a trace");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["traceEvents"], serde_json::json!([]));
    let killed = symmem(&["trace", "-o", path.to_str().expect("UTF-8"), "--", "sh", "-c", "kill -9 $$"], &[]);
    assert_eq!(killed.code, Some(137), "{}", killed.stderr);
}

#[test]
fn bad_input_is_one_sentence() {
    let outcome = symmem(&["trace", "-o", "/no/such/folder/x.json", "--", "true"], &[]);
    assert!(outcome.complaint().contains("/no/such/folder/x.json cannot be written"));
    let path = file("missing.json");
    let outcome = symmem(&["trace", "-o", path.to_str().expect("UTF-8"), "--", "/no/such/program"], &[]);
    assert!(outcome.complaint().contains("/no/such/program cannot be started"));
    let outcome = symmem(&["trace", "-o", path.to_str().expect("UTF-8"), "no such group"], &[]);
    assert!(outcome.complaint().contains("no such group"));
    let outcome = symmem(&["trace", "--seconds", "0"], &[]);
    assert!(outcome.complaint().contains("not a number of seconds"));
    let outcome = symmem(&["trace", "job", "--", "true"], &[]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
}

#[test]
fn a_job_that_runs_already_is_traced_for_as_long_as_one_wants_and_goes_on() {
    let bench = [
        "bench",
        "--ranks",
        "2",
        "--ops",
        "all_reduce",
        "--sizes",
        "1K,64K,1M",
        "--blocks",
        "1000",
        "--iters",
        "100000",
    ];
    let mut job = Running::start(&bench, &[]);
    let path = file("attached.json");
    let out = path.to_str().expect("UTF-8");
    let pid = job.pid().to_string();
    let start = Instant::now();
    // The ranks need a moment to meet.
    let outcome = loop {
        let outcome = symmem(&["trace", &pid, "-o", out, "--seconds", "0.5", "--json"], &[]);
        let traced = outcome.code == Some(0) && outcome.stdout.contains("\"all_reduce\"");
        if traced || start.elapsed() > Duration::from_secs(60) {
            break outcome.ok();
        }
    };
    let summary: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert!(summary["operations"].as_u64() > Some(100), "{summary}");
    checked_events(&fs::read_to_string(&path).expect("a trace"));
    assert!(job.is_running(), "the job goes on");
}

/// Messages that [`be_a_rank_that_sends`] sends with each of its threads.
const MESSAGES: u64 = 30;

/// No test: what a rank of another test runs. Two threads of rank 0 send to those of rank 1, which wait for
/// them at the same time.
#[test]
#[ignore = "is a rank of other tests"]
fn be_a_rank_that_sends() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = symmem::Group::from_env().expect("a group");
    let mailbox = symmem::Mailbox::new(&group).expect("a mailbox");
    let both = Barrier::new(2);
    let work = |tag: u64| -> symmem::Result<()> {
        for round in 1..=MESSAGES {
            both.wait();
            if group.rank() == 0 {
                std::thread::sleep(Duration::from_millis(1));
                mailbox.send(1, tag, &vec![0; (10 * round + tag) as usize])?;
            } else {
                mailbox.receive_vec(None, tag)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [1, 2].map(|tag| {
            let work = &work;
            scope.spawn(move || work(tag))
        });
        threads.into_iter().for_each(|thread| thread.join().expect("a thread").expect("messages"));
    });
    group.barrier().expect("the other rank");
}

#[test]
fn arrows_lead_from_sends_to_the_receives_that_got_their_messages() {
    let path = file("messages.json");
    let program = std::env::current_exe().expect("this program");
    // Never without the name of the one test: it would run all of them again.
    let ranks = [program.to_str().expect("UTF-8"), "trace::be_a_rank_that_sends", "--exact", "--ignored"];
    let run = ["trace", "-o", path.to_str().expect("UTF-8"), "--", env!("CARGO_BIN_EXE_symmem"), "run"];
    let args: Vec<&str> = run.iter().chain(&["-n", "2", "--"]).chain(&ranks).copied().collect();
    let outcome = symmem(&args, &[]).ok();
    assert!(outcome.stdout.contains("receive"), "{}", outcome.stdout);
    let events = checked_events(&fs::read_to_string(&path).expect("a trace"));
    let rows = |rank: usize| -> Vec<u64> {
        let is_it = |name: &str| name.starts_with(&format!("rank {rank} of 2")) && name.contains("mailbox");
        let named = events.iter().filter(|event| event["name"] == "thread_name");
        let found = named.filter(|event| is_it(event["args"]["name"].as_str().expect("a name")));
        found.map(|event| event["tid"].as_u64().expect("a row")).collect()
    };
    let (from, to) = (rows(0), rows(1));
    assert!(from.len() <= 2 && to.len() == 2, "two threads wait at the same time: {from:?} {to:?}");
    // The slice that begins where an arrow does, or ends where it does.
    let slice = |arrow: &Value| {
        let at = arrow["ts"].as_f64().expect("a time");
        let (is_start, row) = (arrow["ph"] == "s", &arrow["tid"]);
        let is_it = |event: &&Value| {
            let begin = event["ts"].as_f64().unwrap_or(f64::NAN);
            let meets = if is_start { begin } else { begin + event["dur"].as_f64().unwrap_or(f64::NAN) };
            event["ph"] == "X" && event["tid"] == *row && (meets - at).abs() < 1e-4
        };
        let found = events.iter().find(is_it).unwrap_or_else(|| panic!("no slice at {arrow}"));
        (found["name"].clone(), found["args"].clone())
    };
    let ends = |phase: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == phase && event["name"] == "message").collect()
    };
    let (starts, stops) = (ends("s"), ends("f"));
    assert_eq!(starts.len() as u64, 2 * MESSAGES);
    for (start, stop) in starts.into_iter().zip(stops) {
        assert_eq!(start["id"], stop["id"]);
        assert!(start["ts"].as_f64() <= stop["ts"].as_f64(), "{start} {stop}");
        let (sent, received) = (slice(start), slice(stop));
        assert_eq!((sent.0, received.0), ("send".into(), "receive".into()));
        // No two messages have the same tag and length.
        assert_eq!((&sent.1["tag"], &sent.1["bytes"]), (&received.1["tag"], &received.1["bytes"]));
        assert_eq!((&sent.1["peer"], &received.1["peer"]), (&1.into(), &0.into()));
    }
}
