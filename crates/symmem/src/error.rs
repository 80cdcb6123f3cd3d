//! The one public error: what failed, where, who is to blame, and what to do about it.

use std::fmt;
use std::io;
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
        })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on group {:?} (rank {} of {}", self.op, self.group, self.rank, self.world)?;
        if let Some(channel) = self.channel {
            write!(f, ", channel {channel}")?;
        }
        write!(f, ", sequence {}, after {:.1?})", self.sequence, self.elapsed)
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
    /// The culprit's rank thread panicked.
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
        "{context} timed out; missing: ranks {missing:?}. Hint: look at what those ranks are doing; a longer timeout is set by SYMMEM_TIMEOUT or Config::timeout"
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
        "{context}: rank {rank} (pid {pid}) died. Hint: look for its last words in that process' log or in dmesg; the others can go on with Group::survivors"
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
    #[error("{context}: the group has failed because rank {culprit} {cause}{}{reason}. Hint: the group stays failed; look at rank {culprit}, then use Group::survivors or start anew", if reason.is_empty() { "" } else { ": " })]
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
        "{op}: the memory is poisoned: {cause}. Hint: `salvage` copies the bytes out; allocate anew for a new group"
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
    /// A spawned rank failed.
    #[error("rank {rank} failed: {message}")]
    Spawned {
        /// The first rank that failed.
        rank: usize,
        /// Its error, panic message or exit status.
        message: String,
    },
}

impl Error {
    pub(crate) fn sys(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Sys { call, source: source.into(), hint: "" }
    }

    pub(crate) fn sys_hint(call: &'static str, source: impl Into<io::Error>, hint: &'static str) -> Self {
        Self::Sys { call, source: source.into(), hint }
    }

    pub(crate) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), problem: problem.into() }
    }

    /// Whether this error means that its group has failed for good.
    pub fn is_group_failure(&self) -> bool {
        matches!(self, Self::PeerLost { .. } | Self::PeerLeft { .. } | Self::GroupFailed { .. })
    }

    /// The rank to blame, for errors that blame one.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            Self::PeerLost { rank, .. }
            | Self::PeerLeft { rank, .. }
            | Self::Rank { rank, .. }
            | Self::Spawned { rank, .. } => Some(*rank),
            Self::GroupFailed { culprit, .. } => Some(*culprit),
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
