//! The signals that this program gets, for its main loop.
//!
//! Signals that were ignored when it was started stay ignored, here and in the ranks: that is how `nohup` and
//! shells keep background jobs alive.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use rustix::process::Pid;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

/// What ranks get too.
const PASSED_ON: [i32; 8] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];
/// `si_code` of signals that the kernel sends, those of terminals among them.
const SI_KERNEL: i32 = 0x80;

/// A signal that came.
pub(super) enum Came {
    /// A child has ended, or has stopped or goes on.
    Child(Option<Pid>),
    /// One for the ranks.
    ForRanks {
        signal: i32,
        /// It is from the terminal, so the processes of this one's group have it already.
        by_terminal: bool,
    },
}

/// Signals are kept from now on, until they are taken.
pub(super) struct Signals(SignalDelivery<UnixStream, WithRawSiginfo>);

impl Signals {
    pub(super) fn new() -> Result<Self> {
        let ignored = ignored();
        let heeded = PASSED_ON.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let (read, write) = UnixStream::pair().context("preparing for signals")?;
        let signals = SignalDelivery::with_pipe(read, write, WithRawSiginfo, heeded.chain([SIGCHLD]));
        Ok(Self(signals.context("preparing for signals")?))
    }

    /// Can be read when a signal came.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }

    /// Those that came since the last call; of each kind in the order of time.
    pub(super) fn take(&mut self) -> Vec<Came> {
        let came = self.0.pending().map(|info| match info.si_signo {
            SIGCHLD => {
                // SAFETY: the information of a SIGCHLD has a pid. (One that a process sent by hand has its
                // sender's.)
                Came::Child(Pid::from_raw(unsafe { info.si_pid() }))
            }
            signal => Came::ForRanks { signal, by_terminal: info.si_code == SI_KERNEL },
        });
        came.collect()
    }
}

/// The signals that this process ignores, as bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The name of a signal, such as SIGTERM.
pub(super) fn name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
