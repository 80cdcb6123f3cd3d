//! Key-value stores that ranks meet in.
//!
//! A [`Store`] is a small shared map with blocking reads: ranks that know nothing of each other but a store's
//! address (or path, or handle) agree on everything else through it.
//!
//! | store | who shares it |
//! |---|---|
//! | [`HashStore`] | threads of one process |
//! | [`FileStore`] | processes that see one file; PyTorch's FileStore reads and writes the same format |
//! | [`TcpStore`] | processes on any machine, served by a [`TcpStoreServer`] or by PyTorch's TCPStore |
//! | [`PrefixStore`] | whoever shares the store underneath, in a name space of its own |
//!
//! Every call takes a [`Wait`], which says when to give up: at a deadline, when a [`CancelToken`] is
//! cancelled, or when a [`Watch`] sees something. All stores behave alike; what differs is named at each.

mod error;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod prefix;
mod table;
mod tcp;
mod wait;

pub use error::{Result, StoreError, served_on_loopback};
pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use tcp::{ServerLimits, TcpStore, TcpStoreOptions, TcpStoreServer};
pub use wait::{CancelToken, Deadline, Interrupt, TICK, Wait, Watch};

use std::fmt::Debug;
use std::sync::Arc;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// A shared map from keys to byte strings, with blocking reads, counters and queues.
///
/// Every call takes a [`Wait`]: its deadline, cancel token and watch hold for the whole call, network
/// included. Counters are ASCII decimal strings, as in PyTorch.
pub trait Store: Send + Sync + Debug {
    /// Sets `key` to `value`.
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()>;

    /// Returns the value of `key`, waiting until somebody sets it.
    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>>;

    /// Sets several keys.
    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()>;

    /// Returns the values of `keys` in order, waiting until all exist.
    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>>;

    /// Adds `delta` to the counter at `key` (missing counts as 0) and returns the new value.
    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64>;

    /// Stores `desired` if the value equals `expected` (or the key is missing and `expected` is empty), and
    /// returns what the key now holds; a missing key with a non-empty `expected` returns `expected` unstored.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>>;

    /// Appends to the value of `key` (missing counts as empty).
    fn append(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()>;

    /// Deletes `key`; true if it existed.
    fn delete(&self, key: &str, wait: &Wait<'_>) -> Result<bool>;

    /// Whether all `keys` exist now.
    fn check(&self, keys: &[&str], wait: &Wait<'_>) -> Result<bool>;

    /// Waits until all `keys` exist.
    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()>;

    /// Number of keys, internal ones included, queues excluded.
    fn num_keys(&self, wait: &Wait<'_>) -> Result<i64>;

    /// All keys, unordered, as the store holds them (with its own prefixes).
    fn list_keys(&self, wait: &Wait<'_>) -> Result<Vec<String>>;

    /// Pushes onto the queue `key`.
    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()>;

    /// Pops the oldest value of the queue `key`, waiting for one if `block`; an empty queue is
    /// [`StoreError::QueueEmpty`] otherwise.
    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>>;

    /// Length of the queue `key`.
    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64>;

    /// Returns once `world` calls have been made for `key`. Use a fresh key each time.
    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()>;

    /// A second, independent connection to the same store.
    fn try_clone(&self) -> Result<Arc<dyn Store>>;
}
