//! What fuzzers feed: for each place that reads bytes of strangers, a function that takes any bytes and
//! panics when a promise is broken.
//!
//! Called by the targets in `fuzz/` and by `crates/symmem/tests/fuzz`, which runs every target for a moment
//! on stable. What a target guarantees: it ends, it leaves nothing behind, and equal bytes do equal things as
//! far as threads and sockets allow.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{FileStore, Store, StoreError, Wait};

/// One place that reads bytes of strangers.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its file in `fuzz/fuzz_targets` and of its folder in `fuzz/seeds`.
    pub name: &'static str,
    /// Feeds it.
    pub run: fn(&[u8]),
    /// Inputs that get far, to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "store_parser",
        run: crate::tcp::fuzzing::parser::run,
        seeds: crate::tcp::fuzzing::parser::seeds,
    },
    Target {
        name: "store_service",
        run: crate::tcp::fuzzing::service::run,
        seeds: crate::tcp::fuzzing::script::seeds,
    },
    Target {
        name: "store_server",
        run: crate::tcp::fuzzing::server::run,
        seeds: crate::tcp::fuzzing::script::seeds,
    },
    Target { name: "file_store", run: file_store, seeds: file_store_seeds },
];

/// Takes choices off the front of a fuzzer's bytes; zeros when they are used up.
#[derive(Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Two bytes, little-endian.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// At most `most` bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (now, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        now
    }
}

/// A file without a name that holds `bytes`, and a path that opens it.
pub fn nameless_file(bytes: &[u8]) -> (OwnedFd, String) {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).expect("memory for a small file");
    let fd = OwnedFd::from(file);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    (fd, path)
}

/// A file store whose file holds any bytes: it is damaged, or it is a store that works.
fn file_store(bytes: &[u8]) {
    let wait = Wait::for_at_most(Duration::from_secs(10));
    let (_file, path) = nameless_file(bytes);
    let store = match FileStore::open(&path, None, &wait) {
        Ok(store) => store,
        Err(StoreError::Damaged { offset, .. }) => return assert!(offset <= bytes.len() as u64),
        // The count of workers is a record as any other.
        Err(StoreError::NotNumeric { .. }) => return,
        Err(other) => panic!("{other}"),
    };
    let keys = store.list_keys(&wait).expect("a sound log is read again");
    assert_eq!(store.num_keys(&wait).expect("a sound log is read again"), keys.len() as i64);
    store.set("fuzz", bytes, &wait).expect("a sound log is appended to");
    assert_eq!(store.get("fuzz", &wait).expect("what was set is there"), bytes);
    store.queue_push("fuzz-queue", bytes, &wait).expect("a sound log is appended to");
    store.queue_pop("fuzz-queue", false, &wait).expect("what was pushed is there");
    match store.add("1", 1, &wait) {
        Ok(_) | Err(StoreError::NotNumeric { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    assert!(store.delete("fuzz", &wait).expect("a sound log is appended to"));
    // A second worker reads all of that from the start.
    let second = FileStore::open(&path, None, &wait).expect("our own records are sound");
    assert!(!second.check(&["fuzz"], &wait).expect("our own records are sound"));
}

fn file_store_seeds() -> Vec<Vec<u8>> {
    let record = |key: &[u8], value: &[u8]| {
        let part = |bytes: &[u8]| [&(bytes.len() as u32).to_ne_bytes(), bytes].concat();
        [part(key), part(value)].concat()
    };
    let log = [
        record(b"refcount/", b"3"),
        record(b"/a", b"1"),
        record(b"/1", b"-77"),
        record(b"-/a", b""),
        record(b">/q", b"first"),
        record(b"</q", b""),
        record(b"cleanup/", b"2"),
        record(b"", b""),
    ];
    vec![Vec::new(), log.concat(), record(b"refcount/", b"not a number")]
}
