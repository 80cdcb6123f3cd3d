//! NCCL behind an engine, as those who watch the engine see it: what it is at, for how long, and its end with
//! the group.
//!
//! Operations of NCCL's know nothing of the kernels' words. Theirs is one word for each lane, which the
//! stream sets before such an operation and clears after it (`engine/cuda/carried.rs`): one that stays set
//! for longer than the deadline is a timeout. Called as the rest of `status.rs` is. What it guarantees:
//! whoever looks neither waits nor calls CUDA, and kernels that are at work on windows are told to leave, and
//! get a moment for it, before the communicator takes the windows along.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Watched;
use crate::cuda::deferred;
use crate::device::nanoseconds;
use crate::error::Cause;
use crate::sync::control::Verdict;

/// How long kernels that were told to leave may take before what they work on goes.
const DRAIN: Duration = Duration::from_secs(1);
/// How long they get in any case: replays of graphs are in nobody's records, and look at the abort word once
/// in a while only.
const GRACE: Duration = Duration::from_millis(50);
/// Between two looks whether they have left.
const NAP: Duration = Duration::from_millis(1);

/// What ends with a group that has failed: the communicator, and so the windows that kernels may be at work
/// on.
pub(crate) struct Ending {
    /// Whether kernels that were told to leave have left; `None` where only the end makes them.
    pub(crate) is_idle: Option<Box<dyn Fn() -> bool + Send>>,
    pub(crate) end: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ending")
    }
}

impl Ending {
    /// Waits for the kernels, for a while, and ends it. What was dropped meanwhile and only waited for that
    /// goes, too.
    fn run(self) {
        let start = Instant::now();
        if let Some(is_idle) = self.is_idle {
            std::thread::sleep(GRACE);
            while !is_idle() && start.elapsed() < DRAIN {
                std::thread::sleep(NAP);
            }
        }
        (self.end)();
        deferred::reap();
    }
}

impl Watched {
    /// With a communicator, which `ending` aborts when the group fails: its kernels wait for peers and know
    /// nothing of verdicts. None of its operations may take longer than `deadline`.
    pub(crate) fn with_communicator(self, ending: Ending, deadline: Option<Duration>) -> Self {
        let carried = self.streams.iter().map(|_| Mutex::new((0, Instant::now()))).collect();
        let deadline = AtomicU64::new(nanoseconds(deadline));
        Self { ending: Mutex::new(Some(ending)), carried, deadline, ..self }
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Duration>) {
        self.deadline.store(nanoseconds(deadline), Ordering::Relaxed);
    }

    /// Ends what is to end, once, without waiting for that.
    pub(super) fn end(&self) {
        let taken = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut ending) = taken else { return };
        // Kernels of NCCL's leave by the abort only.
        if self.is_carrying() {
            ending.is_idle = None;
        }
        let thread = std::thread::Builder::new().name("symmem-nccl-abort".to_owned());
        // Where no thread can be had it is aborted when the engine is dropped.
        if let Err(error) = thread.spawn(move || ending.run()) {
            tracing::warn!(%error, "the communicator goes on");
        }
    }

    /// Whether NCCL is at an operation.
    fn is_carrying(&self) -> bool {
        (0..self.carried.len()).any(|lane| self.words.carried(lane) != 0)
    }

    /// Fails the group if NCCL has been at one operation for longer than the deadline.
    pub(crate) fn look_at_carried(&self) {
        let deadline = Duration::from_nanos(self.deadline.load(Ordering::Relaxed));
        if deadline.is_zero() || self.group.verdict().is_some() {
            return;
        }
        let is_late = |(lane, seen): (usize, &Mutex<(u32, Instant)>)| {
            let number = self.words.carried(lane);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.0 != number {
                *seen = (number, Instant::now());
            }
            number != 0 && seen.1.elapsed() > deadline
        };
        if self.carried.iter().enumerate().any(is_late) {
            self.abort(self.convict(self.too_late(deadline)));
        }
    }

    /// The verdict where NCCL has taken too long. It does not say whom it waits for; the host may know.
    #[cold]
    fn too_late(&self, deadline: Duration) -> Verdict {
        let group = &self.group;
        let (rank, world) = (group.rank, group.world);
        let reason =
            format!("rank {rank} waited for more than {deadline:?} in NCCL, which does not say for whom");
        self.give_own_reason(&reason);
        let gone = |cause| move |culprit| Verdict { culprit, cause };
        let left = (0..world).find(|peer| *peer != rank && group.has_left(*peer)).map(gone(Cause::Left));
        let died = group.find_dead().map(gone(Cause::Died));
        // Of two it can only be the other one.
        let culprit = if world == 2 { 1 - rank } else { rank };
        left.or(died).unwrap_or(Verdict { culprit, cause: Cause::TimedOut })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::super::tests::watched;
    use super::super::{HostStatusWords, Status};
    use super::*;

    /// As NCCL's operation on a stream would.
    fn carry(watched: &Watched, lane: usize, number: u32) {
        let words = watched.words.0.mapping().ptr().cast::<u8>();
        // SAFETY: the word of a lane.
        let word = unsafe { AtomicU32::from_ptr(words.add(HostStatusWords::carried_at(lane)).cast()) };
        word.store(number, Ordering::Release);
    }

    /// An ending that waits for `idle`, if it waits at all, and what it sets when it comes.
    fn ending(idle: &Arc<AtomicU32>, waits: bool) -> (Ending, Arc<AtomicU32>) {
        let (idle, ended) = (Arc::clone(idle), Arc::new(AtomicU32::new(0)));
        let sets = Arc::clone(&ended);
        let is_idle = move || idle.load(Ordering::Acquire) == 1;
        let is_idle = waits.then(|| Box::new(is_idle) as Box<dyn Fn() -> bool + Send>);
        (Ending { is_idle, end: Box::new(move || sets.store(1, Ordering::Release)) }, ended)
    }

    fn wait_for(word: &AtomicU32, within: Duration) -> bool {
        let start = Instant::now();
        while word.load(Ordering::Acquire) == 0 && start.elapsed() < within {
            std::thread::sleep(NAP);
        }
        word.load(Ordering::Acquire) == 1
    }

    #[test]
    fn kernels_are_told_and_leave_before_their_memory_goes() {
        crate::spawn(1, |group| {
            let idle = Arc::new(AtomicU32::new(0));
            let (ending, ended) = ending(&idle, true);
            let watched = watched(&group).with_communicator(ending, None);
            group.abort("enough");
            let start = Instant::now();
            assert!(watched.verdict().is_some() && start.elapsed() < DRAIN, "whoever asks does not wait");
            assert!(watched.words.is_aborted(), "kernels are told first");
            assert!(!wait_for(&ended, DRAIN / 4), "they are waited for");
            idle.store(1, Ordering::Release);
            assert!(wait_for(&ended, DRAIN / 2), "the wait ends with them");
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn kernels_that_stay_are_not_waited_for_much_longer() {
        crate::spawn(1, |group| {
            let busy = Arc::new(AtomicU32::new(0));
            let (patient, late) = ending(&busy, true);
            let (impatient, at_once) = ending(&busy, false);
            let (carrying, soon) = ending(&busy, true);
            let all = [patient, impatient, carrying];
            let all = all.map(|ending| watched(&group).with_communicator(ending, None));
            carry(&all[2], 0, 7);
            group.abort("enough");
            assert!(all.iter().all(|watched| watched.verdict().is_some()));
            // Kernels of NCCL's leave by the abort only.
            assert!(wait_for(&at_once, DRAIN / 2) && wait_for(&soon, DRAIN / 2));
            assert_eq!(late.load(Ordering::Acquire), 0);
            assert!(wait_for(&late, DRAIN * 5));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn an_operation_of_nccls_that_does_not_end_is_a_timeout_of_all() {
        crate::spawn(3, |group| {
            let (ending, _) = ending(&Arc::new(AtomicU32::new(1)), false);
            let deadline = Duration::from_millis(300);
            let watched = watched(&group).with_communicator(ending, Some(deadline));
            group.barrier()?;
            let start = Instant::now();
            // One operation after the other, each in time.
            for number in 1..10 {
                carry(&watched, 0, number);
                std::thread::sleep(deadline / 7);
                assert_eq!(watched.status(), Status::Whole, "after {:?}", start.elapsed());
            }
            carry(&watched, 0, 0);
            watched.look_at_carried();
            group.barrier()?;
            if group.rank() == 2 {
                carry(&watched, 0, 11);
            }
            let start = Instant::now();
            while watched.status() == Status::Whole {
                assert!(start.elapsed() < Duration::from_secs(10));
                std::thread::sleep(NAP);
            }
            let Status::Failed { culprit, cause, detail } = watched.status() else { panic!("whole") };
            assert_eq!((culprit, cause), (2, Cause::TimedOut));
            assert!(detail.contains("rank 2 waited for more than 300ms in NCCL"), "{detail}");
            Ok(())
        })
        .unwrap();
    }
}
