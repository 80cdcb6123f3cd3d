//! The numbers of PyTorch's TCPStore protocol, and how requests are written.
//!
//! Everything here is fixed by the reference; a change breaks interoperation.

use crate::{Result, StoreError};

/// What a client must say first.
pub(crate) const MAGIC: u32 = 0x3C85_F7CE;

/// Most keys in one request.
pub(crate) const MAX_KEYS: u64 = 131_072;
/// Longest key, the client's `/` included.
pub(crate) const MAX_KEY_LEN: u64 = 8192;
/// Longest value.
pub(crate) const MAX_VALUE_LEN: u64 = 8 << 20;

/// CHECK: all keys exist.
pub(crate) const READY: u8 = 0;
/// CHECK: some key is missing.
pub(crate) const NOT_READY: u8 = 1;
/// WAIT and BARRIER: the wait is over.
pub(crate) const STOP_WAITING: u8 = 0;
/// CANCEL_WAIT: no wait is outstanding any more.
pub(crate) const WAIT_CANCELED: u8 = 1;

/// The key under which clients count themselves; the one key a client sends without its `/`.
pub(crate) const INIT_KEY: &[u8] = b"init/";

/// The kind of a request: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    NumKeys,
    Delete,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
}

impl Query {
    /// In wire order: a query's byte is its index.
    const ALL: [Query; 19] = [
        Query::Validate,
        Query::Set,
        Query::CompareSet,
        Query::Get,
        Query::Add,
        Query::Check,
        Query::Wait,
        Query::NumKeys,
        Query::Delete,
        Query::Append,
        Query::MultiGet,
        Query::MultiSet,
        Query::CancelWait,
        Query::Ping,
        Query::QueuePush,
        Query::QueuePop,
        Query::QueueLen,
        Query::ListKeys,
        Query::Barrier,
    ];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// A request being written.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(query: Query) -> Self {
        Self(vec![query as u8])
    }

    pub(crate) fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(crate) fn i64(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// A length and bytes, unchecked.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        put_bytes(&mut self.0, bytes);
        self
    }

    /// A user's key, with the prefix that keeps it apart from the protocol's own.
    pub(crate) fn key(mut self, key: &str) -> Result<Self> {
        let len = key.len() as u64 + 1;
        within("a key", len, MAX_KEY_LEN)?;
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.push(b'/');
        self.0.extend_from_slice(key.as_bytes());
        Ok(self)
    }

    pub(crate) fn value(self, value: &[u8]) -> Result<Self> {
        within("a value", value.len() as u64, MAX_VALUE_LEN)?;
        Ok(self.bytes(value))
    }

    /// The number of keys (or pairs) that follow.
    pub(crate) fn count(self, count: usize) -> Result<Self> {
        within("a number of keys", count as u64, MAX_KEYS)?;
        Ok(self.i64(count as i64))
    }

    pub(crate) fn keys(self, keys: &[&str]) -> Result<Self> {
        keys.iter().try_fold(self.count(keys.len())?, |message, key| message.key(key))
    }

    /// Another request behind this one, in the same write.
    pub(crate) fn then(mut self, next: Message) -> Self {
        self.0.extend(next.0);
        self
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn within(what: &'static str, size: u64, limit: u64) -> Result<()> {
    if size > limit {
        return Err(StoreError::TooLarge { what, size, limit });
    }
    Ok(())
}
