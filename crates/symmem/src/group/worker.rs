//! The helper thread that carries a rank's started operations, one after the other, in the order they were
//! started.
//!
//! One per (group, rank), made by the first [`Group::enqueue`]. It sleeps without using the processor while
//! there is nothing to do, and ends when the group's last handle goes: it keeps the group alive only while
//! operations are unfinished, and nobody ever waits for the thread itself.
//!
//! From the first start until the last started operation has ended, `busy` has the bit [`STARTED`]: ranks
//! could not agree on where among those a blocking operation belongs, so it gets `Busy`. The bit is set and
//! cleared under the queue's lock. The helper's own operations go through [`Group::begin`] like all others,
//! with a handle ([`Group::for_helper`]) that takes the bit for granted.
//!
//! # Memory ordering
//! What one operation leaves for the next (epoch, sequence, what is owed) passes from a blocking one to the
//! thread that starts one by `busy` (Release store, Acquire exchange), from there to the helper by the
//! queue's lock, and back to the next blocking one by `busy` again.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::Group;
use super::membership::{IDLE, Membership, STARTED};
use super::pending::{OutcomeCell, Pending};
use super::spawn::panic_message;
use crate::error::Cause;
use crate::operation::Op;
use crate::sync::control::Verdict;
use crate::sys::fork;
use crate::{Error, Result};

/// The group's end of the helper thread. Dropping it lets the thread end.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<WorkerState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkerState {
    /// Started, and not yet taken up by the thread.
    waiting: VecDeque<Started>,
    /// Started, and not yet ended.
    unfinished: usize,
    has_thread: bool,
    /// The group is gone.
    closed: bool,
}

impl std::fmt::Debug for WorkerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerState").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

/// A started operation, and the group it is on.
struct Started {
    group: Group,
    job: Box<dyn StartedJob>,
}

/// A started operation whose result may be of any type.
trait StartedJob: Send {
    /// Runs it to its end, which may be a panic, and lets go of whatever it held.
    fn run(&mut self, group: &Group);
    /// Hands the result over.
    fn publish(self: Box<Self>);
}

struct Task<F, R> {
    work: Option<F>,
    result: Option<Result<R>>,
    outcome: Arc<OutcomeCell<R>>,
}

impl<R: Send, F: FnOnce() -> Result<R> + Send> StartedJob for Task<F, R> {
    fn run(&mut self, group: &Group) {
        let Some(work) = self.work.take() else { return };
        // Nothing that the panic left half done is used again: it ends the group, and poisons the memory it
        // worked on.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        self.result = Some(
            outcome.unwrap_or_else(|panic| Err(group.panicked(self.outcome.op(), panic_message(&*panic)))),
        );
    }

    fn publish(mut self: Box<Self>) {
        if let Some(result) = self.result.take() {
            self.outcome.publish(result);
        }
    }
}

impl Group {
    /// Starts `op`: `work` runs on the helper thread, after what was started before. What it does on the
    /// group it does through handles made by [`Group::for_helper`].
    pub(crate) fn enqueue<R: Send + 'static>(
        &self,
        op: Op,
        work: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<Pending<R>> {
        // Before any lock: a forked child may have got it locked.
        if fork::is_child() {
            return Err(Error::Forked { op: op.name() });
        }
        let (outcome, pending) = OutcomeCell::new(op);
        let job = Box::new(Task { work: Some(work), result: None, outcome });
        let queue = &self.inner.worker.queue;
        let mut state = queue.lock();
        queue.ensure_thread(&mut state, self.rank())?;
        if state.unfinished == 0 {
            let started =
                self.inner.busy.compare_exchange(IDLE, STARTED, Ordering::Acquire, Ordering::Relaxed);
            started.map_err(|busy| self.busy(op, None, busy))?;
        }
        state.unfinished += 1;
        state.waiting.push_back(Started { group: self.share(), job });
        drop(state);
        queue.changed.notify_one();
        Ok(pending)
    }

    /// A handle whose operations run while started ones are unfinished: for the helper thread only.
    pub(crate) fn for_helper(&self) -> Self {
        Self { base: STARTED, ..self.share() }
    }

    /// Ends the group, because `op` of this rank panicked on the helper thread.
    fn panicked(&self, op: Op, reason: String) -> Error {
        let (culprit, cause) = (self.rank(), Cause::Panicked);
        let (standing, _) = self.inner.convict(Verdict { culprit, cause });
        let context = self.context_of(op, None);
        match (standing.culprit, standing.cause) == (culprit, cause) {
            true => Error::GroupFailed { context, culprit, cause, reason },
            // Another failure came first.
            false => self.failed_by(context, standing),
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn ensure_thread(self: &Arc<Self>, state: &mut WorkerState, rank: usize) -> Result<()> {
        if state.has_thread {
            return Ok(());
        }
        let queue = Arc::clone(self);
        let thread =
            std::thread::Builder::new().name(format!("rank {rank} worker")).spawn(move || queue.work());
        thread.map_err(|error| Error::sys("starting a rank's helper thread", error))?;
        state.has_thread = true;
        Ok(())
    }

    /// The helper thread's life.
    fn work(&self) {
        while let Some(Started { group, mut job }) = self.next() {
            job.run(&group);
            self.finish(&group.inner);
            // The group may go with it, and what its token has of the user's. Whoever sees the result sees
            // everything else done.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(group)));
            let _ = catch_unwind(AssertUnwindSafe(|| job.publish()));
        }
    }

    /// The next operation; `None` once the group is gone.
    fn next(&self) -> Option<Started> {
        let mut state = self.lock();
        loop {
            if let Some(next) = state.waiting.pop_front() {
                return Some(next);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
    }

    fn finish(&self, inner: &Membership) {
        let mut state = self.lock();
        state.unfinished -= 1;
        if state.unfinished == 0 {
            inner.busy.store(IDLE, Ordering::Release);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A forked child has no thread to end, and may have got the lock locked.
        if fork::is_child() {
            return;
        }
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use symmem_store::CancelToken;

    use super::*;

    #[test]
    fn a_token_that_panics_when_it_is_dropped_keeps_no_result_back() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("what a token has panics on purpose")
            }
        }
        crate::group::spawn(1, |group| {
            let kept = Panics;
            let token = CancelToken::polled(move || {
                let _kept = &kept;
                false
            });
            let (open, closed) = std::sync::mpsc::channel::<()>();
            let pending = group.cancelled_by(&token).enqueue(Op::Barrier, move || {
                let _ = closed.recv();
                Ok(())
            })?;
            // From here on the operation alone has it.
            drop(token);
            drop(open);
            let end = Instant::now() + Duration::from_secs(20);
            while !pending.test() {
                assert!(Instant::now() < end, "the helper thread is gone");
                std::thread::sleep(Duration::from_millis(1));
            }
            pending.wait()?;
            group.start().barrier()?.wait()?;
            group.barrier()
        })
        .unwrap();
    }

    #[test]
    fn an_executor_that_panics_harms_only_itself() {
        use std::task::{Context, Poll, Wake, Waker};
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker panics on purpose")
            }
        }
        crate::group::spawn(1, |group| {
            let (open, closed) = std::sync::mpsc::channel::<()>();
            let mut pending = group.enqueue(Op::Barrier, move || {
                let _ = closed.recv();
                Ok(())
            })?;
            let waker = Waker::from(Arc::new(Panics));
            let polled = std::pin::Pin::new(&mut pending);
            assert!(matches!(polled.poll(&mut Context::from_waker(&waker)), Poll::Pending));
            drop(open);
            pending.wait()?;
            group.start().barrier()?.wait()?;
            group.barrier()
        })
        .unwrap();
    }
}
