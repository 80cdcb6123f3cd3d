//! More connections than a server takes: strangers go first, those who wait go last, and a client that lost
//! its connection comes back.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use common::{VALIDATE, eventually, hex, patient, raw, server, validated};
use symmem_store::{ServerLimits, Store, TcpStore, TcpStoreServer};

const ROOM: usize = 16;

fn small_server() -> TcpStoreServer {
    server(ServerLimits { max_connections: ROOM, ..ServerLimits::default() })
}

fn connect(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap()
}

/// Whether the server has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn count_open(streams: &mut [TcpStream]) -> usize {
    streams.iter_mut().map(|stream| usize::from(!is_closed(stream))).sum()
}

/// A connection that has asked for something, with an answer.
fn used(server: &TcpStoreServer) -> TcpStream {
    let mut stream = raw(server);
    stream.write_all(&[VALIDATE, &hex("0D 78563412")].concat()).unwrap();
    common::expect(&mut stream, &hex("78563412"));
    stream
}

#[test]
fn no_more_connections_stay_than_the_limit() {
    let server = small_server();
    let mut strangers: Vec<_> = (0..5 * ROOM).map(|_| validated(&server)).collect();
    eventually("the surplus is closed", || count_open(&mut strangers) <= ROOM);
    // The idlest went: the last ones are there.
    assert!(count_open(&mut strangers[..2 * ROOM]) == 0 && count_open(&mut strangers[4 * ROOM..]) > ROOM / 2);
}

#[test]
fn strangers_go_before_clients_that_have_asked_for_something() {
    let server = small_server();
    let mut clients: Vec<_> = (0..ROOM / 2).map(|_| used(&server)).collect();
    let mut strangers: Vec<_> = (0..5 * ROOM).map(|_| validated(&server)).collect();
    eventually("the surplus is closed", || count_open(&mut strangers) <= ROOM / 2);
    assert_eq!(count_open(&mut clients), ROOM / 2, "a client was closed for a stranger");
}

#[test]
fn who_waits_goes_after_who_waits_for_nothing() {
    let server = small_server();
    let store = connect(&server);
    let waiter = thread::spawn(move || store.get("late", &patient()));
    // Asked for something long ago, and idle ever since.
    thread::sleep(Duration::from_millis(50));
    let idle: Vec<_> = (0..5 * ROOM).map(|_| used(&server)).collect();
    connect(&server).set("late", b"come", &patient()).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), b"come");
    drop(idle);
}

#[test]
fn a_client_whose_idle_connection_was_closed_opens_another() {
    let server = small_server();
    let store = connect(&server);
    store.set("k", b"v", &patient()).unwrap();
    let mut idle: Vec<_> = (0..5 * ROOM).map(|_| used(&server)).collect();
    eventually("the surplus is closed", || count_open(&mut idle) <= ROOM);
    assert_eq!(store.get("k", &patient()).unwrap(), b"v");
}

#[test]
fn a_wait_outlives_a_crowd_that_waits_too() {
    let server = small_server();
    let store = connect(&server);
    let waiter = thread::spawn(move || store.get("late", &patient()));
    thread::sleep(Duration::from_millis(50));
    // They wait for a key that never comes: nobody is idler than the honest one.
    let wait = [VALIDATE, &hex("06 01.. 05.. 6E65766572")].concat();
    let crowd: Vec<_> = (0..5 * ROOM)
        .map(|_| {
            let mut stream = raw(&server);
            stream.write_all(&wait).unwrap();
            stream
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    connect(&server).set("late", b"come", &patient()).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), b"come");
    drop(crowd);
}

#[test]
fn more_who_wait_than_there_are_places_take_turns_and_all_get_their_key() {
    let server = small_server();
    let port = server.port();
    let wait = move || {
        let store = TcpStore::connect("127.0.0.1", port, &patient())?;
        store.get("late", &patient())
    };
    let waiters: Vec<_> = (0..2 * ROOM).map(|_| thread::spawn(wait)).collect();
    thread::sleep(Duration::from_millis(100));
    connect(&server).set("late", b"come", &patient()).unwrap();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap(), b"come");
    }
}

#[test]
fn a_crowd_that_keeps_coming_costs_a_client_little() {
    let server = small_server();
    let port = server.port();
    let end = Instant::now() + Duration::from_millis(500);
    let crowd = thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        while Instant::now() < end {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let _ = stream.write_all(VALIDATE);
            held.push_back(stream);
            if held.len() > 4 * ROOM {
                held.pop_front();
            }
        }
    });
    let store = connect(&server);
    for round in 0.. {
        let key = format!("k{round}");
        store.set(&key, b"v", &patient()).unwrap();
        assert_eq!(store.get(&key, &patient()).unwrap(), b"v");
        if Instant::now() > end {
            break;
        }
    }
    crowd.join().unwrap();
}

#[test]
fn the_limit_follows_from_the_world_and_the_descriptors() {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = descriptors.map_or(usize::MAX, |most| most as usize / 2);
    assert_eq!(ServerLimits::for_world(4).max_connections, (64 * 4 + 64).min(half));
    assert!(ServerLimits::default().max_connections <= half);
    assert!(ServerLimits::for_world(1 << 40).max_connections <= half.saturating_add(half / 2 + 1));
}
