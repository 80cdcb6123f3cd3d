//! What a group is made of: its members, their control segments, and the state of this rank's operations.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use symmem_store::{Store, TcpStoreServer};

use super::RankContext;
use super::reading::RemoteReading;
use super::running::Stop;
use super::seal::Sealer;
use super::worker::Worker;
use crate::error::Cause;
use crate::operation::Op;
use crate::sync::control::{Control, ControlMap, CounterWords, Verdict};
use crate::sync::ladder::Ladder;
use crate::sync::protocol::{Bell, MeetingWords, Owed, Slot};
use crate::sync::record::Recorder;
use crate::sync::team::RankThreads;
use crate::sys::channel::Endpoint;
use crate::sys::life::{self, ProcessId, ProcessLife};
use crate::sys::memfd::Segment;
use crate::sys::{exit, fork};
use crate::tuning::{Choices, DeviceBounds};

/// One rank as the others see it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) process: ProcessId,
    /// Ranks with equal hosts share memory.
    pub(crate) host: String,
    /// Where its fd channel listens.
    pub(crate) address: String,
    pub(crate) life: Arc<ProcessLife>,
}

/// [`Membership::busy`] while this rank does nothing on the group.
pub(crate) const IDLE: u8 = 0;
/// The bit of [`Membership::busy`] that says that an operation runs.
pub(crate) const RUNNING: u8 = 1;
/// The bit of [`Membership::busy`] that says that started operations are unfinished: the helper thread's
/// turn.
pub(crate) const STARTED: u8 = 2;

/// The state of one rank in one group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) name: String,
    /// Unique among all groups ever made.
    pub(crate) id: String,
    /// Seals what goes through the store.
    pub(crate) sealer: Sealer,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) members: Vec<Member>,
    /// The control segments of the members on this host.
    pub(crate) controls: Vec<Option<ControlMap>>,
    /// This rank's own, and the one that holds the verdict, which is that of the first rank on this host.
    /// Every operation looks at both, and should not have to search for them.
    pub(crate) own: ControlMap,
    pub(crate) judge: ControlMap,
    pub(crate) endpoint: Endpoint,
    /// Keeps this rank's control memfd open under its name, for `symmem inspect`.
    pub(crate) _segment: Segment,
    pub(crate) store: Arc<dyn Store>,
    /// The server behind `store`, when this rank serves it.
    pub(crate) server: Option<Arc<TcpStoreServer>>,
    pub(crate) context: RankContext,
    pub(crate) ladder: Ladder,
    /// [`IDLE`], or what keeps further operations out.
    pub(crate) busy: AtomicU8,
    /// Meetings so far.
    pub(crate) epoch: AtomicU64,
    /// What this rank announced at `epoch`, if it has not heard from everybody there.
    pub(crate) owed: Owed,
    /// Which algorithm runs when: the same on all ranks.
    pub(crate) choices: Choices,
    /// What was measured of devices, by their kind: the same on all ranks.
    pub(crate) devices: BTreeMap<String, DeviceBounds>,
    /// Whether ranks can read each other's private memory: the same on all ranks.
    pub(crate) reading: RemoteReading,
    /// Operations so far.
    pub(crate) sequence: AtomicU64,
    /// The fd channel's last tag: grows with every collective exchange of fds.
    pub(crate) fd_tag: AtomicU64,
    /// Engines so far: the same on all ranks, as they are made by all of them.
    pub(crate) engines: AtomicU64,
    /// Elections of survivors so far.
    pub(crate) elections: AtomicU64,
    /// Whether a thread of this rank takes part in one: it has one ballot.
    pub(crate) electing: AtomicBool,
    /// How often each (members, name) was made a subgroup.
    pub(crate) subgroups: Mutex<HashMap<String, u64>>,
    /// Carries started operations.
    pub(crate) worker: Worker,
    /// Shares the work of large ones.
    pub(crate) threads: RankThreads,
    /// Whether the operation that runs is recorded. Of the running operation, as `sequence`.
    pub(crate) recording: AtomicBool,
    /// Where operations are recorded, once they are; `None` inside if that could not be made.
    pub(crate) recorder: OnceLock<Option<Recorder>>,
}

impl MeetingWords for Membership {
    #[inline]
    fn world(&self) -> usize {
        self.world
    }

    #[inline]
    fn slot(&self, at: usize, from: usize) -> &Slot {
        self.map(at).slot(from)
    }

    #[inline]
    fn bell(&self, at: usize) -> &Bell {
        &self.map(at).control().bell
    }
}

impl Membership {
    /// The control segment of a rank on this host. A group only meets in memory when all its ranks are.
    #[inline]
    pub(crate) fn map(&self, rank: usize) -> &ControlMap {
        match &self.controls[rank] {
            Some(map) => map,
            None => not_here(rank),
        }
    }

    /// This rank's own control.
    #[inline]
    pub(crate) fn own(&self) -> &Control {
        self.own.control()
    }

    /// Operation number `sequence` begins; returns that.
    #[inline]
    pub(crate) fn count_op(&self, op: Op, sequence: u64) -> u64 {
        let control = self.own();
        control.record(op, sequence);
        CounterWords::add(&control.counters.ops, 1);
        sequence
    }

    /// Whether another rank of this host did something else than wait for most of the time between `from` and
    /// `to`, which is now.
    pub(crate) fn has_anybody_worked(&self, from: u64, to: u64) -> bool {
        let others = self.controls.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        others.filter_map(|(_, map)| map.as_ref()).any(|map| map.control().counters.worked(from, to))
    }

    /// Whether all ranks are on this host.
    pub(crate) fn is_local(&self) -> bool {
        self.controls.iter().all(Option::is_some)
    }

    /// Whether every rank has proven that it belongs to the job: to the kernel of this host, or with the job
    /// secret.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_local() || self.sealer.proves()
    }

    pub(crate) fn pid(&self, rank: usize) -> u32 {
        self.members[rank].process.pid
    }

    #[inline]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.judge.control().verdict()
    }

    /// Whether an operation has to look closer before it begins: the group has failed, or is recorded.
    #[inline]
    pub(crate) fn is_unusual(&self) -> bool {
        self.judge.control().is_unusual()
    }

    /// Declares the group dead, unless it is; returns the verdict that stands and whether it is this one.
    pub(crate) fn convict(&self, verdict: Verdict) -> (Verdict, bool) {
        let outcome = self.judge.control().convict(verdict);
        self.own().set_heard(outcome.0);
        self.ring_everybody();
        outcome
    }

    /// What the culprit said about it.
    pub(crate) fn reason(&self, culprit: usize) -> String {
        self.controls
            .get(culprit)
            .and_then(Option::as_ref)
            .map(|map| map.control().reason())
            .unwrap_or_default()
    }

    pub(crate) fn ring_everybody(&self) {
        Bell::publish_fence();
        for map in self.controls.iter().flatten() {
            map.control().bell.ring_if_waited();
        }
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.controls[rank].as_ref().is_some_and(|map| map.control().has_left())
    }

    /// One look at everybody: the verdict, the awaited ranks that left, and deaths of any rank.
    pub(crate) fn look(&self, awaited: &dyn Fn(usize) -> bool) -> Result<(), Stop> {
        if let Some(verdict) = self.verdict() {
            return Err(Stop::Verdict(verdict));
        }
        let peers = (0..self.world).filter(|rank| *rank != self.rank);
        if let Some(rank) = peers.clone().find(|rank| self.has_left(*rank) && awaited(*rank)) {
            return Err(Stop::Left(rank));
        }
        match self.find_dead() {
            Some(rank) => Err(Stop::Died(rank)),
            None => Ok(()),
        }
    }

    /// The first rank that died without leaving. One system call.
    pub(crate) fn find_dead(&self) -> Option<usize> {
        let watched: Vec<usize> =
            (0..self.world).filter(|rank| *rank != self.rank && !self.has_left(*rank)).collect();
        let lives: Vec<&ProcessLife> = watched.iter().map(|rank| &*self.members[*rank].life).collect();
        let dead = watched[life::any_dead(&lives)?];
        // It may have left between the first look and its end; leaving comes before dying.
        (!self.has_left(dead)).then_some(dead)
    }

    /// After a failed system or store call: gives a death that explains it a moment to become visible.
    pub(crate) fn look_for_a_death(&self) -> Option<usize> {
        wait_for_a_death(|| self.find_dead())
    }

    /// Marks this rank as gone, and as the culprit if its thread is unwinding.
    fn leave(&self) {
        if std::thread::panicking() {
            self.convict(Verdict { culprit: self.rank, cause: Cause::Panicked });
        }
        self.say_left();
    }

    /// Tells everybody that this rank is gone.
    fn say_left(&self) {
        self.own().set_left();
        // Its own segment goes with it; whoever looks on from outside finds it here.
        for map in self.controls.iter().flatten() {
            map.seat(self.rank).leave();
        }
        self.ring_everybody();
    }
}

/// Out of line, to keep the way to a control segment short enough to be inlined.
#[cold]
fn not_here(rank: usize) -> ! {
    unreachable!("rank {rank} is on another host and has no control segment here")
}

/// Polls `find` for as long as the kernel may take to tell of a death that already broke a connection.
pub(crate) fn wait_for_a_death<T>(find: impl Fn() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let found = find();
        if found.is_some() || start.elapsed() > Duration::from_millis(200) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A forked child is not the rank: its copy of the group must not speak for it.
        if !fork::is_child() {
            self.leave();
        }
    }
}

static LIVE: Mutex<Vec<Weak<Membership>>> = Mutex::new(Vec::new());

/// Remembers `inner`, so that a clean exit of the process counts as leaving.
pub(crate) fn leave_on_exit(inner: &Arc<Membership>) {
    exit::on_exit(leave_all);
    let mut live = LIVE.lock().unwrap_or_else(|poison| poison.into_inner());
    live.retain(|group| group.strong_count() > 0);
    live.push(Arc::downgrade(inner));
}

fn leave_all() {
    if fork::is_child() {
        return;
    }
    // try_lock: a thread that the exit caught inside `leave_on_exit` must not block it.
    let Ok(live) = LIVE.try_lock() else { return };
    for inner in live.iter().filter_map(Weak::upgrade) {
        inner.say_left();
        // The process is ending: what other threads still use must not be torn down under them.
        std::mem::forget(inner);
    }
}
