//! Models of the meeting, which is the barrier: whoever saw everybody sees what everybody wrote before, and
//! two halves of a slot and two parities of a payload are enough.
//!
//! Each rank owns two payloads, as it owns two parities of staging. In epoch e it writes the one of e's
//! parity, meets, and reads everybody's: a rank that ran ahead into e+2 too early would race with that read.
//! The pipeline of private memory also answers in the place of what it read (`ask`).

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Failure, Model, failure_of, holds, sleep_until, spin_until};
use crate::operation::Signature;
use crate::protocol::{Bell, MeetingWords, Slot, announce, arrived, leave_shape, note, shape};

/// The words of all ranks.
struct Ranks<const WORLD: usize> {
    /// By owner, then by who writes it.
    slots: [[Slot; WORLD]; WORLD],
    bells: [Bell; WORLD],
    payloads: [[UnsafeCell<u64>; 2]; WORLD],
}

// SAFETY: the payloads are what the models are about; loom reports every access that the protocol leaves
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

/// How a rank goes through its epochs.
#[derive(Clone, Copy)]
struct EpochRules {
    sleeps: bool,
    /// The payload of an epoch: its parity, unless the model is to show that one payload is too few.
    payload: fn(u64) -> usize,
    /// Whether rank `.0` waits for rank `.1`: always, unless the model is to show that all must.
    hears: fn(usize, usize) -> bool,
}

const AS_BUILT: EpochRules =
    EpochRules { sleeps: false, payload: |epoch| (epoch & 1) as usize, hears: |_, _| true };

impl<const WORLD: usize> Ranks<WORLD> {
    fn new(epoch: u64) -> Arc<Self> {
        use std::array::from_fn;
        let slots = from_fn(|_| from_fn(|_| Slot::starting_at(epoch)));
        let payloads = from_fn(|_| from_fn(|_| UnsafeCell::new(0)));
        Arc::new(Self { slots, bells: from_fn(|_| Bell::new()), payloads })
    }

    /// Rank `me` meets the others in `epoch`.
    fn meet(&self, me: usize, epoch: u64, way: EpochRules) {
        let signature = Signature { word: epoch, size: epoch + 1 };
        leave_shape(self, me, epoch, epoch + 3);
        announce(self, me, epoch, signature, epoch + 2, &[]);
        for peer in (0..WORLD).filter(|peer| *peer != me && (way.hears)(me, *peer)) {
            let poll = || arrived(self, me, peer, epoch);
            let theirs = if way.sleeps { sleep_until(&self.bells[me], poll) } else { spin_until(poll) };
            let (note, shape) = (note(self, me, peer, epoch), shape(self, me, peer, epoch));
            assert_eq!((theirs, note, shape), (signature, epoch + 2, epoch + 3));
        }
    }

    /// Rank `me`, one of two, writes its payload, meets, and puts its answer in the place of the other's.
    /// What the other answered to the epoch before is there by now, unless the model is to show that it is
    /// not `early`.
    fn ask(&self, me: usize, epoch: u64, early: bool) {
        let parity = |epoch: u64| (epoch & 1) as usize;
        let take = |epoch: u64| {
            // SAFETY: loom checks that nobody writes the cell.
            let answer = self.payloads[me][parity(epoch)].with(|data| unsafe { *data });
            assert_eq!(answer, epoch + ANSWER);
        };
        // SAFETY: loom checks that nobody else accesses the cell.
        self.payloads[me][parity(epoch)].with_mut(|data| unsafe { *data = epoch });
        if early && epoch > 1 {
            take(epoch - 1);
        }
        self.meet(me, epoch, AS_BUILT);
        if !early && epoch > 1 {
            take(epoch - 1);
        }
        // SAFETY: as above.
        self.payloads[1 - me][parity(epoch)].with_mut(|data| unsafe {
            assert_eq!(*data, epoch);
            *data += ANSWER;
        });
    }

    /// Rank `me` writes its payload, meets, and reads the others'.
    fn exchange(&self, me: usize, epoch: u64, way: EpochRules) {
        let payload = (way.payload)(epoch);
        // SAFETY: loom checks that nobody else accesses the cell.
        self.payloads[me][payload].with_mut(|data| unsafe { *data = epoch });
        self.meet(me, epoch, way);
        for peer in (0..WORLD).filter(|peer| *peer != me && (way.hears)(me, *peer)) {
            // SAFETY: loom checks that nobody writes the cell.
            let theirs = self.payloads[peer][payload].with(|data| unsafe { *data });
            assert_eq!(theirs, epoch);
        }
    }
}

/// `WORLD` ranks go through `epochs` epochs after `start`.
fn run<const WORLD: usize>(start: u64, epochs: u64, way: EpochRules) {
    let ranks = Ranks::<WORLD>::new(start);
    let go = move |ranks: &Ranks<WORLD>, me| {
        (start + 1..=start + epochs).for_each(|epoch| ranks.exchange(me, epoch, way));
    };
    let others = (1..WORLD).map(|me| {
        let ranks = Arc::clone(&ranks);
        thread::spawn(move || go(&ranks, me))
    });
    let others: Vec<_> = others.collect();
    go(&ranks, 0);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// What a rank adds to the payload that it answers to.
const ANSWER: u64 = 1000;

/// Two ranks ask and answer for three epochs.
fn ask(early: bool) {
    let ranks = Ranks::<2>::new(0);
    let other = Arc::clone(&ranks);
    let other = thread::spawn(move || (1..=3).for_each(|epoch| other.ask(1, epoch, early)));
    (1..=3).for_each(|epoch| ranks.ask(0, epoch, early));
    other.join().unwrap();
}

/// Just below the end of 32 bits, so that three epochs cross it.
const BELOW_2_32: u64 = (1 << 32) - 2;

const ASLEEP: EpochRules = EpochRules { sleeps: true, ..AS_BUILT };

/// Two ranks meet and read once.
pub(crate) const ONCE: Model = Model { run: || run::<2>(0, 1, AS_BUILT), preemptions: None };

/// Two ranks write every payload a second time.
pub(crate) const REUSE: Model = Model { run: || run::<2>(0, 3, AS_BUILT), preemptions: None };

const REUSE_BELOW_2_32: Model = Model { run: || run::<2>(BELOW_2_32, 3, AS_BUILT), preemptions: None };

/// Two ranks that sleep.
pub(crate) const SLEEP: Model = Model { run: || run::<2>(0, 3, ASLEEP), preemptions: Some(3) };

const SLEEP_BELOW_2_32: Model = Model { run: || run::<2>(BELOW_2_32, 3, ASLEEP), preemptions: Some(3) };

// Three ranks always sleep: two that spin can keep each other busy for ever while loom never runs the third.
const THREE_RANKS: Model = Model { run: || run::<3>(0, 1, ASLEEP), preemptions: Some(2) };

const THREE_RANKS_REUSE: Model = Model { run: || run::<3>(BELOW_2_32, 3, ASLEEP), preemptions: Some(1) };

#[test]
fn a_meeting_carries_what_everybody_wrote() {
    holds(ONCE);
    holds(THREE_RANKS);
}

#[test]
fn two_halves_and_two_parities_are_enough() {
    holds(REUSE);
}

#[test]
fn two_halves_and_two_parities_are_enough_across_the_end_of_32_bits() {
    holds(REUSE_BELOW_2_32);
}

#[test]
fn two_halves_and_two_parities_are_enough_for_three_ranks() {
    holds(THREE_RANKS_REUSE);
}

#[test]
fn ranks_that_sleep_wake_up_and_meet() {
    holds(SLEEP);
    holds(SLEEP_BELOW_2_32);
}

#[test]
fn an_answer_in_place_of_what_was_read_is_there_after_the_next_meeting() {
    holds(Model { run: || ask(false), preemptions: None });
    assert!(failure_of(Model { run: || ask(true), preemptions: Some(3) }).is_some());
}

#[test]
fn one_payload_would_be_too_few() {
    let one = || run::<2>(0, 2, EpochRules { payload: |_| 0, ..AS_BUILT });
    assert_eq!(failure_of(Model { run: one, preemptions: Some(3) }), Some(Failure::Disorder));
}

#[test]
fn a_rank_that_does_not_hear_from_everybody_would_run_ahead() {
    // The last rank never waits for rank 0, which still reads the payload that the last rank writes again.
    let two = || run::<2>(0, 3, EpochRules { hears: |me, peer| (me, peer) != (1, 0), ..AS_BUILT });
    assert_eq!(failure_of(Model { run: two, preemptions: Some(3) }), Some(Failure::Disorder));
    let three = || run::<3>(0, 3, EpochRules { hears: |me, peer| (me, peer) != (2, 0), ..ASLEEP });
    assert_eq!(failure_of(Model { run: three, ..THREE_RANKS_REUSE }), Some(Failure::Disorder));
}
