//! `symmem store`, against a server of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::program::{Outcome, Running, TempFolder, finish, symmem};

/// A served store.
struct Served {
    server: Running,
    /// The first line that the server printed.
    address: String,
}

impl Served {
    fn new(options: &[&str]) -> Self {
        let server = Running::start(&[&["store", "serve"], options].concat(), &[]);
        let start = Instant::now();
        while !server.stdout().ends_with('\n') {
            assert!(start.elapsed() < Duration::from_secs(60), "no address was printed");
            std::thread::sleep(Duration::from_millis(10));
        }
        let address = server.stdout().trim().to_owned();
        Self { server, address }
    }

    /// Runs a command on it.
    fn run(&self, command: &str, args: &[&str]) -> Outcome {
        symmem(&[&["store", command, "--store", &self.address], args].concat(), &[])
    }

    fn said(&self, command: &str, args: &[&str]) -> String {
        self.run(command, args).ok().stdout
    }

    /// Ends it.
    fn end(self, signal: Signal) {
        self.server.signal(signal);
        self.server.end().ok();
    }
}

#[test]
fn values_are_set_read_counted_listed_and_deleted() {
    let store = Served::new(&[]);
    assert_eq!(store.said("set", &["colour", "green"]), "");
    assert_eq!(store.said("get", &["colour"]), "green\n");
    assert_eq!(store.said("get", &["--raw", "colour"]), "green");
    assert_eq!(store.said("add", &["count", "5"]), "5\n");
    assert_eq!(store.said("add", &["count", "-7"]), "-2\n");
    assert_eq!(store.said("add", &["count"]), "-1\n");
    assert_eq!(store.said("list", &[]), "colour\ncount\n");
    assert_eq!(store.said("list", &["col"]), "colour\n");
    let table = store.said("list", &["--values"]);
    assert!(table.contains("colour") && table.contains("green") && table.contains("-1"), "{table}");
    assert_eq!(store.said("delete", &["colour"]), "");
    assert_eq!(store.said("list", &[]), "count\n");
    store.end(Signal::TERM);
}

#[test]
fn bytes_go_in_and_out_as_they_are() {
    let store = Served::new(&[]);
    store.said("set", &["--hex", "noise", "00ff 0a"]);
    assert_eq!(store.said("get", &["noise"]), "\\x00\\xff\\n\n");
    assert_eq!(store.said("get", &["--hex", "noise"]), "00ff0a\n");
    let found: Value = serde_json::from_str(&store.said("get", &["--json", "noise"])).expect("JSON");
    assert_eq!(
        (&found["value"], &found["hex"], &found["bytes"]),
        (&Value::Null, &"00ff0a".into(), &3.into())
    );
    let mut setting = Running::start(&["store", "set", "--store", &store.address, "piped", "-"], &[]);
    setting.say("from\nstdin");
    setting.end().ok();
    assert_eq!(store.said("get", &["--raw", "piped"]), "from\nstdin");
    store.said("set", &["--raw", "dash", "-"]);
    store.said("set", &["option", "--value"]);
    assert_eq!(
        (store.said("get", &["dash"]).as_str(), store.said("get", &["option"]).as_str()),
        ("-\n", "--value\n")
    );
    let complaint = store.run("set", &["--hex", "noise", "0"]).complaint();
    assert!(complaint.contains("hexadecimal"), "{complaint}");
    store.end(Signal::INT);
}

#[test]
fn a_missing_key_is_named() {
    let store = Served::new(&[]);
    for command in ["get", "delete"] {
        let outcome = store.run(command, &["nothing"]);
        assert_eq!(outcome.code, Some(1));
        let complaint = outcome.complaint();
        assert!(complaint.contains("\"nothing\"") && complaint.lines().count() == 1, "{complaint}");
    }
    store.said("set", &["there", "1"]);
    let complaint = store.run("wait", &["--timeout", "0.2", "there", "elsewhere"]).complaint();
    assert!(complaint.contains("\"elsewhere\"") && !complaint.contains("\"there\""), "{complaint}");
    let complaint = store.run("get", &["--timeout", "0.2", "--wait", "elsewhere"]).complaint();
    assert!(complaint.contains("elsewhere"), "{complaint}");
    store.said("set", &["word", "abc"]);
    let complaint = store.run("add", &["word", "1"]).complaint();
    assert!(complaint.contains("decimal number"), "{complaint}");
    store.end(Signal::TERM);
}

#[test]
fn who_waits_gets_what_comes() {
    let store = Served::new(&[]);
    let target = ["--store", &store.address, "--timeout", "60"];
    let getting = Running::start(&[&["store", "get"], &target[..], &["--wait", "late"]].concat(), &[]);
    let waiting = Running::start(&[&["store", "wait"], &target[..], &["late", "later"]].concat(), &[]);
    store.said("set", &["late", "here"]);
    store.said("set", &["later", ""]);
    assert_eq!(getting.end().ok().stdout, "here\n");
    assert_eq!(waiting.end().ok().stdout, "");
    store.end(Signal::TERM);
}

#[test]
fn the_store_is_named_by_the_environment() {
    let store = Served::new(&[]);
    let (host, port) = store.address.split_once(':').expect("host and port");
    let env = [("MASTER_ADDR", host), ("MASTER_PORT", port)];
    symmem(&["store", "set", "key", "value"], &env).ok();
    assert_eq!(symmem(&["store", "get", "key"], &env).ok().stdout, "value\n");
    let wrong = [("MASTER_ADDR", host), ("MASTER_PORT", "many")];
    let complaint = symmem(&["store", "get", "key"], &wrong).complaint();
    assert!(complaint.contains("MASTER_PORT"), "{complaint}");
    store.end(Signal::TERM);
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let nowhere = [("MASTER_ADDR", ""), ("MASTER_PORT", "")];
    let complaint = symmem(&["store", "get", "key"], &nowhere).complaint();
    assert!(complaint.contains("--store"), "{complaint}");
    let args = ["store", "get", "--store", "127.0.0.1:1", "--timeout", "0.3", "key"];
    let complaint = symmem(&args, &[]).complaint();
    assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
    assert!(symmem(&["store", "get", "--store", "127.0.0.1", "key"], &[]).complaint().contains("port"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let store = Served::new(&[]);
    let port = store.address.rsplit(':').next().expect("a port");
    let complaint = symmem(&["store", "serve", "--port", port], &[]).complaint();
    assert!(complaint.contains("in use"), "{complaint}");
    store.end(Signal::TERM);
}

#[test]
fn json_is_for_programs() {
    let store = Served::new(&[]);
    store.said("set", &["a", "text"]);
    let read =
        |command, args: &[&str]| -> Value { serde_json::from_str(&store.said(command, args)).expect("JSON") };
    assert_eq!(read("list", &["--json"]), serde_json::json!(["a"]));
    assert_eq!(read("list", &["--json", "--values"])[0]["value"], "text");
    assert_eq!(read("add", &["--json", "n", "2"])["value"], 2);
    assert_eq!(read("wait", &["--json", "a"])["keys"][0], "a");
    assert_eq!(read("delete", &["--json", "a"])["deleted"][0], "a");
    store.end(Signal::TERM);
    let store = Served::new(&["--json"]);
    let said: Value = serde_json::from_str(&store.address).expect("JSON");
    assert!(said["port"].as_u64().is_some_and(|port| port > 0), "{said}");
    store.end(Signal::TERM);
}

/// The examples in the help of a command, without what is said about them.
fn examples(command: &str) -> Vec<String> {
    let help = symmem(&["store", command, "--help"], &[]).ok().stdout;
    let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{command}: {help}"));
    let lines = examples.lines().map(|line| line.trim().split("   ").next().unwrap_or_default().to_owned());
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    assert!(lines.len() > 1 && lines.iter().all(|line| line.contains(&format!("symmem store {command}"))));
    lines
}

#[test]
fn examples_of_every_command_can_be_copied() {
    let store = Served::new(&[]);
    let (host, port) = store.address.split_once(':').expect("an address and a port");
    let folder = TempFolder::new("store-examples");
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_symmem")).parent().expect("a folder");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    for key in ["ready/0", "ready/1", "done"] {
        store.said("set", &[key, "yes"]);
    }
    for command in ["set", "get", "add", "list", "wait", "delete"] {
        // Not everybody has jq.
        for line in examples(command).iter().filter(|line| !line.contains("jq")) {
            let line = line.replace("localhost:29500", &store.address);
            let env = [("PATH", path.as_str()), ("MASTER_ADDR", host), ("MASTER_PORT", port)];
            finish(Command::new("sh").args(["-c", &line]).current_dir(&folder.0), &env).ok();
        }
    }
    assert_eq!(std::fs::read(folder.0.join("noise.bin")).expect("a value").len(), 100);
    assert_eq!(store.said("list", &[]), "count\ndone\nnoise\n");
    assert!(!examples("serve").is_empty());
    store.end(Signal::TERM);
}
