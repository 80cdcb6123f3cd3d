//! Models of collectives over staging and parcels: a rank that hears from some ranks only goes on at once, and its next
//! operation waits for the others (the *consumed-wait*). With it two halves of staging are enough; without it they are not.
//!
//! Each rank owns two cells of staging, by the parity of the epoch. The protocol functions are the library's; how an
//! operation uses them is written down here as `group/running.rs` has it.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Failure, Model, failure_of, holds, sleep_until, spin_until};
use crate::protocol::{Bell, Meeting, PARCEL_WORDS, Signature, Slot, announce, arrived, unpack};

/// The words and the staging of all ranks.
struct Ranks<const WORLD: usize> {
    /// By owner, then by who writes it.
    slots: [[Slot; WORLD]; WORLD],
    bells: [Bell; WORLD],
    staging: [[UnsafeCell<u64>; 2]; WORLD],
}

// SAFETY: the staging is what the models are about; loom reports every access that the protocol leaves unordered.
unsafe impl<const WORLD: usize> Sync for Ranks<WORLD> {}

impl<const WORLD: usize> Meeting for Ranks<WORLD> {
    fn world(&self) -> usize {
        WORLD
    }

    fn slot(&self, at: usize, from: usize) -> &Slot {
        &self.slots[at][from]
    }

    fn bell(&self, at: usize) -> &Bell {
        &self.bells[at]
    }
}

/// A collective.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    /// From rank 0, through its staging.
    Broadcast,
    /// From rank 0, in a parcel.
    Push,
    AllReduce,
}

impl Op {
    fn hears(self, me: usize, peer: usize) -> bool {
        peer != me && (self == Op::AllReduce || peer == 0)
    }

    fn signature(self) -> Signature {
        Signature { word: self as u64 + 1, size: 8 }
    }
}

/// Whether a rank sleeps, and whether it waits for what it owes: always, unless the model is to show that it must.
#[derive(Clone, Copy)]
struct Way {
    sleeps: bool,
    consumed_wait: bool,
}

const SPINNING: Way = Way { sleeps: false, consumed_wait: true };
const ASLEEP: Way = Way { sleeps: true, ..SPINNING };

/// One rank as it goes through its operations.
struct Rank<'a, const WORLD: usize> {
    ranks: &'a Ranks<WORLD>,
    me: usize,
    epoch: u64,
    /// What this rank announced last, if it has not heard from everybody there.
    owed: Option<Op>,
    way: Way,
}

impl<const WORLD: usize> Rank<'_, WORLD> {
    fn wait<T>(&self, poll: impl FnMut() -> Option<T>) -> T {
        match self.way.sleeps {
            true => sleep_until(&self.ranks.bells[self.me], poll),
            false => spin_until(poll),
        }
    }

    fn hear(&self, op: Op, peer: usize) {
        let theirs = self.wait(|| arrived(self.ranks, self.me, peer, self.epoch));
        assert_eq!(theirs, op.signature());
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<WORLD> {
        let me = self.me;
        (0..WORLD).filter(move |peer| *peer != me)
    }

    fn run(&mut self, op: Op) {
        if let Some(owed) = self.owed.take().filter(|_| self.way.consumed_wait) {
            self.others().for_each(|peer| self.hear(owed, peer));
        }
        self.epoch += 1;
        let half = (self.epoch & 1) as usize;
        let gives = op == Op::AllReduce || self.me == 0;
        if gives && op != Op::Push {
            // SAFETY: loom checks that nobody else accesses the cell.
            self.ranks.staging[self.me][half].with_mut(|data| unsafe { *data = self.epoch });
        }
        let sent = if gives && op == Op::Push { parcel(self.epoch) } else { vec![] };
        announce(self.ranks, self.me, self.epoch, op.signature(), 0, &sent);
        for peer in self.others() {
            if op.hears(self.me, peer) {
                self.hear(op, peer);
            } else {
                self.owed = Some(op);
            }
        }
        for peer in self.others().filter(|peer| op.hears(self.me, *peer)) {
            match op {
                Op::Push => assert_eq!(self.unpack(peer), parcel(self.epoch)),
                _ => {
                    // SAFETY: loom checks that nobody writes the cell.
                    let theirs = self.ranks.staging[peer][half].with(|data| unsafe { *data });
                    assert_eq!(theirs, self.epoch);
                }
            }
        }
    }

    fn unpack(&self, peer: usize) -> Vec<u64> {
        let mut words = vec![0; PARCEL_WORDS];
        unpack(self.ranks, self.me, peer, self.epoch, &mut words);
        words
    }
}

/// What travels in `epoch`.
fn parcel(epoch: u64) -> Vec<u64> {
    (0..PARCEL_WORDS as u64).map(|word| epoch << 8 | word).collect()
}

/// `WORLD` ranks go through `ops` after epoch `start`.
fn run<const WORLD: usize>(start: u64, ops: &'static [Op], way: Way) {
    use std::array::from_fn;
    let slots = from_fn(|_| from_fn(|_| Slot::starting_at(start)));
    let staging = from_fn(|_| from_fn(|_| UnsafeCell::new(0)));
    let ranks = Arc::new(Ranks::<WORLD> { slots, bells: from_fn(|_| Bell::new()), staging });
    let go = move |ranks: &Ranks<WORLD>, me| {
        let mut rank = Rank { ranks, me, epoch: start, owed: None, way };
        ops.iter().for_each(|op| rank.run(*op));
    };
    let others = (1..WORLD).map(|me| {
        let ranks = Arc::clone(&ranks);
        thread::spawn(move || go(&ranks, me))
    });
    let others: Vec<_> = others.collect();
    go(&ranks, 0);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// The last all-reduce writes the staging that a slow rank may still read for the first one.
const MIXED: &[Op] = &[Op::Broadcast, Op::AllReduce, Op::Broadcast, Op::AllReduce];
/// The root waits for nobody, three times over.
const BROADCASTS: &[Op] = &[Op::Broadcast; 3];
const PUSHES: &[Op] = &[Op::Push; 3];

/// Just below the end of 32 bits, so that the epochs cross it.
const BELOW_2_32: u64 = (1 << 32) - 2;

/// Two ranks exchange parcels by their announcements.
pub(crate) const PARCELS: Model = Model { run: || run::<2>(0, PUSHES, SPINNING), preemptions: Some(3) };

#[test]
fn broadcast_all_reduce_broadcast_with_a_slow_rank_holds() {
    holds(Model { run: || run::<2>(0, MIXED, SPINNING), preemptions: Some(3) });
    holds(Model { run: || run::<3>(0, MIXED, ASLEEP), preemptions: Some(1) });
}

#[test]
fn broadcasts_from_a_root_that_waits_for_nobody_hold() {
    holds(Model { run: || run::<2>(0, BROADCASTS, SPINNING), preemptions: Some(3) });
    holds(Model { run: || run::<2>(BELOW_2_32, BROADCASTS, ASLEEP), preemptions: Some(3) });
    holds(Model { run: || run::<3>(0, BROADCASTS, ASLEEP), preemptions: Some(1) });
}

#[test]
fn parcels_hold() {
    holds(PARCELS);
}

#[test]
fn the_consumed_wait_is_missed() {
    const HASTY: Way = Way { consumed_wait: false, ..SPINNING };
    const HASTY_ASLEEP: Way = Way { consumed_wait: false, ..ASLEEP };
    for run in [
        || run::<2>(0, MIXED, HASTY),
        || run::<2>(0, BROADCASTS, HASTY),
        || run::<2>(0, PUSHES, HASTY),
        || run::<3>(0, MIXED, HASTY_ASLEEP),
    ] {
        assert_eq!(failure_of(Model { run, preemptions: Some(2) }), Some(Failure::Disorder));
    }
}
