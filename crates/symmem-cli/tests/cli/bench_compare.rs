//! `symmem bench compare`: what it says of made-up reports and of real ones, its exit status, and bad input.

use crate::program::{TempFolder, symmem};
use serde_json::{Value, json};

/// Times around `typical`, the same every time.
fn samples(typical: f64) -> Vec<f64> {
    [1.01, 0.99, 1.0, 1.02, 0.98, 1.005, 0.995, 1.03, 0.97, 1.015, 0.985]
        .map(|factor| typical * factor)
        .into()
}

fn row(system: &str, bytes: u64, typical: f64) -> Value {
    json!({
        "system": system, "op": "all_reduce", "memory": "private", "algorithm": "push", "dtype": "f32", "ranks": 2,
        "bytes": bytes, "us": {"p50": typical, "mean": typical}, "verified": true, "pinned": true, "load": 0,
        "p50_by_part": samples(typical),
    })
}

fn report(cpu: &str, rows: &[Value]) -> String {
    json!({"machine": {"cpu": cpu, "cores": 2}, "peers": [], "results": rows}).to_string()
}

/// A folder with two reports in it, and their names.
fn reports(name: &str, old: &str, new: &str) -> (TempFolder, String, String) {
    let folder = TempFolder::new(name);
    folder.write("old.json", old);
    folder.write("new.json", new);
    let path = |file: &str| format!("{}/{file}", folder.arg());
    let (old, new) = (path("old.json"), path("new.json"));
    (folder, old, new)
}

#[test]
fn what_got_slower_beyond_the_threshold_is_an_alarm() {
    let old = report("cpu", &[row("symmem", 1024, 4.0), row("symmem", 65536, 9.0), row("mpi", 1024, 4.0)]);
    let new = report("cpu", &[row("symmem", 1024, 4.8), row("symmem", 65536, 9.0), row("mpi", 1024, 40.0)]);
    let (_folder, old, new) = reports("slower", &old, &new);
    let outcome = symmem(&["bench", "compare", &old, &new], &[]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""));
    for words in [
        "dtype f32, ranks 2, memory private",
        "4.00 us",
        "4.80 us",
        "+20.",
        "of 2 rows: 1 slower, 1 same",
        "95 %",
    ] {
        assert!(outcome.stdout.contains(words), "{words}: {}", outcome.stdout);
    }
    assert!(outcome.stdout.lines().all(|line| line.chars().count() <= 100), "{}", outcome.stdout);
    symmem(&["bench", "compare", &old, &new, "--threshold", "30%"], &[]).ok();
    let back = symmem(&["bench", "compare", &new, &old], &[]).ok();
    assert!(back.stdout.contains("1 faster, 1 same"), "{}", back.stdout);
}

#[test]
fn the_same_as_json() {
    let old = report("cpu", &[row("symmem", 1024, 4.0), row("symmem", 8, 1.0), row("limit", 8, 1.0)]);
    let new = report("other", &[row("symmem", 1024, 4.8), row("symmem", 16, 1.0), row("limit", 8, 1.0)]);
    let (_folder, old, new) = reports("json", &old, &new);
    let outcome = symmem(&["bench", "compare", &old, &new, "--json"], &[]);
    assert_eq!(outcome.code, Some(1));
    let found: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(
        (&found["threshold"], &found["slower"], &found["limit_change"]),
        (&json!(0.05), &json!(1), &json!(0.0))
    );
    let row = &found["rows"][0];
    assert_eq!(
        (&row["verdict"], &row["old_us"], &row["bytes"]),
        (&json!("slower"), &json!(4.0), &json!(1024))
    );
    let number = |name: &str| row[name].as_f64().expect("a number");
    assert!((number("change") - 0.2).abs() < 0.01 && number("low") > 0.1 && number("high") < 0.3, "{row}");
    assert_eq!((&found["only_old"][0]["bytes"], &found["only_new"][0]["bytes"]), (&json!(8), &json!(16)));
    assert_eq!(found["different_machines"], json!(["cpu \"cpu\" and \"other\""]));

    let text = symmem(&["bench", "compare", &old, &new], &[]).stdout;
    for words in [
        "not the same machine or build: cpu \"cpu\" and \"other\"",
        "only in the old report: all_reduce 8 B f32 private 2 ranks",
        "only in the new report: all_reduce 16 B f32 private 2 ranks",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_machine_that_was_slower_altogether_is_said_and_is_no_alarm() {
    let old = report("cpu", &[row("symmem", 1024, 4.0), row("limit", 1024, 2.0)]);
    let new = report("cpu", &[row("symmem", 1024, 4.8), row("limit", 1024, 2.5)]);
    let (_folder, old, new) = reports("limit", &old, &new);
    let text = symmem(&["bench", "compare", &old, &new], &[]).ok().stdout;
    assert!(
        text.contains("the machine was in another state: the limit") && text.contains("+25.0 %"),
        "{text}"
    );
}

#[test]
fn too_few_samples_are_no_alarm_and_are_said() {
    let few = |typical: f64| {
        let mut row = row("symmem", 1024, typical);
        row["p50_by_part"] = json!([typical, typical, typical]);
        report("cpu", &[row])
    };
    let (_folder, old, new) = reports("few", &few(1.0), &few(2.0));
    let text = symmem(&["bench", "compare", &old, &new], &[]).ok().stdout;
    assert!(text.contains("of 1 rows: 1 unknown") && text.contains("too few samples"), "{text}");
}

#[test]
fn real_reports_can_be_compared() {
    let folder = TempFolder::new("real");
    let (first, second) = (format!("{}/first.json", folder.arg()), format!("{}/second.json", folder.arg()));
    let what = [
        "bench",
        "--quick",
        "--ranks",
        "2",
        "--sizes",
        "1K",
        "--ops",
        "barrier,signal,copy,all_reduce",
        "--json",
    ];
    for file in [&first, &second] {
        symmem(&[&what[..], &[file]].concat(), &[]).ok();
    }
    // Nobody knows how busy this machine is, so the threshold is wide.
    let outcome = symmem(&["bench", "compare", &first, &second, "--threshold", "1000", "--json"], &[]).ok();
    let found: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let rows = found["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 6, "{found}");
    assert!(
        rows.iter().all(|row| row["low"].is_f64() && row["high"].is_f64()),
        "all have enough samples: {found}"
    );
    assert_eq!((&found["only_old"], &found["different_machines"]), (&json!([]), &json!([])));
}

#[test]
fn reports_that_cannot_be_compared_are_named() {
    let good = report("cpu", &[row("symmem", 1024, 4.0)]);
    let mut wrong = row("symmem", 1024, 4.0);
    wrong["verified"] = json!(false);
    for (new, words) in [
        ("no JSON", "new.json is not a report of `symmem bench --json`: it is not JSON"),
        ("{}", "new.json is not a report of `symmem bench --json`: it has no list of results"),
        (&report("cpu", &[json!({"system": "symmem", "op": "barrier"})]), "this row has no time"),
        (&report("cpu", &[wrong]), "this row was not verified"),
        (&report("cpu", &[row("symmem", 8, 4.0)]), "have no row of symmem in common"),
        (&report("cpu", &[]), "have no row of symmem in common"),
    ] {
        let (_folder, old, new) = reports("wrong", &good, new);
        let complaint = symmem(&["bench", "compare", &old, &new], &[]).complaint();
        assert!(complaint.contains(words) && complaint.lines().count() == 1, "{complaint}");
    }
    for (args, words) in [
        (&["/no/such/file", "/no/such/file"][..], "/no/such/file cannot be read"),
        (&["only-one.json"], "<NEW>"),
        (&["a", "b", "--threshold", "much"], "a threshold is a percentage from 0 to 1000, such as 5%"),
        (&["a", "b", "--quick"], "'--quick'"),
    ] {
        let complaint = symmem(&[&["bench", "compare"], args].concat(), &[]).complaint();
        assert!(complaint.contains(words), "{complaint}");
    }
    let complaint = symmem(&["bench", "--quick", "compare", "a", "b"], &[]).complaint();
    assert!(complaint.contains("--quick"), "{complaint}");
}
