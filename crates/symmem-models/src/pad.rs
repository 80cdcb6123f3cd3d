//! Models of the signal pad: a signal carries what the sender wrote, and a slot that is free again says what
//! the receiver has read.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::harness::{Model, holds, sleep_until, spin_until};
use crate::protocol::atomic::AtomicU32;
use crate::protocol::{Bell, try_put, try_take};

/// One slot with the data it guards, and the bells of its two ranks.
struct Pad {
    slot: AtomicU32,
    data: UnsafeCell<u32>,
    sender: Bell,
    receiver: Bell,
}

// SAFETY: `data` is what the models are about; loom reports every access that the protocol leaves unordered.
unsafe impl Sync for Pad {}

impl Pad {
    fn new() -> Arc<Self> {
        let (sender, receiver) = (Bell::new(), Bell::new());
        Arc::new(Self { slot: AtomicU32::new(0), data: UnsafeCell::new(0), sender, receiver })
    }

    fn write(&self, value: u32) {
        // SAFETY: loom checks that nobody else accesses the cell.
        self.data.with_mut(|data| unsafe { *data = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: loom checks that nobody writes the cell.
        self.data.with(|data| unsafe { *data })
    }

    fn put(&self) {
        sleep_until(&self.sender, || try_put(&self.slot).then_some(()));
        Bell::publish_fence();
        self.receiver.ring_if_waited();
    }

    fn take(&self) {
        sleep_until(&self.receiver, || try_take(&self.slot).then_some(()));
        Bell::publish_fence();
        self.sender.ring_if_waited();
    }

    fn put_spinning(&self) {
        spin_until(|| try_put(&self.slot).then_some(()));
    }

    fn take_spinning(&self) {
        spin_until(|| try_take(&self.slot).then_some(()));
    }
}

/// Runs `send` and `receive` on the two ends of a pad.
fn between(send: fn(&Pad), receive: fn(&Pad)) {
    let pad = Pad::new();
    let sender = Arc::clone(&pad);
    let sender = thread::spawn(move || send(&sender));
    receive(&pad);
    sender.join().unwrap();
}

/// Who took a signal sees what its sender wrote before.
pub(crate) const CARRIES_WRITES: Model = Model { run: carries_writes, preemptions: None };

fn carries_writes() {
    let send = |pad: &Pad| {
        pad.write(1);
        pad.put_spinning();
    };
    let receive = |pad: &Pad| {
        pad.take_spinning();
        assert_eq!(pad.read(), 1);
    };
    between(send, receive);
}

/// Who could put the next signal may overwrite what the receiver read before it took the last one.
pub(crate) const CARRIES_READS: Model = Model { run: carries_reads, preemptions: None };

fn carries_reads() {
    let send = |pad: &Pad| {
        pad.put_spinning();
        pad.put_spinning();
        pad.write(1);
    };
    let receive = |pad: &Pad| {
        assert_eq!(pad.read(), 0);
        pad.take_spinning();
    };
    between(send, receive);
}

/// One buffer, sent and sent again. The receiver takes a second signal when it has read, so the sender may
/// write once it could put a third.
pub(crate) const REUSE: Model = Model {
    run: || between(|pad| send_twice(pad, Pad::put_spinning), |pad| receive_twice(pad, Pad::take_spinning)),
    preemptions: Some(3),
};

/// The same with both ends asleep.
pub(crate) const REUSE_ASLEEP: Model = Model {
    run: || between(|pad| send_twice(pad, Pad::put), |pad| receive_twice(pad, Pad::take)),
    preemptions: Some(2),
};

fn send_twice(pad: &Pad, put: fn(&Pad)) {
    pad.write(1);
    (0..3).for_each(|_| put(pad));
    pad.write(2);
    put(pad);
}

fn receive_twice(pad: &Pad, take: fn(&Pad)) {
    take(pad);
    assert_eq!(pad.read(), 1);
    (0..3).for_each(|_| take(pad));
    assert_eq!(pad.read(), 2);
}

/// A ring of two ranks: each puts to the other and then waits for the other's signal, twice. Both ends sleep,
/// on one bell each, for whichever of the two pads they are at.
pub(crate) const RING: Model = Model { run: ring, preemptions: Some(3) };

/// The pad that each rank's peer writes, with both bells.
struct Ring {
    slots: [AtomicU32; 2],
    bells: [Bell; 2],
}

impl Ring {
    fn turn(&self, me: usize) {
        let peer = 1 - me;
        sleep_until(&self.bells[me], || try_put(&self.slots[peer]).then_some(()));
        self.wake(peer);
        sleep_until(&self.bells[me], || try_take(&self.slots[me]).then_some(()));
        self.wake(peer);
    }

    fn wake(&self, peer: usize) {
        Bell::publish_fence();
        self.bells[peer].ring_if_waited();
    }
}

fn ring() {
    let slots = [AtomicU32::new(0), AtomicU32::new(0)];
    let ring = Arc::new(Ring { slots, bells: [Bell::new(), Bell::new()] });
    let other = Arc::clone(&ring);
    let other = thread::spawn(move || (0..2).for_each(|_| other.turn(1)));
    (0..2).for_each(|_| ring.turn(0));
    other.join().unwrap();
}

#[test]
fn a_signal_carries_what_the_sender_wrote() {
    holds(CARRIES_WRITES);
}

#[test]
fn a_free_slot_carries_what_the_receiver_read() {
    holds(CARRIES_READS);
}

#[test]
fn a_buffer_is_reused_only_after_it_was_read() {
    holds(REUSE);
    holds(REUSE_ASLEEP);
}

#[test]
fn a_ring_of_signals_goes_round() {
    holds(RING);
}
