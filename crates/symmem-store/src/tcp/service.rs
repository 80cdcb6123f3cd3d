//! What requests do: the server's state, without sockets or threads.
//!
//! The event loop hands in one whole request at a time; the reply is appended to the connection's output, and
//! the connections whose wait that request ended are returned.
//!
//! A wait for several keys waits for one after the other and registers for one at a time, so that a wait
//! costs little however many keys it names. The reference registers for all at once; the two differ only for
//! a key that is set and deleted again while an earlier one is still missing: we wait for its return, the
//! reference does not.

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::vec::IntoIter;

use crate::table::{ENTRY_OVERHEAD, KeyTable, NotNumeric};
use crate::tcp::parser::{Request, RequestError};
use crate::tcp::protocol::{NOT_READY, Query, READY, STOP_WAITING, WAIT_CANCELED, put_bytes};
use crate::tcp::server::ServerLimits;

/// A string long enough to make room for exactly it.
const LARGE: usize = 64 << 10;

/// What a key of a wait costs beside its bytes, roughly.
const KEY_OVERHEAD: usize = 64;

/// Names a connection.
pub(crate) type Token = u64;

/// The store behind the server.
#[derive(Debug, Default)]
pub(crate) struct Service {
    table: KeyTable,
    waits: Waits,
}

impl Service {
    /// Carries out one request of `token`; returns whose waits ended, each of whom is owed [`STOP_WAITING`].
    pub(crate) fn handle(
        &mut self,
        token: Token,
        mut request: Request,
        out: &mut Vec<u8>,
        limits: &ServerLimits,
    ) -> Result<Vec<Token>, RequestError> {
        if stores(request.query) {
            let new: usize = request.parts.iter().map(|part| part.len() + ENTRY_OVERHEAD).sum();
            if self.table.bytes().saturating_add(new) > limits.max_stored_bytes {
                return Err(RequestError::StoreFull);
            }
        }
        let mut reply = Reply { out, limit: limits.max_connection_bytes };
        let number = request.number;
        if let Query::Check | Query::Wait | Query::MultiGet | Query::MultiSet = request.query {
            return self.handle_many(token, request, reply);
        }
        match (request.query, request.parts.as_mut_slice()) {
            (Query::Set, [key, value]) => {
                self.table.set(key, take(value));
                return Ok(self.wake(Awaited::Key(take(key)), usize::MAX));
            }
            (Query::CompareSet, [key, expected, desired]) => {
                let (answer, stores) = self.table.compare(key, expected, desired);
                reply.bytes(answer)?;
                if stores {
                    self.table.set(key, take(desired));
                    return Ok(self.wake(Awaited::Key(take(key)), usize::MAX));
                }
            }
            (Query::Get, [key]) => reply.bytes(self.table.get(key).unwrap_or_default())?,
            (Query::Add, [key, ..]) => {
                reply.i64(self.table.add(key, number as i64)?);
                return Ok(self.wake(Awaited::Key(take(key)), usize::MAX));
            }
            (Query::Append, [key, value]) => {
                self.table.append(key, value);
                return Ok(self.wake(Awaited::Key(take(key)), usize::MAX));
            }
            (Query::Delete, [key]) => reply.i64(self.table.delete(key).into()),
            (Query::NumKeys, _) => reply.i64(self.table.len() as i64),
            (Query::ListKeys, _) => {
                reply.i64(self.table.len() as i64);
                self.table.keys().try_for_each(|key| reply.bytes(key))?;
            }
            (Query::Ping, _) => reply.out.extend_from_slice(&(number as u32).to_le_bytes()),
            (Query::QueuePush, [key, value]) => {
                self.table.push(key, take(value));
                return Ok(self.wake(Awaited::Key(take(key)), 1));
            }
            (Query::QueuePop, [key]) => {
                reply.i64(self.table.queue_len(key) as i64);
                if let Some(value) = self.table.front(key) {
                    reply.bytes(value)?;
                    self.table.pop(key);
                }
            }
            (Query::QueueLen, [key]) => reply.i64(self.table.queue_len(key) as i64),
            (Query::Barrier, [key, ..]) => return self.barrier(token, take(key), number as i64, reply),
            (Query::CancelWait, _) => {
                self.waits.cancel(token);
                reply.byte(WAIT_CANCELED);
            }
            // VALIDATE has no reply; the parser makes no other combination.
            _ => {}
        }
        Ok(Vec::new())
    }

    /// The requests that name any number of keys.
    fn handle_many(
        &mut self,
        token: Token,
        request: Request,
        mut reply: Reply<'_>,
    ) -> Result<Vec<Token>, RequestError> {
        let keys = request.parts;
        match request.query {
            Query::Check => {
                reply.byte(if keys.iter().all(|key| self.table.has(key)) { READY } else { NOT_READY })
            }
            Query::Wait => {
                self.waits.cancel(token);
                let held = keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum();
                if self.wait_for(token, keys.into_iter(), held) {
                    reply.byte(STOP_WAITING);
                }
            }
            Query::MultiGet => {
                keys.iter().try_for_each(|key| reply.bytes(self.table.get(key).unwrap_or_default()))?
            }
            _ => {
                let mut woken = Vec::new();
                let mut parts = keys.into_iter();
                while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
                    self.table.set(&key, value);
                    woken.extend(self.wake(Awaited::Key(key), usize::MAX));
                }
                return Ok(woken);
            }
        }
        Ok(Vec::new())
    }

    /// Counts an arrival in the key itself, which stays: a barrier that was passed is passed for ever.
    fn barrier(
        &mut self,
        token: Token,
        key: Vec<u8>,
        world: i64,
        mut reply: Reply<'_>,
    ) -> Result<Vec<Token>, RequestError> {
        let arrived = self.table.add(&key, 1)?;
        let mut woken = self.wake(Awaited::Key(key.clone()), usize::MAX);
        if arrived >= world {
            reply.byte(STOP_WAITING);
            woken.extend(self.wake(Awaited::Barrier(key), usize::MAX));
        } else {
            let rest = Vec::new().into_iter();
            self.waits.begin(token, Pending { awaited: Awaited::Barrier(key), rest, held: 0 });
        }
        Ok(woken)
    }

    /// Waits for the first of `keys` that is missing; true if none is.
    fn wait_for(&mut self, token: Token, mut keys: IntoIter<Vec<u8>>, held: usize) -> bool {
        let Some(missing) = keys.find(|key| !self.table.has(key)) else { return true };
        self.waits.begin(token, Pending { awaited: Awaited::Key(missing), rest: keys, held });
        false
    }

    /// Tells the first `most` who wait for it; returns those who now wait for nothing more.
    fn wake(&mut self, awaited: Awaited, most: usize) -> Vec<Token> {
        let told = self.waits.end(&awaited, most).into_iter();
        let done =
            told.filter_map(|(token, wait)| self.wait_for(token, wait.rest, wait.held).then_some(token));
        done.collect()
    }

    /// The connection is gone, and its wait with it.
    pub(crate) fn forget(&mut self, token: Token) {
        self.waits.cancel(token);
    }

    /// Whether `token` waits for something.
    pub(crate) fn waits(&self, token: Token) -> bool {
        self.waits.pending.contains_key(&token)
    }

    /// Bytes held for the wait of `token`.
    pub(crate) fn held(&self, token: Token) -> usize {
        self.waits.pending.get(&token).map_or(0, |wait| wait.held)
    }

    /// Bytes that the table holds.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn stored(&self) -> usize {
        self.table.bytes()
    }
}

impl From<NotNumeric> for RequestError {
    fn from(_: NotNumeric) -> Self {
        Self::NotNumeric
    }
}

/// Whether the request makes the table larger.
fn stores(query: Query) -> bool {
    use Query::{Add, Append, Barrier, CompareSet, MultiSet, QueuePush, Set};
    matches!(query, Set | CompareSet | Add | Append | MultiSet | QueuePush | Barrier)
}

/// Appends to a connection's output, up to what it may hold.
struct Reply<'a> {
    out: &'a mut Vec<u8>,
    limit: usize,
}

impl Reply<'_> {
    fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    fn i64(&mut self, number: i64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), RequestError> {
        if self.out.len() + 8 + bytes.len() > self.limit {
            return Err(RequestError::HoldsTooMuch);
        }
        if bytes.len() > LARGE {
            // Doubling would reserve as much again.
            self.out.reserve_exact(8 + bytes.len());
        }
        put_bytes(self.out, bytes);
        Ok(())
    }
}

/// What a connection can wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Awaited {
    Key(Vec<u8>),
    Barrier(Vec<u8>),
}

/// Who waits for what; one wait per connection.
#[derive(Debug, Default)]
struct Waits {
    /// In order of arrival.
    waiters: HashMap<Awaited, VecDeque<Token>>,
    pending: HashMap<Token, Pending>,
}

/// A connection's wait.
#[derive(Debug)]
struct Pending {
    awaited: Awaited,
    /// The keys to look at after that.
    rest: IntoIter<Vec<u8>>,
    /// Bytes held when it began; counting again at each step would cost more than it is worth.
    held: usize,
}

impl Waits {
    /// Starts the one wait of `token`; one it already had ends without an answer.
    fn begin(&mut self, token: Token, wait: Pending) {
        self.cancel(token);
        self.waiters.entry(wait.awaited.clone()).or_default().push_back(token);
        self.pending.insert(token, wait);
    }

    fn cancel(&mut self, token: Token) {
        let Some(Pending { awaited, .. }) = self.pending.remove(&token) else { return };
        let Some(waiters) = self.waiters.get_mut(&awaited) else { return };
        waiters.retain(|waiter| *waiter != token);
        if waiters.is_empty() {
            self.waiters.remove(&awaited);
        }
    }

    /// Ends the waits of the first `most` who wait for it; returns who they are and what else they want.
    fn end(&mut self, awaited: &Awaited, most: usize) -> Vec<(Token, Pending)> {
        let Some(waiters) = self.waiters.get_mut(awaited) else { return Vec::new() };
        let told: Vec<Token> = waiters.drain(..most.min(waiters.len())).collect();
        if waiters.is_empty() {
            self.waiters.remove(awaited);
        }
        told.into_iter().filter_map(|token| Some((token, self.pending.remove(&token)?))).collect()
    }
}
