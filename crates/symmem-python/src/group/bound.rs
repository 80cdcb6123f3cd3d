//! What `with group.within(seconds):` means: until its end, calls that this thread makes on the group wait for at most so long.
//!
//! Asked by whatever finds out how long a call waits, after the call's own `timeout_ms` and the `within` of the object it is made on.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;

thread_local! {
    /// Whether there is any: all that most calls look at.
    static ANY: Cell<bool> = const { Cell::new(false) };
    /// The open blocks of this thread, innermost last. A weak reference keeps the address from being another group's.
    static BLOCKS: RefCell<Vec<(Weak<Shared>, Duration)>> = const { RefCell::new(Vec::new()) };
}

/// A block begins.
pub(super) fn enter(group: &Arc<Shared>, timeout: Duration) {
    BLOCKS.with_borrow_mut(|blocks| blocks.push((Arc::downgrade(group), timeout)));
    ANY.set(true);
}

/// The innermost block of the group with this timeout ends; blocks may end in another order than they began.
pub(super) fn leave(group: &Arc<Shared>, timeout: Duration) {
    BLOCKS.with_borrow_mut(|blocks| {
        let is_it =
            |block: &(Weak<Shared>, Duration)| block.0.as_ptr() == Arc::as_ptr(group) && block.1 == timeout;
        if let Some(at) = blocks.iter().rposition(is_it) {
            blocks.remove(at);
        }
        ANY.set(!blocks.is_empty());
    });
}

/// What the innermost block of the group says.
#[inline]
pub(super) fn of(group: *const Shared) -> Option<Duration> {
    if ANY.get() { find(group) } else { None }
}

#[cold]
fn find(group: *const Shared) -> Option<Duration> {
    let is_it = |block: &&(Weak<Shared>, Duration)| block.0.as_ptr() == group;
    BLOCKS.with_borrow(|blocks| blocks.iter().rev().find(is_it).map(|block| block.1))
}
