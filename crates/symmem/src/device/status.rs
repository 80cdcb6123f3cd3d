//! Whether a group is whole, as its devices and its host see it.
//!
//! Kernels that fail write their cause into a block of host memory; the host's verdict
//! (`group/membership.rs`) is the one truth that everybody reports. [`Watched`] carries one to the other: a
//! device's cause becomes the host's verdict unless there is one, and a host's verdict becomes the word that
//! ends waiting kernels. Called by operations, by `Engine::status` and `Engine::sync`, and by the watchdog;
//! makes no CUDA call after it was made, never blocks.
//!
//! What of it concerns NCCL is in `carrier.rs`.

#![allow(unsafe_code, reason = "words that kernels write")]

pub(crate) mod board;
mod carrier;

use std::any::Any;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use self::board::Board;
pub(crate) use self::carrier::Ending;
use super::MAX_LANES;
use super::control::{DeviceCause, StatusWords, Word, op_of};
use super::host_block::HostBlock;
use crate::cuda::Device;
use crate::error::{Cause, Context};
use crate::group::Membership as GroupInner;
use crate::group::watch::{self, Look};
use crate::operation::Op;
use crate::sync::control::Verdict;
use crate::sys::memfd::{Mapping, Segment};
use crate::{Error, Result};

/// Whether a group of devices can still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Yes.
    Whole,
    /// No, for good. The same first cause on every rank.
    Failed {
        /// The rank that caused it.
        culprit: usize,
        /// What happened to it.
        cause: Cause,
        /// What else is known.
        detail: String,
    },
}

/// What the words of an engine say to who looks on.
#[derive(Clone, Debug)]
pub(crate) struct ExaminedEngine {
    pub(crate) engine: board::BoardEngine,
    /// Of a kernel that failed.
    pub(crate) verdict: Option<Word>,
    /// Whether waiting kernels were told to end.
    pub(crate) is_aborted: bool,
}

/// The words that kernels of one engine write when they fail, and look at while they wait: in host memory.
#[derive(Debug)]
pub(crate) struct HostStatusWords(Segment);

impl HostStatusWords {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Ok(Self(Segment::create(name, Self::BYTES)?))
    }

    /// Where the board is: behind all that devices write.
    const BOARD: usize = Self::carried_at(MAX_LANES as usize).next_multiple_of(64);
    const BYTES: usize = Self::BOARD + size_of::<Board>();

    /// What the host says to who looks on.
    #[inline]
    pub(crate) fn board(&self) -> &Board {
        Self::board_in(self.0.mapping())
    }

    fn board_in(mapping: &Mapping) -> &Board {
        assert!(mapping.len() >= Self::BYTES, "there is no board in that file");
        // SAFETY: within the mapping, whose start is aligned to a page; a board consists of atomics only.
        unsafe { &*mapping.ptr().add(Self::BOARD).cast::<Board>() }
    }

    /// What the file behind `mapping` says, which is mapped for reading; none if it is of nobody's engine.
    pub(crate) fn examine(mapping: &Mapping) -> Option<ExaminedEngine> {
        if mapping.len() < Self::BYTES {
            return None;
        }
        let engine = Self::board_in(mapping).read()?;
        let words = mapping.ptr().cast::<StatusWords>();
        // SAFETY: places in the mapping; nothing is read here.
        let at = unsafe { [&raw mut (*words).verdict, &raw mut (*words).abort] };
        // SAFETY: aligned words of the mapping, which host and devices access as a whole.
        let [verdict, abort] = at.map(|at| unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Acquire));
        Some(ExaminedEngine { engine, verdict: Word::decode(verdict), is_aborted: abort != 0 })
    }

    /// Where the word is that says what NCCL is at on `lane`: behind those of the kernels.
    const fn carried_at(lane: usize) -> usize {
        size_of::<StatusWords>() + lane * size_of::<u32>()
    }

    /// The number of the operation that NCCL is at on `lane`; 0 for none.
    fn carried(&self, lane: usize) -> u32 {
        // SAFETY: a word of the mapping, aligned, for every lane that an engine can have; written as a whole.
        unsafe {
            let at = self.0.mapping().ptr().cast::<u8>().add(Self::carried_at(lane));
            AtomicU32::from_ptr(at.cast())
        }
        .load(Ordering::Acquire)
    }

    fn words(&self) -> *mut StatusWords {
        self.0.mapping().ptr().cast()
    }

    fn word(&self, at: *mut u64) -> &AtomicU64 {
        // SAFETY: `at` is a word of the mapping, aligned, and lives as long as `self`; host and devices
        // access it as a whole.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// What kernels say, 0 while all is well. One load.
    #[inline]
    fn verdict(&self) -> u64 {
        // SAFETY: a place in the mapping; nothing is read here.
        let at = unsafe { &raw mut (*self.words()).verdict };
        self.word(at).load(Ordering::Acquire)
    }

    /// A mismatch in numbers: signatures and bytes, mine and theirs.
    fn mismatch(&self) -> ([u32; 2], [u64; 2]) {
        // SAFETY: places in the mapping; nothing is read here.
        let at = unsafe {
            let words = self.words();
            [&raw mut (*words).signatures, &raw mut (*words).my_bytes, &raw mut (*words).their_bytes]
        };
        let [signatures, mine, theirs] = at.map(|at| self.word(at).load(Ordering::Relaxed));
        ([(signatures >> 32) as u32, signatures as u32], [mine, theirs])
    }

    #[cfg(test)]
    pub(super) fn is_aborted(&self) -> bool {
        // SAFETY: a place in the mapping; nothing is read here.
        let at = unsafe { &raw mut (*self.words()).abort };
        self.word(at).load(Ordering::Acquire) != 0
    }

    /// Ends waiting kernels with `word`, unless that was done.
    fn abort(&self, word: Word) {
        // SAFETY: a place in the mapping; nothing is read here.
        let at = unsafe { &raw mut (*self.words()).abort };
        let _ = self.word(at).compare_exchange(0, word.encode(), Ordering::Release, Ordering::Relaxed);
    }
}

impl AsRef<Mapping> for HostStatusWords {
    fn as_ref(&self) -> &Mapping {
        self.0.mapping()
    }
}

/// [`HostStatusWords`] as a device reaches them.
#[derive(Debug)]
pub(crate) struct StatusBlock(HostBlock<HostStatusWords>);

impl StatusBlock {
    pub(crate) fn new(device: &Device, words: &Arc<HostStatusWords>) -> Result<Self> {
        HostBlock::new(device, words).map(Self)
    }

    /// Where kernels find them.
    pub(crate) fn address(&self) -> u64 {
        self.0.address()
    }

    /// Where streams find the word of NCCL's operations on `lane`.
    pub(crate) fn carried(&self, lane: usize) -> u64 {
        self.address() + HostStatusWords::carried_at(lane) as u64
    }
}

/// What there is to look at of one engine, without touching its device.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) group: Arc<GroupInner>,
    words: Arc<HostStatusWords>,
    /// Number of the device in this process.
    pub(crate) device: usize,
    /// Whether another rank of the group is on the same device in the same process.
    pub(crate) shares_device: bool,
    /// The stream that each lane was last used on, by its handle; for other ranks of this process to see.
    pub(crate) streams: Vec<AtomicUsize>,
    /// What is to end when the group has failed, until it was.
    ending: Mutex<Option<Ending>>,
    /// The operation that NCCL was last seen at, by lane, and since when; none without a communicator.
    carried: Vec<Mutex<(u32, Instant)>>,
    /// Nanoseconds that it may be at one; 0: for ever.
    deadline: AtomicU64,
}

impl Watched {
    pub(crate) fn new(
        group: &Arc<GroupInner>,
        words: &Arc<HostStatusWords>,
        device: usize,
        shares_device: bool,
        lanes: usize,
    ) -> Self {
        // No stream has this handle.
        let streams = (0..lanes).map(|_| AtomicUsize::new(usize::MAX)).collect();
        Self {
            group: Arc::clone(group),
            words: Arc::clone(words),
            device,
            shares_device,
            streams,
            ending: Mutex::new(None),
            carried: Vec::new(),
            deadline: AtomicU64::new(0),
        }
    }

    /// `op` was launched on `lane`, as number `launches`.
    #[inline]
    pub(crate) fn launched(&self, lane: usize, op: Op, launches: u64) {
        self.words.board().launched(lane, op, launches);
    }

    /// The verdict on the group, if there is one. Two loads while there is none.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        if self.group.verdict().is_none() && self.words.verdict() == 0 {
            return None;
        }
        self.settle()
    }

    /// Makes host and device agree on a failure that one of them has seen.
    #[cold]
    fn settle(&self) -> Option<Verdict> {
        if let Some(word) = Word::decode(self.words.verdict()) {
            self.give_reason(word);
            if self.group.verdict().is_none() {
                self.convict(self.verdict_of(word));
            }
        }
        let verdict = self.group.verdict()?;
        self.abort(verdict);
        Some(verdict)
    }

    /// Fails the group because this rank cannot launch its part of an operation, for the reason that `error`
    /// gives.
    #[cold]
    pub(crate) fn give_up(&self, error: &Error) {
        self.give_own_reason(&error.to_string());
        self.abort(self.convict(Verdict { culprit: self.group.rank, cause: Cause::Failed }));
    }

    fn convict(&self, verdict: Verdict) -> Verdict {
        let (standing, ours) = self.group.convict(verdict);
        if ours {
            let (group, rank) = (&self.group.name, self.group.rank);
            tracing::debug!(group, rank, culprit = standing.culprit, cause = %standing.cause, "group failed on the device");
        }
        standing
    }

    /// Ends this rank's waiting kernels, which tell those of the others.
    fn abort(&self, verdict: Verdict) {
        let (culprit, reporter) = (verdict.culprit as u8, self.group.rank as u8);
        self.words.abort(Word { cause: DeviceCause::Aborted, culprit, reporter, op: 0, epoch: 0 });
        self.end();
    }

    /// What a kernel's word means on the host. Kernels only know that a rank did not come; the host may know
    /// why.
    fn verdict_of(&self, word: Word) -> Verdict {
        let group = &self.group;
        let culprit = usize::from(word.culprit).min(group.world - 1);
        let cause = match word.cause {
            DeviceCause::TimedOut if group.has_left(culprit) => Cause::Left,
            DeviceCause::TimedOut if group.find_dead() == Some(culprit) => Cause::Died,
            DeviceCause::TimedOut => Cause::TimedOut,
            DeviceCause::Mismatch | DeviceCause::Overlap => Cause::Failed,
            DeviceCause::Aborted => Cause::Aborted,
        };
        Verdict { culprit, cause }
    }

    /// Leaves this rank's words about a failure where everybody can read them, unless it has left some.
    fn give_reason(&self, word: Word) {
        if matches!(word.cause, DeviceCause::Mismatch | DeviceCause::Overlap) {
            self.give_own_reason(&self.words_for(word));
        }
    }

    fn give_own_reason(&self, reason: &str) {
        let own = self.group.own();
        if own.reason().is_empty() {
            own.set_reason(reason);
        }
    }

    /// A kernel's word in words.
    fn words_for(&self, word: Word) -> String {
        let Word { cause, culprit, reporter, op, epoch } = word;
        let op = op_of(op.into());
        match cause {
            DeviceCause::TimedOut => format!("rank {reporter} waited for it in {op} of epoch {epoch}"),
            DeviceCause::Aborted => format!("rank {reporter} ended the operations under way"),
            DeviceCause::Overlap => format!(
                "two operations of one lane ran at once ({op} of epoch {epoch}). Hint: order replays that share a lane, or use another lane"
            ),
            DeviceCause::Mismatch if usize::from(reporter) == self.group.rank => {
                let ([mine, theirs], [my_bytes, their_bytes]) = self.words.mismatch();
                let (my_op, their_op) = (op_of(mine), op_of(theirs));
                format!(
                    "the ranks disagree on the operation of epoch {epoch}: rank {reporter}: {my_op}, {my_bytes} bytes ({mine:08x}); rank {culprit}: {their_op}, {their_bytes} bytes ({theirs:08x})"
                )
            }
            DeviceCause::Mismatch => {
                format!(
                    "rank {culprit} was in another operation than rank {reporter}'s {op} of epoch {epoch}"
                )
            }
        }
    }

    /// What is known beside culprit and cause: the words of who saw it, the culprit's own, or the kernel's.
    fn detail(&self, verdict: Verdict) -> String {
        let word = Word::decode(self.words.verdict());
        let on_host = word.is_none() && matches!(verdict.cause, Cause::Failed | Cause::TimedOut);
        let told = on_host || matches!(verdict.cause, Cause::Aborted | Cause::Failed);
        let reporter = word.map(|word| usize::from(word.reporter)).filter(|rank| *rank < self.group.world);
        let sources = reporter.into_iter().chain([verdict.culprit]).filter(|_| told);
        // A failure in NCCL may be known to others than the culprit only.
        let sources = sources.chain((0..self.group.world).filter(|_| on_host));
        let reason = sources.map(|rank| self.group.reason(rank)).find(|reason| !reason.is_empty());
        let own_words = || word.map(|word| self.words_for(word)).unwrap_or_default();
        reason.unwrap_or_else(own_words)
    }

    pub(crate) fn status(&self) -> Status {
        self.look_at_carried();
        match self.verdict() {
            None => Status::Whole,
            Some(verdict) => {
                let Verdict { culprit, cause } = verdict;
                Status::Failed { culprit, cause, detail: self.detail(verdict) }
            }
        }
    }

    /// Where an operation of this rank failed.
    pub(crate) fn context(&self, op: Op, channel: Option<usize>) -> Box<Context> {
        let group = &self.group;
        let mut context = Context::new(op.name(), &group.name, group.rank, group.world);
        context.channel = channel;
        context.sequence = group.sequence.load(Ordering::Relaxed);
        context.group_failed = group.verdict().is_some();
        context
    }

    /// The error for an operation on a group that `verdict` is on.
    #[cold]
    pub(crate) fn failure(&self, mut context: Box<Context>, verdict: Verdict) -> Error {
        let Verdict { culprit, cause } = verdict;
        context.group_failed = true;
        match cause {
            Cause::Died => Error::PeerLost { context, rank: culprit, pid: self.group.pid(culprit) },
            Cause::Left => Error::PeerLeft { context, rank: culprit },
            _ => Error::Device { context, culprit, cause, detail: self.detail(verdict) },
        }
    }
}

impl Look for Watched {
    /// The verdict, or a death that becomes one.
    fn look(&self) {
        if self.verdict().is_some() {
            return;
        }
        if let Some(dead) = self.group.find_dead() {
            self.abort(self.convict(Verdict { culprit: dead, cause: Cause::Died }));
        }
        self.look_at_carried();
    }
}

/// The other rank of this process in the group of `own` that used `stream` last on one of its lanes.
pub(crate) fn user_of(own: &Watched, stream: usize) -> Option<usize> {
    watch::find(|other| {
        let other = (other as &dyn Any).downcast_ref::<Watched>()?;
        let is_other = other.device == own.device
            && other.group.rank != own.group.rank
            && other.group.id == own.group.id;
        let uses = || other.streams.iter().any(|last| last.load(Ordering::Relaxed) == stream);
        (is_other && uses()).then_some(other.group.rank)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Group;

    pub(super) fn watched(group: &Group) -> Watched {
        let words = Arc::new(HostStatusWords::new("status").unwrap());
        Watched::new(&group.inner, &words, 0, false, 1)
    }

    /// As a kernel would.
    fn write(watched: &Watched, at: usize, value: u64) {
        let word = watched.words.words().cast::<u64>();
        // SAFETY: one of the words.
        watched.words.word(unsafe { word.add(at) }).store(value, Ordering::Release);
    }

    fn read(watched: &Watched, at: usize) -> u64 {
        let word = watched.words.words().cast::<u64>();
        // SAFETY: one of the words.
        watched.words.word(unsafe { word.add(at) }).load(Ordering::Acquire)
    }

    const VERDICT: usize = 0;
    const SIGNATURES: usize = 1;
    const ABORT: usize = 4;

    fn word(cause: DeviceCause) -> u64 {
        Word { cause, culprit: 1, reporter: 0, op: Op::AllReduce as u8, epoch: 7 }.encode()
    }

    #[test]
    fn what_a_kernel_saw_becomes_the_verdict_of_all() {
        crate::spawn(2, |group| {
            let watched = watched(&group);
            assert_eq!(watched.status(), Status::Whole);
            group.barrier()?;
            if group.rank() == 0 {
                write(&watched, VERDICT, word(DeviceCause::TimedOut));
            }
            while watched.status() == Status::Whole {
                std::thread::yield_now();
            }
            let Status::Failed { culprit, cause, detail } = watched.status() else { panic!("whole") };
            assert_eq!((culprit, cause), (1, Cause::TimedOut));
            assert!(group.rank() == 1 || detail.contains("all_reduce of epoch 7"), "{detail}");
            let aborted = Word::decode(read(&watched, ABORT)).unwrap();
            assert_eq!((aborted.cause, aborted.culprit), (DeviceCause::Aborted, 1));
            let error = watched.failure(watched.context(Op::AllReduce, None), watched.verdict().unwrap());
            assert!(matches!(error, Error::Device { culprit: 1, cause: Cause::TimedOut, .. }), "{error}");
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn what_the_host_knows_ends_kernels_and_counts_for_more() {
        crate::spawn(2, |group| {
            let watched = watched(&group);
            group.barrier()?;
            if group.rank() == 0 {
                group.abort("enough");
            }
            while watched.verdict().is_none() {
                std::thread::yield_now();
            }
            write(&watched, VERDICT, word(DeviceCause::TimedOut));
            let Status::Failed { culprit, cause, detail } = watched.status() else { panic!("whole") };
            assert_eq!((culprit, cause, detail.as_str()), (0, Cause::Aborted, "enough"));
            assert_ne!(read(&watched, ABORT), 0);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_disagreement_says_what_both_sides_were_at() {
        crate::spawn(2, |group| {
            let watched = watched(&group);
            group.barrier()?;
            if group.rank() == 0 {
                let signatures = (Op::AllReduce as u64 | 0xabc00) << 32 | Op::Barrier as u64 | 0x12300;
                write(&watched, SIGNATURES, signatures);
                write(&watched, SIGNATURES + 1, 4096);
                write(&watched, VERDICT, word(DeviceCause::Mismatch));
            }
            while watched.verdict().is_none() {
                std::thread::yield_now();
            }
            // The other rank's kernels get the same word.
            write(&watched, VERDICT, word(DeviceCause::Mismatch));
            let Status::Failed { culprit, cause, detail } = watched.status() else { panic!("whole") };
            assert_eq!((culprit, cause), (1, Cause::Failed));
            assert!(detail.contains("rank 0: all_reduce, 4096 bytes"), "{detail}");
            assert!(detail.contains("rank 1: barrier, 0 bytes"), "{detail}");
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_rank_that_left_did_not_only_come_late() {
        let rank = crate::spawn(2, |group| Ok((group.rank() == 0).then_some(group))).unwrap();
        let group = rank.into_iter().flatten().next().unwrap();
        let watched = watched(&group);
        write(&watched, VERDICT, word(DeviceCause::TimedOut));
        let verdict = watched.verdict().unwrap();
        assert_eq!((verdict.culprit, verdict.cause), (1, Cause::Left));
        let error = watched.failure(watched.context(Op::AllReduce, None), verdict);
        assert!(matches!(error, Error::PeerLeft { rank: 1, .. }), "{error}");
    }

    #[test]
    fn failures_reach_devices_without_anybody_asking() {
        crate::spawn(2, |group| {
            let words = Arc::new(HostStatusWords::new("watched").unwrap());
            let watched = Arc::new(Watched::new(&group.inner, &words, 0, true, 1));
            let guard = watch::WatchGuard::new(Arc::clone(&watched) as _)?;
            watched.streams[0].store(1000 + group.rank(), Ordering::Relaxed);
            group.barrier()?;
            let peer = 1 - group.rank();
            assert_eq!(user_of(&watched, 1000 + peer), Some(peer));
            assert_eq!(user_of(&watched, 1000 + group.rank()), None, "one's own stream");
            group.barrier()?;
            if group.rank() == 0 {
                group.abort("enough");
            }
            let start = Instant::now();
            while !words.is_aborted() {
                assert!(start.elapsed() < Duration::from_secs(10), "waiting kernels were not told");
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(guard);
            let still = watch::find(|other| std::ptr::addr_eq(other, Arc::as_ptr(&watched)).then_some(()));
            assert!(still.is_none());
            Ok(())
        })
        .unwrap();
    }
}
