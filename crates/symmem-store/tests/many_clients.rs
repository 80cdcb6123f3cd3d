//! A thousand clients from two processes at once.

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, thread};

use common::{patient, raise_file_limit, server};
use symmem_store::{ServerLimits, Store, TcpStore};

const PROCESSES: usize = 2;
const CLIENTS: usize = 1000;
const PORT: &str = "SYMMEM_TEST_PORT";
const PROCESS: &str = "SYMMEM_TEST_PROCESS";

#[test]
fn a_thousand_clients_from_two_processes_all_succeed_within_ten_seconds() {
    raise_file_limit();
    if let (Ok(port), Ok(process)) = (env::var(PORT), env::var(PROCESS)) {
        return be_clients(port.parse().unwrap(), process.parse().unwrap());
    }
    let server = server(ServerLimits::default());
    let started = Instant::now();
    let children: Vec<Child> = (0..PROCESSES).map(|process| start(server.port(), process)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let elapsed = started.elapsed();
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    assert_eq!(store.add("total", 0, &patient()).unwrap(), CLIENTS as i64);
    println!("{CLIENTS} clients took {elapsed:.2?}");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
}

/// This program again, running only this test, as the clients.
fn start(port: u16, process: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "a_thousand_clients_from_two_processes_all_succeed_within_ten_seconds",
            "--nocapture",
        ])
        .env(PORT, port.to_string())
        .env(PROCESS, process.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Half of the clients, all connected at the same time, each in a thread of its own.
fn be_clients(port: u16, process: usize) {
    let share = CLIENTS / PROCESSES;
    let connected = Arc::new(std::sync::Barrier::new(share));
    let clients: Vec<_> = (0..share)
        .map(|i| {
            let connected = Arc::clone(&connected);
            let client = move || be_client(port, process * share + i, &connected);
            thread::Builder::new().stack_size(256 << 10).spawn(client).unwrap()
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

fn be_client(port: u16, me: usize, connected: &std::sync::Barrier) {
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    connected.wait();
    let (mine, next) = (format!("rank/{me}"), format!("rank/{}", (me + 1) % CLIENTS));
    store.set(&mine, mine.as_bytes(), &patient()).unwrap();
    assert_eq!(store.get(&next, &patient()).unwrap(), next.as_bytes());
    if store.add("total", 1, &patient()).unwrap() == CLIENTS as i64 {
        store.set("all", b"", &patient()).unwrap();
    }
    // Everybody waits for the last one: a thousand waits are outstanding at once.
    store.wait(&["all", &mine], &patient()).unwrap();
}
