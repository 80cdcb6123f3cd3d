//! What a started process does between fork and exec.
//!
//! Called by whoever launches ranks. Nothing here allocates or takes a lock in the child, where other threads
//! are gone.

#![allow(unsafe_code, reason = "system calls between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::cores;

/// Lets the process that `command` starts die with this one, and keeps it on `cpus`, if there are any.
pub(crate) fn die_with_us(command: &mut Command, cpus: Vec<usize>) {
    let launcher = getpid();
    let stay = move || if cpus.is_empty() { Ok(()) } else { cores::stay_on(&cpus) };
    // SAFETY: runs between fork and exec and makes only async-signal-safe system calls.
    unsafe { command.pre_exec(move || die_with(launcher).and_then(|()| stay())) };
}

/// In the child, before exec: ask to be killed when `launcher` dies, unless it has died already.
fn die_with(launcher: Pid) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(launcher) {
        return Err(std::io::Error::other("the launcher is gone"));
    }
    Ok(())
}
