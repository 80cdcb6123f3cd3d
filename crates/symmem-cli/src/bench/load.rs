//! Busy loops beside the ranks: processes that do nothing but compute, on any core they are given.
//!
//! They are as nice as the ranks are, run from before the first launch of a measurement to after its last,
//! and end with this process however it ends.

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// The command of this program that is one of them.
const COMMAND: &str = "bench-load";

/// Busy loops, until this is dropped.
pub(super) struct Load(Vec<Child>);

impl Load {
    /// Starts so many. Comes from the thread that lives the longest: the kernel ends them with it.
    pub(super) fn start(loops: usize) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let bench = getpid();
        let mut load = Self(Vec::with_capacity(loops));
        for _ in 0..loops {
            let mut command = Command::new(&program);
            command.arg(COMMAND).stdin(Stdio::null()).stdout(Stdio::null());
            // SAFETY: runs between fork and exec and makes two system calls, which are safe there.
            unsafe { command.pre_exec(move || die_with(bench)) };
            load.0.push(command.spawn().context("starting a busy loop")?);
        }
        Ok(load)
    }

    /// Their processes.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.0.iter().map(Pid::from_child).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that is gone already is as good as killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The kernel kills this process when `parent` is gone, which may be now.
fn die_with(parent: Pid) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
}

/// Is one of them. Returns only in theory.
pub(crate) fn run() -> Result<()> {
    let mut count = 0u64;
    while black_box(count) != u64::MAX {
        count += 1;
    }
    Ok(())
}
