//! A store in a file that several processes share: an append-only log under `flock`, in PyTorch's record
//! format.
//!
//! A record is a u32 key length, the key, a u32 value length and the value, integers in native byte order.
//! User keys are stored as `/key`; a record `-/key` deletes. Queues are ours (PyTorch's file store has none):
//! `>/key` pushes its value and `</key` pops, which a PyTorch reader takes for two odd keys.
//!
//! Each call opens the file again, takes the lock, replays what others appended, and appends its own records
//! with one write. Anybody may call from any thread or process; nobody sleeps while holding the lock, and a
//! lock somebody else holds is polled, so that every deadline and cancellation holds.
//!
//! Whoever may open the file may lock it and stop the job, so it is for its user only: it is made with mode
//! 0600, a file of this user that others may open is closed to them, and a file of another user is refused.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::Fault;
use crate::table::KeyTable;
use crate::{Result, Store, StoreError, Wait};

/// How often a waiting reader looks at the file.
const POLL: Duration = Duration::from_millis(10);
/// How often a busy lock is tried again; holders keep it for microseconds.
const LOCK_POLL: Duration = Duration::from_millis(1);
/// How long a drop tries to take the lock: a stopped peer that holds it must not hold us too.
const DROP_PATIENCE: Duration = Duration::from_millis(100);
/// The reference's default timeout, for [`FileStore::new`].
const NEW_PATIENCE: Duration = Duration::from_secs(300);

/// Permission bits of the file's user, and of everybody else.
const OWNER: u32 = 0o600;
const OTHERS: u32 = 0o077;

const CLEANUP_KEY: &[u8] = b"cleanup/";
const REFCOUNT_KEY: &[u8] = b"refcount/";

/// A store in a file; clones share one cache and count as one worker.
///
/// The file is for this user only: see [`FileStore::open`]. The worker that is dropped last removes the file,
/// if `num_workers` was given and so many have come and gone.
///
/// ```
/// use std::time::Duration;
/// use symmem_store::{FileStore, Store, Wait};
///
/// let path = std::env::temp_dir().join(format!("symmem-doc-{}", std::process::id()));
/// let wait = Wait::for_at_most(Duration::from_secs(5));
/// let one = FileStore::new(&path, Some(2))?;
/// let two = FileStore::new(&path, Some(2))?;
/// one.set("colour", b"green", &wait)?;
/// assert_eq!(two.get("colour", &wait)?, b"green");
/// drop((one, two));
/// assert!(!path.exists());
/// # Ok::<(), symmem_store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileStore(Arc<Worker>);

impl FileStore {
    /// Joins the store at `path`, creating the file if need be, and waits at most five minutes for its lock.
    pub fn new(path: impl Into<PathBuf>, num_workers: Option<usize>) -> Result<Self> {
        Self::open(path, num_workers, &Wait::for_at_most(NEW_PATIENCE))
    }

    /// Joins the store at `path`, creating the file if need be, for this user only (mode 0600). A file that
    /// exists must belong to this user; what others may do with it is taken from them.
    pub fn open(path: impl Into<PathBuf>, num_workers: Option<usize>, wait: &Wait<'_>) -> Result<Self> {
        let log = Log { path: path.into(), cache: Mutex::default() };
        log.update("open", &[], wait, |table| {
            let count = counter(table, REFCOUNT_KEY)?.saturating_add(1);
            Ok((record(REFCOUNT_KEY, count.to_string().as_bytes())?, ()))
        })?;
        Ok(Self(Arc::new(Worker { log, num_workers, pid: std::process::id() })))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.log.path
    }
}

/// One worker's membership; leaves when dropped.
#[derive(Debug)]
struct Worker {
    log: Log,
    num_workers: Option<usize>,
    pid: u32,
}

impl Worker {
    fn leave(&self) -> Result<()> {
        let wait = Wait::for_at_most(DROP_PATIENCE);
        let Some(file) = self.log.lock(false, "drop", &[], &wait)? else { return Ok(()) };
        let cache = self.log.refresh(Some(&file))?;
        let gone = counter(&cache.table, CLEANUP_KEY)?.saturating_add(1);
        let left = counter(&cache.table, REFCOUNT_KEY)?.saturating_sub(1);
        // Removing under the lock: nobody can join between the count and the removal.
        if left <= 0 && self.num_workers.is_some_and(|workers| gone >= workers as i64) {
            return fs::remove_file(&self.log.path).map_err(|source| self.log.failed(source));
        }
        let mut records = record(CLEANUP_KEY, gone.to_string().as_bytes())?;
        records.extend(record(REFCOUNT_KEY, left.to_string().as_bytes())?);
        self.log.write(&file, &records, cache.position)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A forked child is not the worker that joined.
        if self.pid != std::process::id() {
            return;
        }
        if let Err(error) = self.leave() {
            tracing::debug!(%error, "left a file store without signing out");
        }
    }
}

/// The file and what is known of it.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    cache: Mutex<Cache>,
}

/// What the file held when it was last read.
#[derive(Debug, Default)]
struct Cache {
    table: KeyTable,
    position: u64,
    /// Device and inode: a file that was removed and made again starts from nothing.
    identity: (u64, u64),
}

/// An attempt at the lock.
enum Locked {
    Held(File),
    Busy,
    Missing,
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl Log {
    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::File { path: self.path.clone(), source }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if the path does not exist.
    fn metadata(&self) -> Result<Option<Metadata>> {
        match fs::metadata(&self.path) {
            Ok(meta) if meta.is_file() => Ok(Some(meta)),
            Ok(_) => Err(self.failed(io::Error::new(ErrorKind::InvalidInput, "not a regular file"))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Opens the file; non-blocking, so that a path that names a pipe cannot hang us.
    fn open(&self, writes: bool, creates: bool) -> Result<Option<File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(writes).create(creates).mode(OWNER);
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        match options.open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound && !creates => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Opens the file and tries to lock it.
    fn try_lock(&self, mode: FlockOperation, creates: bool) -> Result<Locked> {
        let Some(file) = self.open(mode == FlockOperation::NonBlockingLockExclusive, creates)? else {
            return Ok(Locked::Missing);
        };
        match flock(&file, mode) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Locked::Busy),
            Err(errno) => return Err(self.failed(errno.into())),
        }
        // The file may have been removed between open and lock: what we would write there nobody would read.
        let opened = file.metadata().map_err(|source| self.failed(source))?;
        self.close_to_others(&file, &opened)?;
        match self.metadata()? {
            Some(meta) if identity(&meta) == identity(&opened) => Ok(Locked::Held(file)),
            _ => Ok(Locked::Busy),
        }
    }

    /// Makes sure that nobody but this user can open the file from now on: a lock needs no more than that.
    fn close_to_others(&self, file: &File, meta: &Metadata) -> Result<()> {
        let user = geteuid().as_raw();
        if meta.uid() != user {
            let problem = format!(
                "it belongs to user {}, and this process runs as user {user}; name a file of your own",
                meta.uid()
            );
            return Err(self.failed(io::Error::new(ErrorKind::PermissionDenied, problem)));
        }
        if meta.mode() & OTHERS != 0 {
            let closed = Permissions::from_mode(meta.mode() & OWNER);
            file.set_permissions(closed).map_err(|source| self.failed(source))?;
        }
        Ok(())
    }

    /// Opens and locks the file for writing, polling while the lock is busy; `None` if it does not exist (and
    /// is not to be created). The lock ends with the file.
    fn lock(&self, creates: bool, op: &'static str, keys: &[&str], wait: &Wait<'_>) -> Result<Option<File>> {
        wait.until(|slice| {
            thread::sleep(slice.min(LOCK_POLL));
            Ok(match self.try_lock(FlockOperation::NonBlockingLockExclusive, creates)? {
                Locked::Held(file) => Some(Some(file)),
                Locked::Missing => Some(None),
                Locked::Busy => None,
            })
        })
        .map_err(|fault: Fault| fault.error(op, keys, wait))
    }

    /// Replays what was appended since the last look. The caller holds the lock of `file`; none is an empty
    /// log.
    fn refresh(&self, file: Option<&File>) -> Result<MutexGuard<'_, Cache>> {
        let mut cache = self.cache();
        let Some(mut file) = file else {
            *cache = Cache::default();
            return Ok(cache);
        };
        let meta = file.metadata().map_err(|source| self.failed(source))?;
        if cache.identity != identity(&meta) {
            *cache = Cache { identity: identity(&meta), ..Cache::default() };
        }
        let start = cache.position;
        let Some(fresh) = meta.len().checked_sub(start) else {
            return Err(self.damaged(meta.len(), "it is shorter than it was".into()));
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start)).map_err(|source| self.failed(source))?;
        file.take(fresh).read_to_end(&mut bytes).map_err(|source| self.failed(source))?;
        if let Err((offset, problem)) = replay(&bytes, &mut cache.table) {
            // Half a replay is in the table: the next look starts over, and finds the same damage.
            *cache = Cache::default();
            return Err(self.damaged(start + offset as u64, problem));
        }
        cache.position = start + bytes.len() as u64;
        Ok(cache)
    }

    fn damaged(&self, offset: u64, problem: String) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), offset, problem }
    }

    fn write(&self, file: &File, records: &[u8], position: u64) -> Result<()> {
        file.write_all_at(records, position).map_err(|source| {
            // A full disk must not leave half a record behind for everybody else.
            let _ = file.set_len(position);
            self.failed(source)
        })
    }

    /// Appends the records that `change` makes of the current table.
    fn update<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        change: impl FnOnce(&KeyTable) -> Result<(Vec<u8>, T)>,
    ) -> Result<T> {
        let file = self.lock(true, op, keys, wait)?;
        let Some(file) = file else { return Err(self.failed(ErrorKind::NotFound.into())) };
        let cache = self.refresh(Some(&file))?;
        let (records, value) = change(&cache.table)?;
        self.write(&file, &records, cache.position)?;
        Ok(value)
    }

    /// Polls the file until `ready` returns a value.
    fn until<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        mut ready: impl FnMut(&KeyTable) -> Option<T>,
    ) -> Result<T> {
        wait.until(|slice| {
            thread::sleep(slice.min(POLL));
            Ok(self.look(&mut ready)?)
        })
        .map_err(|fault: Fault| fault.error(op, keys, wait))
    }

    /// One look; takes the lock only if the file changed. `None` also if the lock is busy.
    fn look<T>(&self, ready: &mut impl FnMut(&KeyTable) -> Option<T>) -> Result<Option<T>> {
        let Some(meta) = self.metadata()? else { return Ok(ready(&self.refresh(None)?.table)) };
        {
            let cache = self.cache();
            if cache.identity == identity(&meta) && cache.position == meta.len() {
                return Ok(ready(&cache.table));
            }
        }
        match self.try_lock(FlockOperation::NonBlockingLockShared, false)? {
            Locked::Held(file) => Ok(ready(&self.refresh(Some(&file))?.table)),
            // Missing only since a moment ago: the next look knows.
            Locked::Busy | Locked::Missing => Ok(None),
        }
    }
}

/// A counter of the log.
fn counter(table: &KeyTable, key: &[u8]) -> Result<i64> {
    table.counter(key).map_err(|_| StoreError::NotNumeric {
        key: String::from_utf8_lossy(key).trim_start_matches('/').into(),
    })
}

/// One record's bytes.
fn record(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(8 + key.len() + value.len());
    for (what, part) in [("a key", key), ("a value", value)] {
        let Ok(len) = u32::try_from(part.len()) else {
            return Err(StoreError::TooLarge { what, size: part.len() as u64, limit: u32::MAX.into() });
        };
        bytes.extend_from_slice(&len.to_ne_bytes());
        bytes.extend_from_slice(part);
    }
    Ok(bytes)
}

/// Applies whole records to `table`; says where and why the bytes are no such thing.
fn replay(bytes: &[u8], table: &mut KeyTable) -> Result<(), (usize, String)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        let mut part = |what| {
            split_part(&mut rest).ok_or_else(|| (offset, format!("the record's {what} runs past the end")))
        };
        let (key, value) = (part("key")?, part("value")?);
        match key.split_first() {
            Some((b'-', key)) => drop(table.delete(key)),
            Some((b'>', key)) => table.push(key, value.to_vec()),
            Some((b'<', key)) => drop(table.pop(key)),
            _ => table.set(key, value.to_vec()),
        }
    }
    Ok(())
}

/// Takes a length and so many bytes off the front.
fn split_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk()?;
    let (part, tail) = tail.split_at_checked(u32::from_ne_bytes(*len) as usize)?;
    *rest = tail;
    Some(part)
}

/// `mark` before the key as the log holds it.
fn marked(mark: &str, key: &str) -> Vec<u8> {
    format!("{mark}/{key}").into_bytes()
}

fn stored(key: &str) -> Vec<u8> {
    marked("", key)
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.0.log.update("set", &[key], wait, |_| Ok((record(&stored(key), value)?, ())))
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        let name = stored(key);
        self.0.log.until("get", &[key], wait, |table| table.get(&name).map(<[u8]>::to_vec))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        self.0.log.update("multi_set", &[], wait, |_| {
            let records: Result<Vec<_>> =
                pairs.iter().map(|(key, value)| record(&stored(key), value)).collect();
            Ok((records?.concat(), ()))
        })
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.0.log.until("multi_get", keys, wait, |table| {
            keys.iter().map(|key| table.get(&stored(key)).map(<[u8]>::to_vec)).collect()
        })
    }

    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64> {
        let name = stored(key);
        self.0.log.update("add", &[key], wait, |table| {
            let sum = counter(table, &name)?.wrapping_add(delta);
            Ok((record(&name, sum.to_string().as_bytes())?, sum))
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        let name = stored(key);
        self.0.log.update("compare_set", &[key], wait, |table| {
            let (answer, stores) = table.compare(&name, expected, desired);
            Ok((if stores { record(&name, answer)? } else { Vec::new() }, answer.to_vec()))
        })
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        let name = stored(key);
        self.0.log.update("append", &[key], wait, |table| {
            let whole = [table.get(&name).unwrap_or_default(), value].concat();
            Ok((record(&name, &whole)?, ()))
        })
    }

    fn delete(&self, key: &str, wait: &Wait<'_>) -> Result<bool> {
        let name = stored(key);
        self.0.log.update("delete", &[key], wait, |table| {
            let exists = table.get(&name).is_some();
            Ok((if exists { record(&marked("-", key), b"")? } else { Vec::new() }, exists))
        })
    }

    fn check(&self, keys: &[&str], wait: &Wait<'_>) -> Result<bool> {
        self.0.log.until("check", keys, wait, |table| Some(keys.iter().all(|key| table.has(&stored(key)))))
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.0
            .log
            .until("wait", keys, wait, |table| keys.iter().all(|key| table.has(&stored(key))).then_some(()))
    }

    fn num_keys(&self, wait: &Wait<'_>) -> Result<i64> {
        self.0.log.until("num_keys", &[], wait, |table| Some(table.len() as i64))
    }

    fn list_keys(&self, wait: &Wait<'_>) -> Result<Vec<String>> {
        self.0.log.until("list_keys", &[], wait, |table| Some(table.key_names()))
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.0.log.update("queue_push", &[key], wait, |_| Ok((record(&marked(">", key), value)?, ())))
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        let name = stored(key);
        loop {
            let popped = self.0.log.update("queue_pop", &[key], wait, |table| match table.front(&name) {
                Some(value) => Ok((record(&marked("<", key), b"")?, Some(value.to_vec()))),
                None => Ok((Vec::new(), None)),
            })?;
            match popped {
                Some(value) => return Ok(value),
                None if !block => return Err(StoreError::QueueEmpty { key: key.to_owned() }),
                None => {}
            }
            // Several may see the same value arrive; those who come second wait again.
            self.0.log.until("queue_pop", &[key], wait, |table| table.front(&name).map(drop))?;
        }
    }

    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64> {
        let name = stored(key);
        self.0.log.until("queue_len", &[key], wait, |table| Some(table.queue_len(&name) as i64))
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.add(key, 1, wait)?;
        let name = stored(key);
        self.0.log.until("barrier", &[key], wait, |table| {
            table.counter(&name).is_ok_and(|count| count >= world as i64).then_some(())
        })
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_have_the_bytes_pytorch_writes() {
        // Little-endian, as on every machine PyTorch's file store meets in practice.
        if cfg!(target_endian = "little") {
            assert_eq!(record(b"/ab", b"xyz\0").unwrap(), b"\x03\0\0\0/ab\x04\0\0\0xyz\0");
        }
    }

    #[test]
    fn replay_sets_deletes_pushes_and_pops() {
        let log = [
            record(b"/a", b"1").unwrap(),
            record(b"/b", b"2").unwrap(),
            record(b"-/a", b"").unwrap(),
            record(b">/q", b"first").unwrap(),
            record(b">/q", b"second").unwrap(),
            record(b"</q", b"").unwrap(),
        ];
        let mut table = KeyTable::default();
        replay(&log.concat(), &mut table).unwrap();
        assert_eq!((table.get(b"/a"), table.get(b"/b")), (None, Some(&b"2"[..])));
        assert_eq!(table.front(b"/q"), Some(&b"second"[..]));
    }

    proptest! {
        #[test]
        fn replay_of_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = replay(&bytes, &mut KeyTable::default());
        }

        #[test]
        fn a_cut_or_flipped_log_never_panics(cut in 0usize..200, at in 0usize..200, bit in 0u8..8) {
            let mut log: Vec<u8> = (0..10u8).flat_map(|i| record(&[b'/', i], &[i; 5]).unwrap()).collect();
            let at = at % log.len();
            log[at] ^= 1 << bit;
            log.truncate(cut);
            let _ = replay(&log, &mut KeyTable::default());
        }
    }
}
