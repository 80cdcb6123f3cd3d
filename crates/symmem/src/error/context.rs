//! Where an operation failed, and why a group is dead.

use std::fmt;
use std::time::Duration;

/// Where an operation failed. Part of most variants of [`Error`](super::Error).
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
