//! What `with group.within(seconds):` means: until its end, calls that this thread makes on the group wait
//! for at most so long.
//!
//! Asked by anything that finds out how long a call waits, after the call's own `timeout_ms` and the `within`
//! of the object it is made on.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::SharedMembership;

/// The open blocks of all threads: all that most calls look at.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The open blocks of this thread, innermost last. A weak reference keeps the address from being another
    /// group's.
    static BLOCKS: RefCell<Vec<(Weak<SharedMembership>, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// A block begins.
pub(super) fn enter(group: &Arc<SharedMembership>, timeout: Duration) {
    BLOCKS.with_borrow_mut(|blocks| blocks.push((Arc::downgrade(group), timeout)));
    // Relaxed: a thread sees its own blocks, and no others concern it.
    OPEN.fetch_add(1, Ordering::Relaxed);
}

/// The innermost block of the group with this timeout ends; blocks may end in another order than they began.
pub(super) fn leave(group: &Arc<SharedMembership>, timeout: Duration) {
    BLOCKS.with_borrow_mut(|blocks| {
        let is_it = |block: &(Weak<SharedMembership>, Duration)| {
            block.0.as_ptr() == Arc::as_ptr(group) && block.1 == timeout
        };
        if let Some(at) = blocks.iter().rposition(is_it) {
            blocks.remove(at);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
    });
}

/// What the innermost block of the group says.
#[inline]
pub(super) fn of(group: *const SharedMembership) -> Option<Duration> {
    if OPEN.load(Ordering::Relaxed) == 0 { None } else { find(group) }
}

#[cold]
fn find(group: *const SharedMembership) -> Option<Duration> {
    let is_it = |block: &&(Weak<SharedMembership>, Duration)| block.0.as_ptr() == group;
    BLOCKS.with_borrow(|blocks| blocks.iter().rev().find(is_it).map(|block| block.1))
}
