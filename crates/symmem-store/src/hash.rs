//! A store for the threads of one process: a map behind a mutex, and a condvar for those who wait.
//!
//! Anybody may clone it and call it from any thread. No lock is held while a [`Wait`] looks at its watch, so
//! a watch may use the store itself.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::table::{KeyTable, NotNumeric};
use crate::{Interrupt, Result, Store, StoreError, Wait};

/// An in-process store; clones share one map.
///
/// ```
/// use std::time::Duration;
/// use symmem_store::{HashStore, Store, Wait};
///
/// let store = HashStore::new();
/// let writer = store.clone();
/// let thread = std::thread::spawn(move || {
///     writer.set("colour", b"green", &Wait::for_at_most(Duration::from_secs(5)))
/// });
/// let wait = Wait::for_at_most(Duration::from_secs(5));
/// assert_eq!(store.get("colour", &wait)?, b"green");
/// assert_eq!(store.add("counter", 2, &wait)?, 2);
/// thread.join().expect("the writer does not panic")?;
/// # Ok::<(), symmem_store::StoreError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HashStore(Arc<SharedEntries>);

#[derive(Debug, Default)]
struct SharedEntries {
    table: Mutex<KeyTable>,
    changed: Condvar,
}

impl HashStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, KeyTable> {
        // No call leaves the table half changed, so a panicked thread's lock is as good as any.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table and wakes everybody who waits.
    fn change<T>(&self, change: impl FnOnce(&mut KeyTable) -> T) -> T {
        let result = change(&mut self.lock());
        self.0.changed.notify_all();
        result
    }

    /// Sleeps until `ready` returns a value.
    fn until<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        mut ready: impl FnMut(&mut KeyTable) -> Option<T>,
    ) -> Result<T> {
        let nap = |slice: Duration| {
            let mut table = self.lock();
            let value = ready(&mut table);
            if value.is_some() || slice.is_zero() {
                return Ok(value);
            }
            let woken = self.0.changed.wait_timeout(table, slice);
            let (mut table, _) = woken.unwrap_or_else(PoisonError::into_inner);
            Ok(ready(&mut table))
        };
        wait.until(nap).map_err(|interrupt: Interrupt| interrupt.error(op, keys, wait))
    }
}

fn not_numeric(key: &str) -> impl FnOnce(NotNumeric) -> StoreError {
    move |NotNumeric| StoreError::NotNumeric { key: key.to_owned() }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.change(|table| table.set(key.as_bytes(), value.to_vec()));
        Ok(())
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.until("get", &[key], wait, |table| table.get(key.as_bytes()).map(<[u8]>::to_vec))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], _: &Wait<'_>) -> Result<()> {
        self.change(|table| pairs.iter().for_each(|(key, value)| table.set(key.as_bytes(), value.to_vec())));
        Ok(())
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.until("multi_get", keys, wait, |table| {
            keys.iter().map(|key| table.get(key.as_bytes()).map(<[u8]>::to_vec)).collect()
        })
    }

    fn add(&self, key: &str, delta: i64, _: &Wait<'_>) -> Result<i64> {
        self.change(|table| table.add(key.as_bytes(), delta)).map_err(not_numeric(key))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], _: &Wait<'_>) -> Result<Vec<u8>> {
        Ok(self.change(|table| {
            let (answer, stores) = table.compare(key.as_bytes(), expected, desired);
            let answer = answer.to_vec();
            if stores {
                table.set(key.as_bytes(), answer.clone());
            }
            answer
        }))
    }

    fn append(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.change(|table| table.append(key.as_bytes(), value));
        Ok(())
    }

    fn delete(&self, key: &str, _: &Wait<'_>) -> Result<bool> {
        Ok(self.change(|table| table.delete(key.as_bytes())))
    }

    fn check(&self, keys: &[&str], _: &Wait<'_>) -> Result<bool> {
        let table = self.lock();
        Ok(keys.iter().all(|key| table.has(key.as_bytes())))
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.until("wait", keys, wait, |table| keys.iter().all(|key| table.has(key.as_bytes())).then_some(()))
    }

    fn num_keys(&self, _: &Wait<'_>) -> Result<i64> {
        Ok(self.lock().len() as i64)
    }

    fn list_keys(&self, _: &Wait<'_>) -> Result<Vec<String>> {
        Ok(self.lock().key_names())
    }

    fn queue_push(&self, key: &str, value: &[u8], _: &Wait<'_>) -> Result<()> {
        self.change(|table| table.push(key.as_bytes(), value.to_vec()));
        Ok(())
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        if block {
            return self.until("queue_pop", &[key], wait, |table| table.pop(key.as_bytes()));
        }
        self.lock().pop(key.as_bytes()).ok_or_else(|| StoreError::QueueEmpty { key: key.to_owned() })
    }

    fn queue_len(&self, key: &str, _: &Wait<'_>) -> Result<i64> {
        Ok(self.lock().queue_len(key.as_bytes()) as i64)
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.add(key, 1, wait)?;
        // Whoever overwrites the counter with text breaks the barrier; the others then run into their
        // deadline.
        self.until("barrier", &[key], wait, |table| {
            table.counter(key.as_bytes()).is_ok_and(|count| count >= world as i64).then_some(())
        })
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.clone()))
    }
}
