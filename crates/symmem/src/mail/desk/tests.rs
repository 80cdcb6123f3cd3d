//! Two desks by one thread: what half a message does when somebody changes his mind.

use super::super::buffer::{Inbound, Outbound};
use super::super::ring::SLOTS;
use super::*;
use crate::Result;

const TAG: u64 = 5;

fn inbound(room: usize) -> Buffer {
    Buffer::Given(Box::new(Inbound(vec![0u8; room])))
}

fn outbound(bytes: Vec<u8>) -> Buffer {
    Buffer::Given(Box::new(Outbound(bytes)))
}

fn received(desk: &mut Desk, number: u64) -> Vec<u8> {
    match desk.take(number) {
        Some(Outcome::Received(buffer, 0, _)) => buffer.take_back::<Inbound<Vec<u8>>>().unwrap().0,
        _ => panic!("not received"),
    }
}

/// Runs `test` with the desks of two ranks, by one thread, and the bytes of a message that fills a ring and a half.
fn with_desks(test: impl Fn(&Rings, &mut Desk, &mut Desk, &[u8]) + Sync) {
    let trial = |group: crate::Group| -> Result<()> {
        let rings = Rings::new(&group)?;
        let room = rings.free_slot(0, 1).map_or(0, |free| free.room());
        let bytes: Vec<u8> = (0..room * SLOTS as usize * 3 / 2).map(|at| (at / 3) as u8).collect();
        // Nobody else uses the rings between the two ranks.
        if group.rank() == 0 {
            test(&rings, &mut Desk::new(0, 2), &mut Desk::new(1, 2), &bytes);
        }
        group.barrier()
    };
    crate::spawn(2, trial).unwrap();
}

/// Moves everything that moves.
fn settle(rings: &Rings, desks: [&mut Desk; 2]) {
    let [one, other] = desks;
    while one.progress(rings) | other.progress(rings) {}
}

#[test]
fn a_message_that_half_came_for_a_withdrawn_receive_is_kept_for_the_next() {
    with_desks(|rings, sender, receiver, bytes| {
        let first = receiver.receive(Some(0), TAG, inbound(bytes.len()));
        let sent = sender.send(1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        assert_eq!(receiver.awaited(first), Some(Awaited::Rank(0)));
        assert!(receiver.withdraw(first) && !receiver.withdraw(first));
        assert!(receiver.is_idle());
        let wrong = receiver.receive(None, TAG + 1, inbound(bytes.len()));
        let second = receiver.receive(None, TAG, inbound(bytes.len()));
        assert!(!receiver.has_ended(second));
        settle(rings, [sender, receiver]);
        assert!(received(receiver, second) == bytes && sender.has_ended(sent));
        assert!(!receiver.has_ended(wrong) && receiver.arrived.is_empty());
    });
}

#[test]
fn a_message_that_half_came_goes_to_the_receive_posted_next() {
    with_desks(|rings, sender, receiver, bytes| {
        let numbers = [(); 2].map(|()| receiver.receive(None, TAG, inbound(bytes.len())));
        sender.send(1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        receiver.withdraw(numbers[0]);
        settle(rings, [sender, receiver]);
        assert!(received(receiver, numbers[1]) == bytes);
    });
}

#[test]
fn a_void_message_leaves_its_receive_to_the_next_one() {
    with_desks(|rings, sender, receiver, bytes| {
        for posted_first in [true, false] {
            let early = posted_first.then(|| receiver.receive(None, TAG, inbound(bytes.len())));
            let void = sender.send(1, TAG, outbound(vec![9; bytes.len()]));
            sender.progress(rings);
            receiver.progress(rings);
            assert!(sender.withdraw(void));
            let number = early.unwrap_or_else(|| receiver.receive(None, TAG, inbound(bytes.len())));
            settle(rings, [sender, receiver]);
            assert!(!receiver.has_ended(number) && !sender.has_ended(void) && sender.is_idle());
            sender.send(1, TAG, outbound(bytes.to_vec()));
            settle(rings, [sender, receiver]);
            assert!(received(receiver, number) == bytes);
        }
    });
}

#[test]
fn who_is_gone_ends_what_waits_for_it() {
    with_desks(|rings, sender, receiver, bytes| {
        let number = receiver.receive(Some(0), TAG, inbound(bytes.len()));
        let other = receiver.receive(Some(1), TAG, inbound(1));
        sender.send(1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        receiver.sweep(|awaited| (awaited == Awaited::Rank(0)).then_some(Stop::Died(0)));
        assert!(matches!(receiver.take(number), Some(Outcome::Gone(Stop::Died(0)))));
        assert!(!receiver.has_ended(other));
    });
}
