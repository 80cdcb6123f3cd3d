//! What is special about the store in a file: its format, its life and its damages.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::patient;
use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};
use symmem_store::{FileStore, Store, StoreError, Wait};

/// A path of its own; removed when dropped.
struct Path(PathBuf);

impl Path {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("symmem-file-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn short() -> Wait<'static> {
    Wait::for_at_most(Duration::from_millis(60))
}

#[test]
#[cfg(target_endian = "little")]
fn the_file_holds_the_records_pytorch_reads() {
    let path = Path::new();
    let store = FileStore::new(&path.0, None).unwrap();
    store.set("ab", b"xyz", &patient()).unwrap();
    store.add("n", 12, &patient()).unwrap();
    store.delete("ab", &patient()).unwrap();
    drop(store);
    let expected: &[&[u8]] = &[
        b"\x09\0\0\0refcount/\x01\0\0\x001",
        b"\x03\0\0\0/ab\x03\0\0\0xyz",
        b"\x02\0\0\0/n\x02\0\0\x0012",
        b"\x04\0\0\0-/ab\0\0\0\0",
        b"\x08\0\0\0cleanup/\x01\0\0\x001",
        b"\x09\0\0\0refcount/\x01\0\0\x000",
    ];
    assert_eq!(fs::read(&path.0).unwrap(), expected.concat());
}

#[test]
#[cfg(target_endian = "little")]
fn a_file_pytorch_wrote_is_read() {
    let path = Path::new();
    fs::write(&path.0, b"\x09\0\0\0refcount/\x01\0\0\x001\x02\0\0\0/k\x05\0\0\0value").unwrap();
    let store = FileStore::new(&path.0, None).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"value");
}

#[test]
fn the_last_of_the_workers_removes_the_file() {
    let path = Path::new();
    let workers: Vec<_> = (0..3).map(|_| FileStore::new(&path.0, Some(3)).unwrap()).collect();
    for worker in workers {
        assert!(path.0.exists());
        drop(worker);
    }
    assert!(!path.0.exists());
}

#[test]
fn without_a_number_of_workers_the_file_stays() {
    let path = Path::new();
    drop(FileStore::new(&path.0, None).unwrap());
    assert!(path.0.exists());
}

#[test]
fn early_leavers_do_not_remove_the_file_before_all_have_come() {
    let path = Path::new();
    drop(FileStore::new(&path.0, Some(2)).unwrap());
    assert!(path.0.exists());
    drop(FileStore::new(&path.0, Some(2)).unwrap());
    assert!(!path.0.exists());
}

#[test]
fn a_removed_file_is_an_empty_store() {
    let path = Path::new();
    let store = FileStore::new(&path.0, None).unwrap();
    store.set("k", b"v", &patient()).unwrap();
    fs::remove_file(&path.0).unwrap();
    assert!(!store.check(&["k"], &patient()).unwrap());
    store.set("k", b"w", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"w");
}

#[test]
fn a_lock_somebody_keeps_ends_in_a_timeout_and_does_not_hold_a_drop() {
    let path = Path::new();
    let store = FileStore::new(&path.0, Some(1)).unwrap();
    let holder = File::open(&path.0).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let error = store.set("k", b"v", &short()).unwrap_err();
    assert!(matches!(error, StoreError::Timeout { op: "set", .. }), "{error}");
    let started = Instant::now();
    drop(store);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(path.0.exists());
}

#[test]
fn a_torn_record_is_damage_with_a_place() {
    let path = Path::new();
    let store = FileStore::new(&path.0, None).unwrap();
    store.set("k", b"v", &patient()).unwrap();
    let whole = fs::read(&path.0).unwrap();
    fs::write(&path.0, [&whole[..], b"\xff\xff\xff\xff/k"].concat()).unwrap();
    for _ in 0..2 {
        let error = store.get("late", &patient()).unwrap_err();
        let StoreError::Damaged { offset, .. } = error else { panic!("{error}") };
        assert_eq!(offset, whole.len() as u64);
    }
}

#[test]
fn a_file_that_shrank_is_damage() {
    let path = Path::new();
    let store = FileStore::new(&path.0, None).unwrap();
    store.set("k", b"v", &patient()).unwrap();
    store.get("k", &patient()).unwrap();
    File::options().write(true).open(&path.0).unwrap().set_len(3).unwrap();
    let error = store.get("k", &patient()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { offset: 3, .. }), "{error}");
}

#[test]
fn a_path_that_is_no_file_is_a_typed_error() {
    let error = FileStore::new(std::env::temp_dir(), None).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
    let error = FileStore::new("/nonexistent-folder/store", None).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
    let error = FileStore::new("/dev/null", None).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_file_of_random_bytes_is_damage_or_a_store_but_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        let path = Path::new();
        fs::write(&path.0, &bytes).unwrap();
        match FileStore::new(&path.0, Some(1)) {
            Ok(store) => drop(store.check(&["k"], &patient())),
            Err(error) => {
                let typed = matches!(error, StoreError::Damaged { .. } | StoreError::NotNumeric { .. });
                prop_assert!(typed, "{error}");
            }
        }
    }
}

/// Permission bits of a file.
fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn nobody_else_may_open_the_file_and_lock_it() {
    let path = Path::new();
    let _store = FileStore::new(&path.0, None).unwrap();
    assert_eq!(mode(&path.0), 0o600);
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be another user");
    }
    let lock = format!("exec 9< {} && flock -n 9", path.0.display());
    let stranger = Command::new("sh").args(["-c", &lock]).uid(2000).stderr(Stdio::null()).status().unwrap();
    assert!(!stranger.success(), "another user has the lock");
}

#[test]
fn a_file_of_ours_that_others_may_open_is_closed_to_them() {
    let path = Path::new();
    fs::write(&path.0, b"").unwrap();
    fs::set_permissions(&path.0, fs::Permissions::from_mode(0o666)).unwrap();
    let store = FileStore::new(&path.0, None).unwrap();
    assert_eq!(mode(&path.0), 0o600);
    store.set("k", b"v", &patient()).unwrap();
}

#[test]
fn a_file_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can give a file to another user");
    }
    let path = Path::new();
    fs::write(&path.0, b"").unwrap();
    std::os::unix::fs::chown(&path.0, Some(2000), None).unwrap();
    let error = FileStore::new(&path.0, None).unwrap_err();
    assert!(matches!(error, StoreError::File { .. }) && error.to_string().contains("2000"), "{error}");
}
