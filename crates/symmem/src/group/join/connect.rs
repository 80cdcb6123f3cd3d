//! Step 3 of a join: control segments and pidfds between the ranks of a host, then the vote of all.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use symmem_store::{Interrupt, Wait};

use super::Joining;
use super::agree::Accepted;
use crate::error::{Cause, Halt};
use crate::group::membership::{self, IDLE, Member, Membership, wait_for_a_death};
use crate::group::reading::RemoteReading;
use crate::group::seal::{Claim, SealKind};
use crate::group::vote::{GaveUp, Vote};
use crate::group::worker::Worker;
use crate::group::{Group, recording};
use crate::operation::{Op, Shape, signature};
use crate::sync::about::Seated;
use crate::sync::control::{ControlMap, PREFIX, Verdict};
use crate::sync::ladder::Ladder;
use crate::sync::protocol::Owed;
use crate::sync::team::RankThreads;
use crate::sys::channel::Endpoint;
use crate::sys::fault::{self, Point};
use crate::sys::life::{self, ProcessLife};
use crate::sys::limits;
use crate::sys::memfd::{Mapping, Segment};
use crate::tuning::Choices;
use crate::{Error, Result};

/// The fd channel's tag of the join; rendezvous count on from here.
pub(crate) const JOIN_TAG: u64 = 0;

/// Everything the exchange of control segments gives.
struct Segments {
    own: Segment,
    map: ControlMap,
    controls: Vec<Option<ControlMap>>,
    members: Vec<Member>,
}

impl Joining<'_> {
    /// Connects the ranks of this host and votes: all ranks succeed or all get the same error.
    pub(super) fn connect(&self, accepted: Accepted) -> Result<Group> {
        let id = accepted.id.text.clone();
        let outcome = self.exchange_segments(&accepted);
        let vote = match &outcome {
            Ok(_) => Vote::yes(),
            Err(Halt::Failed(error)) => Vote::no(error),
            Err(Halt::Interrupted(_)) => Vote::waited_in_vain(),
        };
        // The group exists before the vote: should this rank fail or panic from here on, then those who have
        // counted its vote see it leave. Without a group it goes on listening, so that nobody fails for want
        // of an answer.
        let (outcome, _listening) = match outcome {
            Ok(segments) => (Ok(self.group(accepted, segments)), None),
            Err(halt) => (Err(halt), Some(accepted)),
        };
        let claim = Claim::once(SealKind::Vote, &id, self.join.rank);
        let voted = self.set(&self.vote_key(&id, self.join.rank), &claim, &vote);
        fault::point(Point::Voted);
        let settled = voted.and_then(|()| match &outcome {
            Err(Halt::Interrupted(why)) if !GaveUp::ended(why) => Ok(()),
            // What this rank has to say is worth more than that others do not vote.
            Err(Halt::Failed(_)) => self.votes(&id, true).map_or(Ok(()), |votes| self.tally(&votes)),
            _ => self.votes(&id, false).and_then(|votes| self.tally(&votes)),
        });
        if let (Ok(group), Err(error)) = (&outcome, &settled) {
            self.condemn(group, error);
        }
        settled?;
        let group = outcome.map_err(|halt| self.failed(halt, Vec::new()))?;
        match self.clean_up(&group, &id) {
            Ok(()) => Ok(group),
            // Who gave up left this group; why is in the parent.
            Err(error) => Err(self.find_gone().map_or(error, |stop| self.stopped(stop))),
        }
    }

    /// Tells those who believe that the join succeeded that it did not.
    fn condemn(&self, group: &Group, error: &Error) {
        let verdict = match error {
            // The culprit is a rank of the parent, and perhaps no member: they will find it there.
            _ if self.join.parent.is_some() => Verdict { culprit: self.join.rank, cause: Cause::Failed },
            Error::PeerLost { rank, .. } => Verdict { culprit: *rank, cause: Cause::Died },
            _ => return,
        };
        group.inner.convict(verdict);
    }

    fn exchange_segments(&self, accepted: &Accepted) -> Result<Segments, Halt> {
        let (rank, world) = (self.join.rank, self.join.world);
        let mut members = accepted.members.clone();
        let name = format!("{PREFIX}{}:{rank}", self.join.name);
        let (own, map) = ControlMap::create(&name, rank, world, self.hello.process())?;
        map.control().about.set(&self.join.name, &accepted.id.text);
        map.populate()?;
        fault::point(Point::ControlCreated);
        let mut controls: Vec<Option<ControlMap>> = vec![None; world];
        controls[rank] = Some(map.clone());
        let local: Vec<usize> =
            (0..world).filter(|peer| *peer != rank && members[*peer].host == self.hello.host).collect();
        self.send_segment(&accepted.endpoint, &own, &members, &local)?;
        fault::point(Point::FdSent);
        for peer in local {
            let mut fds = self.receive_segment(accepted, peer)?.into_iter();
            fault::point(Point::FdReceived);
            let control = fds.next().ok_or_else(|| no_segment(peer))?;
            let mapping = Mapping::import(control, ControlMap::bytes(world))?;
            controls[peer] = Some(ControlMap::adopt(mapping, peer, world).ok_or_else(|| no_segment(peer))?);
            if let Some(pidfd) = fds.next() {
                members[peer].life = Arc::new(ProcessLife::from_pidfd(pidfd, members[peer].process)?);
            }
        }
        fault::point(Point::Mapped);
        Ok(Segments { own, map, controls, members })
    }

    fn send_segment(
        &self,
        endpoint: &Endpoint,
        segment: &Segment,
        members: &[Member],
        local: &[usize],
    ) -> Result<(), Halt> {
        let watch = self.no_watch();
        let terms = self.terms(&watch);
        // Members of a group already know each other's lives.
        let disabled = self.join.known.is_some() || !*self.join.context.config().pidfd;
        let pidfd: Option<OwnedFd> = life::own_pidfd(disabled);
        for peer in local {
            // A rank in the same process shares our fate: its death is ours, its thread's end is its left
            // word.
            let same_process = members[*peer].process == self.hello.process();
            let pidfd = pidfd.as_ref().filter(|_| !same_process).map(AsFd::as_fd);
            let fds: Vec<_> = std::iter::once(segment.fd()).chain(pidfd).collect();
            let source = self.join.rank as u32;
            endpoint
                .send(*peer, &members[*peer].address, JOIN_TAG, source, &[], &fds, &terms)
                .map_err(|error| self.channel_failed(error))?;
        }
        Ok(())
    }

    fn receive_segment(&self, accepted: &Accepted, peer: usize) -> Result<Vec<OwnedFd>, Halt> {
        let vote = self.vote_key(&accepted.id.text, peer);
        let store = &self.join.store;
        // A peer that has voted has sent what it was going to send.
        let voted = || store.check(&[&vote], &Wait::for_at_most(Duration::from_secs(1))).unwrap_or(false);
        let watch = self.watch(&voted);
        let message = accepted.endpoint.recv(JOIN_TAG, peer as u32, &self.terms(&watch));
        message.map(|message| message.fds).map_err(|error| self.channel_failed(error))
    }

    fn channel_failed(&self, error: Halt) -> Halt {
        match error {
            Halt::Interrupted(interrupt) => Halt::Interrupted(interrupt),
            Halt::Failed(error) => match wait_for_a_death(|| self.find_gone()) {
                Some(stop) => Halt::Interrupted(Interrupt::Watch(Box::new(stop))),
                None => Halt::Failed(error),
            },
        }
    }

    fn vote_key(&self, id: &str, rank: usize) -> String {
        self.key(&format!("{id}/vote/{rank}"))
    }

    /// Waits for all votes; only for a while if this rank has `failed`.
    fn votes(&self, id: &str, failed: bool) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<String> = (0..self.join.world).map(|rank| self.vote_key(id, rank)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let watch = self.no_watch();
        let store = &self.join.store;
        let terms = if failed { self.last_terms(&watch) } else { self.terms(&watch) };
        let values = store.multi_get(&keys, &terms).or_else(|error| {
            // Who has seen all votes may end before this rank has: what it voted counts, not that it is gone.
            let briefly = Wait::for_at_most(Duration::from_secs(1));
            if store.check(&keys, &briefly).unwrap_or(false) {
                store.multi_get(&keys, &briefly)
            } else {
                Err(error)
            }
        });
        let values = values
            .map_err(|error| self.failed(Halt::Failed(self.store_failed(error)), self.absent(&keys)))?;
        let open = |(rank, value): (usize, Vec<u8>)| {
            let vote = self.sealer.open(&Claim::once(SealKind::Vote, id, rank), &value);
            vote.map(<[u8]>::to_vec).map_err(|why| self.unproven(vec![rank], why.to_string()))
        };
        values.into_iter().enumerate().map(open).collect()
    }

    /// The error of the lowest rank that failed, the same on every rank.
    fn tally(&self, votes: &[Vec<u8>]) -> Result<()> {
        match Vote::tally(votes) {
            None => Ok(()),
            // Somebody may have voted no only because a third rank is gone. Who is gone after a failure of
            // its own, or of another, is not the cause.
            Some((rank, message)) => {
                Err(match self.find_gone().filter(|_| Vote::is_secondary(&votes[rank])) {
                    Some(stop) => self.interrupted(Interrupt::Watch(Box::new(stop)), Vec::new()),
                    None => Error::Rank { context: self.context(), rank, message },
                })
            }
        }
    }

    fn group(&self, accepted: Accepted, segments: Segments) -> Group {
        let Segments { own, map, controls, members } = segments;
        let local = controls.iter().flatten().count();
        let judge = controls.iter().flatten().next().unwrap_or(&map).clone();
        let config = self.join.context.config();
        let ladder =
            Ladder::for_ranks(local, limits::usable_cores(), *config.spin).short_turns(*config.short_turns);
        for (rank, member) in members.iter().enumerate() {
            map.seat(rank).set(Seated { process: member.process, is_here: member.host == self.hello.host });
        }
        let inner = Arc::new(Membership {
            name: self.join.name.clone(),
            id: accepted.id.text,
            sealer: self.sealer.clone(),
            rank: self.join.rank,
            world: self.join.world,
            members,
            controls,
            own: map,
            judge,
            endpoint: accepted.endpoint,
            _segment: own,
            store: Arc::clone(&self.join.store),
            server: self.join.server.clone(),
            context: self.join.context.clone(),
            ladder,
            busy: AtomicU8::new(IDLE),
            epoch: AtomicU64::new(fault::start_epoch()),
            owed: Owed::default(),
            choices: Choices::new(&accepted.tuning, self.join.world),
            devices: accepted.tuning.devices,
            reading: RemoteReading::default(),
            sequence: AtomicU64::new(0),
            fd_tag: AtomicU64::new(JOIN_TAG + fault::start_tag()),
            engines: AtomicU64::new(0),
            elections: AtomicU64::new(0),
            electing: AtomicBool::new(false),
            subgroups: Mutex::default(),
            worker: Worker::default(),
            threads: RankThreads::new(self.join.rank, local, self.join.context.config()),
            recording: AtomicBool::new(false),
            recorder: OnceLock::new(),
        });
        recording::start_if_asked(&inner);
        membership::leave_on_exit(&inner);
        inner.context.remember_group(&inner);
        Group { inner, terms: self.join.terms.clone(), base: IDLE, shape: Shape::ANY }
    }

    /// Meets everybody in memory for the first time. All ranks agree on whether that succeeded, even if
    /// somebody dies meanwhile: those who have a group can go on with `survivors`, and must not wait for one
    /// who has none.
    fn meet(&self, group: &Group) -> Result<()> {
        let met = group.operate(Op::Join, None, |running| running.meet(signature(Op::Join, 0, 0)));
        let inner = &group.inner;
        match (inner.judge.control().settle_join(met.is_ok()), met) {
            (true, _) => Ok(()),
            (false, Err(error)) => Err(error),
            // Who failed has convicted before it said so.
            (false, Ok(_)) => group.begin(Op::Join, None).map(drop),
        }
    }

    /// Ends the join: after the meeting everybody has read all its keys, and each rank deletes its own. Ranks
    /// on several hosts do not meet in memory and leave their few keys behind.
    fn clean_up(&self, group: &Group, id: &str) -> Result<()> {
        if !group.inner.is_local() {
            return Ok(());
        }
        self.meet(group)?;
        let rank = self.join.rank;
        let own = [self.hello_key(rank), self.key(&format!("{id}/address/{rank}")), self.vote_key(id, rank)];
        let answer = (rank == 0).then(|| self.key("answer"));
        for key in own.iter().chain(&answer) {
            // Best effort: a key that stays can fool nobody.
            let _ = self.join.store.delete(key, &Wait::for_at_most(Duration::from_secs(1)));
        }
        Ok(())
    }
}

fn no_segment(rank: usize) -> Error {
    Error::invalid(format!("control segment of rank {rank}"), "what came is not one of this version")
}
