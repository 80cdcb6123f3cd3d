//! A server that runs out of file descriptors.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use common::{patient, server};
use rustix::process::{Resource, Rlimit, setrlimit};
use symmem_store::{ServerLimits, Store, TcpStore};

const SERVE: &str = "SYMMEM_TEST_SERVE";
const DESCRIPTORS: u64 = 40;

#[test]
fn a_server_out_of_descriptors_serves_those_it_has_rests_and_recovers() {
    if env::var(SERVE).is_ok() {
        return serve();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "a_server_out_of_descriptors_serves_those_it_has_rests_and_recovers",
            "--nocapture",
        ])
        .env(SERVE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let port = read_port(&mut output);
    let good = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();

    // More than it can accept; the rest stay in the backlog.
    let flood: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    good.set("k", b"v", &patient()).unwrap();
    let before = cpu_ticks(&child);
    thread::sleep(Duration::from_millis(500));
    let spent = cpu_ticks(&child) - before;
    assert!(spent < 25, "the server spins: {spent} ticks of 50");
    assert_eq!(good.get("k", &patient()).unwrap(), b"v");

    drop(flood);
    let late = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    assert_eq!(late.get("k", &patient()).unwrap(), b"v");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Serves with few descriptors until the other side closes our input.
fn serve() {
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = server(ServerLimits::default());
    println!("\nport {}", server.port());
    let _ = std::io::stdin().read(&mut [0]);
}

fn read_port(output: &mut impl BufRead) -> u16 {
    let lines = output.lines();
    let port = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("port ")?.parse().ok());
    port.expect("the server did not start")
}

/// Processor time of `child`, in hundredths of a second.
fn cpu_ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
