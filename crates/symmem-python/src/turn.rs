//! `_Turn`: who runs the next operation of a queue of Python's.
//!
//! Only `symmem.torch.c10d` uses it. One thread at a time has the turn: whoever waits for an operation, else
//! the queue's own thread. Who waits mostly comes a few microseconds after the operation was queued. A Python
//! thread that woke up for it as well would find nothing, having taken the interpreter from the one that
//! works: two switches of threads. So the queue's thread looks without the interpreter, and takes the turn
//! after a moment in which nobody else took an operation, or when somebody is in a hurry. While operations
//! come one after the other it only naps, so that they need no system call to wake it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

/// For how long an operation is left to whoever waits for it: shorter naps take the cores from the ranks.
const MOMENT: Duration = Duration::from_micros(250);
/// After so many of them without an operation the thread sleeps until it is woken.
const NAPS: u32 = 3;

/// A number that no other living thread has; never 0.
fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[derive(Default)]
struct TurnState {
    /// Who has the turn; 0: nobody.
    owner: usize,
    /// Operations in the queue.
    queued: usize,
    /// Operations that were ever taken from it.
    taken: u64,
    /// Whether the queue's thread is to run them at once.
    urgent: bool,
    closed: bool,
    /// Whether the queue's thread sleeps until it is woken, or waits for the turn.
    asleep: bool,
    wants_turn: bool,
}

/// The turn of a queue.
#[pyclass(frozen, name = "_Turn", module = "symmem._symmem")]
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<TurnState>,
    changed: Condvar,
}

/// The turn, until dropped.
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn, if nobody has it and nothing is queued.
    pub(crate) fn take_if_idle(&self) -> Option<Taken<'_>> {
        let mut state = self.lock();
        let idle = state.owner == 0 && state.queued == 0 && !state.closed;
        if idle {
            state.owner = this_thread();
        }
        // Not `then_some`: what is not handed out would give back what another thread has.
        idle.then(|| Taken(self))
    }

    fn wait_on<'a>(&'a self, state: MutexGuard<'a, TurnState>) -> MutexGuard<'a, TurnState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation is for the queue's thread, and takes the turn; false when there is none and
    /// no more comes.
    fn sleep(&self) -> bool {
        let (mut state, mut naps) = (self.lock(), 0);
        loop {
            let (waited, taken) = (state.queued > 0, state.taken);
            let mut mine = waited && (state.urgent || state.closed);
            if state.closed && !waited {
                return false;
            }
            naps = if waited { 0 } else { naps + 1 };
            if !mine && naps > NAPS {
                state.asleep = true;
                state = self.wait_on(state);
                (state.asleep, naps) = (false, 0);
            } else if !mine {
                let napped = self.changed.wait_timeout(state, MOMENT);
                state = napped.unwrap_or_else(PoisonError::into_inner).0;
                mine = waited && state.taken == taken;
            }
            while mine && state.owner != 0 {
                state.wants_turn = true;
                state = self.wait_on(state);
            }
            state.wants_turn = false;
            if mine && state.queued > 0 {
                state.owner = this_thread();
                state.urgent = false;
                return true;
            }
        }
    }
}

#[pymethods]
impl Turn {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Takes the turn, unless a thread has it.
    fn take(&self) -> bool {
        let mut state = self.lock();
        let free = state.owner == 0;
        if free {
            state.owner = this_thread();
        }
        free
    }

    /// Gives it back.
    fn give_back(&self) {
        let mut state = self.lock();
        state.owner = 0;
        if state.wants_turn {
            self.changed.notify_one();
        }
    }

    /// Whether the current thread has it.
    fn is_here(&self) -> bool {
        self.lock().owner == this_thread()
    }

    /// An operation was queued, for the queue's thread `at_once` if nobody else takes it.
    fn queued(&self, at_once: bool) {
        let mut state = self.lock();
        state.queued += 1;
        state.urgent |= at_once;
        if state.asleep || at_once {
            self.changed.notify_one();
        }
    }

    /// One was taken from the queue.
    fn taken(&self) {
        let mut state = self.lock();
        state.queued = state.queued.saturating_sub(1);
        state.taken += 1;
    }

    /// What is queued is for the queue's thread, at once.
    fn hurry(&self) {
        let mut state = self.lock();
        if state.queued > 0 {
            state.urgent = true;
            self.changed.notify_one();
        }
    }

    /// No more operations come.
    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// For the queue's thread: waits for something to do and takes the turn. False when there is nothing and
    /// no more comes.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| self.sleep())
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Turn>()
}
