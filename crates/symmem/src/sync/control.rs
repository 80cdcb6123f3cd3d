//! The control segment: one per (group, rank), written by its owner unless said otherwise, mapped by all
//! members.
//!
//! It holds what ranks must know of each other while they run and what a person needs to see when they hang.
//! A fixed [`Control`], then one slot per rank, then the staging of the exchange, then one seat per rank.

#![allow(unsafe_code, reason = "words in shared memory")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Result;
use crate::error::Cause;
use crate::operation::{MAX_ROOTS, Op};
use crate::sync::about::{About, MemberRecord, Text};
use crate::sync::protocol::{ALIVE_WORDS, Ballot, Bell, Slot};
use crate::sync::waiting::Waiting;
use crate::sys::life::ProcessId;
use crate::sys::memfd::{Mapping, Segment};

/// How the name of a control segment's memory file begins, by which who looks on from outside finds it; the
/// group's name and the rank follow.
pub(crate) const PREFIX: &str = "symmem:";
/// First word of every control segment: "symmemct" in ASCII.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"symmemct");
/// Layout version of the segment and of the messages around it.
pub(crate) const VERSION: u32 = 7;
/// Bytes of staging that all ranks of a group share out, per parity, and the bounds of one rank's part:
/// enough to keep a piece of a large message in the second-level cache, small enough for many ranks.
const STAGING_OF_ALL: usize = 16 << 20;
const STAGING_BOUNDS: (usize, usize) = (16 << 10, 256 << 10);

/// Bytes that a rank of a group of `world` can lay out for the others at once.
pub(crate) fn staging_bytes(world: usize) -> usize {
    let (least, most) = STAGING_BOUNDS;
    (STAGING_OF_ALL / world).clamp(least, most) & !63
}
/// Most ranks a group can have: as many as a ballot has room for.
pub(crate) const MAX_WORLD: usize = 64 * ALIVE_WORDS;
const _: () = assert!(MAX_WORLD == 1024);
const _: () = assert!(MAX_WORLD <= MAX_ROOTS, "every rank is a root that fits");
/// Bytes of an abort reason that are kept.
const REASON: usize = 240;
const LAST_OPS: usize = 32;
/// The bit of the verdict's word that says that operations are recorded (`sync/record`). An operation looks
/// at that word anyway, and finds 0 in it unless something is the matter, so that recording costs those
/// nothing who do not record.
pub(crate) const RECORDED: u64 = 1 << 63;

/// The fixed part of a control segment.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) rank: AtomicU32,
    pub(crate) world: AtomicU32,
    pub(crate) pid: AtomicU32,
    pub(crate) start_time: AtomicU64,
    /// Only the first rank's is used: whether the join succeeded, see [`Control::settle_join`].
    join: AtomicU32,
    /// Rung by peers.
    pub(crate) bell: Bell,
    /// Only the first rank's is used: the group's verdict, written once, by whoever fails first, and
    /// [`RECORDED`].
    verdict: CacheLine<AtomicU64>,
    /// 0 while the rank is a member, then 1.
    left: CacheLine<AtomicU32>,
    /// Of operations.
    pub(crate) waiting: Waiting,
    /// Of mail, which is beside them.
    pub(crate) mail_waiting: Waiting,
    pub(crate) counters: CounterWords,
    /// The owner's vote on who is alive, see `group::survivors`.
    pub(crate) survivors: Ballot,
    last_ops: [AtomicU64; LAST_OPS],
    reason: Text<REASON>,
    /// The verdict as the owner knows it, for who looks on when the first rank is gone.
    heard: AtomicU64,
    pub(crate) about: About,
}

/// A word alone in its cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct CacheLine<T>(T);

/// The owner's counters; single writer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct CounterWords {
    pub(crate) ops: AtomicU64,
    pub(crate) spins: AtomicU64,
    pub(crate) yields: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Since when the owner has been waiting, by [`clock::boottime_ns`](crate::sys::clock::boottime_ns),
    /// beyond the first rung; else 0.
    waits_since: AtomicU64,
}

impl CounterWords {
    /// Adds without a locked instruction: only the owner's one running op writes.
    #[inline]
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The owner waits since then; 0: no longer. Relaxed, as peers only guess by it.
    pub(crate) fn set_waiting(&self, since: u64) {
        self.waits_since.store(since, Ordering::Relaxed);
    }

    /// Whether the owner did something else than wait for at least half of the time between `from` and `to`,
    /// which is now.
    pub(crate) fn worked(&self, from: u64, to: u64) -> bool {
        let since = self.waits_since.load(Ordering::Relaxed);
        since == 0 || since > from + (to - from) / 2
    }
}

/// Why the group is dead, in one word, so that the first cause wins by one compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) culprit: usize,
    pub(crate) cause: Cause,
}

impl Verdict {
    fn encode(self) -> u64 {
        let cause = CAUSES.iter().position(|cause| *cause == self.cause).unwrap_or(0) as u64 + 1;
        (self.culprit as u64) << 8 | cause
    }

    fn decode(word: u64) -> Option<Self> {
        let cause = CAUSES.get(((word & 0xff) as usize).checked_sub(1)?)?;
        Some(Self { culprit: ((word & !RECORDED) >> 8) as usize, cause: *cause })
    }
}

const CAUSES: [Cause; 7] = [
    Cause::Died,
    Cause::Left,
    Cause::Panicked,
    Cause::TimedOut,
    Cause::Cancelled,
    Cause::Aborted,
    Cause::Failed,
];

impl Control {
    /// The verdict, on the first rank's control.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.verdict.0.load(Ordering::Acquire) {
            0 => None,
            word => Verdict::decode(word),
        }
    }

    /// Whether an operation has to look closer before it begins: the group has failed, or is recorded. On the
    /// first rank's control.
    #[inline]
    pub(crate) fn is_unusual(&self) -> bool {
        self.verdict.0.load(Ordering::Acquire) != 0
    }

    /// Whether operations of the group are to be recorded.
    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        self.verdict.0.load(Ordering::Relaxed) & RECORDED != 0
    }

    /// Has operations of all ranks recorded from now on, or no longer. On the first rank's control.
    pub(crate) fn set_recorded(&self, recorded: bool) {
        // Relaxed: it says nothing of any other memory; a rank that sees it late records from its next
        // operation on.
        match recorded {
            true => self.verdict.0.fetch_or(RECORDED, Ordering::Relaxed),
            false => self.verdict.0.fetch_and(!RECORDED, Ordering::Relaxed),
        };
    }

    /// Records `verdict` unless there is one; returns the one that stands, and whether it is this one.
    pub(crate) fn convict(&self, verdict: Verdict) -> (Verdict, bool) {
        let unless_there_is_one = |word| match Verdict::decode(word) {
            Some(_) => None,
            None => Some(verdict.encode() | word & RECORDED),
        };
        // Release publishes the reason text; Acquire fetches the winner's.
        match self.verdict.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_there_is_one) {
            Ok(_) => (verdict, true),
            Err(standing) => (Verdict::decode(standing).unwrap_or(verdict), false),
        }
    }

    /// Settles once, for all ranks, whether the group came to be: the first rank to say what it saw decides.
    /// When a rank dies at the end of a join, some see everybody arrive and others see the death first; they
    /// must not disagree on whether they have a group. On the first rank's control.
    pub(crate) fn settle_join(&self, succeeded: bool) -> bool {
        const SUCCEEDED: u32 = 1;
        const FAILED: u32 = 2;
        let mine = if succeeded { SUCCEEDED } else { FAILED };
        // Release publishes the verdict that made it fail; Acquire fetches it.
        let settled = self.join.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire);
        settled.map_or_else(|first| first, |_| mine) == SUCCEEDED
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.0.load(Ordering::Acquire) != 0
    }

    pub(crate) fn set_left(&self) {
        // Release: whatever the rank published before it left is visible to who sees it gone.
        self.left.0.store(1, Ordering::Release);
    }

    /// Records an op in the ring of last ops.
    #[inline]
    pub(crate) fn record(&self, op: Op, sequence: u64) {
        let entry = &self.last_ops[sequence as usize % LAST_OPS];
        entry.store(sequence << 8 | op as u64, Ordering::Relaxed);
    }

    /// The ring of last ops: number and op, in no order.
    pub(crate) fn last_ops(&self) -> Vec<(u64, Op)> {
        let entries = self.last_ops.iter().map(|entry| entry.load(Ordering::Relaxed)).enumerate();
        let read = |(index, entry): (usize, u64)| {
            let sequence = entry >> 8;
            let fits = sequence > 0 && sequence as usize % LAST_OPS == index;
            Op::from_u8(entry as u8).filter(|_| fits).map(|op| (sequence, op))
        };
        entries.filter_map(read).collect()
    }

    /// The owner's words for an abort; to be stored before the verdict.
    pub(crate) fn set_reason(&self, reason: &str) {
        self.reason.set(reason);
    }

    pub(crate) fn reason(&self) -> String {
        self.reason.get()
    }

    /// Keeps the verdict that the owner has come to know.
    pub(crate) fn set_heard(&self, verdict: Verdict) {
        self.heard.store(verdict.encode(), Ordering::Release);
    }

    /// What [`Control::set_heard`] kept.
    pub(crate) fn heard(&self) -> Option<Verdict> {
        Verdict::decode(self.heard.load(Ordering::Acquire))
    }
}

/// A mapped control segment: the fixed part, the slots, the staging and the seats.
#[derive(Clone, Debug)]
pub(crate) struct ControlMap {
    mapping: Arc<Mapping>,
    world: usize,
}

impl ControlMap {
    /// Bytes of a control segment in a group of `world` ranks.
    pub(crate) fn bytes(world: usize) -> usize {
        Self::seats_at(world) + world * size_of::<MemberRecord>()
    }

    /// Where the seats are: last, so that operations, which do not need them, need not know of them either.
    fn seats_at(world: usize) -> usize {
        size_of::<Control>() + world * size_of::<Slot>() + 2 * staging_bytes(world)
    }

    /// Makes this rank's own segment.
    pub(crate) fn create(
        name: &str,
        rank: usize,
        world: usize,
        process: ProcessId,
    ) -> Result<(Segment, Self)> {
        let segment = Segment::create(name, Self::bytes(world))?;
        let map = Self { mapping: Arc::clone(segment.mapping()), world };
        let control = map.control();
        control.version.store(VERSION, Ordering::Relaxed);
        control.rank.store(rank as u32, Ordering::Relaxed);
        control.world.store(world as u32, Ordering::Relaxed);
        control.pid.store(process.pid, Ordering::Relaxed);
        control.start_time.store(process.start_time, Ordering::Relaxed);
        control.magic.store(MAGIC, Ordering::Release);
        Ok((segment, map))
    }

    /// Takes a peer's segment, which must be of `rank` in a group of `world`.
    pub(crate) fn adopt(mapping: Mapping, rank: usize, world: usize) -> Option<Self> {
        if mapping.len() < Self::bytes(world) {
            return None;
        }
        let map = Self { mapping: Arc::new(mapping), world };
        let control = map.control();
        let fits = control.magic.load(Ordering::Acquire) == MAGIC
            && control.version.load(Ordering::Relaxed) == VERSION
            && control.rank.load(Ordering::Relaxed) as usize == rank
            && control.world.load(Ordering::Relaxed) as usize == world;
        fits.then_some(map)
    }

    /// Takes somebody's segment, whichever it is, to look at: nothing may be written through it if the
    /// mapping is for reading.
    pub(crate) fn examine(mapping: Mapping) -> ExaminedFile {
        if mapping.len() < size_of::<Control>() {
            return ExaminedFile::Nothing;
        }
        // Long enough for the fixed part, whatever the world.
        let mut map = Self { mapping: Arc::new(mapping), world: 0 };
        let control = map.control();
        if control.magic.load(Ordering::Acquire) != MAGIC {
            return ExaminedFile::Nothing;
        }
        if control.version.load(Ordering::Relaxed) != VERSION {
            return ExaminedFile::OtherVersion;
        }
        let (rank, world) = (control.rank.load(Ordering::Relaxed), control.world.load(Ordering::Relaxed));
        let (rank, world) = (rank as usize, world as usize);
        if rank >= world || world > MAX_WORLD || map.mapping.len() < Self::bytes(world) {
            return ExaminedFile::Nothing;
        }
        map.world = world;
        ExaminedFile::Segment(map, rank)
    }

    /// Number of ranks.
    pub(crate) fn world(&self) -> usize {
        self.world
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: the mapping is page-aligned, at least `bytes(world)` long (checked by `create` and `adopt`)
        // and lives as long as `self`; `Control` consists of atomics only, so any bytes and concurrent writes
        // are valid.
        unsafe { &*self.mapping.ptr().cast::<Control>() }
    }

    /// The slot that rank `from` writes.
    #[inline]
    pub(crate) fn slot(&self, from: usize) -> &Slot {
        assert!(from < self.world, "there is no slot for that rank");
        // SAFETY: as for `control`; the slots follow it and `from` is in range.
        unsafe { &*self.mapping.ptr().add(size_of::<Control>()).cast::<Slot>().add(from) }
    }

    /// What is known of member `rank`.
    pub(crate) fn seat(&self, rank: usize) -> &MemberRecord {
        assert!(rank < self.world, "there is no seat for that rank");
        // SAFETY: as for `control`; the seats follow the staging, which is a multiple of 64 bytes, and `rank`
        // is in range.
        unsafe { &*self.mapping.ptr().add(Self::seats_at(self.world)).cast::<MemberRecord>().add(rank) }
    }

    /// Touches every page now, so that no operation pays for it.
    pub(crate) fn populate(&self) -> Result<()> {
        self.mapping.populate()
    }

    /// The staging of `epoch`: `staging_bytes` of the world.
    #[inline]
    pub(crate) fn staging(&self, epoch: u64) -> *mut u8 {
        let slots = self.world * size_of::<Slot>();
        let parity = (epoch & 1) as usize;
        // SAFETY: within the mapping, as `bytes` lays it out.
        unsafe { self.mapping.ptr().add(size_of::<Control>() + slots + parity * staging_bytes(self.world)) }
    }
}

/// What a memory file is to who looks on.
#[derive(Debug)]
pub(crate) enum ExaminedFile {
    /// The segment of the rank of this number.
    Segment(ControlMap, usize),
    /// A segment whose layout is not known here.
    OtherVersion,
    /// Something else.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_packing() {
        for cause in CAUSES {
            for culprit in [0, 1, 255, 256, MAX_WORLD - 1] {
                let verdict = Verdict { culprit, cause };
                assert_eq!(Verdict::decode(verdict.encode()), Some(verdict));
            }
        }
        assert_eq!(Verdict::decode(0), None);
        assert_eq!(Verdict::decode(0xff), None);
    }

    #[test]
    fn being_recorded_is_no_verdict_and_survives_one() {
        let (_segment, map) = ControlMap::create("x", 0, 2, ProcessId::own()).unwrap();
        let (control, verdict) = (map.control(), Verdict { culprit: 3, cause: Cause::Died });
        assert!(!control.is_unusual());
        control.set_recorded(true);
        assert!(control.is_unusual() && control.verdict().is_none());
        assert_eq!(control.convict(verdict), (verdict, true));
        assert_eq!(control.convict(Verdict { culprit: 1, cause: Cause::Left }), (verdict, false));
        let recorded = || control.verdict.0.load(Ordering::Relaxed) & RECORDED != 0;
        assert!(recorded());
        control.set_recorded(false);
        assert!(control.verdict() == Some(verdict) && !recorded());
    }

    #[test]
    fn the_first_rank_to_say_so_settles_a_join_for_all() {
        for first in [true, false] {
            let process = ProcessId::own();
            let (_segment, map) = ControlMap::create("x", 0, 2, process).unwrap();
            for said in [first, !first, first] {
                assert_eq!(map.control().settle_join(said), first);
            }
        }
    }

    #[test]
    fn who_waits_since_the_first_half_did_not_work() {
        let counters = CounterWords::default();
        assert!(counters.worked(1000, 2000));
        for (since, worked) in [(10, false), (1400, false), (1600, true), (2000, true)] {
            counters.set_waiting(since);
            assert_eq!(counters.worked(1000, 2000), worked, "since {since}");
        }
        counters.set_waiting(0);
        assert!(counters.worked(1000, 2000));
    }

    #[test]
    fn hot_words_have_cache_lines_of_their_own() {
        let lines = [
            std::mem::offset_of!(Control, bell),
            std::mem::offset_of!(Control, verdict),
            std::mem::offset_of!(Control, left),
            std::mem::offset_of!(Control, waiting),
            std::mem::offset_of!(Control, counters),
        ];
        assert!(lines.iter().all(|offset| offset % 64 == 0), "{lines:?}");
        assert_eq!(size_of::<Slot>() % 64, 0);
        assert_eq!(size_of::<Control>() % 64, 0);
    }
}
