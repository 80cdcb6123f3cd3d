//! The server's bytes, compared with bytes written by hand from the protocol's description.

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use common::{expect, expect_closed, hex, patient, raw, server, validated};
use symmem_store::{ServerLimits, Store, StoreError, TcpStore, TcpStoreServer, Wait};

/// Every kind of request, and its reply. `02.. 2F61` is the string `/a`.
const TRANSCRIPT: &[(&str, &str, &str)] = &[
    ("VALIDATE", "00 CEF7853C", ""),
    ("PING", "0D 78563412", "78563412"),
    ("SET /a = v", "01 02.. 2F61 01.. 76", ""),
    ("GET /a", "03 02.. 2F61", "01.. 76"),
    ("GET of a missing key", "03 02.. 2F7A", "00.."),
    ("COMPARE_SET /a from v to wx", "02 02.. 2F61 01.. 76 02.. 7778", "02.. 7778"),
    ("COMPARE_SET /a from v again", "02 02.. 2F61 01.. 76 01.. 79", "02.. 7778"),
    ("COMPARE_SET of a missing key", "02 02.. 2F7A 01.. 76 01.. 79", "01.. 76"),
    ("ADD /n 5", "04 02.. 2F6E 05..", "05.."),
    ("ADD /n -7", "04 02.. 2F6E F9FFFFFFFFFFFFFF", "FEFFFFFFFFFFFFFF"),
    ("GET /n: the counter is text", "03 02.. 2F6E", "02.. 2D32"),
    ("CHECK /a /n", "05 02.. 02.. 2F61 02.. 2F6E", "00"),
    ("CHECK /a /z", "05 02.. 02.. 2F61 02.. 2F7A", "01"),
    ("CHECK of nothing", "05 00..", "00"),
    ("WAIT /a /n", "06 02.. 02.. 2F61 02.. 2F6E", "00"),
    ("GETNUMKEYS", "07", "02.."),
    ("WAIT /z", "06 01.. 02.. 2F7A", ""),
    ("CANCEL_WAIT", "0C", "01"),
    ("CANCEL_WAIT of no wait", "0C", "01"),
    ("APPEND /a y", "09 02.. 2F61 01.. 79", ""),
    ("MULTI_SET /b = 1, /c empty", "0B 02.. 02.. 2F62 01.. 31 02.. 2F63 00..", ""),
    (
        "MULTI_GET /b /a /c /z",
        "0A 04.. 02.. 2F62 02.. 2F61 02.. 2F63 02.. 2F7A",
        "01.. 31 03.. 777879 00.. 00..",
    ),
    ("DELETE_KEY /b", "08 02.. 2F62", "01.."),
    ("DELETE_KEY /b again", "08 02.. 2F62", "00.."),
    ("QUEUE_PUSH /q x1", "0E 02.. 2F71 02.. 7831", ""),
    ("QUEUE_PUSH /q x2", "0E 02.. 2F71 02.. 7832", ""),
    ("QUEUE_LEN /q", "10 02.. 2F71", "02.."),
    ("CHECK accepts a queue", "05 01.. 02.. 2F71", "00"),
    ("WAIT accepts a queue", "06 01.. 02.. 2F71", "00"),
    ("DELETE_KEY does not touch queues", "08 02.. 2F71", "00.."),
    ("QUEUE_POP /q: the length before", "0F 02.. 2F71", "02.. 02.. 7831"),
    ("QUEUE_POP /q", "0F 02.. 2F71", "01.. 02.. 7832"),
    ("QUEUE_POP of nothing", "0F 02.. 2F71", "00.."),
    ("BARRIER /g of 1", "12 02.. 2F67 01..", "00"),
    ("BARRIER /g of 2: the key stays", "12 02.. 2F67 02..", "00"),
    ("GET /g: the barrier is a counter", "03 02.. 2F67", "01.. 32"),
    ("GETNUMKEYS counts no queues", "07", "04.."),
    ("DELETE_KEY /n", "08 02.. 2F6E", "01.."),
    ("DELETE_KEY /c", "08 02.. 2F63", "01.."),
    ("DELETE_KEY /g", "08 02.. 2F67", "01.."),
    ("LIST_KEYS", "11", "01.. 02.. 2F61"),
];

fn whole(column: impl Fn(&(&str, &'static str, &'static str)) -> &'static str) -> Vec<u8> {
    TRANSCRIPT.iter().flat_map(|row| hex(column(row))).collect()
}

#[test]
fn every_request_gets_the_reply_the_protocol_says() {
    let server = server(ServerLimits::default());
    let mut stream = raw(&server);
    for (what, request, reply) in TRANSCRIPT {
        println!("{what}");
        stream.write_all(&hex(request)).unwrap();
        expect(&mut stream, &hex(reply));
    }
    stream.shutdown(Shutdown::Write).unwrap();
    expect_closed(&mut stream);
}

#[test]
fn one_byte_per_write_changes_nothing() {
    let server = server(ServerLimits::default());
    let mut stream = raw(&server);
    for byte in whole(|row| row.1) {
        stream.write_all(&[byte]).unwrap();
    }
    expect(&mut stream, &whole(|row| row.2));
    stream.shutdown(Shutdown::Write).unwrap();
    expect_closed(&mut stream);
}

#[test]
fn all_requests_in_one_write_change_nothing() {
    let server = server(ServerLimits::default());
    let mut stream = raw(&server);
    stream.write_all(&whole(|row| row.1)).unwrap();
    // Half-closed at once: the replies come all the same.
    stream.shutdown(Shutdown::Write).unwrap();
    expect(&mut stream, &whole(|row| row.2));
    expect_closed(&mut stream);
}

/// A PING and its echo: everything before it has been carried out, and nothing else was sent.
fn settled(stream: &mut std::net::TcpStream) {
    stream.write_all(&hex("0D 01020304")).unwrap();
    expect(stream, &hex("01020304"));
}

#[test]
fn every_storing_request_wakes_who_waits_for_its_key() {
    let server = server(ServerLimits::default());
    let (mut waiter, mut setter) = (validated(&server), validated(&server));
    let requests = [
        ("01 02.. 2F61 00..", ""),
        ("02 02.. 2F61 00.. 01.. 78", "01.. 78"),
        ("04 02.. 2F61 01..", "01.."),
        ("09 02.. 2F61 01.. 78", ""),
        ("0B 01.. 02.. 2F61 00..", ""),
        ("0E 02.. 2F61 00..", ""),
    ];
    for (request, reply) in requests {
        waiter.write_all(&hex("06 01.. 02.. 2F61")).unwrap();
        settled(&mut waiter);
        setter.write_all(&hex(request)).unwrap();
        expect(&mut setter, &hex(reply));
        expect(&mut waiter, &hex("00"));
        setter.write_all(&hex("08 02.. 2F61")).unwrap();
        expect(&mut setter, &hex(if request.starts_with("0E") { "00.." } else { "01.." }));
    }
}

#[test]
fn a_wait_for_several_keys_counts_only_the_missing_ones() {
    let server = server(ServerLimits::default());
    let (mut waiter, mut setter) = (validated(&server), validated(&server));
    setter.write_all(&hex("01 02.. 2F61 00..")).unwrap();
    settled(&mut setter);
    waiter.write_all(&hex("06 03.. 02.. 2F61 02.. 2F62 02.. 2F63")).unwrap();
    settled(&mut waiter);
    setter.write_all(&hex("01 02.. 2F62 00..")).unwrap();
    settled(&mut setter);
    settled(&mut waiter);
    setter.write_all(&hex("01 02.. 2F63 00..")).unwrap();
    expect(&mut waiter, &hex("00"));
}

#[test]
fn a_cancelled_wait_is_not_answered_later() {
    let server = server(ServerLimits::default());
    let (mut waiter, mut setter) = (validated(&server), validated(&server));
    waiter.write_all(&hex("06 01.. 02.. 2F61 0C")).unwrap();
    expect(&mut waiter, &hex("01"));
    setter.write_all(&hex("01 02.. 2F61 00..")).unwrap();
    settled(&mut setter);
    settled(&mut waiter);
}

#[test]
fn a_push_wakes_one_waiter_and_a_gone_waiter_does_not_count() {
    let server = server(ServerLimits::default());
    let (gone, mut first, mut second, mut setter) =
        (validated(&server), validated(&server), validated(&server), validated(&server));
    let wait = hex("06 01.. 02.. 2F71");
    (&gone).write_all(&wait).unwrap();
    settled(&mut gone.try_clone().unwrap());
    gone.shutdown(Shutdown::Both).unwrap();
    expect_closed(&mut gone.try_clone().unwrap());
    drop(gone);
    // The client is closed before the server has seen it, and nothing tells when it has: it gets time, and
    // turns of its loop.
    for _ in 0..50 {
        settled(&mut setter);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for stream in [&mut first, &mut second] {
        stream.write_all(&wait).unwrap();
        settled(stream);
    }
    setter.write_all(&hex("0E 02.. 2F71 01.. 31")).unwrap();
    expect(&mut first, &hex("00"));
    settled(&mut second);
    setter.write_all(&hex("0E 02.. 2F71 01.. 32")).unwrap();
    expect(&mut second, &hex("00"));
}

#[test]
fn a_barrier_answers_all_when_the_last_arrives() {
    let server = server(ServerLimits::default());
    let mut streams: Vec<_> = (0..3).map(|_| validated(&server)).collect();
    for stream in &mut streams[..2] {
        stream.write_all(&hex("12 02.. 2F62 03..")).unwrap();
        settled(stream);
    }
    streams[2].write_all(&hex("12 02.. 2F62 03..")).unwrap();
    streams.iter_mut().for_each(|stream| expect(stream, &hex("00")));
}

/// Sends `bytes` and sees the connection closed, beside a good client that notices nothing.
fn closes(server: &TcpStoreServer, what: &str, bytes: &[u8]) {
    println!("{what}");
    let good = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    let mut stream = raw(server);
    // The server may close before all is sent.
    let _ = stream.write_all(bytes);
    expect_closed(&mut stream);
    good.set("still", b"alive", &patient()).unwrap();
    assert_eq!(good.get("still", &patient()).unwrap(), b"alive");
}

#[test]
fn each_violation_closes_that_connection_only() {
    let server = server(ServerLimits::default());
    let after_validate = [
        ("an unknown type", hex("13")),
        ("a type far beyond", hex("FF")),
        ("a key of 2^64-1", hex("01 FFFFFFFFFFFFFFFF")),
        ("a key of 8193", hex("03 0120..")),
        ("a value of 8 MiB + 1", hex("01 02.. 2F61 010080..")),
        ("131073 keys", hex("06 010002..")),
        ("2^64-1 keys", hex("05 FFFFFFFFFFFFFFFF")),
        ("-1 pairs", hex("0B FFFFFFFFFFFFFFFF")),
        ("a second VALIDATE with another magic", hex("00 00000000")),
        ("text as a counter", hex("01 02.. 2F61 01.. 78 04 02.. 2F61 01..")),
        ("text as a barrier", hex("01 02.. 2F61 01.. 78 12 02.. 2F61 01..")),
    ];
    for (what, bytes) in after_validate {
        closes(&server, what, &[&hex("00 CEF7853C"), bytes.as_slice()].concat());
    }
    closes(&server, "a wrong magic", &hex("00 CEF7853D"));
    closes(&server, "no VALIDATE", &hex("0D 01020304"));
    closes(&server, "an old client's magic", &hex("CEF7853C 01"));
}

#[test]
fn replies_owed_before_a_violation_still_arrive() {
    let server = server(ServerLimits::default());
    let mut stream = validated(&server);
    stream.write_all(&hex("0D 01020304 13")).unwrap();
    expect(&mut stream, &hex("01020304"));
    expect_closed(&mut stream);
}

#[test]
fn the_longest_keys_and_values_are_allowed() {
    let server = server(ServerLimits::default());
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    let (key, value) = ("k".repeat(8191), vec![7; 8 << 20]);
    store.set(&key, &value, &patient()).unwrap();
    assert_eq!(store.get(&key, &patient()).unwrap(), value);
    let error = store.set(&"k".repeat(8192), b"", &patient()).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { size: 8193, limit: 8192, .. }), "{error}");
    let error = store.set("k", &[0; (8 << 20) + 1], &patient()).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit: 8388608, .. }), "{error}");
    let many = vec!["k"; 131_072];
    store.set("k", b"v", &patient()).unwrap();
    assert!(store.check(&many, &patient()).unwrap());
    assert_eq!(store.multi_get(&many, &patient()).unwrap().len(), many.len());
    let error = store.check(&vec!["k"; 131_073], &patient()).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { size: 131_073, .. }), "{error}");
}

#[test]
fn a_reply_beyond_the_buffer_limit_closes_the_connection() {
    let server = server(ServerLimits { max_connection_bytes: 9 << 20, ..ServerLimits::default() });
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    store.set("k", &vec![0; 8 << 20], &patient()).unwrap();
    let error = store.multi_get(&["k", "k"], &patient()).unwrap_err();
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
    assert_eq!(store.get("k", &patient()).unwrap().len(), 8 << 20);
}

#[test]
fn a_client_that_pipelines_more_than_it_reads_is_slowed_not_dropped() {
    let server = server(ServerLimits::default());
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    store.set("k", &vec![9; 1 << 20], &patient()).unwrap();
    let mut stream = validated(&server);
    let mut reply = hex("000010..");
    reply.resize(8 + (1 << 20), 9);
    // 100 MiB of replies for a kilobyte of requests, more than the server buffers for anybody.
    stream.write_all(&hex("03 02.. 2F6B").repeat(100)).unwrap();
    for _ in 0..100 {
        expect(&mut stream, &reply);
    }
    settled(&mut stream);
}

#[test]
fn a_full_store_refuses_only_the_one_who_fills_it() {
    let server = server(ServerLimits { max_stored_bytes: 1 << 20, ..ServerLimits::default() });
    let good = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    good.set("small", b"v", &patient()).unwrap();
    let error = good.set("large", &vec![0; 2 << 20], &patient()).unwrap_err();
    assert!(matches!(error, StoreError::Network { op: "set", .. }), "{error}");
    assert_eq!(good.get("small", &patient()).unwrap(), b"v");
}

#[test]
fn beyond_the_total_the_largest_connection_goes() {
    let server = server(ServerLimits { max_total_bytes: 6 << 20, ..ServerLimits::default() });
    let good = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    // Two requests that never end: 2 MiB of 8, and 5 MiB of 8.
    let (mut small, mut large) = (validated(&server), validated(&server));
    let begin = hex("01 02.. 2F61 000080..");
    small.write_all(&[begin.as_slice(), &vec![0; 2 << 20]].concat()).unwrap();
    let _ = large.write_all(&[begin.as_slice(), &vec![0; 5 << 20]].concat());
    expect_closed(&mut large);
    good.set("k", b"v", &patient()).unwrap();
    small.write_all(&vec![0; 6 << 20]).unwrap_or_default();
}

#[test]
fn who_does_not_validate_in_time_is_dropped() {
    let server =
        server(ServerLimits { validate_timeout: Duration::from_millis(100), ..ServerLimits::default() });
    let good = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    let (mut silent, mut slow) = (raw(&server), raw(&server));
    slow.write_all(&hex("00 CEF785")).unwrap();
    expect_closed(&mut silent);
    expect_closed(&mut slow);
    good.set("k", b"v", &patient()).unwrap();
}

#[test]
fn a_port_in_use_is_a_typed_error() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let error = TcpStoreServer::bind("127.0.0.1", port, ServerLimits::default()).unwrap_err();
    assert!(matches!(error, StoreError::AddressInUse { .. }), "{error}");
    let error = TcpStoreServer::bind("*", port, ServerLimits::default()).unwrap_err();
    assert!(matches!(error, StoreError::AddressInUse { .. }), "{error}");
}

#[test]
fn a_server_on_every_address_answers_on_loopback() {
    let server = TcpStoreServer::bind("*", 0, ServerLimits::default()).unwrap();
    TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    TcpStore::connect("localhost", server.port(), &patient()).unwrap();
}

#[test]
fn a_given_listener_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TcpStoreServer::from_listener(listener, ServerLimits::default()).unwrap();
    TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
}

#[test]
fn dropping_the_server_ends_its_clients_waits_and_frees_everything() {
    let server = server(ServerLimits::default());
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    let addr = server.local_addr();
    let waiter = std::thread::spawn(move || store.get("never", &patient()).unwrap_err());
    std::thread::sleep(Duration::from_millis(50));
    let dropped = Instant::now();
    drop(server);
    let error = waiter.join().unwrap();
    assert!(matches!(error, StoreError::Network { op: "get", .. }), "{error}");
    assert!(dropped.elapsed() < Duration::from_secs(5));
    let refused = TcpStore::connect("127.0.0.1", addr.port(), &Wait::for_at_most(Duration::from_millis(50)));
    assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
}
