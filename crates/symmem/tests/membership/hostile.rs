//! A store that somebody else can write: it changes values on their way in, and strangers put theirs beside
//! them.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use symmem::store::{HashStore, Result, Store, Wait};

use crate::common::patiently;

/// Bytes of a seal, before what was sealed: its mark and a hash.
pub(crate) const SEAL: usize = 16 + 32;

/// What is done to a value: by key.
type Edit = Box<dyn Fn(&str, Vec<u8>) -> Vec<u8> + Send + Sync>;

/// A store whose owner changes what honest ranks set.
pub(crate) struct Hostile {
    store: HashStore,
    edit: Edit,
}

impl Hostile {
    pub(crate) fn changing(
        edit: impl Fn(&str, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    ) -> Arc<dyn Store> {
        Arc::new(Self { store: HashStore::new(), edit: Box::new(edit) })
    }

    /// Changes the JSON text somewhere in the values whose key ends with `key`.
    pub(crate) fn editing(
        key: &'static str,
        edit: impl Fn(&mut Value) + Send + Sync + 'static,
    ) -> Arc<dyn Store> {
        Self::changing(move |name, value| if name.ends_with(key) { edit_json(&value, &edit) } else { value })
    }
}

/// `value` with the JSON text in it changed; what is around it (a proof) stays.
pub(crate) fn edit_json(value: &[u8], edit: &impl Fn(&mut Value)) -> Vec<u8> {
    let start = if value.starts_with(b"symmem sealed 1\n") { SEAL } else { 0 };
    let mut json: Value = serde_json::from_slice(&value[start..]).expect("the value holds JSON");
    edit(&mut json);
    [&value[..start], &serde_json::to_vec(&json).expect("JSON")].concat()
}

impl fmt::Debug for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hostile")
    }
}

impl Store for Hostile {
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.set(key, &(self.edit)(key, value.to_vec()), wait)
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.get(key, wait)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value, wait))
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.store.multi_get(keys, wait)
    }

    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64> {
        self.store.add(key, delta, wait)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.compare_set(key, expected, desired, wait)
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.append(key, value, wait)
    }

    fn delete(&self, key: &str, wait: &Wait<'_>) -> Result<bool> {
        self.store.delete(key, wait)
    }

    fn check(&self, keys: &[&str], wait: &Wait<'_>) -> Result<bool> {
        self.store.check(keys, wait)
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.store.wait(keys, wait)
    }

    fn num_keys(&self, wait: &Wait<'_>) -> Result<i64> {
        self.store.num_keys(wait)
    }

    fn list_keys(&self, wait: &Wait<'_>) -> Result<Vec<String>> {
        self.store.list_keys(wait)
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.store.queue_push(key, value, wait)
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.store.queue_pop(key, block, wait)
    }

    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64> {
        self.store.queue_len(key, wait)
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.store.barrier(key, world, wait)
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        self.store.try_clone()
    }
}

/// A stranger that can write the store: says hello as `rank`, as rank 0 did but with `changes`, and then does
/// what a rank does as far as it can.
pub(crate) fn say_hello_as(store: &dyn Store, boot: &str, rank: usize, changes: &[(&str, Value)]) {
    let hello = store.get(&format!("{boot}/hello/0"), &patiently()).expect("rank 0 says hello");
    let forged = edit_json(&hello, &|json: &mut Value| {
        json["nonce"] = Value::from("00112233445566778899aabbccddeeff");
        for (field, value) in changes {
            json[*field] = value.clone();
        }
    });
    store.set(&format!("{boot}/hello/{rank}"), &forged, &patiently()).expect("the store takes it");
}

/// The group id that rank 0's answer leads to, from the keys that honest ranks set under it.
pub(crate) fn group_id(store: &dyn Store, boot: &str) -> Option<String> {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while std::time::Instant::now() < until {
        let keys = store.list_keys(&patiently()).expect("the store lists its keys");
        let id = keys.iter().find_map(|key| {
            let (id, _) = key.strip_prefix(boot)?.strip_prefix('/')?.split_once("/address/")?;
            Some(id.to_owned())
        });
        if id.is_some() {
            return id;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    None
}
