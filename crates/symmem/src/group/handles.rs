//! The parts of a set-up step in which ranks give each other memory: saying what one brings, sending and
//! receiving handles, and the vote that ends it.
//!
//! Used by the rendezvous of host memory and by the exchange of device memory. What it guarantees: a rank
//! that fails goes straight to the vote, whoever waits for its handles sees that, and either all ranks have
//! everything or all get the error of the same rank and can try again.

use std::error::Error as StdError;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use symmem_store::{Interrupt, Wait, Watch};

#[cfg(feature = "faults")]
use super::Group;
use super::exchange::part_key;
use super::running::{GroupWatch, Stop};
use super::vote::{GaveUp, Vote};
use super::{Membership, Running};
use crate::error::Halt;
use crate::operation::{MAX_NUMBER, Op};
use crate::sync::protocol::arrived;
use crate::sys::fault::{self, Point};
use crate::{Error, Result};

/// How long ranks may still be at something that another rank has ended.
const GRACE: Duration = Duration::from_secs(5);
/// How often one looks whether somebody has voted.
const LOOK: Duration = Duration::from_millis(50);
/// The shortest and the longest sleep between two polls of what other means do.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// What a rank brings to a set-up step.
pub(crate) trait Proposal: Serialize + DeserializeOwned {
    /// What it is, in the error for ranks that disagree.
    const WHAT: &str;

    /// Why this rank cannot take part after all.
    fn error(&self) -> Option<&str>;

    /// What must be the same on all ranks that bring something, as people read it.
    fn terms(&self) -> String;

    /// Whether this rank says that it brings nothing, so that its terms need not be the others'.
    fn is_nothing(&self) -> bool {
        false
    }
}

/// Waits for handles: the group's life, and whether the sender has voted already.
struct HandleWatch<'a> {
    group: GroupWatch<'a>,
    voted: &'a dyn Fn() -> bool,
}

impl Watch for HandleWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        self.group.look()?;
        if (self.voted)() { Err(Box::new(GaveUp)) } else { Ok(()) }
    }

    fn still_waiting(&self, elapsed: Duration) {
        self.group.still_waiting(elapsed);
    }
}

/// The rank whose failure ended a set-up step, the same on every rank.
#[derive(Debug)]
pub(crate) struct SetupRefusal {
    pub(crate) rank: usize,
    pub(crate) message: String,
}

impl Running<'_> {
    /// What every rank brings, in rank order, if it fits together: otherwise the same error on every rank,
    /// since all have seen the same.
    pub(crate) fn compare<T: Proposal>(&self, op: Op, mine: &T) -> Result<Vec<T>> {
        let brought = self.all_brought(op, mine)?;
        self.agree(&brought)?;
        Ok(brought)
    }

    /// Whether what all ranks bring fits together. What does not is the same error on every rank.
    pub(crate) fn agree<T: Proposal>(&self, brought: &[T]) -> Result<()> {
        let failed = brought.iter().enumerate().find_map(|(rank, theirs)| Some((rank, theirs.error()?)));
        if let Some((rank, message)) = failed {
            return Err(Error::Rank { context: self.context(), rank, message: message.to_owned() });
        }
        let terms: Vec<String> = brought.iter().map(Proposal::terms).collect();
        let mut something =
            brought.iter().zip(&terms).filter(|(theirs, _)| !theirs.is_nothing()).map(|(_, terms)| terms);
        let first = something.next();
        if something.all(|terms| Some(terms) == first) {
            return Ok(());
        }
        Err(self.disagreement(T::WHAT, &terms))
    }

    /// The error for ranks that disagree on `what`, of which rank `r` says `said[r]`.
    pub(crate) fn disagreement(&self, what: &'static str, said: &[String]) -> Error {
        let values = said.iter().enumerate().map(|(rank, said)| format!("rank {rank}: {said}")).collect();
        Error::Mismatch { context: self.context(), what, values }
    }

    /// What every rank brings, in rank order, whether it fits together or not. `op` is what the ranks must
    /// agree on doing.
    pub(crate) fn all_brought<T: Serialize + DeserializeOwned>(&self, op: Op, mine: &T) -> Result<Vec<T>> {
        let encoded =
            serde_json::to_vec(mine).map_err(|error| Error::invalid("request", error.to_string()))?;
        let parts = self.all_gather(op, 0, 0, &encoded)?;
        fault::point(Point::RequestSent);
        let brought: Result<Vec<T>, _> = parts.iter().map(|part| serde_json::from_slice(part)).collect();
        brought.map_err(|error| Error::invalid("request of a rank", error.to_string()))
    }

    /// A number for an exchange of handles that is higher than all before. Taken by every rank at the start
    /// of the step, whatever happens after: the ranks must stay in step. It is also the number of the memory
    /// in signatures, which hold no higher one than [`MAX_NUMBER`]: beyond that it is the same error on all
    /// ranks.
    pub(crate) fn next_tag(&self) -> Result<u64> {
        let next = |tag: u64| (tag < MAX_NUMBER).then_some(tag + 1);
        match self.inner().fd_tag.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(tag) => Ok(tag + 1),
            Err(_) => {
                let problem = format!(
                    "it has had {MAX_NUMBER} rendezvous and exchanges of descriptors, and can tell no more apart. Hint: go on with Group::try_clone"
                );
                Err(Error::invalid("group", problem))
            }
        }
    }

    /// Whether `rank` is on this rank's host, and can be sent handles.
    pub(crate) fn is_on_this_host(&self, rank: usize) -> bool {
        let inner = self.inner();
        inner.members[rank].host == inner.members[inner.rank].host
    }

    /// Sends `fds`, which are `what`, to `peer`.
    pub(crate) fn send_handles(
        &self,
        peer: usize,
        tag: u64,
        what: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Halt> {
        let inner = self.inner();
        let is_peer = |rank| rank == peer;
        let watch = self.watch(&is_peer);
        let address = &inner.members[peer].address;
        let (source, terms) = (inner.rank as u32, self.terms(&watch));
        let sent = inner.endpoint.send(peer, address, tag, source, what.as_bytes(), fds, &terms);
        sent.map_err(|error| self.or_a_death(error))
    }

    /// Receives the `count` handles, which are `what`, from `peer`.
    pub(crate) fn receive_handles(
        &self,
        peer: usize,
        tag: u64,
        what: &str,
        count: usize,
    ) -> Result<Vec<OwnedFd>, Halt> {
        let inner = self.inner();
        let next_epoch = inner.epoch.load(Ordering::Relaxed) + 1;
        let voted = || has_given(inner, peer, next_epoch);
        let is_peer = |rank| rank == peer;
        let watch = HandleWatch { group: self.watch(&is_peer), voted: &voted };
        let message = inner.endpoint.recv(tag, peer as u32, &self.terms(&watch))?;
        if message.payload == what.as_bytes() && message.fds.len() == count {
            return Ok(message.fds);
        }
        let problem = format!("the message is not {what}");
        Err(Error::invalid(format!("handles of rank {peer}"), problem).into())
    }

    /// Waits for something that all ranks do together by other means, until `is_done` says so. A rank that
    /// has voted has done it or failed: the others get a while to notice, and then go to the vote themselves.
    pub(crate) fn wait_in_step(&self, is_done: impl Fn() -> Result<bool>) -> Result<(), Halt> {
        let inner = self.inner();
        let next_epoch = inner.epoch.load(Ordering::Relaxed) + 1;
        let (mut voted_at, mut looked_at) = (None, Instant::now());
        let watch = self.watch(&|_| true);
        let mut nap = NAPS.0;
        self.terms(&watch).until(|slice| {
            if is_done()? {
                return Ok(Some(()));
            }
            if looked_at.elapsed() >= LOOK {
                looked_at = Instant::now();
                let others = (0..inner.world).filter(|peer| *peer != inner.rank);
                if voted_at.is_none() && others.into_iter().any(|peer| has_given(inner, peer, next_epoch)) {
                    voted_at = Some(Instant::now());
                }
            }
            if voted_at.is_some_and(|voted_at: Instant| voted_at.elapsed() >= GRACE) {
                return Err(Interrupt::Watch(Box::new(GaveUp)).into());
            }
            std::thread::sleep(slice.min(nap));
            nap = (nap * 2).min(NAPS.1);
            Ok(None)
        })
    }

    /// Ends a step with a vote: what this rank has if all succeeded, else whose failure counts. `tag` is that
    /// of the step's handles; those that nobody took are let go.
    pub(crate) fn vote<T>(&self, tag: u64, outcome: Result<T, Halt>) -> Result<Result<T, SetupRefusal>> {
        let vote = match &outcome {
            Ok(_) => Vote::yes(),
            Err(Halt::Failed(error)) => Vote::no(error),
            Err(Halt::Interrupted(_)) => Vote::waited_in_vain(),
        };
        let outcome = match outcome {
            Err(Halt::Interrupted(interrupt)) if !GaveUp::ended(&interrupt) => {
                return Err(self.fail(interrupt, &|_| true));
            }
            other => other,
        };
        let votes = self.all_gather(Op::Vote, 0, 0, &vote.encode())?;
        fault::point(Point::RendezvousVoted);
        match (Vote::tally(&votes), outcome) {
            (None, Ok(made)) => Ok(Ok(made)),
            (Some((rank, message)), _) => {
                // Everybody has sent what it was going to send, and the memory behind it must not stay.
                self.inner().endpoint.discard(tag);
                Ok(Err(SetupRefusal { rank, message }))
            }
            (None, Err(Halt::Failed(error))) => Err(error),
            (None, Err(Halt::Interrupted(interrupt))) => Err(self.interrupted(interrupt, Vec::new())),
        }
    }

    /// [`Running::vote`] for a step without which the operation cannot go on.
    pub(crate) fn conclude<T>(&self, tag: u64, outcome: Result<T, Halt>) -> Result<T> {
        self.vote(tag, outcome)?.map_err(|SetupRefusal { rank, message }| Error::Rank {
            context: self.context(),
            rank,
            message,
        })
    }

    /// A broken channel is explained by a death, if there is one.
    fn or_a_death(&self, error: Halt) -> Halt {
        let Halt::Failed(error) = error else { return error };
        match self.inner().look_for_a_death() {
            Some(rank) => Halt::Interrupted(Interrupt::Watch(Box::new(Stop::Died(rank)))),
            None => Halt::Failed(error),
        }
    }
}

/// Whether `peer` has given its part of the exchange of `epoch`.
fn has_given(inner: &Membership, peer: usize, epoch: u64) -> bool {
    if inner.is_local() {
        return arrived(inner, inner.rank, peer, epoch).is_some();
    }
    let soon = Wait::for_at_most(Duration::from_secs(1));
    inner.store.check(&[&part_key(inner, epoch, peer)], &soon).unwrap_or(false)
}

/// Counts `steps` exchanges of descriptors on `group` that did not happen: the same on all ranks. For fault
/// tests.
#[cfg(feature = "faults")]
pub fn advance_tag(group: &Group, steps: u64) {
    group.inner.fd_tag.fetch_add(steps, Ordering::Relaxed);
}
