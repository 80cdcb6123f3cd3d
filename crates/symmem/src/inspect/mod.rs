//! Looking at running groups from outside: who is in them, what each rank does, who waits for whom, and who
//! is to blame.
//!
//! Works without the ranks' cooperation, also when they are stuck, stopped or dead, and changes nothing for
//! them: every rank keeps a few words on itself in shared memory, which other processes of the same user may
//! open and read. Nobody is interrupted, no lock is taken, no GPU is asked. What is read is a picture of
//! ranks in motion: two ranks may be seen at slightly different moments. Only groups of this host are seen,
//! and only as far as the kernel lets this process look.
//!
//! `symmem inspect` and Python's `symmem.inspect()` show the same.
//!
//! ```
//! let seen = symmem::spawn(2, |group| {
//!     let mine = symmem::inspect::groups()?.into_iter().find(|seen| seen.id == group.id());
//!     group.barrier()?; // nobody leaves before all have looked
//!     Ok(mine)
//! })?;
//! let group = seen[0].as_ref().expect("a group sees itself");
//! assert_eq!(group.world, 2);
//! assert_eq!(group.ranks[1].pid, Some(std::process::id()));
//! # Ok::<(), symmem::Error>(())
//! ```

mod blame;
mod explain;
pub(crate) mod find;
mod read;

use std::fmt;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

pub use self::explain::time;

use crate::Result;
use crate::error::Cause;
use crate::group::Counters;
use crate::numeric::{DType, ReduceOp};
use crate::operation::Algorithm;
use crate::sys::life::Stat;

/// All groups that this process may see, the oldest first: those of this user, and of everybody for a process
/// that may look at all.
pub fn groups() -> Result<Vec<GroupState>> {
    Ok(snapshot()?.groups)
}

/// The groups of a job: those with a rank whose process is one of `pids` or a descendant of one.
///
/// Some of the processes may be dead: as long as one rank of a group lives, it tells what the others did
/// last.
///
/// ```
/// for group in symmem::inspect::groups_of(&[std::process::id()])? {
///     assert!(group.ranks.iter().any(|rank| rank.pid == Some(std::process::id())));
/// }
/// # Ok::<(), symmem::Error>(())
/// ```
pub fn groups_of(pids: &[u32]) -> Result<Vec<GroupState>> {
    let mut groups = groups()?;
    groups.retain(|group| group.is_of(pids));
    Ok(groups)
}

/// All groups that this process may see, and how much it could not see.
pub fn snapshot() -> Result<Snapshot> {
    let found = find::find()?;
    let mut groups = read::read(&found);
    groups.iter_mut().for_each(blame::judge);
    Ok(Snapshot { groups, unreadable: found.unreadable, other_versions: found.other_versions })
}

/// Whether process `pid` is one of `pids` or below one.
fn descends(mut pid: u32, pids: &[u32]) -> bool {
    // Parents may change while they are followed.
    for _ in 0..64 {
        if pids.contains(&pid) {
            return true;
        }
        match Stat::read(pid) {
            Ok(stat) if stat.parent > 1 => pid = stat.parent,
            _ => return false,
        }
    }
    false
}

/// What there is to see on this host.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The groups, the oldest first.
    pub groups: Vec<GroupState>,
    /// Processes of this user that the kernel does not let this process look at.
    pub unreadable: usize,
    /// Ranks of other versions of this library, whose words cannot be understood.
    pub other_versions: usize,
}

/// A group as it is seen from outside. Serialised, it has its [`GroupState::explain`] as `explanation`
/// besides, and times in seconds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupState {
    /// Its name. Names may recur.
    pub name: String,
    /// What tells it from all other groups.
    pub id: String,
    /// Number of ranks.
    pub world: usize,
    /// How long ago it was made.
    pub made: Duration,
    /// Its ranks, in order.
    pub ranks: Vec<RankState>,
    /// Why it failed, if it has.
    pub failure: Option<Failure>,
    /// The ranks that are to blame for the others' waiting, the worst first: they are waited for and wait for
    /// nobody themselves, or cannot go on (dead, then left, then stopped, then in their own code). Waits of a
    /// moment count as well: see [`WaitState::since`].
    pub culprits: Vec<usize>,
    /// Ranks that wait for each other, each for the next one and the last for the first, where nobody else is
    /// to blame.
    pub cycle: Vec<usize>,
}

impl GroupState {
    /// Whether the process of one of its ranks is one of `pids` or a descendant of one.
    pub fn is_of(&self, pids: &[u32]) -> bool {
        self.ranks.iter().any(|rank| rank.pid.is_some_and(|pid| descends(pid, pids)))
    }
}

/// Why a group failed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// The rank that caused it.
    pub culprit: usize,
    /// What happened to it.
    #[serde(serialize_with = "text")]
    pub cause: Cause,
    /// What it said about that; often nothing.
    pub reason: String,
}

/// A rank as it is seen from outside.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RankState {
    /// Its number.
    pub rank: usize,
    /// Its process, by the number that it has here.
    pub pid: Option<u32>,
    /// Whether it lives.
    pub life: Life,
    /// The last operation that it is known to have begun. It is in there still if [`RankState::waiting`] says
    /// so; else it may be at work in it, or be done with it. Of a dead rank, what it told the others.
    pub operation: Option<OperationState>,
    /// For whom it waits, if it sleeps because of that.
    pub waiting: Option<WaitState>,
    /// Its last operations, the latest first. Empty for a dead rank.
    pub last: Vec<LastOperation>,
    /// What it has done so far; none for a dead rank.
    pub counters: Option<Counters>,
    /// Its GPUs, one for each engine, in the order in which they were made.
    pub devices: Vec<DeviceState>,
}

/// Whether a rank lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Life {
    /// It runs, or is ready to.
    Running,
    /// It sleeps: for a peer, the disk, or of its own will. What the kernel says of its process' main thread.
    Sleeping,
    /// Somebody has stopped its process by a signal or holds it in a debugger.
    Stopped,
    /// Its process has ended without leaving the group.
    Dead,
    /// It has left the group.
    Left,
    /// It is on another host.
    Elsewhere,
    /// It cannot be seen from here.
    Unknown,
}

impl Life {
    /// Whether it will not do anything in the group any more.
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Dead | Self::Left)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Stopped => "stopped",
            Self::Dead => "dead",
            Self::Left => "left",
            Self::Elsewhere => "elsewhere",
            Self::Unknown => "unknown",
        })
    }
}

/// An operation of a rank.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OperationState {
    /// What the caller called.
    pub name: &'static str,
    /// Which operation of the rank it is, counted from 1 on.
    pub sequence: Option<u64>,
    /// Which meeting of all ranks it has come to.
    pub epoch: Option<u64>,
    /// The channel, of signals and barriers.
    pub channel: Option<usize>,
    /// Bytes of each rank.
    pub bytes: Option<u64>,
    /// The root, of operations that have one.
    pub root: Option<usize>,
    /// The type of the elements.
    #[serde(serialize_with = "optional_text")]
    pub dtype: Option<DType>,
    /// How they are combined.
    #[serde(serialize_with = "optional_text")]
    pub reduce: Option<ReduceOp>,
    /// How it is done.
    #[serde(serialize_with = "optional_text")]
    pub algorithm: Option<Algorithm>,
}

/// A wait of a rank that has lasted long enough for it to fall asleep.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WaitState {
    /// The operation that waits.
    pub operation: &'static str,
    /// The ranks without which it does not go on; in a receive from anybody, all others.
    pub ranks: Vec<usize>,
    /// For how long it has waited.
    #[serde(serialize_with = "seconds")]
    pub since: Duration,
    /// Where it is a GPU that waits: the index in [`RankState::devices`], and the lane. Nobody has asked the
    /// GPU: the rank has launched what the others have not, a second ago or longer.
    pub lane: Option<(usize, usize)>,
}

/// An operation that a rank has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LastOperation {
    /// Which operation of the rank, counted from 1 on.
    pub sequence: u64,
    /// What the caller called.
    pub name: &'static str,
}

/// A rank's engine on a GPU, as its host knows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceState {
    /// The number of the device in the rank's process.
    pub device: usize,
    /// Its lanes.
    pub lanes: Vec<LaneState>,
    /// What a kernel that failed has said.
    pub failure: Option<DeviceFailure>,
    /// Whether kernels that wait were told to end: the group has failed.
    pub is_aborted: bool,
}

/// What was launched on a lane.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LaneState {
    /// Operations so far, replays of graphs not counted.
    pub launches: u64,
    /// Those of them that all ranks launch: who has fewer is waited for.
    pub meetings: u64,
    /// The last one.
    pub last: Option<&'static str>,
    /// How long ago that was.
    #[serde(serialize_with = "optional_seconds")]
    pub ago: Option<Duration>,
}

/// What a kernel said when it failed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceFailure {
    /// The rank that caused it.
    pub culprit: usize,
    /// The rank whose kernel saw it.
    pub reporter: usize,
    /// What it saw.
    pub cause: &'static str,
    /// The operation.
    pub operation: Option<&'static str>,
    /// The epoch of the lane.
    pub epoch: u32,
}

impl Serialize for GroupState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut group = serializer.serialize_struct("GroupState", 9)?;
        group.serialize_field("name", &self.name)?;
        group.serialize_field("id", &self.id)?;
        group.serialize_field("world", &self.world)?;
        group.serialize_field("made", &self.made.as_secs_f64())?;
        group.serialize_field("explanation", &self.explain())?;
        group.serialize_field("culprits", &self.culprits)?;
        group.serialize_field("cycle", &self.cycle)?;
        group.serialize_field("failure", &self.failure)?;
        group.serialize_field("ranks", &self.ranks)?;
        group.end()
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn optional_seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

fn text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn optional_text<S: Serializer>(value: &Option<impl fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}
