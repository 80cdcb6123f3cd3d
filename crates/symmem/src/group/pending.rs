//! What a started operation is to the one who started it: something to test, to wait for, or to await.
//!
//! Made by [`Group::enqueue`](super::Group::enqueue) only. The other end is [`OutcomeCell::publish`], which
//! the helper thread calls exactly once per operation, whatever became of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::operation::Op;
use crate::sys::fork;
use crate::{Error, Result};

/// An operation that was started and may still be running.
///
/// [`Pending::wait`] blocks until it has ended; as a [`Future`] it can be awaited under any executor, which
/// is woken when it has ended and not before. Both give what the blocking call would have given: its deadline
/// counts from when the operation began to run, that is when those started before it had ended.
///
/// Dropping it does not stop the operation, for the peers count on it: it runs to its end, its memory stays
/// alive and borrowed until then, and its result is lost. This rank leaves the group only after that, or when
/// the process exits.
///
/// ```
/// use symmem::ReduceOp;
/// symmem::spawn(2, |group| {
///     let pending = group.start().all_reduce(ReduceOp::Max, vec![group.rank() as u32; 100])?;
///     // ... something else meanwhile ...
///     assert_eq!(pending.wait()?, [1; 100]);
///     Ok(())
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
#[must_use = "the operation's result and errors are lost unless it is waited for"]
pub struct Pending<R> {
    outcome: Arc<OutcomeCell<R>>,
}

/// Where the result of an operation is put down.
pub(super) struct OutcomeCell<R> {
    op: Op,
    /// Whether there is a result, or was. Set under the lock of `slot`; Release, so that what the operation
    /// wrote is visible to whoever sees it set.
    done: AtomicBool,
    slot: Mutex<ResultSlot<R>>,
    ended: Condvar,
}

struct ResultSlot<R> {
    result: Option<Result<R>>,
    /// Who polled last.
    waker: Option<Waker>,
}

impl<R> OutcomeCell<R> {
    /// The two ends of a new one.
    pub(super) fn new(op: Op) -> (Arc<Self>, Pending<R>) {
        let slot = Mutex::new(ResultSlot { result: None, waker: None });
        let outcome = Arc::new(Self { op, done: AtomicBool::new(false), slot, ended: Condvar::new() });
        (Arc::clone(&outcome), Pending { outcome })
    }

    pub(super) fn op(&self) -> Op {
        self.op
    }

    /// Puts `result` down and wakes who waits for it. A waker is the executor's code and may panic.
    pub(super) fn publish(&self, result: Result<R>) {
        let mut slot = self.lock();
        slot.result = Some(result);
        self.done.store(true, Ordering::Release);
        let waker = slot.waker.take();
        drop(slot);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, ResultSlot<R>> {
        self.slot.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A forked child has neither the helper thread nor a lock that it could rely on.
    fn check_process(&self) -> Result<()> {
        if fork::is_child() { Err(Error::Forked { op: self.op.name() }) } else { Ok(()) }
    }
}

impl<R> ResultSlot<R> {
    /// The result, which is there and is given out once.
    fn take(&mut self) -> Result<R> {
        let again = || Err(Error::invalid("Pending", "polled again after it had given its result"));
        self.result.take().unwrap_or_else(again)
    }
}

impl<R> Pending<R> {
    /// Whether the operation has ended, so that [`Pending::wait`] returns at once. Never blocks.
    pub fn test(&self) -> bool {
        self.outcome.is_done()
    }

    /// Blocks until the operation has ended, and returns its result.
    pub fn wait(self) -> Result<R> {
        self.outcome.check_process()?;
        let mut slot = self.outcome.lock();
        // The operation's own deadline, cancel token and watch end this wait too.
        while !self.outcome.is_done() {
            slot = self.outcome.ended.wait(slot).unwrap_or_else(|poison| poison.into_inner());
        }
        slot.take()
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(forked) = self.outcome.check_process() {
            return Poll::Ready(Err(forked));
        }
        // Wakers are the executor's code: cloned before the lock, and the last one is dropped after it.
        let waker = context.waker().clone();
        let mut slot = self.outcome.lock();
        if self.outcome.is_done() {
            return Poll::Ready(slot.take());
        }
        let last = slot.waker.replace(waker);
        drop(slot);
        drop(last);
        Poll::Pending
    }
}

impl<R> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("op", &self.outcome.op.name()).field("done", &self.test()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll<R>(pending: &mut Pending<R>, wakes: &Arc<Wakes>) -> Poll<Result<R>> {
        let waker = Waker::from(Arc::clone(wakes));
        Pin::new(pending).poll(&mut Context::from_waker(&waker))
    }

    /// Looks whether the lock is free when it is dropped.
    struct Looks(Arc<OutcomeCell<i32>>);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(self.0.slot.try_lock().is_ok(), "a waker is dropped under the lock");
        }
    }

    #[test]
    fn wakers_are_dropped_outside_of_the_lock() {
        let (outcome, mut pending) = OutcomeCell::new(Op::Barrier);
        for _ in 0..3 {
            let waker = Waker::from(Arc::new(Looks(Arc::clone(&outcome))));
            assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        outcome.publish(Ok(7));
        assert!(matches!(pending.wait(), Ok(7)));
    }

    #[test]
    fn the_last_to_poll_is_woken_once() {
        let (outcome, mut pending) = OutcomeCell::new(Op::Barrier);
        let (first, last) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        assert!(poll(&mut pending, &first).is_pending());
        assert!(poll(&mut pending, &last).is_pending());
        assert!(!pending.test());
        outcome.publish(Ok(7));
        assert!(pending.test());
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
        assert!(matches!(poll(&mut pending, &last), Poll::Ready(Ok(7))));
        assert!(matches!(poll(&mut pending, &last), Poll::Ready(Err(Error::Invalid { .. }))));
        assert_eq!(last.0.load(Ordering::Relaxed), 1);
    }
}
