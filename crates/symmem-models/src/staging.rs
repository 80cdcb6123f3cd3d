//! Models of collectives over staging and parcels: a rank that hears from some ranks only goes on at once,
//! and its next operation waits for the others (the *consumed-wait*). With it two halves of staging are
//! enough; without it they are not.
//!
//! Each rank owns two cells of staging, by the parity of the epoch. Who is heard when, and what is owed, is
//! the library's own code, as `group/running.rs` calls it: only how a rank waits, and what it does with
//! staging, is written down here.

use std::convert::Infallible;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Failure, Model, failure_without, holds, sleep_until, spin_until};
use crate::operation::Signature;
use crate::protocol::atomic::{AtomicU64, Ordering, Site};
use crate::protocol::{Bell, MeetingWords, Owed, PARCEL_WORDS, Slot};
use crate::protocol::{announce, arrived, hear, next_epoch, unpack};

/// The words and the staging of all ranks.
struct Ranks<const WORLD: usize> {
    /// By owner, then by who writes it.
    slots: [[Slot; WORLD]; WORLD],
    bells: [Bell; WORLD],
    staging: [[UnsafeCell<u64>; 2]; WORLD],
}

// SAFETY: the staging is what the models are about; loom reports every access that the protocol leaves
// unordered.
unsafe impl<const WORLD: usize> Sync for Ranks<WORLD> {}

impl<const WORLD: usize> MeetingWords for Ranks<WORLD> {
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

/// How a rank waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitKind {
    Spinning,
    Asleep,
}

use WaitKind::{Asleep, Spinning};

/// One rank as it goes through its operations, with the state that a group keeps for it.
struct Rank<'a, const WORLD: usize> {
    ranks: &'a Ranks<WORLD>,
    me: usize,
    epoch: AtomicU64,
    owed: Owed,
    way: WaitKind,
}

impl<const WORLD: usize> Rank<'_, WORLD> {
    fn wait<T>(&self, poll: impl FnMut() -> Option<T>) -> T {
        match self.way {
            Asleep => sleep_until(&self.ranks.bells[self.me], poll),
            Spinning => spin_until(poll),
        }
    }

    fn hear(&self, epoch: u64, signature: Signature, who: impl Fn(usize) -> bool) -> Result<(), Infallible> {
        let wait = |peer| Ok::<_, Infallible>(self.wait(|| arrived(self.ranks, self.me, peer, epoch)));
        let agree = hear(WORLD, self.me, &self.owed, signature, who, wait)?;
        assert!(agree, "assertion: all ranks do the same");
        Ok(())
    }

    fn run(&self, op: Op) -> Result<(), Infallible> {
        let hear_all = |epoch, signature| self.hear(epoch, signature, |_| true);
        let epoch = next_epoch(&self.epoch, &self.owed, hear_all)?;
        let half = (epoch & 1) as usize;
        let gives = op == Op::AllReduce || self.me == 0;
        if gives && op != Op::Push {
            // SAFETY: loom checks that nobody else accesses the cell.
            self.ranks.staging[self.me][half].with_mut(|data| unsafe { *data = epoch });
        }
        let sent = if gives && op == Op::Push { parcel(epoch) } else { vec![] };
        self.epoch.store(epoch, Ordering::Relaxed);
        announce(self.ranks, self.me, epoch, op.signature(), 0, &sent);
        self.hear(epoch, op.signature(), |peer| op.hears(self.me, peer))?;
        for peer in (0..WORLD).filter(|peer| op.hears(self.me, *peer)) {
            match op {
                Op::Push => assert_eq!(self.unpack(peer, epoch), parcel(epoch)),
                _ => {
                    // SAFETY: loom checks that nobody writes the cell.
                    let theirs = self.ranks.staging[peer][half].with(|data| unsafe { *data });
                    assert_eq!(theirs, epoch);
                }
            }
        }
        Ok(())
    }

    fn unpack(&self, peer: usize, epoch: u64) -> Vec<u64> {
        let mut words = vec![0; PARCEL_WORDS];
        unpack(self.ranks, self.me, peer, epoch, &mut words);
        words
    }
}

/// What travels in `epoch`.
fn parcel(epoch: u64) -> Vec<u64> {
    (0..PARCEL_WORDS as u64).map(|word| epoch << 8 | word).collect()
}

/// `WORLD` ranks go through `ops` after epoch `start`.
fn run<const WORLD: usize>(start: u64, ops: &'static [Op], way: WaitKind) {
    use std::array::from_fn;
    let slots = from_fn(|_| from_fn(|_| Slot::starting_at(start)));
    let staging = from_fn(|_| from_fn(|_| UnsafeCell::new(0)));
    let ranks = Arc::new(Ranks::<WORLD> { slots, bells: from_fn(|_| Bell::new()), staging });
    let go = move |ranks: &Ranks<WORLD>, me| {
        let rank = Rank { ranks, me, epoch: AtomicU64::new(start), owed: Owed::default(), way };
        let Ok(()) = ops.iter().try_for_each(|op| rank.run(*op));
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
pub(crate) const PARCELS: Model = Model { run: || run::<2>(0, PUSHES, Spinning), preemptions: Some(3) };

/// The root of a broadcast waits for nobody.
pub(crate) const ROOT: Model = Model { run: || run::<2>(0, BROADCASTS, Spinning), preemptions: Some(3) };

/// Operations in which ranks hear from all, and from some.
pub(crate) const BOTH_KINDS: Model = Model { run: || run::<2>(0, MIXED, Spinning), preemptions: Some(3) };

/// The same with three ranks, which sleep.
pub(crate) const THREE_RANKS: Model = Model { run: || run::<3>(0, MIXED, Asleep), preemptions: Some(1) };

#[test]
fn broadcast_all_reduce_broadcast_with_a_slow_rank_holds() {
    holds(BOTH_KINDS);
    holds(THREE_RANKS);
}

#[test]
fn broadcasts_from_a_root_that_waits_for_nobody_hold() {
    holds(ROOT);
    holds(Model { run: || run::<2>(BELOW_2_32, BROADCASTS, Asleep), preemptions: Some(3) });
    holds(Model { run: || run::<3>(0, BROADCASTS, Asleep), preemptions: Some(1) });
}

#[test]
fn parcels_hold() {
    holds(PARCELS);
}

#[test]
fn a_rank_that_hears_from_everybody_owes_nothing() {
    // Without the consumed-wait these hold as well: a meeting needs none.
    let run = || run::<2>(0, &[Op::AllReduce; 3], Spinning);
    assert_eq!(failure_without(Site::ConsumedWait, Model { run, preemptions: Some(2) }), None::<Failure>);
}
