//! Records of messages: the ring of a mailbox, whose calls run on several threads at once.
//!
//! `mail` makes one per mailbox and rank, when a call of it is first recorded. Whoever writes has the lock. A
//! call has a place in the head of the ring while it runs, so that the reader sees those that never end;
//! calls that find no place free are seen when they end.
//!
//! A record's words: begin, end, what with the peer in place of a channel, the message's number, its tag, its
//! bytes.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use super::{Detail, RecordRing, RecordWord, RecordWords, Recorded, RecordedRank, Recorder, fill, read};
use crate::Result;
use crate::operation::Op;
use crate::sys::memfd::{Mapping, Segment};

/// Calls that are seen while they run.
pub(super) const CALLS: usize = 64;
/// Bits of the word `what`, beside those of [`RecordWord`]: whether tag and bytes are known.
const HAS_TAG: u64 = 1 << 9;
const HAS_BYTES: u64 = 1 << 10;

/// What is known of a message besides what was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedMessage {
    /// The other rank.
    pub(crate) peer: Option<usize>,
    pub(crate) tag: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// Which message from its sender to its receiver it is, in their mailbox, from 1 on. Both know the same
    /// number.
    pub(crate) number: Option<u64>,
}

fn encode(op: Op, failed: bool, (begin, end): (u64, u64), message: RecordedMessage) -> RecordWords {
    let known = |is_known: bool, bit: u64| if is_known { bit } else { 0 };
    let what = RecordWord { op, failed, channel: message.peer }.encode()
        | known(message.tag.is_some(), HAS_TAG)
        | known(message.bytes.is_some(), HAS_BYTES);
    let word = |value: Option<u64>| value.unwrap_or(0);
    [begin, end, what, word(message.number), word(message.tag), word(message.bytes)]
}

/// What a record says; none of a call that this version does not know.
pub(super) fn recorded([begin, end, word, number, tag, bytes]: RecordWords) -> Option<Recorded> {
    let what = RecordWord::decode(word)?;
    let message = RecordedMessage {
        peer: what.channel,
        tag: (word & HAS_TAG != 0).then_some(tag),
        bytes: (word & HAS_BYTES != 0).then_some(bytes),
        number: Some(number).filter(|number| *number > 0),
    };
    let what = RecordWord { channel: None, ..what };
    Some(Recorded { what, begin, end: Some(end), epoch: 0, detail: Detail::Message(message) })
}

/// The writer's end, of a mailbox.
#[derive(Debug)]
pub(crate) struct MailRecorder {
    recorder: Recorder,
    /// Calls so far. Whoever writes holds it.
    begun: Mutex<u64>,
}

/// A call that runs: when it began, and its place if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    begin: u64,
    place: Option<usize>,
}

impl MailRecorder {
    /// A ring of `owner`'s.
    pub(crate) fn new(owner: &RecordedRank) -> Result<Self> {
        Ok(Self { recorder: Recorder::new(owner)?, begun: Mutex::new(0) })
    }

    /// The memory file.
    pub(crate) fn segment(&self) -> &Segment {
        self.recorder.segment()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.begun.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A call begins. None if nobody reads any more.
    pub(crate) fn begin(&self, op: Op, message: RecordedMessage) -> Option<Begun> {
        let begin = self.recorder.now();
        let mut begun = self.lock();
        if !self.recorder.goes_on() {
            return None;
        }
        *begun += 1;
        let calls = &self.recorder.ring.head().calls;
        let place = calls.iter().position(|call| call[0].load(Ordering::Relaxed) == 0);
        if let Some(place) = place {
            fill(&calls[place], *begun, encode(op, false, (begin, 0), message));
        }
        Some(Begun { begin, place })
    }

    /// It ends, and this is what is known of it now.
    pub(crate) fn end(&self, call: Begun, op: Op, failed: bool, message: RecordedMessage) {
        let _writing = self.lock();
        // Before the record, which publishes it: nobody sees a call in both.
        if let Some(place) = call.place {
            self.recorder.ring.head().calls[place][0].store(0, Ordering::Relaxed);
        }
        self.recorder.write_whole(encode(op, failed, (call.begin, self.recorder.now()), message));
    }
}

impl<M: AsRef<Mapping>> RecordRing<M> {
    /// Calls that have begun and not ended, in the order in which they began.
    pub(super) fn open_calls(&self) -> Vec<Recorded> {
        let running = |(stamp, words)| if stamp == 0 { None } else { recorded(words) };
        let calls = self.head().calls.iter().filter_map(read).filter_map(running);
        let mut open: Vec<Recorded> = calls.map(|call| Recorded { end: None, ..call }).collect();
        open.sort_by_key(|call| call.begin);
        open
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mapped, owner};
    use super::super::{Reader, RecordedPart};
    use super::*;

    fn pair() -> (MailRecorder, Reader) {
        let part = RecordedPart::Mailbox(0);
        let recorder = MailRecorder::new(&RecordedRank { part, ..owner() }).unwrap();
        let reader = mapped(recorder.segment());
        assert_eq!(reader.owner.part, part);
        (recorder, reader)
    }

    fn taken(reader: &mut Reader) -> Vec<Recorded> {
        let mut records = Vec::new();
        assert_eq!(reader.take(&mut records), 0);
        records
    }

    #[test]
    fn what_is_known_of_a_message_fits_its_record() {
        let (recorder, mut reader) = pair();
        let numbers = [None, Some(0), Some(u64::MAX)];
        let mut messages = Vec::new();
        for (tag, bytes) in numbers.into_iter().flat_map(|tag| numbers.map(|bytes| (tag, bytes))) {
            messages.push(RecordedMessage { peer: None, tag, bytes, number: None });
            messages.push(RecordedMessage { peer: Some(1023), tag, bytes, number: Some(7) });
        }
        for message in &messages {
            let call = recorder.begin(Op::Receive, RecordedMessage::default()).unwrap();
            recorder.end(call, Op::Receive, message.peer.is_none(), *message);
        }
        let records = taken(&mut reader);
        assert_eq!(records.len(), messages.len());
        for (record, message) in records.iter().zip(&messages) {
            let failed = message.peer.is_none();
            assert_eq!(record.what, RecordWord { op: Op::Receive, failed, channel: None });
            assert_eq!((record.detail, record.epoch), (Detail::Message(*message), 0));
            assert!(Some(record.begin) <= record.end);
        }
    }

    #[test]
    fn calls_are_seen_while_they_run() {
        let (recorder, mut reader) = pair();
        let to = |peer| RecordedMessage { peer: Some(peer), ..RecordedMessage::default() };
        let calls: Vec<Begun> =
            (0..CALLS + 1).map(|peer| recorder.begin(Op::Send, to(peer)).unwrap()).collect();
        let open = reader.open();
        assert_eq!(open.len(), CALLS, "there are no more places");
        assert!(open.iter().all(|call| call.end.is_none() && call.what.op == Op::Send));
        assert!(open.iter().enumerate().all(|(peer, call)| call.detail == Detail::Message(to(peer))));
        recorder.end(calls[3], Op::Send, false, to(3));
        assert_eq!((reader.open().len(), taken(&mut reader).len()), (CALLS - 1, 1));
        recorder.begin(Op::Probe, to(9)).unwrap();
        assert_eq!(reader.open().last().unwrap().what.op, Op::Probe, "in the place that became free");
        recorder.end(calls[CALLS], Op::Send, true, to(CALLS));
        assert_eq!(reader.open().len(), CALLS);
        assert!(taken(&mut reader)[0].what.failed, "of a call that had no place");
    }

    #[test]
    fn threads_that_write_at_once_leave_whole_records() {
        let (recorder, mut reader) = pair();
        let (threads, calls) = (4, 10_000);
        let mut records = Vec::new();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let recorder = &recorder;
                scope.spawn(move || {
                    for number in 1..=calls {
                        let message = RecordedMessage {
                            peer: Some(thread),
                            tag: Some(number),
                            bytes: None,
                            number: Some(number),
                        };
                        let call = recorder.begin(Op::Send, message).unwrap();
                        recorder.end(call, Op::Send, false, message);
                    }
                });
            }
            while records.len() < threads * calls as usize {
                for open in reader.open() {
                    let Detail::Message(message) = open.detail else { panic!("{open:?}") };
                    assert_eq!(message.tag, message.number);
                }
                assert_eq!(reader.take(&mut records), 0);
            }
        });
        assert!(
            records.windows(2).all(|pair| pair[0].end <= pair[1].end),
            "in the order in which they ended"
        );
        for thread in 0..threads {
            let of_thread = records.iter().filter_map(|record| match record.detail {
                Detail::Message(message) if message.peer == Some(thread) => message.tag,
                _ => None,
            });
            assert!(of_thread.eq(1..=calls));
        }
        assert_eq!(reader.open(), vec![]);
    }
}
