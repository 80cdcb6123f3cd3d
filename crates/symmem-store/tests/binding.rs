//! Where a server listens: what it was told, and every interface only when asked for by name.

mod common;

use std::fs;
use std::time::Duration;

use common::{free_port, patient};
use symmem_store::{ServerLimits, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer, Wait};

const LOOPBACK: &str = "0100007F";
const ANY_4: &str = "00000000";
const ANY_6: &str = "00000000000000000000000000000000";
/// Reserved for examples: no machine has it.
const ELSEWHERE: &str = "192.0.2.1";

fn master() -> TcpStoreOptions {
    TcpStoreOptions { is_master: true, ..TcpStoreOptions::default() }
}

/// The addresses that somebody listens on at `port`, as the kernel writes them.
fn listening(port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = fields.filter(|fields| fields[3] == LISTEN && fields[1].ends_with(&format!(":{port:04X}")));
    ours.map(|fields| fields[1].split(':').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_master_listens_on_its_host_and_nowhere_else() {
    let store = TcpStore::open("127.0.0.1", 0, &master(), &patient()).unwrap();
    assert_eq!(listening(store.port()), [LOOPBACK]);
    let store = TcpStore::open("localhost", 0, &master(), &patient()).unwrap();
    let places = listening(store.port());
    assert!(!places.is_empty() && places.iter().all(|place| place != ANY_4 && place != ANY_6), "{places:?}");
}

#[test]
fn every_interface_has_a_name() {
    for (name, places) in [("*", [ANY_6, ANY_4]), ("::", [ANY_6, ANY_4]), ("0.0.0.0", [ANY_4, ANY_4])] {
        let store = TcpStore::open(name, 0, &master(), &patient()).unwrap();
        let found = listening(store.port());
        // Without IPv6 the first two are IPv4's.
        assert!(found.len() == 1 && places.contains(&found[0].as_str()), "{name}: {found:?}");
        store.set("k", b"v", &patient()).unwrap();
    }
    let error = TcpStoreServer::bind("", 0, ServerLimits::default()).unwrap_err();
    assert!(matches!(error, StoreError::Network { .. }) && error.to_string().contains('*'), "{error}");
}

#[test]
fn an_address_of_another_machine_is_refused_with_the_name_of_the_setting() {
    let error = TcpStore::open(ELSEWHERE, 0, &master(), &patient()).unwrap_err();
    assert!(matches!(error, StoreError::AddressNotHere { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(ELSEWHERE) && text.contains("SYMMEM_STORE_BIND"), "{text}");
}

#[test]
fn the_address_to_bind_may_differ_from_the_address_that_others_use() {
    let options = TcpStoreOptions { bind: Some("127.0.0.1".into()), ..master() };
    let port = free_port();
    let store = TcpStore::open(ELSEWHERE, port, &options, &patient()).unwrap();
    assert_eq!(listening(port), [LOOPBACK]);
    store.set("k", b"v", &patient()).unwrap();
    assert_eq!(store.try_clone().unwrap().get("k", &patient()).unwrap(), b"v");
}

#[test]
fn who_waits_in_vain_on_loopback_learns_the_name_of_the_setting() {
    let options = TcpStoreOptions { world_size: Some(2), ..master() };
    let briefly = || Wait::for_at_most(Duration::from_millis(200));
    let error = TcpStore::open("127.0.0.1", 0, &options, &briefly()).unwrap_err();
    assert!(matches!(error, StoreError::ClientsMissing { joined: 1, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1") && text.contains("SYMMEM_STORE_BIND"), "{text}");

    let error = TcpStore::connect("127.0.0.1", free_port(), &briefly()).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("SYMMEM_STORE_BIND"), "{error}");
}
