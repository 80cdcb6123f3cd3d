//! Whose turn it is on a communicator: NCCL takes calls on one from one thread at a time.
//!
//! A thread may take its turn again while it has it, as it does within a group of calls, and must give it
//! back as often.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use symmem_store::{Interrupt, Wait};

/// One thread at a time.
#[derive(Debug, Default)]
pub(super) struct CallTurn {
    holder: Mutex<Option<(ThreadId, usize)>>,
    freed: Condvar,
}

impl CallTurn {
    fn holder(&self) -> MutexGuard<'_, Option<(ThreadId, usize)>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is this thread's turn.
    pub(super) fn take(&self, terms: &Wait<'_>) -> Result<(), Interrupt> {
        let me = thread::current().id();
        terms.until(|slice| {
            let mut holder = self.holder();
            if holder.is_some_and(|(thread, _)| thread != me) && !slice.is_zero() {
                holder = self.freed.wait_timeout(holder, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
            match &mut *holder {
                Some((thread, times)) if *thread == me => *times += 1,
                Some(_) => return Ok(None),
                free => *free = Some((me, 1)),
            }
            Ok(Some(()))
        })
    }

    /// Whether nobody has it.
    pub(super) fn is_free(&self) -> bool {
        self.holder().is_none()
    }

    /// Gives back what [`CallTurn::take`] took, on the same thread.
    pub(super) fn give_back(&self) {
        let mut holder = self.holder();
        if let Some((_, times)) = &mut *holder {
            *times -= 1;
            if *times == 0 {
                *holder = None;
                self.freed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_can_take_its_turn_again_and_others_wait() {
        let turn = CallTurn::default();
        let soon = || Wait::for_at_most(Duration::from_millis(30));
        turn.take(&soon()).unwrap();
        turn.take(&soon()).unwrap();
        thread::scope(|scope| {
            let refused = scope.spawn(|| turn.take(&soon()).is_err()).join().unwrap();
            assert!(refused);
            let other = scope.spawn(|| {
                turn.take(&Wait::for_at_most(Duration::from_secs(20))).unwrap();
                turn.give_back();
            });
            turn.give_back();
            turn.give_back();
            other.join().unwrap();
        });
        turn.take(&soon()).unwrap();
    }
}
