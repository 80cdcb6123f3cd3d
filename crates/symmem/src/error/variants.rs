//! Every way to fail, in words.

use std::io;
use std::path::PathBuf;

use symmem_store::StoreError;

use super::{Cause, Context};

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
