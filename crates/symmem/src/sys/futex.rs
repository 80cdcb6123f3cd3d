//! Sleeping on a word of shared memory, and waking the sleepers.
//!
//! Called by the last rung of the wait ladder only. The futexes are shared ones (never `FUTEX_PRIVATE`),
//! since two ranks may know the same word under different addresses, threads of one process included.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while `word` holds `expected`, at most `timeout`.
///
/// Returns for any reason at all (woken, changed value, signal, timeout): the caller looks at its condition
/// again.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    // A timeout beyond the clock cannot be told from forever, which no caller asks for.
    let Ok(timeout) = Timespec::try_from(timeout) else { return };
    // Errors are EAGAIN, EINTR and ETIMEDOUT: all mean "look again".
    let _ = futex::wait(word, Flags::empty(), expected, Some(&timeout));
}

/// Wakes everybody who sleeps on `word`, in this process and in others.
pub(crate) fn wake_all(word: &AtomicU32) {
    // The word is a reference, so it is mapped: the call cannot fail.
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
#[allow(unsafe_code, reason = "looks at one page through two mappings")]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn another_value_returns_at_once() {
        let start = Instant::now();
        wait(&AtomicU32::new(1), 0, LONG);
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn a_timeout_returns() {
        wait(&AtomicU32::new(0), 0, Duration::from_millis(5));
        wait(&AtomicU32::new(0), 0, Duration::ZERO);
    }

    #[test]
    fn a_sleeper_wakes_through_another_mapping_of_the_same_page() {
        let segment = crate::sys::memfd::Segment::create("futex", 4096).unwrap();
        let fd = segment.fd().try_clone_to_owned().unwrap();
        let other = crate::sys::memfd::Mapping::import(fd, 4096).unwrap();
        assert_ne!(segment.mapping().ptr(), other.ptr());
        // SAFETY: both mappings hold a page that outlives the words, is aligned, and is only used atomically.
        let (here, there) =
            unsafe { (&*segment.mapping().ptr().cast::<AtomicU32>(), &*other.ptr().cast::<AtomicU32>()) };
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while here.load(Ordering::Acquire) == 0 {
                    wait(here, 0, LONG);
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            there.store(1, Ordering::Release);
            wake_all(there);
        });
        assert!(start.elapsed() < LONG / 2);
    }
}
