//! The one public error: what failed, where, who is to blame, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use symmem_store::{Interrupt, StoreError};

/// The result of every call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where an operation failed. Part of most [`Error`] variants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The operation, e.g. `barrier`.
    pub op: &'static str,
    /// The group's name.
    pub group: String,
    /// This rank in the group.
    pub rank: usize,
    /// Number of ranks in the group.
    pub world: usize,
    /// The channel, for operations that have one.
    pub channel: Option<usize>,
    /// The group's sequence number of the operation.
    pub sequence: u64,
    /// How long the operation had been running.
    pub elapsed: Duration,
    /// Whether the group had failed for good when the operation ended.
    pub group_failed: bool,
    /// What else is known about why, and what to do about it; may be empty.
    pub note: String,
}

impl Context {
    pub(crate) fn new(op: &'static str, group: &str, rank: usize, world: usize) -> Box<Self> {
        Box::new(Self {
            op,
            group: group.to_owned(),
            rank,
            world,
            channel: None,
            sequence: 0,
            elapsed: Duration::ZERO,
            group_failed: false,
            note: String::new(),
        })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on group {:?} (rank {} of {}", self.op, self.group, self.rank, self.world)?;
        if let Some(channel) = self.channel {
            write!(f, ", channel {channel}")?;
        }
        write!(f, ", sequence {}", self.sequence)?;
        if !self.elapsed.is_zero() {
            write!(f, ", after {:.1?}", self.elapsed)?;
        }
        f.write_str(")")
    }
}

/// Why a group is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The culprit's process died.
    Died,
    /// The culprit left the group while others needed it.
    Left,
    /// The culprit's rank thread panicked, or an operation of it did.
    Panicked,
    /// The culprit did not show up before a deadline.
    TimedOut,
    /// The culprit's user cancelled an operation midway.
    Cancelled,
    /// The culprit called `abort`.
    Aborted,
    /// The culprit failed inside an operation.
    Failed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died",
            Self::Left => "left",
            Self::Panicked => "panicked",
            Self::TimedOut => "did not show up in time",
            Self::Cancelled => "cancelled an operation midway",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        })
    }
}

/// Everything that can go wrong. `docs/errors.md` says for each variant what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The deadline passed while some ranks were missing.
    #[error(
        "{context} timed out; missing: ranks {missing:?}. Hint: look at what those ranks are doing; a longer timeout is set by SYMMEM_TIMEOUT or Config::timeout{}{}",
        if context.note.is_empty() { "" } else { "; " },
        context.note
    )]
    Timeout {
        /// Where.
        context: Box<Context>,
        /// The ranks that had not arrived.
        missing: Vec<usize>,
    },
    /// The cancel token was cancelled.
    #[error("{context} was cancelled")]
    Cancelled {
        /// Where.
        context: Box<Context>,
    },
    /// A peer's process died.
    #[error(
        "{context}: rank {rank} (pid {pid}) died. Hint: read the end of that process' log, and dmesg; the others can go on with Group::survivors"
    )]
    PeerLost {
        /// Where.
        context: Box<Context>,
        /// The dead rank.
        rank: usize,
        /// Its process.
        pid: u32,
    },
    /// A peer left the group while this rank needed it.
    #[error(
        "{context}: rank {rank} has left the group. Hint: do all ranks run the same operations in the same order?"
    )]
    PeerLeft {
        /// Where.
        context: Box<Context>,
        /// The rank that left.
        rank: usize,
    },
    /// The group is dead; `culprit` is the first cause.
    #[error("{context}: the group has failed because rank {culprit} {cause}{}{reason}. Hint: the group stays failed; look at rank {culprit}, then use Group::survivors or start again", if reason.is_empty() { "" } else { ": " })]
    GroupFailed {
        /// Where.
        context: Box<Context>,
        /// The rank that caused the failure.
        culprit: usize,
        /// What happened to it.
        cause: Cause,
        /// Its own words, when it had any.
        reason: String,
    },
    /// Ranks called with arguments that must agree and do not.
    #[error("{context}: the ranks disagree on {what}: {}. Hint: every rank must make the same call with the same arguments", values.join("; "))]
    Mismatch {
        /// Where.
        context: Box<Context>,
        /// What they disagree on.
        what: &'static str,
        /// What each rank said, in rank order.
        values: Vec<String>,
    },
    /// A rank failed in a collective set-up step; all ranks get this same error.
    #[error("{context}: rank {rank} failed: {message}")]
    Rank {
        /// Where.
        context: Box<Context>,
        /// The rank that failed.
        rank: usize,
        /// What its own error said.
        message: String,
    },
    /// Ranks that have not proven that they belong to this job: they are on other hosts and there is no job
    /// secret, or their proof is missing or wrong.
    #[error("{context}: ranks {ranks:?} are not proven to belong to this job: {problem}")]
    Unproven {
        /// Where.
        context: Box<Context>,
        /// Those ranks.
        ranks: Vec<usize>,
        /// What is wrong, and a hint.
        problem: String,
    },
    /// A message is longer or shorter than the buffer it was received into; it is gone.
    #[error(
        "{context}: the message with tag {tag} from rank {rank} has {bytes} bytes, but the buffer has {room}. Hint: send and receive as many bytes; the message is gone"
    )]
    MessageSize {
        /// Where.
        context: Box<Context>,
        /// The rank that sent it.
        rank: usize,
        /// Its tag.
        tag: u64,
        /// Its bytes.
        bytes: usize,
        /// Bytes of the buffer.
        room: usize,
    },
    /// Another operation of this rank is running on the group.
    #[error("{context}: {}. Hint: {}use Group::try_clone for a parallel stream of operations",
        if *started { "operations that were started on this group are unfinished" } else { "another thread of this rank is inside an operation of this group" },
        if *started { "wait for what was started (Pending::wait) first, or " } else { "" })]
    Busy {
        /// Where.
        context: Box<Context>,
        /// Whether it is a started operation; else it is one of another thread.
        started: bool,
    },
    /// The memory is borrowed.
    #[error(
        "{op}: the allocation is borrowed by {borrowed_by}. Hint: drop the guard that `local` or `local_mut` returned first"
    )]
    Borrowed {
        /// The operation that needed the memory.
        op: &'static str,
        /// What holds it.
        borrowed_by: &'static str,
    },
    /// A group failed while it was using the memory.
    #[error(
        "{op}: the memory is poisoned: {cause}. Hint: `salvage` copies the bytes out; allocate again for a new group"
    )]
    Poisoned {
        /// The operation.
        op: &'static str,
        /// The failure that poisoned it.
        cause: String,
    },
    /// The handle was closed, or its group was.
    #[error("{op}: the handle is closed")]
    Closed {
        /// The operation.
        op: &'static str,
    },
    /// Ranks that brought no memory to the rendezvous, and a call that needs theirs.
    #[error(
        "{op}: ranks {ranks:?} brought no memory to the rendezvous. Hint: collectives need memory of every rank; views, put and get need that of the rank they name"
    )]
    NothingBrought {
        /// The operation.
        op: &'static str,
        /// Those ranks whose memory it needs.
        ranks: Vec<usize>,
    },
    /// Memory that another process shared cannot be opened, or not any more.
    #[error("open: the memory cannot be opened: {problem}")]
    NotShared {
        /// Why, and a hint.
        problem: String,
    },
    /// The call came from a forked child.
    #[error(
        "{op}: this process was forked from a rank and is not a rank itself. Hint: use exec (Group::from_env in a fresh process) or spawn_processes instead of fork"
    )]
    Forked {
        /// The operation.
        op: &'static str,
    },
    /// More memory than there is.
    #[error(
        "out of memory: asked for {asked} bytes, {left} left under {limit}. Hint: shrink the allocation, or raise the limit named"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes left.
        left: u64,
        /// Which limit.
        limit: String,
    },
    /// A rank outside the group.
    #[error("{op}: rank {rank} must be in [0, {world})")]
    RankOutOfRange {
        /// The operation.
        op: &'static str,
        /// The rank given.
        rank: usize,
        /// The group's size.
        world: usize,
    },
    /// A channel beyond the signal pad.
    #[error(
        "{op}: channel {channel} is out of range: the maximum supported number of channels is {channels}. Hint: a larger pad (SYMMEM_SIGNAL_PAD_SIZE or Config::signal_pad_size, before the allocation) has more"
    )]
    ChannelOutOfRange {
        /// The operation.
        op: &'static str,
        /// The channel given.
        channel: usize,
        /// How many channels there are.
        channels: usize,
    },
    /// A view, offset or copy beyond the buffer.
    #[error(
        "{op}: the requested range (offset {offset}, {bytes} bytes) exceeds the allocated size of {size} bytes"
    )]
    OutOfBounds {
        /// The operation.
        op: &'static str,
        /// Byte offset asked for.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes there are.
        size: u64,
    },
    /// An argument that cannot be right.
    #[error("{what}: {problem}")]
    Invalid {
        /// The argument or variable.
        what: String,
        /// What is wrong with it, and a hint.
        problem: String,
    },
    /// A persistent allocation that is still in use, or of another size.
    #[error("persistent allocation {id:?}: {problem}")]
    Persistent {
        /// Its id.
        id: String,
        /// What is wrong.
        problem: String,
    },
    /// Ranks that are not on this host.
    #[error(
        "{op}: ranks {ranks:?} are on another host. Hint: host memory reaches one machine only; use Group::local"
    )]
    NotLocal {
        /// The operation.
        op: &'static str,
        /// The remote ranks.
        ranks: Vec<usize>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fd channel to a peer failed.
    #[error("fd channel to rank {rank} at {address}: {problem}")]
    Channel {
        /// The peer.
        rank: usize,
        /// Its address.
        address: String,
        /// What went wrong, and a hint.
        problem: String,
    },
    /// A system call failed.
    #[error("{call}: {source}{}{hint}", if hint.is_empty() { "" } else { ". Hint: " })]
    Sys {
        /// The call and what it was for.
        call: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// CUDA cannot be used at all: no driver, too old a one, or no device.
    #[error("CUDA cannot be used: {problem}")]
    NoCuda {
        /// What is missing, and a hint.
        problem: String,
    },
    /// A call of the CUDA driver or of NVRTC failed.
    #[error("{call}: {name} (error {code}){}{hint}", if hint.is_empty() { "" } else { ". Hint: " })]
    Cuda {
        /// The call.
        call: &'static str,
        /// Its error code.
        code: i32,
        /// The code's name, and what else is known.
        name: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// Several ranks are on one device, and that was not asked for.
    #[error(
        "ranks {ranks:?} are all on {device}. Hint: give each rank its own device; to share one on purpose, set SYMMEM_ALLOW_OVERLAPPING_DEVICES=1 or Config::allow_overlapping_devices"
    )]
    OverlappingDevices {
        /// The ranks.
        ranks: Vec<usize>,
        /// The device.
        device: String,
    },
    /// A rank's device cannot reach the memory of another rank's.
    #[error(
        "the device of rank {rank} cannot reach the memory of rank {peer}: {problem}. Hint: `nvidia-smi topo -p2p r` shows which devices reach each other"
    )]
    NoPeerAccess {
        /// The rank that cannot reach.
        rank: usize,
        /// The rank that cannot be reached.
        peer: usize,
        /// What is in the way.
        problem: String,
    },
    /// An operation was told to use multicast, and the ranks do not have it.
    #[error(
        "{problem}, so multicast cannot be used. Hint: leave the algorithm to the dispatcher, or choose another; docs/gpu.md says what multicast needs"
    )]
    NoMulticast {
        /// What is in the way; the same on every rank.
        problem: String,
    },
    /// An operation failed on the device; its lane stays poisoned on all ranks, with the same first cause.
    #[error("{context}: the lane is poisoned because rank {culprit} {cause}{}{detail}. Hint: look at rank {culprit}; the lane stays poisoned, so make a new group and engine, and allocate again", if detail.is_empty() { "" } else { ": " })]
    Device {
        /// Where.
        context: Box<Context>,
        /// The rank that caused the failure.
        culprit: usize,
        /// What happened to it.
        cause: Cause,
        /// What the device wrote down about it.
        detail: String,
    },
    /// A foreign library (NCCL, NVRTC) cannot be used at all: there is none, or what was found is something
    /// else.
    #[error("{library} cannot be used: {problem}")]
    NoLibrary {
        /// Its name.
        library: &'static str,
        /// What is missing, and a hint.
        problem: String,
    },
    /// The foreign library that was found is too old for what was asked.
    #[error("{what} needs {library} {needed} or newer, and {} is {found}. Hint: install a newer one, or set SYMMEM_{library}_LIBRARY to its file", path.display())]
    LibraryTooOld {
        /// Its name.
        library: &'static str,
        /// What needs a newer one.
        what: &'static str,
        /// The oldest version that will do.
        needed: Box<str>,
        /// The version that is there.
        found: Box<str>,
        /// Its file.
        path: PathBuf,
    },
    /// A call of a foreign library failed.
    #[error("{call}: {text} ({library} error {code}){}{detail}{}{hint}", if detail.is_empty() { "" } else { ": " }, if hint.is_empty() { "" } else { ". Hint: " })]
    Library {
        /// The library's name.
        library: &'static str,
        /// The call.
        call: &'static str,
        /// Its error code.
        code: i32,
        /// The library's own words for the code.
        text: Box<str>,
        /// The last thing that the library had to say.
        detail: Box<str>,
        /// What to do about it.
        hint: &'static str,
    },
    /// A spawned rank failed.
    #[error("rank {rank} failed: {message}")]
    Spawned {
        /// The first rank that failed.
        rank: usize,
        /// Its error, panic message or exit status.
        message: String,
    },
}

/// The context of an error that has one.
macro_rules! context_of {
    ($error:expr) => {
        match $error {
            Error::Timeout { context, .. }
            | Error::Cancelled { context }
            | Error::PeerLost { context, .. }
            | Error::PeerLeft { context, .. }
            | Error::GroupFailed { context, .. }
            | Error::Mismatch { context, .. }
            | Error::Rank { context, .. }
            | Error::Unproven { context, .. }
            | Error::MessageSize { context, .. }
            | Error::Busy { context, .. }
            | Error::Device { context, .. } => Some(context),
            _ => None,
        }
    };
}

impl Error {
    pub(crate) fn sys(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::sys_hint(call, source, "")
    }

    /// A failed system call; `hint` is what to do about it, unless the system says that itself.
    pub(crate) fn sys_hint(call: &'static str, source: impl Into<io::Error>, hint: &'static str) -> Self {
        let source = source.into();
        let hint = match source.raw_os_error() {
            Some(libc::EMFILE) => "this process has too many open files; raise ulimit -n",
            Some(libc::ENFILE) => "the system has too many open files; see /proc/sys/fs/file-nr",
            _ => hint,
        };
        Self::Sys { call, source, hint }
    }

    pub(crate) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), problem: problem.into() }
    }

    /// Whether the group that the error is about has failed for good: every later operation on it fails too.
    ///
    /// A `Timeout` or `Cancelled` of a collective has ended the group, and that of a wait for a signal or for
    /// mail has not; the same holds for every other variant: the error says how it was. An error of a join is
    /// about no group, because there is none yet, and [`Error::Poisoned`] is about memory: the group that
    /// poisoned it has said so in its own error.
    pub fn is_group_failure(&self) -> bool {
        match self {
            Self::GroupFailed { .. } | Self::Device { .. } => true,
            other => other.context().is_some_and(|context| context.group_failed),
        }
    }

    /// Where the operation failed, for errors of a group's operations.
    pub fn context(&self) -> Option<&Context> {
        context_of!(self)
    }

    fn context_mut(&mut self) -> Option<&mut Context> {
        context_of!(self)
    }

    /// The same error, for a group that has failed since the error was made.
    pub(crate) fn of_failed_group(mut self) -> Self {
        if let Some(context) = self.context_mut() {
            context.group_failed = true;
        }
        self
    }

    /// A timeout, with a note of what else may be the reason; any other error as it is.
    pub(crate) fn timeout_with_note(mut self, note: impl FnOnce() -> Option<String>) -> Self {
        if let Self::Timeout { context, .. } = &mut self
            && let Some(note) = note()
        {
            context.note = note;
        }
        self
    }

    /// The rank to blame, for errors that blame one.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            Self::PeerLost { rank, .. }
            | Self::PeerLeft { rank, .. }
            | Self::Rank { rank, .. }
            | Self::Spawned { rank, .. } => Some(*rank),
            Self::GroupFailed { culprit, .. } | Self::Device { culprit, .. } => Some(*culprit),
            _ => None,
        }
    }
}

/// Why a step below an operation ended, before the operation adds its context.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The wait's terms ended it.
    Interrupted(Interrupt),
    /// It failed.
    Failed(Error),
}

impl From<Interrupt> for Halt {
    fn from(interrupt: Interrupt) -> Self {
        Self::Interrupted(interrupt)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hinted(error: &Error) -> String {
        let text = error.to_string();
        assert!(text.contains("Hint: "), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    /// One error of each variant that has no context.
    fn without_context() -> Vec<Error> {
        let (op, rank, world, library) = ("op", 0, 1, "x");
        let text = || "x".to_owned();
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        vec![
            Error::Borrowed { op, borrowed_by: "x" },
            Error::Poisoned { op, cause: text() },
            Error::Closed { op },
            Error::Forked { op },
            Error::OutOfMemory { asked: 1, left: 0, limit: text() },
            Error::RankOutOfRange { op, rank, world },
            Error::ChannelOutOfRange { op, channel: 0, channels: 0 },
            Error::OutOfBounds { op, offset: 0, bytes: 0, size: 0 },
            Error::Invalid { what: text(), problem: text() },
            Error::Persistent { id: text(), problem: text() },
            Error::NotLocal { op, ranks: vec![rank] },
            Error::Store(StoreError::Cancelled { op }),
            Error::Channel { rank, address: text(), problem: text() },
            Error::Sys { call: "x", source: gone(), hint: "" },
            Error::NoCuda { problem: text() },
            Error::Cuda { call: "x", code: 1, name: text(), hint: "" },
            Error::OverlappingDevices { ranks: vec![rank], device: text() },
            Error::NoPeerAccess { rank, peer: 1, problem: text() },
            Error::NoMulticast { problem: text() },
            Error::NoLibrary { library, problem: text() },
            Error::LibraryTooOld {
                library,
                what: "x",
                needed: "x".into(),
                found: "x".into(),
                path: "x".into(),
            },
            Error::Library { library, call: "x", code: 1, text: "x".into(), detail: "x".into(), hint: "" },
            Error::Spawned { rank, message: text() },
            Error::NothingBrought { op, ranks: vec![rank] },
            Error::NotShared { problem: text() },
        ]
    }

    /// One error of each variant that has a context, of a group that has failed or not.
    fn with_context(group_failed: bool) -> Vec<Error> {
        let context = || {
            let mut context = Context::new("op", "g", 0, 2);
            context.group_failed = group_failed;
            context
        };
        let (rank, cause) = (1, Cause::Failed);
        let text = || "x".to_owned();
        vec![
            Error::Timeout { context: context(), missing: vec![rank] },
            Error::Cancelled { context: context() },
            Error::PeerLost { context: context(), rank, pid: 1 },
            Error::PeerLeft { context: context(), rank },
            Error::GroupFailed { context: context(), culprit: rank, cause, reason: text() },
            Error::Mismatch { context: context(), what: "x", values: vec![text()] },
            Error::Rank { context: context(), rank, message: text() },
            Error::MessageSize { context: context(), rank, tag: 0, bytes: 0, room: 1 },
            Error::Busy { context: context(), started: false },
            Error::Unproven { context: context(), ranks: vec![rank], problem: text() },
            Error::Device { context: context(), culprit: rank, cause, detail: text() },
        ]
    }

    /// A variant's number. A new variant belongs into one of the lists above.
    fn number(error: &Error) -> usize {
        match error {
            Error::Timeout { .. } => 0,
            Error::Cancelled { .. } => 1,
            Error::PeerLost { .. } => 2,
            Error::PeerLeft { .. } => 3,
            Error::GroupFailed { .. } => 4,
            Error::Mismatch { .. } => 5,
            Error::Rank { .. } => 6,
            Error::MessageSize { .. } => 7,
            Error::Busy { .. } => 8,
            Error::Unproven { .. } => 9,
            Error::Device { .. } => 10,
            Error::Borrowed { .. } => 11,
            Error::Poisoned { .. } => 12,
            Error::Closed { .. } => 13,
            Error::Forked { .. } => 14,
            Error::OutOfMemory { .. } => 15,
            Error::RankOutOfRange { .. } => 16,
            Error::ChannelOutOfRange { .. } => 17,
            Error::OutOfBounds { .. } => 18,
            Error::Invalid { .. } => 19,
            Error::Persistent { .. } => 20,
            Error::NotLocal { .. } => 21,
            Error::Store(_) => 22,
            Error::Channel { .. } => 23,
            Error::Sys { .. } => 24,
            Error::NoCuda { .. } => 25,
            Error::Cuda { .. } => 26,
            Error::OverlappingDevices { .. } => 27,
            Error::NoPeerAccess { .. } => 28,
            Error::NoMulticast { .. } => 29,
            Error::NoLibrary { .. } => 30,
            Error::LibraryTooOld { .. } => 31,
            Error::Library { .. } => 32,
            Error::Spawned { .. } => 33,
            Error::NothingBrought { .. } => 34,
            Error::NotShared { .. } => 35,
        }
    }

    #[test]
    fn every_error_says_whether_its_group_is_over() {
        let all = with_context(true).into_iter().chain(without_context());
        let numbers: Vec<usize> = all.map(|error| number(&error)).collect();
        assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "a variant is not in the lists");
        for error in with_context(true) {
            assert!(error.is_group_failure() && error.context().is_some(), "{error:?}");
        }
        for error in with_context(false) {
            let by_name = matches!(error, Error::GroupFailed { .. } | Error::Device { .. });
            assert_eq!(error.is_group_failure(), by_name, "{error:?}");
            assert!(error.of_failed_group().is_group_failure());
        }
        for error in without_context() {
            assert!(!error.is_group_failure() && error.context().is_none(), "{error:?}");
        }
    }

    #[test]
    fn a_lack_of_descriptors_is_called_by_its_name_whatever_the_call() {
        for errno in [libc::EMFILE, libc::ENFILE] {
            let text =
                hinted(&Error::sys_hint("read", io::Error::from_raw_os_error(errno), "is /proc mounted?"));
            assert!(text.contains("too many open files") && !text.contains("mounted"), "{text}");
            hinted(&Error::sys("pipe", io::Error::from_raw_os_error(errno)));
        }
        let text =
            hinted(&Error::sys_hint("read", io::Error::from_raw_os_error(libc::ENOENT), "is /proc mounted?"));
        assert!(text.contains("is /proc mounted?"), "{text}");
    }

    #[test]
    fn errors_of_the_gpu_side_name_who_and_what_to_do() {
        let overlap =
            Error::OverlappingDevices { ranks: vec![0, 2], device: "device 0 (NVIDIA H200)".into() };
        let text = hinted(&overlap);
        assert!(text.contains("[0, 2]") && text.contains("H200") && text.contains("SYMMEM_ALLOW"), "{text}");

        let access = Error::NoPeerAccess { rank: 1, peer: 3, problem: "it is a MIG instance".into() };
        let text = hinted(&access);
        assert!(text.contains("rank 1") && text.contains("rank 3") && text.contains("MIG"), "{text}");

        let text = hinted(&Error::NoMulticast { problem: "rank 1: device 1 (H100) has none".into() });
        assert!(text.contains("rank 1") && text.contains("H100"), "{text}");

        let context = Context::new("all_reduce", "g", 0, 2);
        let device = Error::Device { context, culprit: 1, cause: Cause::TimedOut, detail: "epoch 7".into() };
        let text = hinted(&device);
        assert!(text.contains("rank 1 did not show up in time: epoch 7"), "{text}");
        assert!(device.is_group_failure());
        assert_eq!(device.culprit(), Some(1));
    }

    #[test]
    fn errors_of_foreign_libraries_say_what_is_needed_and_in_their_own_words() {
        let library = "NCCL";
        let none = Error::NoLibrary { library, problem: "not found. Hint: install it".into() };
        assert!(hinted(&none).starts_with("NCCL cannot be used: not found"), "{none}");
        let old = Error::LibraryTooOld {
            library,
            what: "signals",
            needed: "2.29.2".into(),
            found: "2.28.9".into(),
            path: "/x/libnccl.so.2".into(),
        };
        let text = hinted(&old);
        assert!(text.ends_with("or set SYMMEM_NCCL_LIBRARY to its file"), "{text}");
        assert!(
            text.starts_with("signals needs NCCL 2.29.2 or newer, and /x/libnccl.so.2 is 2.28.9"),
            "{text}"
        );
        let error = |detail: &str, hint| Error::Library {
            library,
            call: "ncclAllReduce",
            code: 5,
            text: "invalid usage".into(),
            detail: detail.into(),
            hint,
        };
        assert_eq!(error("", "").to_string(), "ncclAllReduce: invalid usage (NCCL error 5)");
        let text = hinted(&error("Duplicate GPU detected", "share none"));
        assert_eq!(
            text,
            "ncclAllReduce: invalid usage (NCCL error 5): Duplicate GPU detected. Hint: share none"
        );
    }

    /// Every call returns one by value, or room for it.
    #[test]
    fn no_error_is_larger_than_it_must_be() {
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }

    #[test]
    fn an_error_of_cuda_has_its_call_name_and_code() {
        let error = |hint| Error::Cuda {
            call: "cuMemCreate",
            code: 2,
            name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            hint,
        };
        assert_eq!(error("").to_string(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (error 2)");
        assert!(hinted(&error("free some")).ends_with("Hint: free some"));
    }
}
