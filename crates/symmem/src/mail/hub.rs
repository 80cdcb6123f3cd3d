//! What all handles of a rank's mailbox share: the rings, the queues, and the one way to wait for mail.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use symmem_store::{Deadline, Interrupt, Wait, Watch};

use super::Delivery;
use super::queues::{Awaited, MailOutcome, MailQueues};
use super::recorded::{Asked, RecordedCall};
use super::ring::MailRings;
use crate::error::Context;
use crate::group::{Group, Membership, Notice, Stop, Terms, list_ranks};
use crate::operation::Op;
use crate::sync::control::CounterWords;
use crate::sync::ladder::Poll;
use crate::sync::record::message::MailRecorder;
use crate::sync::waiting::WaitSubject;
use crate::sys::{fork, life};
use crate::{Error, Result};

/// A rank's mail.
pub(super) struct Hub {
    pub(super) rings: MailRings,
    queues: Mutex<MailQueues>,
    /// Told when something was asked for, when a thread stops waiting, and when the last handle goes.
    pub(super) unfinished: Condvar,
    /// Where calls are recorded, once they are; `None` inside if that could not be made.
    pub(super) recorder: OnceLock<Option<MailRecorder>>,
}

pub(super) type Locked<'a> = MutexGuard<'a, MailQueues>;

impl Hub {
    pub(super) fn new(rings: MailRings) -> Self {
        let queues = MailQueues::new(rings.group().rank(), rings.group().size());
        Self { rings, queues: Mutex::new(queues), unfinished: Condvar::new(), recorder: OnceLock::new() }
    }

    pub(super) fn group(&self) -> &Group {
        self.rings.group()
    }

    pub(super) fn rank(&self) -> usize {
        self.group().rank()
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        self.queues.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Unlocks the queues, wakes the threads that wait for something that has ended, and drops what nobody
    /// gets back. So must end every lock under which an operation may have ended. What is dropped is its
    /// owner's code: a panic of it is not the business of the thread that moves the mail.
    pub(super) fn tell(&self, mut queues: Locked<'_>) {
        let (news, dead) = (queues.take_news(), queues.take_dead());
        drop(queues);
        if news {
            self.rings.ring(self.rank());
        }
        for buffer in dead {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(buffer)));
        }
    }

    /// Ends what waits for somebody who is gone, after taking up what that one published before.
    pub(super) fn end_awaiting_gone(&self) {
        let concerned = self.lock().concerned();
        let stop_of = |awaited| self.gone(awaited).map(|stop| (awaited, stop));
        let gone: Vec<(Awaited, Stop)> = concerned.into_iter().filter_map(stop_of).collect();
        if gone.is_empty() {
            return;
        }
        // In this order: who was gone before has published all that it ever will.
        let mut queues = self.lock();
        queues.progress(&self.rings);
        queues.sweep(|awaited| gone.iter().find(|(one, _)| *one == awaited).map(|(_, stop)| *stop));
        self.tell(queues);
    }

    /// Refuses `op` in a forked child, before any lock, and on a group that has failed. Whether the group is
    /// recorded.
    pub(super) fn check(&self, op: Op) -> Result<bool> {
        if fork::is_child() {
            return Err(Error::Forked { op: op.name() });
        }
        if self.group().inner.is_unusual() { self.look_closer(op) } else { Ok(false) }
    }

    #[cold]
    fn look_closer(&self, op: Op) -> Result<bool> {
        match self.group().inner.verdict() {
            Some(verdict) => Err(self.group().failed_by(self.context(op), verdict)),
            None => Ok(self.group().inner.is_recorded()),
        }
    }

    fn context(&self, op: Op) -> Box<Context> {
        self.group().context_of(op, None)
    }

    /// Why who is awaited cannot do anything any more: a rank that died or left, or the group that failed. Of
    /// anybody, one must have died, for the message may have been to come from that one, or all have left.
    pub(super) fn gone(&self, awaited: Awaited) -> Option<Stop> {
        let inner = &*self.group().inner;
        let ranks: Vec<usize> = match awaited {
            Awaited::Rank(rank) => vec![rank],
            Awaited::Anybody => (0..inner.world).filter(|rank| *rank != inner.rank).collect(),
        };
        let staying: Vec<usize> = ranks.iter().copied().filter(|rank| !inner.has_left(*rank)).collect();
        let lives: Vec<&life::ProcessLife> = staying.iter().map(|rank| &*inner.members[*rank].life).collect();
        if let Some(dead) = life::any_dead(&lives).map(|dead| staying[dead]) {
            // It may have left between the first look and its end; leaving comes before dying.
            return Some(if inner.has_left(dead) { Stop::Left(dead) } else { Stop::Died(dead) });
        }
        let left = ranks.first().filter(|_| staying.is_empty()).copied().map(Stop::Left);
        inner.verdict().map(Stop::Verdict).or(left)
    }

    /// Moves mail until operation `number` has ended, for as long as `terms` allow and its peer can make it
    /// happen.
    pub(super) fn wait(&self, terms: &Terms, op: Op, number: u64) -> Result<(), Interrupt> {
        let ended = |queues: &MailQueues| queues.has_ended(number).then_some(());
        self.wait_until(terms, |notice| PeerWatch { hub: self, op, number, notice }, ended)
    }

    /// Moves mail until `look` finds something, for as long as `terms` and `watch` allow.
    fn wait_until<R, W: Watch>(
        &self,
        terms: &Terms,
        watch: impl FnOnce(Notice) -> W,
        look: impl Fn(&MailQueues) -> Option<R>,
    ) -> Result<R, Interrupt> {
        let mut found = None;
        self.climb(terms, watch, &mut || {
            let mut queues = self.lock();
            queues.progress(&self.rings);
            found = look(&queues);
            self.tell(queues);
            found.is_some()
        })?;
        // It was found, or there would have been an error.
        found.ok_or(Interrupt::Expired)
    }

    /// The rungs of a wait, until `poll` says yes.
    fn climb<W: Watch>(
        &self,
        terms: &Terms,
        watch: impl FnOnce(Notice) -> W,
        poll: Poll<'_>,
    ) -> Result<(), Interrupt> {
        let _waiting = MailWaiter::new(self);
        let (inner, counters) = (&*self.group().inner, CounterWords::default());
        if inner.ladder.spin(&counters, || poll().then_some(())).is_some() {
            return Ok(());
        }
        let start = Instant::now();
        // Who waits for mail does not say so to its peers.
        if inner.ladder.linger(&counters, start, 0, &|_, _| false, poll) {
            return Ok(());
        }
        let end = terms.timeout.and_then(|timeout| start.checked_add(timeout));
        let watch = watch(Notice::new(*inner.context.config().wait_notice));
        let wait = Wait::new(end.map_or(Deadline::never(), Deadline::at)).with_watch(&watch);
        let wait = match &terms.cancel {
            Some(token) => wait.with_cancel(token),
            None => wait,
        };
        let slept = inner.ladder.sleep(self.rings.bell(self.rank()), &counters, &wait, poll);
        inner.own().mail_waiting.clear();
        slept
    }

    /// Leaves in the control segment that `op` waits for `awaited`, for who looks on.
    fn note(&self, op: Op, awaited: Option<Awaited>) {
        let waiting = &self.group().inner.own().mail_waiting;
        if !waiting.is_set() {
            let peer = awaited.and_then(|awaited| match awaited {
                Awaited::Rank(peer) => Some(peer),
                Awaited::Anybody => None,
            });
            waiting.set(WaitSubject { op, peer, sequence: 0, epoch: 0, channel: None });
        }
    }

    /// The first message that a receive like `sought` would get, once there is one.
    pub(super) fn probe(
        &self,
        terms: &Terms,
        sought: Sought,
        call: Option<RecordedCall<'_>>,
    ) -> Result<Delivery> {
        let start = Instant::now();
        let watch = |notice| ProbeWatch { hub: self, sought, notice };
        let found = self.wait_until(terms, watch, |queues| queues.peek(sought.from, sought.tag));
        if let (Some(call), Ok(found)) = (call, &found) {
            call.found(found);
        }
        found.map_err(|interrupt| {
            self.interrupted(Op::Probe, start.elapsed(), interrupt, Some(Awaited::of(sought.from)))
        })
    }

    /// The same without waiting. An error if there is none, and none can come.
    pub(super) fn try_probe(&self, sought: Sought) -> Result<Option<Delivery>> {
        let found = self.look_for(sought);
        match found.is_none().then(|| self.lost(sought)).flatten() {
            None => Ok(found),
            Some(stop) => {
                let interrupt = Interrupt::Watch(Box::new(stop));
                Err(self.interrupted(Op::Probe, Duration::ZERO, interrupt, None))
            }
        }
    }

    fn look_for(&self, sought: Sought) -> Option<Delivery> {
        let mut queues = self.lock();
        queues.progress(&self.rings);
        let found = queues.peek(sought.from, sought.tag);
        self.tell(queues);
        found
    }

    /// Why there will never be such a message, if so.
    fn lost(&self, sought: Sought) -> Option<Stop> {
        // In this order: who was gone before has published all that it ever will.
        let stop = self.gone(Awaited::of(sought.from))?;
        self.look_for(sought).is_none().then_some(stop)
    }

    /// That `op` still waits for `awaited`.
    fn waiting(&self, op: Op, awaited: Option<Awaited>) -> String {
        let Membership { rank, world, name, .. } = &*self.group().inner;
        let whom = match awaited {
            Some(Awaited::Rank(peer)) => list_ranks(&[peer]),
            _ => "anybody".to_owned(),
        };
        format!("rank {rank} of {world} has waited for {whom} in {} on group {name:?}", op.name())
    }

    /// The error for `op`, which waited for `awaited` since `start`.
    fn interrupted(
        &self,
        op: Op,
        elapsed: Duration,
        interrupt: Interrupt,
        awaited: Option<Awaited>,
    ) -> Error {
        let mut context = self.context(op);
        context.elapsed = elapsed;
        let missing = match awaited {
            Some(Awaited::Rank(rank)) => vec![rank],
            _ => (0..context.world).filter(|rank| *rank != context.rank).collect(),
        };
        self.group().interrupted(context, interrupt, missing)
    }

    /// What an outcome is to the one who asked for the operation.
    fn judge(&self, op: Op, elapsed: Duration, outcome: MailOutcome) -> Result<MailOutcome> {
        match outcome {
            MailOutcome::WrongSize(Delivery { source, tag, bytes, .. }, room) => {
                Err(Error::MessageSize { context: self.context(op), rank: source, tag, bytes, room })
            }
            MailOutcome::Gone(stop) => {
                let interrupt = Interrupt::Watch(Box::new(stop));
                Err(self.interrupted(op, elapsed, interrupt, None))
            }
            outcome => Ok(outcome),
        }
    }
}

/// Counts the thread among those who move mail, so that the helper need not.
struct MailWaiter<'a>(&'a Hub);

impl<'a> MailWaiter<'a> {
    fn new(hub: &'a Hub) -> Self {
        hub.lock().waiters += 1;
        Self(hub)
    }
}

impl Drop for MailWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.0.lock();
        queues.waiters -= 1;
        let helper = queues.waiters == 0 && queues.has_helper && !queues.is_idle();
        drop(queues);
        if helper {
            self.0.unfinished.notify_one();
        }
    }
}

/// Looks whether the peer of an operation is still there, and ends it in the queues if not.
struct PeerWatch<'a> {
    hub: &'a Hub,
    op: Op,
    number: u64,
    notice: Notice,
}

impl Watch for PeerWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let awaited = self.hub.lock().awaited(self.number);
        self.hub.note(self.op, awaited);
        // Not an error here: the message may be in the ring, or the receive may be one that others can still
        // serve.
        if awaited.is_some_and(|awaited| self.hub.gone(awaited).is_some()) {
            self.hub.end_awaiting_gone();
        }
        Ok(())
    }

    fn still_waiting(&self, elapsed: Duration) {
        self.notice.say(elapsed, || {
            let awaited = self.hub.lock().awaited(self.number);
            self.hub.waiting(self.op, awaited)
        });
    }
}

/// Which messages a probe looks for: from a rank or anybody, with a tag or any.
#[derive(Clone, Copy)]
pub(super) struct Sought {
    pub(super) from: Option<usize>,
    pub(super) tag: Option<u64>,
}

/// Looks whether a message that is looked for can still come.
struct ProbeWatch<'a> {
    hub: &'a Hub,
    sought: Sought,
    notice: Notice,
}

impl Watch for ProbeWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        self.hub.note(Op::Probe, Some(Awaited::of(self.sought.from)));
        match self.hub.lost(self.sought) {
            Some(stop) => Err(Box::new(stop)),
            None => Ok(()),
        }
    }

    fn still_waiting(&self, elapsed: Duration) {
        self.notice.say(elapsed, || self.hub.waiting(Op::Probe, Some(Awaited::of(self.sought.from))));
    }
}

/// A rank's mailbox as long as somebody has a handle of it.
pub(super) struct HubHandle(pub(super) Arc<Hub>);

impl Drop for HubHandle {
    fn drop(&mut self) {
        // A forked child has no helper to end, and may have got the lock locked.
        if !fork::is_child() {
            self.0.lock().closed = true;
            self.0.unfinished.notify_all();
        }
    }
}

/// An operation that was asked for. Dropping it ends a blocking one, and lets a started one go on by itself.
pub(super) struct MailTicket {
    pub(super) owner: Arc<HubHandle>,
    pub(super) asked: Asked,
    pub(super) number: u64,
    /// Its buffer is borrowed.
    pub(super) blocking: bool,
}

impl MailTicket {
    fn op(&self) -> Op {
        self.asked.op
    }

    /// Whether the operation has ended. Never blocks.
    pub(super) fn test(&self) -> bool {
        if fork::is_child() {
            return false;
        }
        let hub = &self.owner.0;
        let mut queues = hub.lock();
        queues.progress(&hub.rings);
        let ended = queues.has_ended(self.number);
        hub.tell(queues);
        ended
    }

    /// Waits for the end; how it ended. What did not end in time is withdrawn. `call` is that of a blocking
    /// operation; of one that was started, the time in here is recorded.
    pub(super) fn wait(self, terms: &Terms, call: Option<RecordedCall<'_>>) -> Result<MailOutcome> {
        let hub = &self.owner.0;
        let call = if self.blocking { call } else { hub.call_if_recorded(self.asked) };
        let start = Instant::now();
        let waited = match self.test() {
            true => Ok(()),
            false if fork::is_child() => return Err(Error::Forked { op: self.op().name() }),
            false => hub.wait(terms, self.op(), self.number),
        };
        let mut queues = hub.lock();
        let awaited = queues.awaited(self.number);
        let outcome = queues.take(self.number);
        if outcome.is_none() {
            queues.withdraw(self.number);
            // The peer is to learn of a message that was on its way: from the helper, or else with the next
            // one.
            if queues.has_outgoing() {
                let _ = hub.wake_helper(&mut queues);
            }
        }
        hub.tell(queues);
        if let (Some(call), Some(outcome)) = (call, &outcome) {
            call.ended(outcome);
        }
        match (outcome, waited) {
            (Some(outcome), _) => hub.judge(self.op(), start.elapsed(), outcome),
            (None, Err(interrupt)) => Err(hub.interrupted(self.op(), start.elapsed(), interrupt, awaited)),
            (None, Ok(())) => Err(Error::invalid(self.op().name(), "its outcome was given out before")),
        }
    }

    /// Waits for the end, but for at most `timeout`; whether it has ended. Changes nothing.
    pub(super) fn wait_for(&self, terms: &Terms, timeout: Duration) -> Result<bool> {
        let hub = &self.owner.0;
        if fork::is_child() {
            return Err(Error::Forked { op: self.op().name() });
        }
        let call = hub.call_if_recorded(self.asked);
        let terms = Terms { timeout: Some(timeout), cancel: terms.cancel.clone() };
        let waited = hub.wait(&terms, self.op(), self.number);
        if let (Some(call), Ok(()) | Err(Interrupt::Expired)) = (call, &waited) {
            call.goes_on();
        }
        match waited {
            Ok(()) => Ok(true),
            Err(Interrupt::Expired) => Ok(false),
            Err(interrupt) => Err(hub.interrupted(self.op(), timeout, interrupt, None)),
        }
    }
}

impl Drop for MailTicket {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        let hub = &self.owner.0;
        let mut queues = hub.lock();
        match self.blocking {
            true => drop(queues.withdraw(self.number)),
            false => queues.abandon(self.number),
        }
        // Buffers that come back are the caller's code to drop.
        let outcome = queues.take(self.number);
        hub.tell(queues);
        drop(outcome);
    }
}
