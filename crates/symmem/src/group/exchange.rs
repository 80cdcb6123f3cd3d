//! Typed exchange between all ranks of a group: all_gather, broadcast and barrier of plain data and bytes.
//!
//! On one host it runs over the control segments' staging: a rank writes its part into its own staging, meets
//! everybody, and copies everybody's part out. Two parities of staging are enough because every rank hears
//! from every rank (see `sync::protocol::meet`). Across hosts it runs over the store, where strangers may
//! write: each part is sealed (`group::seal`) for this group, rank and epoch, and one that is not ends the
//! operation.

#![allow(unsafe_code, reason = "staging in shared memory")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytemuck::Pod;
use symmem_store::{Deadline, Wait};

use super::running::Running;
use super::seal::{Claim, SealKind, Unsealed};
use super::{Group, Membership};
use crate::error::Cause;
use crate::operation::{Op, Signature, signature};
use crate::sync::control::{CounterWords, Verdict, staging_bytes};
use crate::sys::{copy, fault};
use crate::{Error, Result};

/// Bytes of a round's header: the length of the rank's whole part.
const HEADER: usize = 8;

/// How long the rank that serves the store stays for those who still read.
const READ_TIME: Duration = Duration::from_secs(5);

impl Group {
    /// Collective. Every rank's `value`, in rank order.
    ///
    /// ```
    /// let all = symmem::spawn(3, |group| group.all_gather(&(group.rank() as u64)))?;
    /// assert_eq!(all, vec![vec![0, 1, 2]; 3]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather<T: Pod>(&self, value: &T) -> Result<Vec<T>> {
        let (size, bytes) = (size_of::<T>() as u64, bytemuck::bytes_of(value));
        let gather = |running: &Running<'_>| running.all_gather(Op::AllGather, 0, size, bytes);
        let parts = self.operate(Op::AllGather, None, gather)?;
        parts.iter().map(|part| from_bytes(part, "all_gather")).collect()
    }

    /// Collective. Every rank's bytes, in rank order; lengths may differ.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.operate(Op::AllGather, None, |running| running.all_gather(Op::AllGather, 0, 0, bytes))
    }

    /// Collective. The `value` of rank `root`, on every rank.
    pub fn broadcast<T: Pod>(&self, root: usize, value: &T) -> Result<T> {
        let (size, bytes) = (size_of::<T>() as u64, bytemuck::bytes_of(value));
        let part = self.operate(Op::Broadcast, None, |running| {
            running.told(self.check_rank("broadcast", root))?;
            running.broadcast(root, size, bytes)
        })?;
        from_bytes(&part, "broadcast")
    }

    /// Collective. The bytes of rank `root`, on every rank; what the others pass is ignored.
    pub fn broadcast_bytes(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        self.operate(Op::Broadcast, None, |running| {
            running.told(self.check_rank("broadcast", root))?;
            running.broadcast(root, 0, bytes)
        })
    }

    /// Collective. Returns once every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.operate(Op::Barrier, None, |running| match self.inner.is_local() {
            true => running.meet(signature(Op::Barrier, 0, 0)).map(drop),
            false => running.all_gather(Op::Barrier, 0, 0, &[]).map(drop),
        })
    }
}

/// What a rank says in the store before its part.
fn head(op: Op, number: usize, size: u64) -> String {
    format!("{} {number} {size}\n", op as u8)
}

/// Where `rank`'s part of the exchange of `epoch` is in the store.
pub(super) fn part_key(inner: &Membership, epoch: u64, rank: usize) -> String {
    format!("symmem/{}/x/{epoch}/{rank}", inner.id)
}

/// Where `rank` says that it has read everybody's part of the exchange of `epoch`.
fn read_key(inner: &Membership, epoch: u64, rank: usize) -> String {
    part_key(inner, epoch, rank) + "/read"
}

fn from_bytes<T: Pod>(bytes: &[u8], what: &str) -> Result<T> {
    bytemuck::try_pod_read_unaligned(bytes).map_err(|_| {
        Error::invalid(what, format!("a rank sent {} bytes, expected {}", bytes.len(), size_of::<T>()))
    })
}

impl Running<'_> {
    fn broadcast(&self, root: usize, size: u64, bytes: &[u8]) -> Result<Vec<u8>> {
        let mine = if self.inner().rank == root { bytes } else { &[] };
        let mut parts = self.all_gather(Op::Broadcast, root, size, mine)?;
        Ok(parts.swap_remove(root))
    }

    /// Everybody's part; `number` and `size` are what the ranks must agree on.
    pub(crate) fn all_gather(&self, op: Op, number: usize, size: u64, part: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.inner().is_local() {
            self.all_gather_in_memory(signature(op, number, size), part)
        } else {
            self.all_gather_in_store(op, number, size, part)
        }
    }

    /// [`Running::all_gather`] on one host, of ranks that agree on `signature`.
    pub(crate) fn all_gather_in_memory(&self, signature: Signature, part: &[u8]) -> Result<Vec<Vec<u8>>> {
        let inner = self.inner();
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); inner.world];
        let mut lengths = vec![0; inner.world];
        let chunk = staging_bytes(inner.world) - HEADER;
        for round in 0.. {
            let start = round * chunk;
            let epoch = self.next_epoch()?;
            self.stage(epoch, &part[start.min(part.len())..(start + chunk).min(part.len())], part.len());
            fault::point(fault::Point::ExchangePublished);
            self.announce(epoch, signature, 0, &[]);
            self.hear(epoch, signature, |_| true)?;
            for (rank, whole) in parts.iter_mut().enumerate() {
                lengths[rank] = self.unstage(rank, epoch, start, whole);
            }
            // Every rank saw the same lengths, so every rank stops in the same round.
            if lengths.iter().all(|length| *length <= start + chunk) {
                break;
            }
        }
        CounterWords::add(&inner.own().counters.bytes, part.len() as u64);
        Ok(parts)
    }

    /// Writes a `piece` of this rank's part, of `length` bytes in all, into its staging of `epoch`.
    fn stage(&self, epoch: u64, piece: &[u8], length: usize) {
        let inner = self.inner();
        let staging = inner.map(inner.rank).staging(epoch);
        let length = (length as u64).to_le_bytes();
        // SAFETY: header and piece fit the staging, and no peer reads this parity any more.
        unsafe {
            copy::write(length.as_ptr(), staging, HEADER);
            copy::write(piece.as_ptr(), staging.add(HEADER), piece.len());
        }
    }

    /// Appends `rank`'s piece from `start` on to `whole`; returns the length of its whole part.
    fn unstage(&self, rank: usize, epoch: u64, start: usize, whole: &mut Vec<u8>) -> usize {
        let staging = self.inner().map(rank).staging(epoch);
        let chunk = staging_bytes(self.inner().world) - HEADER;
        let mut length = [0; HEADER];
        // SAFETY: the staging is longer.
        unsafe { copy::read(staging, length.as_mut_ptr(), HEADER) };
        let length = u64::from_le_bytes(length) as usize;
        let piece = length.saturating_sub(start).min(chunk);
        let old = whole.len();
        whole.resize(old + piece, 0);
        // SAFETY: `piece` is at most what fits, and `whole` was just made that much longer.
        unsafe { copy::read(staging.add(HEADER), whole[old..].as_mut_ptr(), piece) };
        length
    }

    pub(super) fn all_gather_in_store(
        &self,
        op: Op,
        number: usize,
        size: u64,
        part: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let inner = self.inner();
        let epoch = inner.epoch.load(Ordering::Relaxed) + 1;
        inner.epoch.store(epoch, Ordering::Relaxed);
        let head = head(op, number, size);
        let claim =
            |rank: usize| Claim { kind: SealKind::Part, scope: &inner.id, sender: rank, sequence: epoch };
        let value = inner.sealer.seal(&claim(inner.rank), &[head.as_bytes(), part].concat());
        let keys: Vec<String> = (0..inner.world).map(|rank| part_key(inner, epoch, rank)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // A rank that has left is missed only if it left before it gave its part.
        let soon = || Wait::for_at_most(Duration::from_secs(1));
        let missing = |rank: usize| !inner.store.check(&[keys[rank]], &soon()).unwrap_or(false);
        let watch = self.watch(&missing);
        let terms = self.terms(&watch);
        let failed = |error| self.store_failed(error, &missing);
        inner.store.set(keys[inner.rank], &value, &terms).map_err(failed)?;
        let values = inner.store.multi_get(&keys, &terms).map_err(failed)?;
        self.forget(epoch, &terms);
        let open = |(rank, value): (usize, &Vec<u8>)| {
            let part = inner.sealer.open(&claim(rank), value);
            part.map(<[u8]>::to_vec).map_err(|why| self.forged(rank, why))
        };
        let values = values.iter().enumerate().map(open).collect::<Result<_>>()?;
        self.keep_serving(epoch);
        self.check_heads(values, &head)
    }

    /// Ends a rank's part in the exchange of `epoch`, which it has read. The rank that serves the store waits
    /// here until everybody has: this exchange may be its last act, and the parts go with it. It does not
    /// wait for longer than a rank that is alive needs, and fails nobody: whoever is gone is missed by the
    /// next operation.
    fn keep_serving(&self, epoch: u64) {
        let inner = self.inner();
        let key = |rank: usize| read_key(inner, epoch, rank);
        let watch = self.watch(&|_| false);
        let time = self.deadline().remaining().map_or(READ_TIME, |left| left.min(READ_TIME));
        let terms = self.terms_until(Deadline::after(time), &watch);
        if inner.server.is_none() {
            // It may go the moment that it knows, before it answers.
            let _ = inner.store.set(&key(inner.rank), b"", &terms);
            return;
        }
        let keys: Vec<String> = (0..inner.world).filter(|rank| *rank != inner.rank).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let _ = inner.store.wait(&keys, &terms);
    }

    /// The error for a part that `rank` did not send. This rank is out of step with the others from here on,
    /// so its group has failed.
    #[cold]
    fn forged(&self, rank: usize, why: Unsealed) -> Error {
        let inner = self.inner();
        let problem = format!("{why}: somebody changes what is in the store");
        inner.own().set_reason(&problem);
        match inner.convict(Verdict { culprit: inner.rank, cause: Cause::Failed }) {
            (_, true) => Error::Unproven { context: self.context(), ranks: vec![rank], problem },
            (standing, false) => self.failed_by(standing),
        }
    }

    /// Deletes what this rank said in the previous exchange: everybody has taken part in this one, so
    /// everybody has read it. Best effort: a key that stays costs a few bytes of the store.
    fn forget(&self, epoch: u64, terms: &Wait<'_>) {
        let inner = self.inner();
        if epoch > 1 {
            let _ = inner.store.delete(&part_key(inner, epoch - 1, inner.rank), terms);
            let _ = inner.store.delete(&read_key(inner, epoch - 1, inner.rank), terms);
        }
    }

    fn check_heads(&self, values: Vec<Vec<u8>>, head: &str) -> Result<Vec<Vec<u8>>> {
        let split = |value: &[u8]| {
            let end = value.iter().position(|byte| *byte == b'\n').map_or(value.len(), |at| at + 1);
            (String::from_utf8_lossy(&value[..end]).into_owned(), value[end..].to_vec())
        };
        let (heads, parts): (Vec<_>, Vec<_>) = values.iter().map(|value| split(value)).unzip();
        if heads.iter().all(|theirs| theirs == head) {
            return Ok(parts);
        }
        let refusal = self::head(Op::Refusal, 0, 0);
        if let Some(rank) = heads.iter().position(|theirs| *theirs == refusal) {
            return Err(self.refused_by(rank, &parts[rank]));
        }
        let values =
            heads.iter().enumerate().map(|(rank, head)| format!("rank {rank}: {}", head.trim())).collect();
        Err(Error::Mismatch { context: self.context(), what: "the operation", values })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread;

    use symmem_store::{ServerLimits, TcpStore, TcpStoreServer};

    use super::*;
    use crate::group::join::Join;
    use crate::{Config, RankContext};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Passes what one client and the server at `port` say to each other, the client's requests with a delay;
    /// returns its port.
    fn slow_way_to(port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let pass = |mut from: TcpStream, mut to: TcpStream, delay: Duration| {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    thread::sleep(delay);
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        };
        thread::spawn(move || {
            for client in listener.incoming().map_while(|client| client.ok()) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { break };
                pass(client.try_clone().unwrap(), server.try_clone().unwrap(), Duration::from_millis(30));
                pass(server, client, Duration::ZERO);
            }
        });
        own
    }

    #[test]
    fn the_rank_that_serves_the_store_may_leave_right_after_an_exchange() {
        let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::for_world(2)).unwrap();
        let ports = [server.port(), slow_way_to(server.port())];
        let mut server = Some(Arc::new(server));
        let ranks = [0, 1].map(|rank| {
            let server = server.take();
            thread::spawn(move || {
                let config =
                    Config::from_env()?.host_id(format!("host {rank}")).allow_unauthenticated_hosts(true);
                let context = RankContext::new(config.timeout(PATIENCE));
                let store = TcpStore::connect("127.0.0.1", ports[rank], &Wait::for_at_most(PATIENCE))?;
                let mut join = Join::new(&context, Arc::new(store), rank, 2, "world", "boot".to_owned());
                join.server = server;
                join.run()?.all_gather(&rank)
            })
        });
        for rank in ranks {
            assert_eq!(rank.join().unwrap().unwrap(), [0, 1]);
        }
    }
}
