//! One call when the process exits cleanly, so that ranks that end without closing are seen to leave.
//!
//! Called by the group module, once. The call runs on `exit` and on return from `main`, never in a forked child,
//! and not after a crash or a kill (peers see those through the pidfd).

#![allow(unsafe_code, reason = "system calls")]

use std::panic;
use std::sync::OnceLock;

use crate::sys::fork;

static CALL: OnceLock<fn()> = OnceLock::new();

/// Runs `f` when this process exits cleanly. Only the first call registers anything.
pub(crate) fn on_exit(f: fn()) {
    CALL.get_or_init(|| {
        // SAFETY: `run` is a plain function that lives as long as the process and never unwinds.
        // A full table (ENOMEM) only costs the politeness: peers then see a death instead of a leave.
        let _ = unsafe { libc::atexit(run) };
        f
    });
}

extern "C" fn run() {
    // A forked child that exits is not the rank and must not say that the rank has left.
    if fork::is_child() {
        return;
    }
    if let Some(f) = CALL.get() {
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
