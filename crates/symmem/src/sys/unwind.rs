//! What is done when a panic leaves some work, and only then.
//!
//! Used around operations, whose peers must learn that the rest will not come. Where a panic comes out says
//! that it leaves, not `thread::panicking`: work that a destructor does while its thread unwinds may well
//! return. Work that returns pays nothing: no flag is set or looked at.

/// Calls it when it is dropped, which only a panic does.
struct OnUnwind<F: Fn()>(F);

impl<F: Fn()> Drop for OnUnwind<F> {
    // Inlined, so that what it needs has not to be put into memory before every piece of work.
    #[inline(always)]
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs `work`. If a panic leaves it, runs `then` on the way.
#[inline(always)]
pub(crate) fn guard<R>(then: impl Fn(), work: impl FnOnce() -> R) -> R {
    let guard = OnUnwind(then);
    let result = work();
    std::mem::forget(guard);
    result
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn only_a_panic_that_leaves_counts() {
        let passed = Cell::new(0);
        let count = || passed.set(passed.get() + 1);
        assert_eq!(guard(count, || 7), 7);
        let caught = guard(count, || catch_unwind(|| panic!("on purpose")).is_err());
        assert!(caught && passed.get() == 0);
        let left = catch_unwind(AssertUnwindSafe(|| guard(count, || panic!("on purpose"))));
        assert!(left.is_err() && passed.get() == 1);
    }
}
