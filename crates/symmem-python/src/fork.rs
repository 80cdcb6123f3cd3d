//! Knowing that this process was forked after something was made.
//!
//! A forked child has the parent's arrays, but is not the rank they belong to. Each is stamped with [`epoch`]
//! when it is made, and [`check`] refuses one from before the fork, if the parent had made a group by then:
//! else the memory is plain shared memory of both. What the child makes itself is as good as in any process,
//! as far as the library lets it.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::PyResult;

use crate::error::raise;

static EPOCH: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

/// Starts counting forks; all calls but the first do nothing.
pub(crate) fn arm() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler touches one atomic, which a child may do at once.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// How many forks there were between the process that called [`arm`] and this one.
#[inline]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// `symmem.Forked` if what was made in `made` belongs to a rank that this process was forked from.
#[inline]
pub(crate) fn check(made: u32, op: &'static str) -> PyResult<()> {
    match made == epoch() || !symmem::is_forked_rank() {
        true => Ok(()),
        false => Err(raise(symmem::Error::Forked { op })),
    }
}
