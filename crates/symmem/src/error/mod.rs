//! The one public error: what failed, where, who is to blame, and what to do about it.

mod context;
mod variants;

use std::io;

use symmem_store::Interrupt;

pub use self::context::{Cause, Context};
pub use self::variants::Error;

/// The result of every call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
mod tests;
