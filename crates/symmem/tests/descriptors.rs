//! Strangers at the store's port, and a process that runs out of descriptors.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use common::{Launch, assert_error, is_rank_of, report};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem::store::{StoreError, TcpStore};
use symmem::{Error, Group, Result};

const STRANGERS: usize = 1100;
const DESCRIPTORS: u64 = 1024;
const PORT: &str = "SYMMEM_TEST_STRANGERS_PORT";
/// What every client of the store says first.
const VALIDATE: &[u8] = b"\x00\xCE\xF7\x85\x3C";

fn limit_descriptors(most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).expect("a lower limit");
}

/// This program again, as `STRANGERS` idle connections to `port` that stay until it is killed.
fn strangers(test: &str, port: u16) -> Child {
    let child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(PORT, port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("the strangers start");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(
        lines.any(|line| line.is_ok_and(|line| line == "all connected")),
        "the strangers did not connect"
    );
    child
}

fn be_strangers(port: u16) {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let held: Vec<_> = (0..STRANGERS)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // The server may have closed it already.
            let _ = stream.write_all(VALIDATE);
            stream
        })
        .collect();
    println!("\nall connected");
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    drop(held);
}

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_rank_works_on_while_strangers_crowd_its_store() {
    const TEST: &str = "a_rank_works_on_while_strangers_crowd_its_store";
    if let Ok(port) = env::var(PORT) {
        return be_strangers(port.parse().unwrap());
    }
    if is_rank_of(TEST) {
        limit_descriptors(DESCRIPTORS);
        return report(format!("{:?}", crowded(TEST).map_err(|error| error.to_string())));
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for rank in Launch::new(TEST, 2, port).env("TORCHELASTIC_USE_AGENT_STORE", "False").run() {
        assert_eq!(rank.expect(), ["Ok(1)"]);
    }
}

/// Rank 0 serves the store: its descriptors are the strangers'.
fn crowded(test: &str) -> Result<u32> {
    let group = Group::from_env()?;
    let mut crowd = None;
    if group.rank() == 0 {
        crowd = Some(strangers(test, env::var("MASTER_PORT").unwrap().parse().unwrap()));
        // The server has accepted what it is going to accept.
        thread::sleep(Duration::from_millis(500));
        assert!(open_fds() < DESCRIPTORS as usize * 3 / 4, "{} descriptors are open", open_fds());
    }
    group.barrier()?;
    let memory = group.alloc::<u32>(1000)?;
    let sub = group.try_clone()?;
    let memory = memory.rendezvous(&sub)?;
    memory.barrier(0)?;
    let sum = memory.peer(group.next())?.read(0)? + 1;
    memory.close()?;
    group.barrier()?;
    if let Some(mut crowd) = crowd {
        crowd.kill().unwrap();
        crowd.wait().unwrap();
    }
    Ok(sum)
}

#[test]
fn a_process_out_of_descriptors_is_told_so() {
    const TEST: &str = "a_process_out_of_descriptors_is_told_so";
    if !is_rank_of(TEST) {
        common::start(TEST, &[]).expect();
        return;
    }
    let outcome = symmem::spawn(1, |group| {
        let held: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).take(2000).collect();
        limit_descriptors(10);
        let alloc = group.alloc::<u32>(10).unwrap_err().to_string();
        let started = Instant::now();
        let sub = group.try_clone().unwrap_err().to_string();
        assert!(started.elapsed() < Duration::from_secs(10));
        for text in [&alloc, &sub] {
            assert!(text.contains("Too many open files") && text.contains("ulimit -n"), "{text}");
            assert!(!text.contains("/proc mounted"), "{text}");
        }
        drop(held);
        Ok(())
    });
    outcome.unwrap();
    // Nothing can be opened any more: a join says so, and a client of a store at once.
    limit_descriptors(3);
    let joined = symmem::spawn(1, |_| Ok(()));
    assert_error!(joined, Error::Spawned { message, .. } if message.contains("ulimit -n"));
    let started = Instant::now();
    let connected = TcpStore::connect("127.0.0.1", 1, &common::patiently());
    assert_error!(connected, error @ StoreError::Network { .. } if error.to_string().contains("ulimit -n"));
    assert!(started.elapsed() < common::AT_ONCE, "{:?}", started.elapsed());
}
