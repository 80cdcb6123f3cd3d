//! One rank: how its process is started, signalled and looked at.

use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, test_kill_process_group, waitid,
};
use symmem::{Launcher, Seat};

use super::output::{Streams, Target};
use super::signals;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Exited(i32),
    Killed(i32),
    /// Somebody else has waited for it.
    Unknown,
}

impl How {
    pub(super) fn is_failure(self) -> bool {
        self != Self::Exited(0)
    }

    /// The exit status of a program that ends as this process did: 128 and the signal of one that was killed,
    /// as a shell says it.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Exited(code) => (code & 0xff) as u8,
            Self::Killed(signal) => ((128 + signal) & 0xff) as u8,
            Self::Unknown => 1,
        }
    }

    /// In words, after "rank 3" or, of `several`, after "ranks 3 and 4".
    pub(super) fn words(self, several: bool) -> String {
        match self {
            Self::Exited(code) => format!("exited with {code}"),
            Self::Killed(signal) => {
                let was = if several { "were" } else { "was" };
                format!("{was} killed by {}", signals::name(signal))
            }
            Self::Unknown => "ended, and nobody knows how".to_owned(),
        }
    }
}

impl From<ExitStatus> for How {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Unknown,
        }
    }
}

/// The end of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) how: How,
    /// Since its start.
    pub(super) after: Duration,
    /// The launcher had asked it to end, or killed it.
    pub(super) asked: bool,
}

/// Why a rank could not be started.
pub(super) struct CannotStart {
    pub(super) status: u8,
    pub(super) problem: String,
}

/// A started rank. Its process stays a zombie until [`Rank::reap`], so its number is nobody else's.
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) pid: Pid,
    pub(super) end: Option<End>,
    child: Child,
    started: Instant,
    /// The process leads a group of its own, so that signals reach what it has started.
    leads: bool,
}

impl Rank {
    /// Starts `program` as the rank of `seat`. With `streams` its lines are carried there, else it writes by
    /// itself. Call from the main thread, with which the process dies.
    pub(super) fn start(
        mut command: Command,
        launcher: &Launcher,
        seat: Seat,
        streams: Option<&mut Streams>,
    ) -> Result<Result<Self, CannotStart>> {
        let reads_terminal = seat.rank == 0 && rustix::termios::isatty(rustix::stdio::stdin());
        if seat.rank != 0 {
            command.stdin(Stdio::null());
        }
        // Only the group of the launcher may read from the terminal.
        if !reads_terminal {
            command.process_group(0);
        }
        if let Some(streams) = streams {
            command.stdout(streams.add(seat.rank, Target::Stdout)?);
            command.stderr(streams.add(seat.rank, Target::Stderr)?);
            // Lines are to be seen when they are printed, as on a terminal.
            if std::env::var_os("PYTHONUNBUFFERED").is_none() {
                command.env("PYTHONUNBUFFERED", "1");
            }
        }
        launcher.prepare(&mut command, seat);
        Ok(match command.spawn() {
            Ok(child) => {
                let (pid, started) = (Pid::from_child(&child), Instant::now());
                Ok(Self { rank: seat.rank, pid, end: None, child, started, leads: !reads_terminal })
            }
            Err(error) => Err(cannot_start(&command, &error)),
        })
    }

    /// Sends `signal` to the rank, and to what it has started. From a terminal, those in the launcher's group
    /// have it already.
    pub(super) fn signal(&self, signal: i32, by_terminal: bool) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        // It is no error to come too late.
        let _ = match self.leads {
            true => kill_process_group(self.pid, signal),
            false if by_terminal || self.end.is_some() => Ok(()),
            false => kill_process(self.pid, signal),
        };
    }

    /// Looks whether it has ended; true if that is news.
    pub(super) fn look(&mut self, asked: bool) -> bool {
        if self.end.is_some() {
            return false;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let how = match waitid(WaitId::Pid(self.pid), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => return false,
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => How::Exited(code),
                (_, Some(signal)) => How::Killed(signal),
                _ => return false,
            },
            Err(_) => How::Unknown,
        };
        self.end = Some(End { how, after: self.started.elapsed(), asked });
        true
    }

    /// Takes the ended process off the system's list.
    pub(super) fn reap(&mut self) {
        let _ = self.child.wait();
    }

    /// Whether something that the rank has started still runs. Call after [`Rank::reap`].
    pub(super) fn left_something(&self) -> bool {
        self.leads && test_kill_process_group(self.pid).is_ok()
    }

    /// Kills what runs of it, and waits for the process itself.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL.as_raw(), false);
        self.reap();
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> CannotStart {
    let program = command.get_program().to_string_lossy();
    let (status, problem) = match error.kind() {
        ErrorKind::NotFound if !program.contains('/') => (127, "there is no such program in PATH".to_owned()),
        ErrorKind::NotFound => {
            (127, "there is no such file, or no such interpreter as its first line names".to_owned())
        }
        ErrorKind::PermissionDenied => {
            (126, "it is not executable. Hint: chmod +x, or name its interpreter".to_owned())
        }
        _ if error.raw_os_error() == Some(8) => {
            (126, "it is not a program. Hint: a script needs a first line such as #!/bin/sh".to_owned())
        }
        _ => (126, error.to_string()),
    };
    CannotStart { status, problem: format!("cannot start {program}: {problem}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_as_the_process_that_it_stands_for() {
        let status = |raw: i32| How::from(ExitStatus::from_raw(raw));
        assert_eq!((status(0), status(0).status()), (How::Exited(0), 0));
        assert_eq!((status(7 << 8), status(7 << 8).status()), (How::Exited(7), 7));
        assert_eq!((status(9), status(9).status()), (How::Killed(9), 137));
        assert_eq!(How::Unknown.status(), 1);
    }
}
