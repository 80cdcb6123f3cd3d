//! A store between ranks that changes what they read, as whoever can write a store may.

use std::sync::{Arc, Mutex, PoisonError};

use symmem_store::fuzzing::Choices;
use symmem_store::{HashStore, Result, Store, Wait};

/// The parts of a join, by a word in their keys.
const PARTS: [&str; 5] = ["/hello/", "/answer", "/address/", "/vote/", ""];

/// One change to every value of one part.
#[derive(Clone, Debug)]
struct Edit {
    part: usize,
    kind: u8,
    at: usize,
    bytes: Vec<u8>,
}

/// Reads the edits that a fuzzer's bytes say.
fn edits(bytes: &[u8]) -> Vec<Edit> {
    let mut choices = Choices(bytes);
    let mut edits = Vec::new();
    while !choices.is_empty() && edits.len() < 16 {
        let (part, kind, at) = (choices.byte(), choices.byte(), choices.short());
        let len = choices.byte();
        let bytes = choices.bytes(usize::from(len)).to_vec();
        edits.push(Edit { part: usize::from(part) % PARTS.len(), kind, at: at.into(), bytes });
    }
    edits
}

impl Edit {
    fn is_for(&self, key: &str) -> bool {
        let part = PARTS.iter().position(|word| key.contains(word)).unwrap_or(PARTS.len() - 1);
        part == self.part
    }

    fn apply(&self, value: &mut Vec<u8>) {
        let at = self.at % (value.len() + 1);
        match self.kind % 6 {
            // Changes a byte.
            0 => {
                if let (Some(byte), Some(with)) = (value.get_mut(at), self.bytes.first()) {
                    *byte = *with;
                }
            }
            // Inserts.
            1 => drop(value.splice(at..at, self.bytes.iter().copied())),
            // Takes out as many bytes as it has.
            2 => drop(value.drain(at..value.len().min(at + self.bytes.len()))),
            // Puts something else in the place of the next number.
            3 => {
                let start = (at..value.len()).find(|at| value[*at].is_ascii_digit()).unwrap_or(value.len());
                let digits = value[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                drop(value.splice(start..start + digits, self.bytes.iter().copied()));
            }
            4 => *value = self.bytes.clone(),
            // Puts what is behind a zero in the place of what is before it.
            _ => {
                let mut texts = self.bytes.splitn(2, |byte| *byte == 0);
                let (old, new) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
                let found = value.windows(old.len().max(1)).position(|window| window == old);
                found.into_iter().for_each(|at| drop(value.splice(at..at + old.len(), new.iter().copied())));
            }
        }
    }
}

/// A store of this process that changes values as they are read, and remembers those that were written.
#[derive(Clone, Debug)]
pub(super) struct Tampering {
    store: HashStore,
    edits: Arc<[Edit]>,
    written: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tampering {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self { store: HashStore::new(), edits: edits(bytes).into(), written: Arc::default() }
    }

    /// Everything that was written, in that order.
    pub(super) fn written(&self) -> Vec<Vec<u8>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, value: &[u8]) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(value.to_vec());
    }

    fn tamper(&self, key: &str, mut value: Vec<u8>) -> Vec<u8> {
        self.edits.iter().filter(|edit| edit.is_for(key)).for_each(|edit| edit.apply(&mut value));
        value
    }
}

impl Store for Tampering {
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.note(value);
        self.store.set(key, value, wait)
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        Ok(self.tamper(key, self.store.get(key, wait)?))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        pairs.iter().for_each(|(_, value)| self.note(value));
        self.store.multi_set(pairs, wait)
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        let values = self.store.multi_get(keys, wait)?;
        Ok(keys.iter().zip(values).map(|(key, value)| self.tamper(key, value)).collect())
    }

    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64> {
        self.store.add(key, delta, wait)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.note(desired);
        Ok(self.tamper(key, self.store.compare_set(key, expected, desired, wait)?))
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
        Ok(self.tamper(key, self.store.queue_pop(key, block, wait)?))
    }

    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64> {
        self.store.queue_len(key, wait)
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.store.barrier(key, world, wait)
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.clone()))
    }
}
