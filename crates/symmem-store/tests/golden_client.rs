//! The client's bytes, compared with bytes written by hand from the protocol's description, and its manners
//! towards servers that are slow, old, gone or something else.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{PATIENCE, expect, expect_closed, free_port, hex, patient};
use symmem_store::{ServerLimits, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer, Wait};

/// This process' id, which the client uses as its nonce, as the protocol writes it.
fn nonce() -> Vec<u8> {
    std::process::id().to_le_bytes().to_vec()
}

/// Accepts a client and shakes hands: VALIDATE's five bytes must come in the first read.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut first = [0; 10];
    let count = stream.read(&mut first).unwrap();
    assert!(count >= 5, "VALIDATE came in pieces");
    assert_eq!(first[..5], hex("00 CEF7853C"));
    stream.read_exact(&mut first[count..]).unwrap();
    assert_eq!((first[5], &first[6..]), (0x0D, &nonce()[..]));
    stream.write_all(&nonce()).unwrap();
    stream
}

/// A server that plays `part` for one client.
fn fake(part: impl FnOnce(TcpListener) + Send + 'static) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, thread::spawn(move || part(listener)))
}

/// A server that expects each request in turn and gives each reply. In hex, `PP` stands for the nonce.
fn scripted(script: &'static [(&str, &str)]) -> (u16, JoinHandle<()>) {
    let hex = |text: &str| -> Vec<u8> { text.split("PP").map(hex).collect::<Vec<_>>().join(&nonce()[..]) };
    fake(move |listener| {
        let mut stream = accept(&listener);
        for (request, reply) in script {
            expect(&mut stream, &hex(request));
            stream.write_all(&hex(reply)).unwrap();
        }
        expect_closed(&mut stream);
    })
}

/// The client makes `calls` to a server with that `script`, all over one connection.
fn speaks(script: &'static [(&str, &str)], calls: impl FnOnce(&TcpStore)) {
    let (port, server) = scripted(script);
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    calls(&store);
    drop(store);
    server.join().unwrap();
}

#[test]
fn set_append_multi_set_and_push_are_confirmed_by_a_ping() {
    let script = &[
        ("01 02.. 2F61 01.. 76 0D PP", "PP"),
        ("09 02.. 2F61 02.. 7778 0D PP", "PP"),
        ("0B 02.. 02.. 2F61 01.. 31 02.. 2F62 00.. 0D PP", "PP"),
        ("0E 02.. 2F71 01.. 78 0D PP", "PP"),
    ];
    speaks(script, |store| {
        store.set("a", b"v", &patient()).unwrap();
        store.append("a", b"wx", &patient()).unwrap();
        store.multi_set(&[("a", b"1"), ("b", b"")], &patient()).unwrap();
        store.queue_push("q", b"x", &patient()).unwrap();
    });
}

#[test]
fn reads_wait_first_and_then_read() {
    let script = &[
        ("06 01.. 02.. 2F61", "00"),
        ("03 02.. 2F61", "03.. 010203"),
        ("06 02.. 02.. 2F61 02.. 2F62", "00"),
        ("0A 02.. 02.. 2F61 02.. 2F62", "01.. 31 00.."),
        ("06 01.. 02.. 2F71", "00"),
        ("0F 02.. 2F71", "02.. 01.. 78"),
        ("0F 02.. 2F71", "00.."),
    ];
    speaks(script, |store| {
        assert_eq!(store.get("a", &patient()).unwrap(), [1, 2, 3]);
        assert_eq!(store.multi_get(&["a", "b"], &patient()).unwrap(), [&b"1"[..], b""]);
        assert_eq!(store.queue_pop("q", true, &patient()).unwrap(), b"x");
        let error = store.queue_pop("q", false, &patient()).unwrap_err();
        assert!(matches!(error, StoreError::QueueEmpty { .. }), "{error}");
    });
}

#[test]
fn a_pop_that_was_beaten_waits_again() {
    let script = &[
        ("06 01.. 02.. 2F71", "00"),
        ("0F 02.. 2F71", "00.."),
        ("06 01.. 02.. 2F71", "00"),
        ("0F 02.. 2F71", "01.. 01.. 78"),
    ];
    speaks(script, |store| assert_eq!(store.queue_pop("q", true, &patient()).unwrap(), b"x"));
}

#[test]
fn the_other_calls_are_one_request_each() {
    let script = &[
        ("02 02.. 2F61 01.. 76 00..", "01.. 79"),
        ("04 02.. 2F6E F9FFFFFFFFFFFFFF", "FEFFFFFFFFFFFFFF"),
        ("05 02.. 02.. 2F61 02.. 2F62", "01"),
        ("05 01.. 02.. 2F61", "00"),
        ("06 01.. 02.. 2F61", "00"),
        ("07", "05.."),
        ("08 02.. 2F61", "01.."),
        ("08 02.. 2F61", "00.."),
        ("10 02.. 2F71", "03.."),
        ("11", "02.. 02.. 2F61 05.. 696E69742F"),
        ("12 02.. 2F67 04..", "00"),
    ];
    speaks(script, |store| {
        assert_eq!(store.compare_set("a", b"v", b"", &patient()).unwrap(), b"y");
        assert_eq!(store.add("n", -7, &patient()).unwrap(), -2);
        assert!(!store.check(&["a", "b"], &patient()).unwrap());
        assert!(store.check(&["a"], &patient()).unwrap());
        store.wait(&["a"], &patient()).unwrap();
        assert_eq!(store.num_keys(&patient()).unwrap(), 5);
        assert!(store.delete("a", &patient()).unwrap());
        assert!(!store.delete("a", &patient()).unwrap());
        assert_eq!(store.queue_len("q", &patient()).unwrap(), 3);
        assert_eq!(store.list_keys(&patient()).unwrap(), ["/a", "init/"]);
        store.barrier("g", 4, &patient()).unwrap();
    });
}

fn short() -> Wait<'static> {
    Wait::for_at_most(Duration::from_millis(60))
}

#[test]
fn a_wait_that_is_cancelled_in_time_is_a_timeout_and_the_link_stays_good() {
    let script = &[
        ("06 01.. 02.. 2F61", ""),
        ("0C", "01"),
        ("12 02.. 2F67 02..", ""),
        ("0C", "01"),
        ("05 01.. 02.. 2F61", "01"),
    ];
    speaks(script, |store| {
        let error = store.wait(&["a"], &short()).unwrap_err();
        assert!(matches!(error, StoreError::Timeout { op: "wait", .. }), "{error}");
        let error = store.barrier("g", 2, &short()).unwrap_err();
        assert!(matches!(error, StoreError::Timeout { op: "barrier", .. }), "{error}");
        assert!(!store.check(&["a"], &patient()).unwrap());
    });
}

#[test]
fn a_wait_that_ends_just_before_it_is_cancelled_ends_well_and_the_link_stays_good() {
    let script = &[
        ("06 01.. 02.. 2F61", ""),
        ("0C", "00 01"),
        ("12 02.. 2F67 02..", ""),
        ("0C", "00 01"),
        ("05 01.. 02.. 2F61", "00"),
    ];
    speaks(script, |store| {
        store.wait(&["a"], &short()).unwrap();
        store.barrier("g", 2, &short()).unwrap();
        assert!(store.check(&["a"], &patient()).unwrap());
    });
}

#[test]
fn a_server_that_ignores_a_cancellation_loses_the_link_but_not_the_client() {
    let (port, server) = fake(|listener| {
        let mut deaf = accept(&listener);
        expect(&mut deaf, &hex("06 01.. 02.. 2F61 0C"));
        expect_closed(&mut deaf);
        let mut second = accept(&listener);
        expect(&mut second, &hex("07"));
        second.write_all(&hex("03..")).unwrap();
    });
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    let started = Instant::now();
    let error = store.get("a", &short()).unwrap_err();
    assert!(matches!(error, StoreError::Timeout { op: "get", .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(store.num_keys(&patient()).unwrap(), 3);
    server.join().unwrap();
}

#[test]
fn a_half_answer_is_never_taken_for_the_next_calls() {
    let (port, server) = fake(|listener| {
        let mut first = accept(&listener);
        expect(&mut first, &hex("07"));
        first.write_all(&hex("01020304")).unwrap();
        expect_closed(&mut first);
        let mut second = accept(&listener);
        expect(&mut second, &hex("07"));
        second.write_all(&hex("05..")).unwrap();
    });
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    let error = store.num_keys(&short()).unwrap_err();
    assert!(matches!(error, StoreError::Timeout { op: "num_keys", .. }), "{error}");
    assert_eq!(store.num_keys(&patient()).unwrap(), 5);
    server.join().unwrap();
}

#[test]
fn a_connection_closed_while_idle_is_replaced() {
    let (port, server) = fake(|listener| {
        drop(accept(&listener));
        let mut second = accept(&listener);
        expect(&mut second, &hex("07"));
        second.write_all(&hex("05..")).unwrap();
    });
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(store.num_keys(&patient()).unwrap(), 5);
    server.join().unwrap();
}

#[test]
fn a_server_too_old_for_a_request_is_named_as_such() {
    let calls: [fn(&TcpStore) -> StoreError; 3] = [
        |store| store.barrier("g", 2, &patient()).unwrap_err(),
        |store| store.list_keys(&patient()).unwrap_err(),
        |store| store.queue_len("q", &patient()).unwrap_err(),
    ];
    for call in calls {
        let (port, server) = fake(|listener| {
            let mut stream = accept(&listener);
            let _ = stream.read(&mut [0; 64]);
        });
        let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
        let error = call(&store);
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains("too old"), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn a_server_of_something_else_is_a_protocol_error() {
    let (port, server) = fake(|listener| {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = TcpStore::connect("127.0.0.1", port, &patient()).unwrap_err();
    assert!(matches!(error, StoreError::Protocol { op: "connect", .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn an_absurd_length_in_a_reply_is_a_protocol_error() {
    let script = &[("02 02.. 2F61 00.. 00..", "FFFFFFFFFFFFFFFF")];
    speaks(script, |store| {
        let error = store.compare_set("a", b"", b"", &patient()).unwrap_err();
        assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
    });
}

#[test]
fn a_server_that_dies_in_the_middle_is_a_network_error() {
    let (port, server) = fake(|listener| {
        let mut stream = accept(&listener);
        expect(&mut stream, &hex("06 01.. 02.. 2F61"));
    });
    let store = TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    let error = store.get("a", &patient()).unwrap_err();
    assert!(matches!(error, StoreError::Network { op: "get", .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn connecting_to_nobody_is_unreachable_once_the_deadline_passed() {
    let port = free_port();
    let wait = Wait::for_at_most(Duration::from_millis(150));
    let error = TcpStore::connect("127.0.0.1", port, &wait).unwrap_err();
    let StoreError::Unreachable { elapsed, .. } = &error else { panic!("{error}") };
    assert!(*elapsed >= Duration::from_millis(150));
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn connecting_waits_for_a_server_that_starts_later() {
    let port = free_port();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        TcpStoreServer::bind("127.0.0.1", port, ServerLimits::default()).unwrap()
    });
    TcpStore::connect("127.0.0.1", port, &patient()).unwrap();
    drop(late.join().unwrap());
}

#[test]
fn a_worker_counts_itself_under_init_without_a_slash() {
    let (port, server) = scripted(&[("04 05.. 696E69742F 01..", "01..")]);
    let options = TcpStoreOptions { world_size: Some(2), ..TcpStoreOptions::default() };
    drop(TcpStore::open("127.0.0.1", port, &options, &patient()).unwrap());
    server.join().unwrap();
}

#[test]
fn a_master_waits_for_all_its_workers() {
    let port = free_port();
    let open = move |is_master| {
        let options = TcpStoreOptions { world_size: Some(2), is_master, ..TcpStoreOptions::default() };
        TcpStore::open("127.0.0.1", port, &options, &patient()).unwrap()
    };
    let master = thread::spawn(move || open(true));
    thread::sleep(Duration::from_millis(100));
    assert!(!master.is_finished());
    let worker = open(false);
    let master = master.join().unwrap();
    assert_eq!(master.list_keys(&patient()).unwrap(), ["init/"]);
    // The server lives as long as anything made from the master's store.
    let clone = master.try_clone().unwrap();
    drop(master);
    worker.set("k", b"v", &patient()).unwrap();
    assert_eq!(clone.get("k", &patient()).unwrap(), b"v");
}

#[test]
fn a_master_whose_workers_do_not_come_says_how_many_did() {
    let options = TcpStoreOptions { world_size: Some(3), is_master: true, ..TcpStoreOptions::default() };
    let error = TcpStore::open("127.0.0.1", 0, &options, &Wait::for_at_most(Duration::from_millis(100)));
    let Err(StoreError::ClientsMissing { joined: 1, expected: 3, .. }) = error else { panic!("{error:?}") };
}
