//! Knowing that this process was forked from a rank.
//!
//! A forked child shares the rank's memory and fds but must not act as the rank. Every call asks
//! [`is_child`], which costs two loads: the guard is a page that the kernel fills with zeros in the child
//! (`MADV_WIPEONFORK`), so it sees every fork, also those that bypass libc. [`arm`] is called before the
//! first group exists.

#![allow(unsafe_code, reason = "system calls")]

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The guard page's first word once armed: 1 here, 0 in a forked child. Never unmapped.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Without wipe-on-fork: the process that armed; 0 otherwise.
static PID: AtomicU32 = AtomicU32::new(0);

/// Sets the guard up; all calls but the first do nothing.
pub(crate) fn arm() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match guard_page() {
        Ok(page) => PAGE.store(page, Ordering::Release),
        Err(_) => PID.store(std::process::id(), Ordering::Release),
    });
}

/// Whether this process was forked from the one that called [`arm`]; false if nobody did.
#[inline]
pub(crate) fn is_child() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return is_child_by_pid();
    }
    // SAFETY: a non-null page is mapped for the life of the process and only ever used as this atomic.
    unsafe { (*page).load(Ordering::Relaxed) == 0 }
}

#[cold]
fn is_child_by_pid() -> bool {
    let armed = PID.load(Ordering::Acquire);
    armed != 0 && armed != std::process::id()
}

fn guard_page() -> rustix::io::Result<*mut AtomicU32> {
    let size = rustix::param::page_size();
    // SAFETY: a fresh private mapping, unknown to anybody else.
    unsafe {
        let page = rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        if let Err(error) = rustix::mm::madvise(page, size, Advice::LinuxWipeOnFork) {
            let _ = rustix::mm::munmap(page, size);
            return Err(error);
        }
        let word = page.cast::<AtomicU32>();
        (*word).store(1, Ordering::Relaxed);
        Ok(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks a child that exits with what `question` says there.
    fn answer_in_child(question: fn() -> bool) -> bool {
        // SAFETY: the child only loads words and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(question());
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn only_a_forked_child_is_a_child() {
        arm();
        arm();
        assert!(!PAGE.load(Ordering::Relaxed).is_null(), "this kernel has wipe-on-fork");
        assert!(!is_child());
        assert!(answer_in_child(is_child));
        assert!(!is_child());
    }

    #[test]
    fn without_wipe_on_fork_the_pid_tells() {
        PID.store(std::process::id(), Ordering::Release);
        assert!(!is_child_by_pid());
        assert!(answer_in_child(is_child_by_pid));
        PID.store(0, Ordering::Release);
        assert!(!answer_in_child(is_child_by_pid));
    }
}
