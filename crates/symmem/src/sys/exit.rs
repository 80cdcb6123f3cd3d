//! Calls when the process exits cleanly: so that ranks that end without closing are seen to leave, and
//! threads leave foreign libraries first.
//!
//! Called by the group module and by `nccl`. A call runs on `exit` and on return from `main`, never in a
//! forked child, and not after a crash or a kill (peers see those through the pidfd). The last one runs
//! first, and before what libraries that were loaded earlier do at exit.

#![allow(unsafe_code, reason = "system calls")]

use std::panic;
use std::sync::{Mutex, PoisonError};

use crate::sys::fork;

static CALLS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Runs `f` when this process exits cleanly. A second time it changes nothing.
pub(crate) fn on_exit(f: fn()) {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    if calls.iter().any(|known| std::ptr::fn_addr_eq(*known, f)) {
        return;
    }
    // SAFETY: `run` is a plain function that lives as long as the process and never unwinds.
    // A full table (ENOMEM) only costs the politeness: peers then see a death instead of a leave.
    if unsafe { libc::atexit(run) } == 0 {
        calls.push(f);
    }
}

/// Runs once for each call, the last first: so does the C library.
extern "C" fn run() {
    // A forked child that exits is not the rank and must not say that the rank has left.
    if fork::is_child() {
        return;
    }
    let call = CALLS.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if let Some(f) = call {
        let _ = panic::catch_unwind(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::alone;
    use std::io::Write;

    fn say() {
        let _ = std::io::stdout().write_all(b"\nleft\n");
        panic!("must not end the process");
    }

    #[test]
    fn runs_once_on_exit_and_not_in_forked_children() {
        let out = alone("sys::exit::tests::runs_once_on_exit_and_not_in_forked_children", || {
            fork::arm();
            on_exit(say);
            on_exit(say);
            // SAFETY: the child only exits; nothing else runs in it.
            let child = unsafe { libc::fork() };
            if child != 0 {
                // SAFETY: waits for the child that was just made.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
            std::process::exit(0);
        });
        let out = out.unwrap();
        assert!(out.status.success(), "{out:?}");
        assert_eq!(String::from_utf8_lossy(&out.stdout).matches("\nleft\n").count(), 1, "{out:?}");
    }
}
