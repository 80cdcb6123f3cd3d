//! What is left of a group after a death: the survivors agree on who they are, and start a new group.
//!
//! The store may have died with its server, so the agreement runs over the control segments, which outlive
//! their owners. Each rank writes a ballot (the set of ranks it believes alive) into its own control and
//! reads the others':
//! - whoever a pidfd calls dead, or who has left, is struck from the set;
//! - whoever another ballot lacks is struck as well (somebody saw it die);
//! - a rank is done when every rank of its set shows the very same set.
//!
//! Sets only shrink, so this ends. The lowest survivor serves a new store and puts its port on its ballot,
//! with a name for the new group that belongs to its set: others may be joining already when it strikes
//! somebody. A rank that dies after the others are done is found by the join of the new group, and the
//! survivors vote again.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symmem_store::{Deadline, Interrupt, ServerLimits, StoreError, TcpStore, TcpStoreServer, Wait, Watch};

use super::join::{Join, Parent};
use super::membership::{IDLE, Membership};
use super::running::Stop;
use super::{Group, Terms};
use crate::error::Halt;
use crate::operation::Op;
use crate::sync::protocol::{ALIVE_WORDS, Sheet};
use crate::sys::fault::{self, Point};
use crate::sys::ids;
use crate::{Error, Result};

/// A ballot: who this rank believes alive, and where the new store is if it serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenBallot {
    /// Which call of `survivors` on this group the ballot belongs to.
    generation: u64,
    alive: BTreeSet<usize>,
    port: u16,
    /// Names the new group; a new one for every try.
    nonce: u64,
}

impl SeenBallot {
    /// The ballot of who takes part in no election.
    const NOTHING: Self = Self { generation: 0, alive: BTreeSet::new(), port: 0, nonce: 0 };

    fn to_sheet(&self) -> Sheet {
        let mut alive = [0; ALIVE_WORDS];
        self.alive.iter().for_each(|rank| alive[rank / 64] |= 1 << (rank % 64));
        Sheet { generation: self.generation, alive, port: u32::from(self.port), nonce: self.nonce }
    }

    fn of_sheet(sheet: Sheet) -> Self {
        let is_set = |rank: &usize| sheet.alive[rank / 64] >> (rank % 64) & 1 == 1;
        let alive = (0..64 * ALIVE_WORDS).filter(is_set).collect();
        Self { generation: sheet.generation, alive, port: sheet.port as u16, nonce: sheet.nonce }
    }
}

impl Group {
    /// Collective over whoever is still alive: agrees on the living ranks, in their old order, and makes a
    /// new group of them with a new store. Does not need the old store, so any rank may be the dead one. A
    /// rank that is alive but never calls this makes the others time out; the call can be repeated then.
    ///
    /// All ranks must be on one host. One thread of a rank at a time: a second one gets [`Error::Busy`].
    pub fn survivors(&self, deadline: Deadline) -> Result<Self> {
        if crate::sys::fork::is_child() {
            return Err(Error::Forked { op: Op::Survivors.name() });
        }
        let inner = &*self.inner;
        if !inner.is_local() {
            let remote = |rank: &usize| inner.controls[*rank].is_none();
            let ranks = (0..inner.world).filter(remote).collect();
            return Err(Error::NotLocal { op: Op::Survivors.name(), ranks });
        }
        let _turn = BallotTurn::take(inner).ok_or_else(|| self.busy(Op::Survivors, None, IDLE))?;
        let generation = inner.elections.load(Ordering::Relaxed) + 1;
        let mut election = Election {
            inner,
            generation,
            alive: (0..inner.world).collect(),
            office: None,
            tried: Vec::new(),
        };
        let outcome = self.elect(&mut election, deadline);
        match &outcome {
            Ok(_) => inner.elections.store(generation, Ordering::Relaxed),
            // Who tries again meets those who come later: the same election, in which this ballot no longer
            // counts.
            Err(_) => inner.own().survivors.cast(&SeenBallot::NOTHING.to_sheet()),
        }
        outcome
    }

    fn elect(&self, election: &mut Election<'_>, deadline: Deadline) -> Result<Self> {
        loop {
            let leader = election.run(self.bounded(deadline)).map_err(|halt| {
                let context = self.context_of(Op::Survivors, None);
                match halt {
                    Halt::Interrupted(Interrupt::Cancelled) => Error::Cancelled { context },
                    Halt::Interrupted(_) => Error::Timeout { context, missing: election.missing() },
                    Halt::Failed(error) => error,
                }
            })?;
            fault::point(Point::Elected);
            let server = election.office.take().map(|office| office.server);
            match self.regroup(election, &leader, server, deadline) {
                // Somebody of the new set died on the way: vote again, without it.
                Err(error) if is_a_death(&error) && !deadline.expired() => election.tried.push(leader.nonce),
                outcome => return outcome,
            }
        }
    }

    /// The terms of a wait until `deadline`.
    fn bounded(&self, deadline: Deadline) -> Wait<'_> {
        let wait = Wait::new(deadline);
        match &self.terms.cancel {
            Some(token) => wait.with_cancel(token),
            None => wait,
        }
    }

    fn regroup(
        &self,
        election: &Election<'_>,
        seen: &SeenBallot,
        server: Option<TcpStoreServer>,
        deadline: Deadline,
    ) -> Result<Self> {
        let members: Vec<usize> = seen.alive.iter().copied().collect();
        let rank = members.iter().position(|member| *member == self.rank());
        let rank =
            rank.ok_or_else(|| Error::invalid("survivors", "the other survivors believe this rank dead"))?;
        let leader = LeaderWatch { election, leader: members[0], nonce: seen.nonce };
        let wait = self.bounded(deadline).with_watch(&leader);
        let store = TcpStore::connect("127.0.0.1", seen.port, &wait).map_err(|error| match error {
            StoreError::Cancelled { .. } => {
                Error::Cancelled { context: self.context_of(Op::Survivors, None) }
            }
            error => error.into(),
        });
        let store = Arc::new(store?);
        let boot = format!("symmem/{}/survivors/{:016x}", self.id(), seen.nonce);
        let mut join = Join::new(self.context(), store, rank, members.len(), self.name(), boot);
        join.fresh = true;
        join.server = server.map(Arc::new);
        join.terms = Terms { timeout: deadline.remaining(), cancel: self.terms.cancel.clone() };
        join.former = Some(Parent { inner: Arc::clone(&self.inner), members: members.clone() });
        join.known = Some(members.iter().map(|member| self.inner.members[*member].clone()).collect());
        let mut group = join.run()?;
        group.terms = self.terms.clone();
        Ok(group)
    }
}

/// A thread's right to write this rank's ballot.
struct BallotTurn<'a>(&'a Membership);

impl<'a> BallotTurn<'a> {
    /// `None` while another thread has it.
    fn take(inner: &'a Membership) -> Option<Self> {
        // Acquire and Release order one thread's election, and its count, after the other's.
        (!inner.electing.swap(true, Ordering::Acquire)).then_some(Self(inner))
    }
}

impl Drop for BallotTurn<'_> {
    fn drop(&mut self) {
        self.0.electing.store(false, Ordering::Release);
    }
}

/// One rank's part in an election.
struct Election<'a> {
    inner: &'a Membership,
    generation: u64,
    alive: BTreeSet<usize>,
    /// What the lowest survivor has, if that is this rank.
    office: Option<Office>,
    /// Nonces whose group did not come to be.
    tried: Vec<u64>,
}

/// The new store, and what the new group is called there: another name for every set of ranks.
struct Office {
    server: TcpStoreServer,
    alive: BTreeSet<usize>,
    nonce: u64,
}

impl Election<'_> {
    /// Votes until all living ranks agree; returns the leader's ballot.
    fn run(&mut self, wait: Wait<'_>) -> Result<SeenBallot, Halt> {
        wait.until(|slice| {
            // Rare and short-lived: polling is simpler than ringing, and nobody's bell is in a known state
            // here.
            std::thread::sleep(slice.min(Duration::from_millis(1)));
            self.strike();
            self.vote()?;
            Ok(self.leader())
        })
    }

    /// Strikes whoever is dead, has left, or is missing on a ballot of this election.
    fn strike(&mut self) {
        let inner = self.inner;
        let gone: BTreeSet<usize> = self.alive.iter().copied().filter(|rank| self.is_gone(*rank)).collect();
        self.alive.retain(|rank| *rank == inner.rank || !gone.contains(rank));
        for rank in self.alive.clone() {
            if let Some(ballot) = self.ballot(rank).filter(|ballot| ballot.alive.contains(&inner.rank)) {
                self.alive.retain(|rank| ballot.alive.contains(rank));
            }
        }
    }

    fn is_gone(&self, rank: usize) -> bool {
        self.inner.has_left(rank) || self.inner.members[rank].life.is_dead()
    }

    /// Shows this rank's set, and the new store if it is this rank that serves it.
    fn vote(&mut self) -> Result<()> {
        if self.leads() && self.office.as_ref().is_none_or(|office| office.alive != self.alive) {
            let server = match self.office.take() {
                Some(office) => office.server,
                None => TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default())?,
            };
            let nonce = u64::from_le_bytes(ids::random::<8>()?);
            self.office = Some(Office { server, alive: self.alive.clone(), nonce });
        }
        let office = self.office.as_ref();
        let (port, nonce) = office.map_or((0, 0), |office| (office.server.port(), office.nonce));
        let ballot = SeenBallot { generation: self.generation, alive: self.alive.clone(), port, nonce };
        if self.ballot(self.inner.rank).as_ref() != Some(&ballot) {
            self.inner.own().survivors.cast(&ballot.to_sheet());
        }
        Ok(())
    }

    /// The leader's ballot, once everybody in the set shows the same set.
    fn leader(&self) -> Option<SeenBallot> {
        let leader = unanimous(&self.alive, |rank| self.ballot(rank))?;
        (leader.port != 0 && !self.tried.contains(&leader.nonce)).then_some(leader)
    }

    fn leads(&self) -> bool {
        self.alive.first() == Some(&self.inner.rank)
    }

    /// The ballot of `rank` in this election.
    fn ballot(&self, rank: usize) -> Option<SeenBallot> {
        let ballot = self.inner.map(rank).control().survivors.read().map(SeenBallot::of_sheet);
        ballot.filter(|ballot| ballot.generation == self.generation)
    }

    /// Ranks believed alive that do not show the same set.
    fn missing(&self) -> Vec<usize> {
        let agrees = |rank: usize| self.ballot(rank).is_some_and(|ballot| ballot.alive == self.alive);
        self.alive.iter().copied().filter(|rank| !agrees(*rank)).collect()
    }
}

/// The ballot of the first rank of `alive`, if all of them show this set. Each ballot is read once: another
/// one, of a smaller set, would be of a group that this rank has not voted for, and nobody comes there before
/// it has.
fn unanimous(alive: &BTreeSet<usize>, ballot: impl Fn(usize) -> Option<SeenBallot>) -> Option<SeenBallot> {
    let mut all = alive.iter().map(|rank| ballot(*rank).filter(|ballot| ballot.alive == *alive));
    let leader = all.next()??;
    all.all(|ballot| ballot.is_some()).then_some(leader)
}

/// Watches the rank that serves the new store: nobody else would answer at its port, and neither does it once
/// it votes again, because it has seen somebody die before this rank came.
struct LeaderWatch<'a> {
    election: &'a Election<'a>,
    leader: usize,
    nonce: u64,
}

impl Watch for LeaderWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let Self { election, leader, nonce } = *self;
        if election.is_gone(leader) {
            return Err(Box::new(Stop::Died(leader)));
        }
        match election.ballot(leader).is_some_and(|ballot| ballot.nonce == nonce) {
            true => Ok(()),
            false => Err(format!("rank {leader} has left this election for the next").into()),
        }
    }
}

fn is_a_death(error: &Error) -> bool {
    matches!(
        error,
        Error::PeerLost { .. } | Error::PeerLeft { .. } | Error::GroupFailed { .. } | Error::Store(_)
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn ballot(alive: &[usize], nonce: u64) -> SeenBallot {
        SeenBallot { generation: 1, alive: alive.iter().copied().collect(), port: 1, nonce }
    }

    #[test]
    fn who_follows_a_leader_has_voted_for_the_same_set() {
        let three: BTreeSet<usize> = [0, 1, 3].into();
        assert_eq!(unanimous(&three, |_| Some(ballot(&[0, 1, 3], 5))).map(|leader| leader.nonce), Some(5));
        assert_eq!(unanimous(&three, |rank| (rank != 3).then(|| ballot(&[0, 1, 3], 5))), None);
        assert_eq!(unanimous(&three, |rank| Some(ballot(&[0, 1, 3][rank / 3..], 5))), None);
        // The leader strikes rank 3 just after it was seen to agree.
        let looks = Cell::new(0);
        let strikes = |rank: usize| {
            looks.set(looks.get() + usize::from(rank == 0));
            let alive: &[usize] = if rank == 0 && looks.get() > 1 { &[0, 1] } else { &[0, 1, 3] };
            Some(ballot(alive, alive.len() as u64))
        };
        let followed = unanimous(&three, strikes);
        assert!(followed.as_ref().is_none_or(|leader| leader.alive == three), "{followed:?}");
    }
}
