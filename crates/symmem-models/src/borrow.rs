//! Models of the borrow and its poison: what an operation leaves to peers that are still at it, nobody
//! borrows.
//!
//! A rank's operation borrows the rank's memory, lets a peer in, fails and ends, while the peer is still at
//! work. Another thread of the rank wants the memory at any time. Nothing orders the peer's late access with
//! that thread, so if the thread gets a guard after the operation, loom sees a race.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Failure, Model, failure_without, holds, spin_until};
use crate::protocol::atomic::{AtomicU32, Ordering, Site};
use crate::protocol::{BorrowRefusal, Borrows};

/// A rank's memory with its borrows, why it is poisoned, and two words by which the operation and its peer
/// meet.
struct Memory {
    borrows: Borrows,
    data: UnsafeCell<u32>,
    cause: UnsafeCell<u32>,
    entered: AtomicU32,
    worked: AtomicU32,
}

// SAFETY: the cells are what the models are about; loom reports every access that the protocol leaves
// unordered.
unsafe impl Sync for Memory {}

/// Which borrow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shared,
    Exclusive,
}

use Kind::{Exclusive, Shared};

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            borrows: Borrows::new(),
            data: UnsafeCell::new(0),
            cause: UnsafeCell::new(0),
            entered: AtomicU32::new(0),
            worked: AtomicU32::new(0),
        })
    }

    /// Reads or writes the memory, as a borrow of `kind` allows.
    fn access(&self, kind: Kind) -> u32 {
        match kind {
            // SAFETY: loom checks that nobody writes the cell.
            Shared => self.data.with(|data| unsafe { *data }),
            // SAFETY: loom checks that nobody else accesses the cell.
            Exclusive => self.data.with_mut(|data| unsafe {
                *data += 1;
                *data
            }),
        }
    }

    fn borrow(&self, kind: Kind) -> Result<(), BorrowRefusal> {
        match kind {
            Shared => self.borrows.share(),
            Exclusive => self.borrows.take(),
        }
    }

    fn release(&self, kind: Kind) {
        match kind {
            Shared => self.borrows.unshare(),
            Exclusive => self.borrows.give_back(),
        }
    }

    /// A guard of another thread of the rank. Whoever is refused for ever can read why.
    fn guard(&self, kind: Kind) -> Result<u32, BorrowRefusal> {
        let borrowed = self.borrow(kind);
        if borrowed == Err(BorrowRefusal::Poisoned) {
            // SAFETY: loom checks that nobody writes the cell.
            assert_eq!(self.cause.with(|cause| unsafe { *cause }), 1);
        }
        borrowed?;
        let seen = self.access(kind);
        self.release(kind);
        Ok(seen)
    }

    fn poison(&self) {
        // SAFETY: loom checks that nobody else accesses the cell.
        self.cause.with_mut(|cause| unsafe { *cause = 1 });
        self.borrows.poison();
    }

    /// An operation that lets the peer in, and ends without having heard that the peer is done.
    fn fail(&self, kind: Kind) {
        if self.borrow(kind).is_err() {
            return;
        }
        self.entered.store(1, Ordering::Release);
        self.poison();
        self.release(kind);
    }

    /// An operation that lets the peer in, and hears that it is done.
    fn succeed(&self, kind: Kind) {
        if self.borrow(kind).is_err() {
            // The peer need not wait for what does not come.
            self.entered.store(2, Ordering::Release);
            return;
        }
        self.entered.store(1, Ordering::Release);
        spin_until(|| (self.worked.load(Ordering::Acquire) == 1).then_some(()));
        self.release(kind);
    }

    /// The peer, which works on the memory if the operation let it in, whenever it gets to it.
    fn peer(&self, kind: Kind) {
        if self.entered.load(Ordering::Acquire) == 1 {
            self.access(kind);
        }
    }

    fn peer_that_tells(&self, kind: Kind) {
        let let_in = spin_until(|| Some(self.entered.load(Ordering::Acquire)).filter(|word| *word != 0));
        if let_in == 1 {
            self.access(kind);
            self.worked.store(1, Ordering::Release);
        }
    }
}

/// Runs all of these at once.
fn together<const N: usize>(threads: [fn(&Memory); N]) {
    let memory = Memory::new();
    let threads = threads.map(|run| {
        let memory = Arc::clone(&memory);
        thread::spawn(move || run(&memory))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn any(guard: Result<u32, BorrowRefusal>) {
    let _ = guard;
}

/// Peers write late, another thread reads.
pub(crate) const LATE_WRITE: Model = Model {
    run: || together([|m| m.fail(Exclusive), |m| m.peer(Exclusive), |m| any(m.guard(Shared))]),
    preemptions: Some(3),
};

/// Peers write late, another thread writes.
pub(crate) const LATE_WRITE_WRITER: Model = Model {
    run: || together([|m| m.fail(Exclusive), |m| m.peer(Exclusive), |m| any(m.guard(Exclusive))]),
    preemptions: Some(3),
};

/// Peers read late, another thread writes.
pub(crate) const LATE_READ: Model = Model {
    run: || together([|m| m.fail(Shared), |m| m.peer(Shared), |m| any(m.guard(Exclusive))]),
    preemptions: Some(3),
};

/// The same, with a reader that borrows between the failure and the writer: the poison must not get lost on
/// the way.
const LATE_READ_BESIDE_A_READER: Model = Model {
    run: || {
        let reads_then_writes = |m: &Memory| {
            any(m.guard(Shared));
            any(m.guard(Exclusive));
        };
        together([|m| m.fail(Shared), |m| m.peer(Shared), reads_then_writes]);
    },
    preemptions: Some(2),
};

/// Peers write and are heard: what they wrote is what the next borrow sees.
pub(crate) const SUCCESS: Model = Model {
    run: || {
        let reads =
            |m: &Memory| assert!(matches!(m.guard(Shared), Ok(0 | 1) | Err(BorrowRefusal::Exclusive)));
        together([|m| m.succeed(Exclusive), |m| m.peer_that_tells(Exclusive), reads]);
    },
    preemptions: Some(2),
};

/// Two threads that borrow, one for reading and one for writing.
pub(crate) const READER_AND_WRITER: Model =
    Model { run: || together([|m| any(m.guard(Shared)), |m| any(m.guard(Exclusive))]), preemptions: None };

pub(crate) const TWO_WRITERS: Model =
    Model { run: || together([|m| any(m.guard(Exclusive)), |m| any(m.guard(Exclusive))]), preemptions: None };

const TWO_READERS: Model = Model {
    run: || together([|m| assert_eq!(m.guard(Shared), Ok(0)), |m| assert_eq!(m.guard(Shared), Ok(0))]),
    preemptions: None,
};

/// A thread that poisons without a borrow; whoever is refused reads why.
pub(crate) const CAUSE: Model = Model {
    run: || together([Memory::poison, |m| any(m.guard(Shared)), |m| any(m.guard(Exclusive))]),
    preemptions: Some(3),
};

/// A thread that looks at the poison first and then borrows.
const LOOKS_FIRST: Model = Model {
    run: || {
        let looks_first = |m: &Memory| {
            if !m.borrows.is_poisoned() {
                any(m.guard(Exclusive));
            }
        };
        together([|m| m.fail(Exclusive), |m| m.peer(Exclusive), looks_first]);
    },
    preemptions: Some(3),
};

#[test]
fn nobody_borrows_what_a_peer_may_still_write() {
    holds(LATE_WRITE);
    holds(LATE_WRITE_WRITER);
}

#[test]
fn nobody_writes_what_a_peer_may_still_read() {
    holds(LATE_READ);
    holds(LATE_READ_BESIDE_A_READER);
}

#[test]
fn a_borrow_sees_what_the_one_before_it_left() {
    holds(SUCCESS);
    holds(READER_AND_WRITER);
    holds(TWO_WRITERS);
    holds(TWO_READERS);
}

#[test]
fn whoever_is_refused_can_read_why() {
    holds(CAUSE);
}

#[test]
fn a_borrow_that_begins_after_the_poison_fails() {
    let run = || {
        let memory = Memory::new();
        memory.poison();
        let other = Arc::clone(&memory);
        let other = thread::spawn(move || other.guard(Shared));
        assert_eq!(memory.guard(Exclusive), Err(BorrowRefusal::Poisoned));
        assert_eq!(other.join().unwrap(), Err(BorrowRefusal::Poisoned));
    };
    holds(Model { run, preemptions: None });
}

#[test]
fn a_look_before_the_borrow_would_be_too_early() {
    assert_eq!(failure_without(Site::PoisonLook, LOOKS_FIRST), Some(Failure::Disorder));
}
