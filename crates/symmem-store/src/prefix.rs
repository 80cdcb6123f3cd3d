//! A store inside a store: every key gets a prefix, everything else is forwarded.

use std::sync::Arc;

use crate::{Result, Store, Wait};

/// Gives each of several users of one store a name space of its own: key `k` becomes `<prefix>/k`.
///
/// [`Store::num_keys`] and [`Store::list_keys`] are those of the underlying store, as in PyTorch. Errors name
/// the full keys.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use symmem_store::{HashStore, PrefixStore, Store, Wait};
///
/// let wait = Wait::for_at_most(Duration::from_secs(5));
/// let whole = HashStore::new();
/// let part = PrefixStore::new("job7", Arc::new(whole.clone()));
/// part.set("leader", b"3", &wait)?;
/// assert_eq!(whole.get("job7/leader", &wait)?, b"3");
/// # Ok::<(), symmem_store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrefixStore {
    prefix: String,
    store: Arc<dyn Store>,
}

impl PrefixStore {
    /// Puts `prefix` before every key of `store`. Nesting concatenates: the innermost store sees the
    /// outermost prefix last.
    pub fn new(prefix: impl Into<String>, store: Arc<dyn Store>) -> Self {
        Self { prefix: prefix.into(), store }
    }

    /// The store underneath.
    pub fn underlying(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// Calls `call` with all keys prefixed.
    fn with_keys<T>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> T) -> T {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        call(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.set(&self.key(key), value, wait)
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), wait)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        let keys: Vec<String> = pairs.iter().map(|(key, _)| self.key(key)).collect();
        let pairs: Vec<_> = keys.iter().zip(pairs).map(|(key, (_, value))| (key.as_str(), *value)).collect();
        self.store.multi_set(&pairs, wait)
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.with_keys(keys, |keys| self.store.multi_get(keys, wait))
    }

    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64> {
        self.store.add(&self.key(key), delta, wait)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired, wait)
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.append(&self.key(key), value, wait)
    }

    fn delete(&self, key: &str, wait: &Wait<'_>) -> Result<bool> {
        self.store.delete(&self.key(key), wait)
    }

    fn check(&self, keys: &[&str], wait: &Wait<'_>) -> Result<bool> {
        self.with_keys(keys, |keys| self.store.check(keys, wait))
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.with_keys(keys, |keys| self.store.wait(keys, wait))
    }

    fn num_keys(&self, wait: &Wait<'_>) -> Result<i64> {
        self.store.num_keys(wait)
    }

    fn list_keys(&self, wait: &Wait<'_>) -> Result<Vec<String>> {
        self.store.list_keys(wait)
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.queue_push(&self.key(key), value, wait)
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.queue_pop(&self.key(key), block, wait)
    }

    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64> {
        self.store.queue_len(&self.key(key), wait)
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.store.barrier(&self.key(key), world, wait)
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self::new(self.prefix.clone(), self.store.try_clone()?)))
    }
}
