//! The queues of two ranks, by one thread: what half a message does when somebody changes his mind.

use std::sync::Arc;

use super::super::ring::SLOTS;
use super::*;
use crate::Result;

const TAG: u64 = 5;

fn inbound(room: usize) -> MailBuffer {
    MailBuffer::inbound(vec![0u8; room])
}

fn outbound(bytes: Vec<u8>) -> MailBuffer {
    MailBuffer::outbound(bytes)
}

fn send(queues: &mut MailQueues, rank: usize, tag: u64, buffer: MailBuffer) -> u64 {
    let number = queues.next();
    queues.send(number, rank, (tag, 0), buffer);
    number
}

fn receive(queues: &mut MailQueues, from: Option<usize>, tag: u64, buffer: MailBuffer) -> u64 {
    let number = queues.next();
    queues.receive(number, from, Some(tag), buffer);
    number
}

fn received(queues: &mut MailQueues, number: u64) -> Vec<u8> {
    match queues.take(number) {
        Some(MailOutcome::Received(buffer, Delivery { source: 0, .. }, _)) => {
            buffer.take_back::<Vec<u8>>().unwrap()
        }
        _ => panic!("not received"),
    }
}

/// Runs `test` with the queues of two ranks, by one thread, and the bytes of a message that fills a ring and
/// a half.
fn with_queues(test: impl Fn(&MailRings, &mut MailQueues, &mut MailQueues, &[u8]) + Sync) {
    let trial = |group: crate::group::Group| -> Result<()> {
        let rings = MailRings::new(&group)?;
        let room = rings.free_slot(0, 1).map_or(0, |free| free.room());
        let bytes: Vec<u8> = (0..room * SLOTS as usize * 3 / 2).map(|at| (at / 3) as u8).collect();
        // Nobody else uses the rings between the two ranks.
        if group.rank() == 0 {
            test(&rings, &mut MailQueues::new(0, 2), &mut MailQueues::new(1, 2), &bytes);
        }
        group.barrier()
    };
    crate::group::spawn(2, trial).unwrap();
}

/// Moves everything that moves.
fn settle(rings: &MailRings, queues: [&mut MailQueues; 2]) {
    let [one, other] = queues;
    while one.progress(rings) | other.progress(rings) {}
}

#[test]
fn a_message_that_half_came_for_a_withdrawn_receive_is_kept_for_the_next() {
    with_queues(|rings, sender, receiver, bytes| {
        let first = receive(receiver, Some(0), TAG, inbound(bytes.len()));
        let sent = send(sender, 1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        assert_eq!(receiver.awaited(first), Some(Awaited::Rank(0)));
        assert!(receiver.withdraw(first) && !receiver.withdraw(first));
        assert!(receiver.is_idle());
        let wrong = receive(receiver, None, TAG + 1, inbound(bytes.len()));
        let second = receive(receiver, None, TAG, inbound(bytes.len()));
        assert!(!receiver.has_ended(second));
        settle(rings, [sender, receiver]);
        assert!(received(receiver, second) == bytes && sender.has_ended(sent));
        assert!(!receiver.has_ended(wrong) && receiver.arrived.is_empty());
    });
}

#[test]
fn a_message_that_half_came_goes_to_the_receive_posted_next() {
    with_queues(|rings, sender, receiver, bytes| {
        let numbers = [(); 2].map(|()| receive(receiver, None, TAG, inbound(bytes.len())));
        send(sender, 1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        receiver.withdraw(numbers[0]);
        settle(rings, [sender, receiver]);
        assert!(received(receiver, numbers[1]) == bytes);
    });
}

#[test]
fn a_void_message_leaves_its_receive_to_the_next_one() {
    with_queues(|rings, sender, receiver, bytes| {
        for posted_first in [true, false] {
            let early = posted_first.then(|| receive(receiver, None, TAG, inbound(bytes.len())));
            let void = send(sender, 1, TAG, outbound(vec![9; bytes.len()]));
            sender.progress(rings);
            receiver.progress(rings);
            assert!(sender.withdraw(void));
            let number = early.unwrap_or_else(|| receive(receiver, None, TAG, inbound(bytes.len())));
            settle(rings, [sender, receiver]);
            assert!(!receiver.has_ended(number) && !sender.has_ended(void) && sender.is_idle());
            send(sender, 1, TAG, outbound(bytes.to_vec()));
            settle(rings, [sender, receiver]);
            assert!(received(receiver, number) == bytes);
        }
    });
}

#[test]
fn who_is_gone_ends_what_waits_for_it() {
    with_queues(|rings, sender, receiver, bytes| {
        let number = receive(receiver, Some(0), TAG, inbound(bytes.len()));
        let other = receive(receiver, Some(1), TAG, inbound(1));
        send(sender, 1, TAG, outbound(bytes.to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        receiver.sweep(|awaited| (awaited == Awaited::Rank(0)).then_some(Stop::Died(0)));
        assert!(matches!(receiver.take(number), Some(MailOutcome::Gone(Stop::Died(0)))));
        assert!(!receiver.has_ended(other));
    });
}

fn left(awaited: Awaited) -> Option<Stop> {
    (awaited == Awaited::Rank(0)).then_some(Stop::Left(0))
}

#[test]
fn what_was_published_before_its_rank_left_is_received() {
    with_queues(|rings, sender, receiver, _| {
        let numbers = [(); SLOTS as usize].map(|()| receive(receiver, Some(0), TAG, inbound(1)));
        let late = receive(receiver, Some(0), TAG, inbound(1));
        for byte in 0..SLOTS {
            send(sender, 1, TAG, outbound(vec![byte as u8]));
        }
        sender.progress(rings);
        // One look at the rings is enough for all of it.
        receiver.progress(rings);
        receiver.sweep(left);
        for (byte, number) in numbers.into_iter().enumerate() {
            assert_eq!(received(receiver, number), [byte as u8]);
        }
        assert!(matches!(receiver.take(late), Some(MailOutcome::Gone(Stop::Left(0)))));
    });
}

#[test]
fn half_a_message_of_who_left_is_in_nobodys_way() {
    with_queues(|rings, sender, receiver, bytes| {
        for posted_first in [true, false] {
            let matched = posted_first.then(|| receive(receiver, None, TAG, inbound(bytes.len())));
            let half = send(sender, 1, TAG, outbound(bytes.to_vec()));
            sender.progress(rings);
            receiver.progress(rings);
            assert!(receiver.incoming[0].is_some());
            receiver.sweep(left);
            assert!(receiver.incoming[0].is_none() && receiver.arrived.is_empty());
            // Anybody else's message is taken instead.
            let number = matched.unwrap_or_else(|| receive(receiver, None, TAG, inbound(bytes.len())));
            assert!(!receiver.has_ended(number) && receiver.awaited(number) == Some(Awaited::Anybody));
            send(receiver, 1, TAG, outbound(bytes.to_vec()));
            assert!(matches!(
                receiver.take(number),
                Some(MailOutcome::Received(_, Delivery { source: 1, .. }, _))
            ));
            sender.withdraw(half);
            settle(rings, [sender, receiver]);
        }
    });
}

#[test]
fn buffers_that_nobody_gets_back_are_left_to_who_unlocks() {
    /// Counts its owners.
    struct Counted(Vec<u8>, #[expect(dead_code, reason = "held")] Arc<()>);
    impl AsMut<[u8]> for Counted {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    with_queues(|rings, sender, receiver, bytes| {
        let alive = Arc::new(());
        let counted = |room| MailBuffer::inbound(Counted(vec![0; room], Arc::clone(&alive)));
        let withdrawn = receive(receiver, None, TAG, counted(1));
        receiver.withdraw(withdrawn);
        let [ended, unwanted] = [(); 2].map(|()| receive(receiver, None, TAG, counted(1)));
        receiver.abandon(unwanted);
        let _too_short = receive(receiver, None, TAG, counted(0));
        let halved = receive(receiver, None, TAG, counted(bytes.len()));
        let _gone = receive(receiver, Some(0), TAG + 1, counted(1));
        for message in [&[1][..], &[2], &[3], bytes] {
            send(sender, 1, TAG, outbound(message.to_vec()));
        }
        sender.progress(rings);
        receiver.progress(rings);
        receiver.abandon(ended);
        receiver.withdraw(halved);
        receiver.sweep(left);
        assert_eq!(Arc::strong_count(&alive), 1 + 6);
        assert_eq!(receiver.take_dead().len(), 6);
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}

#[test]
fn a_receive_of_any_size_takes_a_message_that_half_came() {
    with_queues(|rings, sender, receiver, bytes| {
        for posted_first in [true, false] {
            let ask = |receiver: &mut MailQueues| {
                let number = receiver.next();
                receiver.receive_any(number, None, None);
                number
            };
            let early = posted_first.then(|| ask(receiver));
            send(sender, 1, TAG, outbound(bytes.to_vec()));
            sender.progress(rings);
            receiver.progress(rings);
            let found = receiver.peek(Some(0), Some(TAG)).map(|what| what.bytes);
            assert_eq!(found, (!posted_first).then_some(bytes.len()));
            let number = early.unwrap_or_else(|| ask(receiver));
            assert!(!receiver.has_ended(number) && receiver.peek(None, None).is_none());
            settle(rings, [sender, receiver]);
            assert!(received(receiver, number) == bytes);
        }
    });
}

#[test]
fn a_receive_of_any_size_outlives_a_void_message_and_gives_up_one_that_half_came() {
    with_queues(|rings, sender, receiver, bytes| {
        let number = receiver.next();
        receiver.receive_any(number, Some(0), Some(TAG));
        let void = send(sender, 1, TAG, outbound(vec![9; bytes.len()]));
        sender.progress(rings);
        receiver.progress(rings);
        assert!(sender.withdraw(void));
        // Another length: the memory for the void one is not used again.
        send(sender, 1, TAG, outbound(bytes[1..].to_vec()));
        sender.progress(rings);
        receiver.progress(rings);
        assert!(receiver.withdraw(number));
        let next = receive(receiver, None, TAG, inbound(bytes.len() - 1));
        settle(rings, [sender, receiver]);
        assert!(received(receiver, next) == bytes[1..]);
    });
}

#[test]
fn both_ranks_count_a_message_alike() {
    with_queues(|rings, sender, receiver, bytes| {
        let ask = |receiver: &mut MailQueues, tag: u64| {
            let number = receiver.next();
            receiver.receive_any(number, Some(0), Some(tag));
            number
        };
        // One that never begins, one that is void, and one that comes for a receive that is withdrawn.
        let early = ask(receiver, 1);
        let void = send(sender, 1, 0, outbound(bytes.to_vec()));
        let never = send(sender, 1, 0, outbound(vec![0]));
        sender.progress(rings);
        receiver.progress(rings);
        assert!(sender.withdraw(void) && sender.withdraw(never));
        let sent: Vec<u64> = [1, 2, 3, 1, 2]
            .into_iter()
            .map(|tag| {
                send(sender, 1, tag, outbound(if tag == 3 { bytes.to_vec() } else { vec![tag as u8] }))
            })
            .collect();
        let withdrawn = ask(receiver, 3);
        sender.progress(rings);
        receiver.progress(rings);
        receiver.withdraw(withdrawn);
        settle(rings, [sender, receiver]);
        let asked = [3, 2, 1, 2].map(|tag| ask(receiver, tag));
        settle(rings, [sender, receiver]);
        let mut count_of = |number| match sender.take(number) {
            Some(MailOutcome::Sent(_, count)) => count,
            _ => panic!("not sent"),
        };
        let sent: Vec<u64> = sent.into_iter().map(&mut count_of).collect();
        assert_eq!(sent, [2, 3, 4, 5, 6], "the void one had begun");
        let mut received = |number| match receiver.take(number) {
            Some(MailOutcome::Received(_, what, count)) => (what.tag, count),
            _ => panic!("not received"),
        };
        assert_eq!(received(early), (1, 2));
        assert_eq!(asked.map(received), [(3, 4), (2, 3), (1, 5), (2, 6)]);
    });
}
