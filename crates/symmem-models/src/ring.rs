//! Models of a ring of mail: a slot is filled after it was emptied and emptied after it was filled, and
//! nobody sleeps through what it waits for.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Failure, Model, failure_of, holds, sleep_until, spin_until};
use crate::protocol::{Bell, SLOTS, SlotCounts};

/// A ring with its slots.
struct Ring {
    counts: SlotCounts,
    slots: [UnsafeCell<u64>; SLOTS as usize],
}

// SAFETY: the slots are what the models are about; loom reports every access that the protocol leaves
// unordered.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(start: u64) -> Self {
        let slots = std::array::from_fn(|_| UnsafeCell::new(0));
        Self { counts: SlotCounts::starting_at(start), slots }
    }

    fn slot(&self, count: u64) -> &UnsafeCell<u64> {
        &self.slots[(count % SLOTS) as usize]
    }

    /// Sends `message`, if there is a free slot.
    fn fill(&self, message: u64) -> Option<()> {
        let head = self.counts.free()?;
        // SAFETY: loom checks that nobody else accesses the cell.
        self.slot(head).with_mut(|slot| unsafe { *slot = message });
        self.counts.fill(head);
        Some(())
    }

    /// The oldest message, if there is one.
    fn empty(&self) -> Option<u64> {
        let tail = self.counts.filled()?;
        // SAFETY: loom checks that nobody writes the cell.
        let message = self.slot(tail).with(|slot| unsafe { *slot });
        self.counts.empty(tail);
        Some(message)
    }
}

/// Enough messages to fill every slot a second time.
const MESSAGES: u64 = SLOTS + 1;

/// So that the counts wrap on the way.
const BELOW_THE_END: u64 = 0u64.wrapping_sub(1);

/// One rank sends to another, both spinning.
fn one_way(start: u64, messages: u64) {
    let ring = Arc::new(Ring::new(start));
    let sender = Arc::clone(&ring);
    let sender = thread::spawn(move || {
        (1..=messages).for_each(|message| spin_until(|| sender.fill(message)));
    });
    for message in 1..=messages {
        assert_eq!(spin_until(|| ring.empty()), message);
    }
    sender.join().unwrap();
}

/// One message.
pub(crate) const ONCE: Model = Model { run: || one_way(0, 1), preemptions: None };

/// Every slot is filled again.
pub(crate) const REUSE: Model = Model { run: || one_way(0, MESSAGES), preemptions: Some(3) };

const REUSE_WRAPPING: Model = Model { run: || one_way(BELOW_THE_END, MESSAGES), preemptions: Some(3) };

/// Two ranks that send to each other as mail does: whoever waits moves what can be moved, tells the other,
/// and sleeps.
struct Post {
    /// By who receives.
    rings: [Ring; 2],
    bells: [Bell; 2],
}

impl Post {
    /// Rank `me` sends and receives `messages`.
    fn exchange(&self, me: usize, messages: u64) {
        let (mut sent, mut received) = (0, 0);
        sleep_until(&self.bells[me], || {
            let before = (sent, received);
            while sent < messages && self.rings[1 - me].fill(sent + 1).is_some() {
                sent += 1;
            }
            while let Some(message) = self.rings[me].empty() {
                received += 1;
                assert_eq!(message, received);
            }
            if before != (sent, received) {
                Bell::publish_fence();
                self.bells[1 - me].ring_if_waited();
            }
            ((sent, received) == (messages, messages)).then_some(())
        });
    }
}

fn both_ways(messages: [u64; 2]) {
    let rings = [Ring::new(0), Ring::new(0)];
    let post = Arc::new(Post { rings, bells: [Bell::new(), Bell::new()] });
    let other = Arc::clone(&post);
    let other = thread::spawn(move || other.exchange(1, messages[1]));
    post.exchange(0, messages[0]);
    other.join().unwrap();
}

/// Both ranks sleep, for mail and for room.
pub(crate) const ASLEEP: Model = Model { run: || both_ways([MESSAGES; 2]), preemptions: Some(2) };

#[test]
fn a_message_arrives_as_it_was_sent() {
    holds(ONCE);
}

#[test]
fn a_slot_is_filled_again_only_after_it_was_read() {
    holds(REUSE);
    holds(REUSE_WRAPPING);
}

#[test]
fn ranks_that_sleep_wake_up_for_mail_and_for_room() {
    holds(ASLEEP);
}

#[test]
fn a_sender_that_does_not_look_at_the_tail_would_overwrite() {
    let run = || {
        let ring = Arc::new(Ring::new(0));
        let sender = Arc::clone(&ring);
        let sender = thread::spawn(move || {
            for head in 0..MESSAGES {
                // SAFETY: loom checks that nobody else accesses the cell.
                sender.slot(head).with_mut(|slot| unsafe { *slot = head + 1 });
                sender.counts.fill(head);
            }
        });
        for message in 1..=MESSAGES {
            assert_eq!(spin_until(|| ring.empty()), message);
        }
        sender.join().unwrap();
    };
    assert_eq!(failure_of(Model { run, preemptions: Some(2) }), Some(Failure::Disorder));
}
