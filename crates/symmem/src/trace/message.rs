//! Which receive got the message of which send.

use std::collections::HashMap;

use super::{Arrival, Trace};
use crate::operation::Op;

/// A message that was recorded on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The call that sent it, or waited until that was done.
    pub sent: Arrival,
    /// The call that received it.
    pub received: Arrival,
}

impl Trace {
    /// The messages whose send and receive were both recorded, in the order of the receives' tracks. Sender
    /// and receiver number their messages alike, so it does not matter what else was lost or came before the
    /// trace.
    pub fn messages(&self) -> Vec<Message> {
        let ends = |name: &'static str| {
            self.tracks.iter().enumerate().flat_map(move |(track, of)| {
                let calls = of.operations.iter().enumerate().filter(move |(_, one)| one.name == name);
                calls.filter_map(move |(operation, one)| {
                    let mailbox = (of.id.as_str(), of.mailbox?);
                    Some((mailbox, of.rank, one.peer?, one.message?, Arrival { track, operation }))
                })
            })
        };
        let sends: HashMap<_, Arrival> = ends(Op::Send.name())
            .map(|(mailbox, rank, peer, number, sent)| ((mailbox, rank, peer, number), sent))
            .collect();
        ends(Op::Receive.name())
            .filter_map(|(mailbox, rank, peer, number, received)| {
                let sent = *sends.get(&(mailbox, peer, rank, number))?;
                Some(Message { sent, received })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::operation;
    use super::super::{Operation, Track};
    use super::*;

    /// A call with the peer and the number of its message.
    fn call(name: &'static str, peer: usize, message: Option<u64>) -> Operation {
        Operation { failed: message.is_none(), peer: Some(peer), message, ..operation(name) }
    }

    fn track(rank: usize, mailbox: u64, operations: Vec<Operation>) -> Track {
        let (group, id) = ("g".to_owned(), "id".to_owned());
        let mailbox = Some(mailbox);
        Track {
            group,
            id,
            rank,
            world: 2,
            pid: 1,
            device: None,
            lane: None,
            engine: None,
            mailbox,
            operations,
        }
    }

    #[test]
    fn a_receive_is_matched_with_its_send_and_no_other() {
        let sends = vec![call("send", 1, Some(5)), call("send", 1, None), call("send", 1, Some(4))];
        let receives = vec![
            call("receive", 0, Some(4)),
            // Its send was lost.
            call("receive", 0, Some(6)),
            call("probe", 0, None),
            call("receive", 0, Some(5)),
            // To itself.
            call("send", 1, Some(4)),
            call("receive", 1, Some(4)),
        ];
        // Another mailbox counts for itself.
        let other = track(0, 8, vec![call("send", 1, Some(6))]);
        let trace = Trace { tracks: vec![track(0, 3, sends), other, track(1, 3, receives)], lost: 0 };
        let pairs = trace.messages().into_iter().map(|Message { sent, received }| {
            ((sent.track, sent.operation), (received.track, received.operation))
        });
        let expected = [((0, 2), (2, 0)), ((0, 0), (2, 3)), ((2, 4), (2, 5))];
        assert!(pairs.eq(expected));
    }
}
