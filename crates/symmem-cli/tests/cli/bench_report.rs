//! `symmem bench` for people: tables that fit their screen, a line of progress, presets, and the HTML report.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::bench::rows;
use crate::program::{TempFile, TempFolder, symmem};
use serde_json::{Value, json};

fn report(args: &[&str]) -> Value {
    let outcome = symmem(&[&["bench", "--quick", "--json", "-"], args].concat(), &[]).ok();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// All values of a name in a report.
fn all<'a>(report: &'a Value, name: &str) -> BTreeSet<&'a str> {
    rows(report).iter().filter_map(|row| row[name].as_str()).filter(|text| !text.is_empty()).collect()
}

#[track_caller]
fn assert_fits(table: &str) {
    assert!(table.contains("typical"), "{table}");
    for line in table.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn the_default_table_fits_in_a_hundred_columns_whatever_is_measured() {
    assert_fits(&symmem(&["bench", "--quick"], &[]).ok().stdout);
    let memories = ["bench", "--quick", "--memory", "symmetric,private,by_hand", "--iters", "5"];
    let table = symmem(
        &[
            &memories,
            &[
                "--ranks",
                "2",
                "--dtypes",
                "f32,bf16",
                "--ops",
                "all_reduce,reduce_scatter",
                "--sizes",
                "8,64K",
            ][..],
        ]
        .concat(),
        &[],
    )
    .ok()
    .stdout;
    assert_fits(&table);
    for words in
        ["dtype bf16, ranks 2, pinned yes, load 0", "symmem, private", "reduce_scatter", "64 KB", " us"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert!(!table.contains("algorithm"), "{table}");
}

#[test]
fn beside_a_peer_the_table_fits_too_and_names_the_best_one() {
    let root = TempFolder::new("narrow-peers");
    let us = json!({"min": 1.0, "p50": 2.0, "p90": 3.0, "p99": 4.0, "mean": 2.0});
    let row = json!({"op": "reduce_scatter", "dtype": "f32", "bytes": 1024, "us": us, "samples": 1, "verified": true});
    let out = json!({"system": "deepspeed", "version": "1", "rows": [row]});
    root.write("peer.sh", &format!("echo '{out}' > \"$4\"\n"));
    let peer = json!({"name": "deepspeed", "kind": "script", "version": "1", "launch": ["sh", "peer.sh"], "env": {}});
    fs::create_dir(root.0.join(".peers")).expect("a folder");
    root.write(".peers/peers.json", &json!({"peers": [peer]}).to_string());
    let folder = root.0.join(".peers");
    let peers = ["--peers", "all", "--peers-dir", folder.to_str().expect("UTF-8")];
    let args = ["bench", "--quick", "--ranks", "2", "--ops", "reduce_scatter", "--sizes", "1K"];
    let memory = ["--memory", "symmetric,private,by_hand"];
    let table = symmem(&[&args, &peers[..], &memory].concat(), &[]).ok().stdout;
    assert_fits(&table);
    assert!(
        table.contains("best peer") && table.contains("/ peer") && table.contains("deepspeed 2.00 us"),
        "{table}"
    );
}

#[test]
fn a_wide_table_has_all_columns() {
    let args = ["bench", "--quick", "--wide", "--ranks", "2", "--ops", "all_reduce", "--sizes", "8"];
    let table = symmem(&args, &[]).ok().stdout;
    for name in [
        "algorithm",
        "bytes",
        "samples",
        "min us",
        "p50 us",
        "mean us",
        "p90 us",
        "p99 us",
        "GB/s",
        "us above barrier",
    ] {
        assert!(table.contains(name), "{name}: {table}");
    }
}

#[test]
fn presets_say_what_to_measure_and_options_win() {
    let inference = report(&["--preset", "inference", "--ranks", "2", "--iters", "3"]);
    assert_eq!(all(&inference, "op"), ["all_gather", "all_reduce", "broadcast", "reduce_scatter"].into());
    assert_eq!(all(&inference, "dtype"), ["bf16", "f32"].into());
    assert_eq!(all(&inference, "memory"), ["private", "symmetric"].into());
    let bytes: BTreeSet<u64> = rows(&inference).iter().filter_map(|row| row["bytes"].as_u64()).collect();
    assert_eq!((bytes.first(), bytes.last()), (Some(&(8 << 10)), Some(&(1 << 20))));

    let training =
        ["--preset", "training", "--ranks", "2", "--sizes", "4K", "--dtypes", "f64", "--memory", "private"];
    let training = report(&training);
    assert_eq!(all(&training, "op"), ["all_gather", "all_reduce", "broadcast", "reduce_scatter"].into());
    assert_eq!((all(&training, "dtype"), all(&training, "memory")), (["f64"].into(), ["private"].into()));
    assert!(rows(&training).iter().all(|row| row["bytes"] == 4096), "{training}");

    let args = ["bench", "--preset", "quick", "--ranks", "2", "--ops", "barrier", "--json", "-"];
    let quick: Value = serde_json::from_str(&symmem(&args, &[]).ok().stdout).expect("JSON");
    assert!(rows(&quick).iter().all(|row| row["samples"] == 900), "as few as with --quick: {quick}");
}

#[test]
fn the_help_has_the_presets_and_examples() {
    let help = symmem(&["bench", "--help"], &[]).ok().stdout;
    for words in ["quick ", "inference ", "training ", "Examples:", "symmem bench compare old.json new.json"]
    {
        assert!(help.contains(words), "{words}: {help}");
    }
}

#[test]
fn a_line_of_progress_is_on_terminals_only() {
    let args = ["bench", "--quick", "--ranks", "2", "--ops", "all_reduce", "--sizes", "8,1M"];
    assert_eq!(symmem(&args, &[]).ok().stderr, "", "not a terminal");
    // `script` gives the program a terminal, and shows what it wrote there.
    let command = format!("timeout 100 {} {}", env!("CARGO_BIN_EXE_symmem"), args.join(" "));
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("bsdutils are everywhere");
    let mut terminal = vt100::Parser::new(50, 120, 0);
    let mut lines = BTreeSet::new();
    // What was on the screen before each time the line was drawn again.
    for piece in output.stdout.split_inclusive(|byte| *byte == b'\r') {
        terminal.process(piece);
        lines.extend(terminal.screen().contents().lines().map(str::to_owned));
    }
    let shown = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(shown(&["2 ranks", "/6, 0:0", " so far", ": all_reduce f32 "]), "{lines:#?}");
    assert!(shown(&["about 0:0", " to go"]), "{lines:#?}");
    let end = terminal.screen().contents();
    assert!(end.contains("typical") && !end.contains("so far"), "the line is gone in the end: {end}");
}

#[test]
fn the_html_report_needs_nothing_else_and_has_every_row_in_table_and_plot() {
    let (page, numbers) = (TempFile::new("report.html"), TempFile::new("report.json"));
    let what = ["bench", "--quick", "--ranks", "2,3", "--ops", "all_reduce,broadcast", "--sizes", "8,4K"];
    let more = ["--memory", "symmetric,private", "--html", page.arg(), "--json", numbers.arg()];
    symmem(&[&what[..], &more].concat(), &[]).ok();
    let text = fs::read_to_string(&page.0).expect("a report");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!text.contains(outside), "{outside}");
    }
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&text, options).expect("XML");
    let find = |tag: &'static str| document.descendants().filter(move |node| node.has_tag_name(tag));
    let report: Value =
        serde_json::from_str(&fs::read_to_string(&numbers.0).expect("a report")).expect("JSON");
    let count = rows(&report).len();

    let facts: Vec<&str> = find("dd").filter_map(|node| node.text()).collect();
    assert!(facts[0].starts_with("symmem bench --quick --ranks 2,3 --ops all_reduce,broadcast"), "{facts:?}");
    assert!(facts.iter().any(|fact| fact.contains("2 ranks, pinned, 0 busy loops; 3 ranks")), "{facts:?}");
    let cpu = report["machine"]["cpu"].as_str().expect("a name");
    assert!(facts.iter().any(|fact| fact.contains(cpu)), "{facts:?}");

    let has = |table: &roxmltree::Node<'_, '_>, name: &str| {
        table.descendants().any(|node| node.has_tag_name("th") && node.text() == Some(name))
    };
    let full = find("table").filter(|table| has(table, "p99 us"));
    let in_body = |node: &roxmltree::Node<'_, '_>| {
        node.has_tag_name("tr") && node.parent().is_some_and(|parent| parent.has_tag_name("tbody"))
    };
    assert_eq!(full.map(|table| table.descendants().filter(in_body).count()).sum::<usize>(), count);
    // Latency and bandwidth of each.
    assert_eq!(find("circle").count(), 2 * count);
    assert_eq!(find("svg").count(), 4, "two collectives, twice");
}
