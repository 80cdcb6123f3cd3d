//! One running operation of a group: who may run, how it waits, and what its failure means for the others.
//!
//! Every operation of a group or handle goes through [`Group::begin`], mostly by [`Group::operate`]; every
//! wait of one on shared memory through [`Running::wait`]. They are the only places that know about forks,
//! `Busy`, deadlines, abort, left and death, but for mail, which is no operation of the group and has its
//! counterpart in `mail::hub`.
//!
//! # Panics
//! Waits run the user's code: the poll of a cancel token, a store, a tracing subscriber. A panic of it
//! unwinds the operation after this rank may have announced it, and the peers count on the rest. So a panic
//! that leaves [`Running::guarded`] ends the group before the operation is given back ([`unwind`]).

use std::cell::Cell;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use symmem_store::{Deadline, Interrupt, StoreError, TICK, Wait, Watch};

use super::membership::{Membership, RUNNING, STARTED};
use super::{Group, Notice, list_ranks};
use crate::error::{Cause, Context};
use crate::operation::{Op, OpKind, SHAPED, Signature, describe};
use crate::sync::control::{CounterWords, Verdict};
use crate::sync::ladder::Poll;
use crate::sync::protocol::{self, announce, arrived, leave_shape, note, unpack};
use crate::sync::waiting::WaitSubject;
use crate::sys::{fork, unwind};
use crate::{Error, Result};

/// Why a look at the group ended a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// The group has failed.
    Verdict(Verdict),
    /// A rank that is waited for has left.
    Left(usize),
    /// A rank is dead.
    Died(usize),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict(verdict) => write!(f, "rank {} {}", verdict.culprit, verdict.cause),
            Self::Left(rank) => write!(f, "rank {rank} left"),
            Self::Died(rank) => write!(f, "rank {rank} died"),
        }
    }
}

impl StdError for Stop {}

/// What to look at besides the deadline: the whole group, with special regard for the ranks waited for.
pub(crate) struct GroupWatch<'a> {
    inner: &'a Membership,
    op: Op,
    sequence: u64,
    channel: Option<usize>,
    awaited: Ranks<'a>,
    notice: Notice,
}

/// Whether a rank is one of some. A reference, so that what is rare is compiled once and not for every
/// closure.
pub(crate) type Ranks<'a> = &'a dyn Fn(usize) -> bool;

impl Watch for GroupWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let Membership { rank, world, .. } = self.inner;
        let waiting = &self.inner.own().waiting;
        if !waiting.is_set() {
            let (op, sequence, channel) = (self.op, self.sequence, self.channel);
            waiting.set(WaitSubject { op, peer: None, sequence, epoch: 0, channel });
        }
        waiting.set_awaited(*world, |peer| peer != *rank && (self.awaited)(peer));
        self.inner.look(self.awaited).map_err(Into::into)
    }

    fn still_waiting(&self, elapsed: Duration) {
        self.notice.say(elapsed, || {
            let Membership { rank, world, name, .. } = self.inner;
            let missing: Vec<usize> =
                (0..*world).filter(|peer| peer != rank && (self.awaited)(*peer)).collect();
            let (op, missing) = (self.op.name(), list_ranks(&missing));
            format!("rank {rank} of {world} has waited for {missing} in {op} on group {name:?}")
        });
    }
}

impl Drop for GroupWatch<'_> {
    fn drop(&mut self) {
        self.inner.own().waiting.clear();
    }
}

/// A wait beyond its first rung, until it is dropped.
struct Waits<'a>(&'a CounterWords);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set_waiting(0);
    }
}

/// An operation between its first check and its end. Dropping it lets the next one run.
pub(crate) struct Running<'a> {
    group: &'a Group,
    op: Op,
    sequence: u64,
    channel: Option<usize>,
    /// Set when the wait leaves its spinning phase: short operations never look at the clock.
    started: Cell<Option<Instant>>,
}

impl Drop for Running<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.inner().recording.load(Ordering::Relaxed) {
            self.inner().end_record();
        }
        self.inner().busy.store(self.group.base, Ordering::Release);
    }
}

impl Group {
    /// Runs `work` as the operation `op`. A panic that leaves it ends the group.
    #[inline(always)]
    pub(crate) fn operate<R>(
        &self,
        op: Op,
        channel: Option<usize>,
        work: impl FnOnce(&Running<'_>) -> Result<R>,
    ) -> Result<R> {
        let running = self.begin(op, channel)?;
        running.guarded(|| work(&running))
    }

    /// Starts `op`: the one check of fork, failure and `Busy` for everything this rank does on the group.
    /// What the operation does it does inside of [`Running::guarded`].
    // Always inlined: what it returns would travel through memory, which costs more than all its checks.
    #[inline(always)]
    pub(crate) fn begin(&self, op: Op, channel: Option<usize>) -> Result<Running<'_>> {
        let sequence = self.enter(op, channel)?;
        Ok(Running { group: self, op, sequence, channel, started: Cell::new(None) })
    }

    /// Takes the group for `op`; the number of the operation.
    #[inline]
    fn enter(&self, op: Op, channel: Option<usize>) -> Result<u64> {
        if fork::is_child() {
            return Err(Error::Forked { op: op.name() });
        }
        let inner = &*self.inner;
        let (base, running) = (self.base, self.base | RUNNING);
        if let Err(busy) = inner.busy.compare_exchange(base, running, Ordering::Acquire, Ordering::Relaxed) {
            return Err(self.busy(op, channel, busy));
        }
        // Only the running op writes these, and `busy` orders one op after the other.
        let sequence = inner.sequence.load(Ordering::Relaxed) + 1;
        inner.sequence.store(sequence, Ordering::Relaxed);
        if inner.is_unusual() {
            // Nothing comes after it: else the usual way would have to keep, for its sake, all that is needed
            // after a call.
            return self.enter_unusual(op, channel, sequence);
        }
        Ok(inner.count_op(op, sequence))
    }

    /// The rest of [`Group::enter`] on a group that has failed, or is recorded.
    #[cold]
    #[inline(never)]
    fn enter_unusual(&self, op: Op, channel: Option<usize>, sequence: u64) -> Result<u64> {
        // Gives the group back, should it come no further.
        let running = Running { group: self, op, sequence, channel, started: Cell::new(None) };
        if let Some(verdict) = self.inner.verdict() {
            return Err(running.failed_by(verdict));
        }
        // A record that cannot be made is told to the user's subscriber.
        running.guarded(|| self.inner.begin_record(op, channel));
        // The operation goes on.
        std::mem::forget(running);
        Ok(self.inner.count_op(op, sequence))
    }

    /// The error for `op` that finds `busy` in the way.
    #[cold]
    pub(super) fn busy(&self, op: Op, channel: Option<usize>, busy: u8) -> Error {
        Error::Busy { context: self.context_of(op, channel), started: busy & STARTED != 0 }
    }

    pub(crate) fn context_of(&self, op: Op, channel: Option<usize>) -> Box<Context> {
        let inner = &self.inner;
        let mut context = Context::new(op.name(), &inner.name, inner.rank, inner.world);
        context.channel = channel;
        context.sequence = inner.sequence.load(Ordering::Relaxed);
        // An error made after the verdict says so: see `Error::is_group_failure`.
        context.group_failed = inner.verdict().is_some();
        context
    }

    /// The error for a wait that was interrupted, where that changed nothing for the others.
    #[cold]
    pub(crate) fn interrupted(
        &self,
        context: Box<Context>,
        interrupt: Interrupt,
        missing: Vec<usize>,
    ) -> Error {
        match interrupt {
            Interrupt::Expired => Error::Timeout { context, missing },
            Interrupt::Cancelled => Error::Cancelled { context },
            Interrupt::Watch(stop) => match stop.downcast::<Stop>().map(|stop| *stop) {
                Ok(Stop::Verdict(verdict)) => self.failed_by(context, verdict),
                Ok(Stop::Left(rank)) => Error::PeerLeft { context, rank },
                Ok(Stop::Died(rank)) => Error::PeerLost { context, rank, pid: self.inner.pid(rank) },
                Err(other) => Error::Rank { context, rank: self.inner.rank, message: other.to_string() },
            },
        }
    }

    /// The error for an operation on a group that has failed.
    #[cold]
    pub(crate) fn failed_by(&self, context: Box<Context>, verdict: Verdict) -> Error {
        let Verdict { culprit, cause } = verdict;
        self.inner.own().set_heard(verdict);
        let reason = match cause {
            Cause::Aborted | Cause::Failed => self.inner.reason(culprit),
            _ => String::new(),
        };
        Error::GroupFailed { context, culprit, cause, reason }
    }
}

impl<'a> Running<'a> {
    #[inline]
    pub(crate) fn inner(&self) -> &'a Membership {
        &self.group.inner
    }

    pub(crate) fn op(&self) -> Op {
        self.op
    }

    /// Runs `work`, a part of this operation or all of it. A panic that leaves it ends the group.
    #[inline(always)]
    pub(crate) fn guarded<R>(&self, work: impl FnOnce() -> R) -> R {
        unwind::guard(|| self.panicked(), work)
    }

    /// Ends the group, because a panic is leaving this operation.
    #[cold]
    pub(crate) fn panicked(&self) {
        let culprit = self.inner().rank;
        self.inner().convict(Verdict { culprit, cause: Cause::Panicked });
    }

    pub(crate) fn group(&self) -> &'a Group {
        self.group
    }

    pub(crate) fn context(&self) -> Box<Context> {
        let mut context = self.group.context_of(self.op(), self.channel);
        context.sequence = self.sequence;
        context.elapsed = self.started.get().map(|started| started.elapsed()).unwrap_or_default();
        context
    }

    /// When this op first had to wait.
    fn start(&self) -> Instant {
        let started = self.started.get().unwrap_or_else(Instant::now);
        self.started.set(Some(started));
        started
    }

    /// The deadline of this op, counted from when it first had to wait.
    pub(super) fn deadline(&self) -> Deadline {
        let end = self.group.terms.timeout.and_then(|timeout| self.start().checked_add(timeout));
        end.map_or(Deadline::never(), Deadline::at)
    }

    /// What ends waits of this op for the ranks in `awaited`.
    pub(crate) fn watch<'b>(&'b self, awaited: Ranks<'b>) -> GroupWatch<'b> {
        let notice = Notice::new(*self.inner().context.config().wait_notice);
        let (sequence, channel) = (self.sequence, self.channel);
        GroupWatch { inner: self.inner(), op: self.op(), sequence, channel, awaited, notice }
    }

    /// The terms for a blocking call below this op.
    pub(crate) fn terms<'b>(&'b self, watch: &'b dyn Watch) -> Wait<'b> {
        self.terms_until(self.deadline(), watch)
    }

    /// The same with another deadline.
    pub(super) fn terms_until<'b>(&'b self, deadline: Deadline, watch: &'b dyn Watch) -> Wait<'b> {
        let wait = Wait::new(deadline).with_watch(watch);
        match &self.group.terms.cancel {
            Some(token) => wait.with_cancel(token),
            None => wait,
        }
    }

    /// Waits until `poll` gives a value, for as long as the op's terms allow and the ranks in `awaited` can
    /// still make it happen.
    #[inline]
    pub(crate) fn wait<T>(
        &self,
        peer: usize,
        awaited: impl Fn(usize) -> bool,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Interrupt> {
        self.wait_for(peer, 0, awaited, poll)
    }

    /// [`Running::wait`] for a peer that may be at work on `bytes` bytes.
    #[inline]
    fn wait_for<T>(
        &self,
        peer: usize,
        bytes: u64,
        awaited: impl Fn(usize) -> bool,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Interrupt> {
        let inner = self.inner();
        match inner.ladder.spin(&inner.own().counters, &mut poll) {
            Some(value) => Ok(value),
            None => self.wait_longer(peer, bytes, &awaited, poll),
        }
    }

    #[cold]
    fn wait_longer<T>(
        &self,
        peer: usize,
        bytes: u64,
        awaited: Ranks<'_>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Interrupt> {
        let mut found = None;
        self.climb(peer, bytes, awaited, &mut || {
            found = poll();
            found.is_some()
        })?;
        // It was found, or there would have been an error.
        found.ok_or(Interrupt::Expired)
    }

    /// The rungs of a wait below the first, until `poll` says yes.
    fn climb(&self, peer: usize, bytes: u64, awaited: Ranks<'_>, poll: Poll<'_>) -> Result<(), Interrupt> {
        let inner = self.inner();
        let control = inner.own();
        let now = Instant::now();
        if self.started.get().is_none() {
            self.started.set(Some(now));
        }
        control.counters.set_waiting(inner.ladder.shared_time(now));
        let _waits = Waits(&control.counters);
        let worked = |from, to| inner.has_anybody_worked(from, to);
        if inner.ladder.linger(&control.counters, now, bytes, &worked, poll) {
            return Ok(());
        }
        control.waiting.set(self.wanted(peer));
        let watch = self.watch(awaited);
        let terms = self.terms(&watch);
        // The first nap asks the system about nobody's life: it is long enough for a peer that lost its core
        // for a moment.
        let nap = terms.deadline().remaining().map_or(TICK, |left| left.min(TICK));
        match inner.ladder.nap(&control.bell, &control.counters, nap, poll) {
            true => Ok(()),
            false => inner.ladder.sleep(&control.bell, &control.counters, &terms, poll),
        }
    }

    /// What a wait for `peer` is about. Who is at the epoch of this rank is not missed at a meeting: then the
    /// wait is for something else, as it is where no meeting is.
    fn wanted(&self, peer: usize) -> WaitSubject {
        let inner = self.inner();
        let (op, sequence, channel) = (self.op(), self.sequence, self.channel);
        if peer == inner.rank {
            return WaitSubject { op, peer: None, sequence, epoch: 0, channel };
        }
        let epoch = inner.epoch.load(Ordering::Relaxed);
        let is_missed = op.kind() != OpKind::Other && arrived(inner, inner.rank, peer, epoch).is_none();
        WaitSubject { op, peer: Some(peer), sequence, epoch: if is_missed { epoch } else { 0 }, channel }
    }

    /// Meets all ranks: returns the epoch once every rank has announced the same `signature` for it.
    #[inline]
    pub(crate) fn meet(&self, signature: Signature) -> Result<u64> {
        self.meet_with(signature, 0)
    }

    /// What `peer` noted for `epoch`, the last one met.
    #[inline]
    pub(crate) fn note(&self, peer: usize, epoch: u64) -> u64 {
        note(self.inner(), self.inner().rank, peer, epoch)
    }

    /// [`Running::meet`], telling everybody a note as well.
    #[inline]
    pub(crate) fn meet_with(&self, signature: Signature, note: u64) -> Result<u64> {
        let epoch = self.next_epoch()?;
        self.announce(epoch, signature, note, &[]);
        self.hear(epoch, signature, |_| true)?;
        Ok(epoch)
    }

    /// The next epoch. Once it is known, nobody reads what this rank laid out for the last but one any more:
    /// its slots, parcels and staging may be written again.
    #[inline]
    pub(crate) fn next_epoch(&self) -> Result<u64> {
        let inner = self.inner();
        protocol::next_epoch(&inner.epoch, &inner.owed, |epoch, signature| self.hear_owed(epoch, signature))
    }

    /// Out of line, so that the common case, in which nobody is owed, is a load and a branch.
    #[inline(never)]
    fn hear_owed(&self, epoch: u64, signature: Signature) -> Result<()> {
        self.hear_shape(epoch, signature, self.inner().owed.shape(), |_| true)
    }

    /// Tells every peer that this rank is at `epoch`, with a note and a parcel.
    #[inline]
    pub(crate) fn announce(&self, epoch: u64, signature: Signature, note: u64, parcel: &[u64]) {
        let inner = self.inner();
        inner.epoch.store(epoch, Ordering::Relaxed);
        if signature.word & SHAPED != 0 {
            leave_shape(inner, inner.rank, epoch, self.group.shape.word);
        }
        announce(inner, inner.rank, epoch, signature, note, parcel);
        crate::sys::fault::point(crate::sys::fault::Point::BarrierPublished);
    }

    /// Waits until every rank of `who` is at `epoch` with the same `signature`. The other ranks are waited
    /// for by this rank's next operation.
    #[inline]
    pub(crate) fn hear(&self, epoch: u64, signature: Signature, who: impl Fn(usize) -> bool) -> Result<()> {
        self.hear_shape(epoch, signature, self.group.shape.word, who)
    }

    /// [`Running::hear`] of ranks that agree on `shape` too, if the signature says that there is one.
    #[inline]
    fn hear_shape(
        &self,
        epoch: u64,
        signature: Signature,
        shape: u64,
        who: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let inner = self.inner();
        let me = inner.rank;
        let wait = |peer: usize| {
            let missing = |rank: usize| who(rank) && arrived(inner, me, rank, epoch).is_none();
            // The size of most signatures is in bytes; that of the others is a small number.
            self.wait_for(peer, signature.size, missing, || arrived(inner, me, peer, epoch))
                .map_err(|interrupt| self.fail(interrupt, &missing))
        };
        let agree = protocol::hear(inner.world, me, &inner.owed, signature, &who, wait)?;
        match agree && (signature.word & SHAPED == 0 || self.agree_on(epoch, shape, &who)) {
            true => Ok(()),
            false => Err(self.mismatch(epoch, signature, shape)),
        }
    }

    /// Whether the ranks of `who`, who were heard at `epoch`, said this shape; the others are asked with what
    /// is owed.
    fn agree_on(&self, epoch: u64, shape: u64, who: Ranks<'_>) -> bool {
        let inner = self.inner();
        inner.owed.set_shape(shape);
        let mut heard = (0..inner.world).filter(|peer| *peer != inner.rank && who(*peer));
        heard.all(|peer| protocol::shape(inner, inner.rank, peer, epoch) == shape)
    }

    /// Takes up the words that `peer` announced with `epoch`, which was heard.
    #[inline]
    pub(crate) fn unpack(&self, epoch: u64, peer: usize, parcel: &mut [u64]) {
        unpack(self.inner(), self.inner().rank, peer, epoch, parcel);
    }

    /// The error for ranks that disagree at `epoch`, or one of which refused the call, once all of them are
    /// there: nothing is owed any more.
    #[cold]
    fn mismatch(&self, epoch: u64, mine: Signature, my_shape: u64) -> Error {
        let inner = self.inner();
        if inner.owed.take().is_some() {
            for peer in (0..inner.world).filter(|peer| *peer != inner.rank) {
                let here = || arrived(inner, inner.rank, peer, epoch);
                if let Err(interrupt) = self.wait(peer, |rank| rank == peer, here) {
                    return self.fail(interrupt, &|rank| rank == peer);
                }
            }
        }
        if let Some(refused) = self.refused(epoch) {
            return refused;
        }
        let said = |rank: usize| match rank == inner.rank {
            true => Some((mine, my_shape)),
            false => {
                let theirs = arrived(inner, inner.rank, rank, epoch);
                theirs.map(|theirs| (theirs, protocol::shape(inner, inner.rank, rank, epoch)))
            }
        };
        let said: Vec<Option<(Signature, u64)>> = (0..inner.world).map(said).collect();
        let (what, values) = describe(&said);
        Error::Mismatch { context: self.context(), what, values }
    }

    /// Ends a collective op that was interrupted midway: the group cannot go on, and everybody learns why.
    #[cold]
    pub(crate) fn fail(&self, interrupt: Interrupt, missing: Ranks<'_>) -> Error {
        let inner = self.inner();
        let missing: Vec<usize> =
            (0..inner.world).filter(|rank| *rank != inner.rank && missing(*rank)).collect();
        let (culprit, cause) = match &interrupt {
            Interrupt::Expired => (missing.first().copied().unwrap_or(inner.rank), Cause::TimedOut),
            Interrupt::Cancelled => (inner.rank, Cause::Cancelled),
            Interrupt::Watch(stop) => match stop.downcast_ref::<Stop>() {
                Some(Stop::Verdict(verdict)) => return self.failed_by(*verdict),
                Some(Stop::Left(rank)) => (*rank, Cause::Left),
                Some(Stop::Died(rank)) => (*rank, Cause::Died),
                None => (inner.rank, Cause::Failed),
            },
        };
        let (standing, ours) = inner.convict(Verdict { culprit, cause });
        if !ours {
            return self.failed_by(standing);
        }
        tracing::debug!(group = inner.name, rank = inner.rank, culprit, %cause, op = self.op().name(), "group failed");
        self.interrupted(interrupt, missing)
    }

    /// The error for an interrupt that changed nothing for the others.
    #[cold]
    pub(crate) fn interrupted(&self, interrupt: Interrupt, missing: Vec<usize>) -> Error {
        self.group.interrupted(self.context(), interrupt, missing)
    }

    /// The error for a store call that failed below this op.
    pub(crate) fn store_failed(&self, error: StoreError, missing: Ranks<'_>) -> Error {
        match error {
            StoreError::Timeout { .. } => self.fail(Interrupt::Expired, missing),
            StoreError::Cancelled { .. } => self.fail(Interrupt::Cancelled, missing),
            StoreError::Interrupted { source, .. } => self.fail(Interrupt::Watch(source), missing),
            other => match self.inner().look_for_a_death() {
                Some(rank) => self.fail(Interrupt::Watch(Box::new(Stop::Died(rank))), missing),
                // This rank's part or the others' is lost, and the ranks are out of step.
                None => self.end_with(&other.into()),
            },
        }
    }

    /// Fails the group with this rank's own `error`, unless another failure came first.
    #[cold]
    pub(crate) fn end_with(&self, error: &Error) -> Error {
        let inner = self.inner();
        let reason = error.to_string();
        inner.own().set_reason(&reason);
        let verdict = Verdict { culprit: inner.rank, cause: Cause::Failed };
        match inner.convict(verdict) {
            (Verdict { culprit, cause }, true) => {
                Error::GroupFailed { context: self.context(), culprit, cause, reason }
            }
            (standing, false) => self.failed_by(standing),
        }
    }

    #[cold]
    pub(crate) fn failed_by(&self, verdict: Verdict) -> Error {
        self.group.failed_by(self.context(), verdict)
    }
}
