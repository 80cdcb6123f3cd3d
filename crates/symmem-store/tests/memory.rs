//! What a server's memory is bounded by. Alone in its program, because the peak is the whole process'.

mod common;

use std::fs;

use common::{patient, server};
use symmem_store::{ServerLimits, Store, TcpStore};

const MIB: usize = 1 << 20;
const PIECE: usize = 8 * MIB;
/// No power of two: a vector that doubles would take nearly twice as much.
const STORED: usize = 272 * MIB;
/// Buffers of a connection at both ends, and what the allocator keeps.
const BESIDE: usize = 64 * MIB;

/// A number of kB in `/proc/self/status`, as bytes.
fn status(name: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn a_value_that_fills_the_store_costs_its_size_and_no_request_copies_it() {
    let limits = ServerLimits { max_stored_bytes: STORED, ..ServerLimits::default() };
    let server = server(limits);
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    let piece = vec![1; PIECE];
    // Reserved, not only touched: a bound must hold when it is.
    let (before, reserved) = (status("VmRSS:"), status("VmData:"));
    let appended = (0..).take_while(|_| store.append("k", &piece, &patient()).is_ok()).count();
    assert!(appended >= STORED / PIECE - 1, "{appended} pieces");
    let peak = status("VmHWM:") - before;
    assert!(peak < STORED + BESIDE, "appending took {} MiB", peak / MIB);
    let more = status("VmData:") - reserved;
    assert!(more < STORED + BESIDE, "appending reserved {} MiB", more / MIB);

    // Its answer would be the value, which is longer than any answer.
    let peak = status("VmHWM:");
    for _ in 0..3 {
        store.compare_set("k", b"something else", b"new", &patient()).unwrap_err();
    }
    let more = status("VmHWM:") - peak;
    assert!(more < BESIDE, "comparing took {} MiB", more / MIB);
    assert!(store.check(&["k"], &patient()).unwrap());
}
