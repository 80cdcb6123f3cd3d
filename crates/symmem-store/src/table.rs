//! The map and the queues every store keeps, without waiting or locking.
//!
//! `HashStore`, `FileStore` and the TCP server each wrap one, so that they agree on what every call means.
//! Keys and values are byte strings: what travels over a socket or lies in a file need not be text.

use std::collections::{HashMap, VecDeque};

/// What one entry costs beside its bytes, roughly: the accounting must not think empty values free.
pub(crate) const ENTRY_OVERHEAD: usize = 128;

/// Most room that an appended value has to spare.
const SLACK: usize = 4 << 10;

/// A counter's value is not a decimal number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotNumeric;

#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    map: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    bytes: usize,
}

impl KeyTable {
    pub(crate) fn set(&mut self, key: &[u8], value: Vec<u8>) {
        self.bytes += value.capacity();
        match self.map.get_mut(key) {
            Some(old) => self.bytes -= std::mem::replace(old, value).capacity(),
            None => {
                self.bytes += key.len() + ENTRY_OVERHEAD;
                self.map.insert(key.to_vec(), value);
            }
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(Vec::as_slice)
    }

    /// The counter at `key`; a missing one is 0.
    pub(crate) fn counter(&self, key: &[u8]) -> Result<i64, NotNumeric> {
        let Some(value) = self.get(key) else { return Ok(0) };
        std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok()).ok_or(NotNumeric)
    }

    /// Adds to the counter, wrapping around as the reference does in practice.
    pub(crate) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, NotNumeric> {
        let sum = self.counter(key)?.wrapping_add(delta);
        self.set(key, sum.to_string().into_bytes());
        Ok(sum)
    }

    /// What a compare-set answers, and whether it stores that. Copies nothing: a value may be as large as the
    /// store.
    pub(crate) fn compare<'a>(
        &'a self,
        key: &[u8],
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> (&'a [u8], bool) {
        // A missing key equals the empty string and nothing else.
        match self.get(key) {
            value if value.unwrap_or_default() == expected => (desired, true),
            value => (value.unwrap_or(expected), false),
        }
    }

    pub(crate) fn append(&mut self, key: &[u8], value: &[u8]) {
        match self.map.get_mut(key) {
            Some(old) => {
                let room = old.capacity();
                if room - old.len() < value.len() {
                    // A vector would double, which nobody has accounted for. A little more than is needed
                    // keeps many small appends cheap; large blocks grow without being copied.
                    old.reserve_exact(value.len() + (old.len() / 8).min(SLACK));
                }
                old.extend_from_slice(value);
                self.bytes += old.capacity() - room;
            }
            None => self.set(key, value.to_vec()),
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.map.remove(key) else { return false };
        self.bytes -= key.len() + value.capacity() + ENTRY_OVERHEAD;
        true
    }

    /// Whether waiting for `key` would be over: it is set, or a queue of that name holds something.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.map.contains_key(key) || self.queues.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.map.keys().map(Vec::as_slice)
    }

    /// The keys as text; bytes that are not UTF-8 (foreign clients only) become replacement characters.
    pub(crate) fn key_names(&self) -> Vec<String> {
        self.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    pub(crate) fn push(&mut self, key: &[u8], value: Vec<u8>) {
        if !self.queues.contains_key(key) {
            self.bytes += key.len() + ENTRY_OVERHEAD;
        }
        self.bytes += value.capacity() + ENTRY_OVERHEAD;
        self.queues.entry(key.to_vec()).or_default().push_back(value);
    }

    /// Takes the oldest value; an emptied queue ceases to exist.
    pub(crate) fn pop(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front()?;
        self.bytes -= value.capacity() + ENTRY_OVERHEAD;
        if queue.is_empty() {
            self.queues.remove(key);
            self.bytes -= key.len() + ENTRY_OVERHEAD;
        }
        Some(value)
    }

    pub(crate) fn front(&self, key: &[u8]) -> Option<&[u8]> {
        self.queues.get(key)?.front().map(Vec::as_slice)
    }

    pub(crate) fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Bytes held, spare room, keys and [`ENTRY_OVERHEAD`] included.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_return_to_zero_when_everything_is_taken_out() {
        let mut table = KeyTable::default();
        table.set(b"a", b"12".to_vec());
        table.set(b"a", b"1".to_vec());
        table.add(b"a", 99).unwrap();
        table.append(b"a", b"xyz");
        table.append(b"b", b"");
        table.push(b"q", b"one".to_vec());
        table.push(b"q", b"two".to_vec());
        assert!(table.bytes() > 6 * ENTRY_OVERHEAD / 2);
        assert_eq!(table.pop(b"q").as_deref(), Some(&b"one"[..]));
        assert_eq!(table.pop(b"q").as_deref(), Some(&b"two"[..]));
        assert_eq!(table.pop(b"q"), None);
        assert!(table.delete(b"a") && table.delete(b"b") && !table.delete(b"b"));
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn an_appended_value_has_little_room_to_spare_and_all_of_it_counts() {
        let mut table = KeyTable::default();
        table.append(b"k", &[0; 100]);
        for _ in 0..1000 {
            table.append(b"k", &[0; 10_001]);
            let value = &table.map[&b"k"[..]];
            assert!(value.capacity() <= value.len() + SLACK, "{} of {}", value.len(), value.capacity());
            assert_eq!(table.bytes(), 1 + value.capacity() + ENTRY_OVERHEAD);
        }
        // Many small ones do not take a new block each.
        let grown = (0..10_000).filter(|_| {
            let room = table.map[&b"k"[..]].capacity();
            table.append(b"k", b"x");
            table.map[&b"k"[..]].capacity() != room
        });
        assert!(grown.count() < 10);
        assert!(table.delete(b"k"));
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn a_missing_key_compares_equal_to_the_empty_string_only() {
        let mut table = KeyTable::default();
        assert_eq!(table.compare(b"k", b"x", b"y"), (&b"x"[..], false));
        assert_eq!(table.compare(b"k", b"", b"y"), (&b"y"[..], true));
        table.set(b"k", b"y".to_vec());
        assert_eq!(table.compare(b"k", b"", b"z"), (&b"y"[..], false));
        assert_eq!(table.compare(b"k", b"y", b"z"), (&b"z"[..], true));
    }

    #[test]
    fn text_that_is_no_number_cannot_be_added_to() {
        let mut table = KeyTable::default();
        table.set(b"k", b"12x".to_vec());
        assert_eq!(table.add(b"k", 1), Err(NotNumeric));
        table.set(b"k", b"-3".to_vec());
        assert_eq!(table.add(b"k", 5), Ok(2));
        assert_eq!(table.get(b"k"), Some(&b"2"[..]));
    }
}
