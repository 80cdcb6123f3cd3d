//! Recording of a mailbox's blocking calls, for `trace`.
//!
//! Asked when a call begins, which is one test for a group that nobody traces. The first recorded call makes
//! the ring. A call is recorded with the time from its beginning to its end, whatever its message does
//! meanwhile; what was started, with the time that somebody waits for it. A ring that cannot be had leaves
//! the mailbox unrecorded, with a warning; who is told of that may use the mailbox.

use super::Delivery;
use super::hub::Hub;
use super::queues::MailOutcome;
use crate::operation::Op;
use crate::sync::record::message::{Begun, MailRecorder, RecordedMessage};
use crate::sys::fork;

/// What a caller says of the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) op: Op,
    pub(super) peer: Option<usize>,
    pub(super) tag: Option<u64>,
    pub(super) bytes: Option<usize>,
}

impl Asked {
    pub(super) fn to(rank: usize, tag: u64, bytes: usize) -> Self {
        Self { op: Op::Send, peer: Some(rank), tag: Some(tag), bytes: Some(bytes) }
    }

    pub(super) fn from(rank: Option<usize>, tag: Option<u64>, bytes: Option<usize>) -> Self {
        Self { op: Op::Receive, peer: rank, tag, bytes }
    }
}

/// A call that is recorded, until it is dropped. It has failed unless somebody says how it ended.
pub(super) struct RecordedCall<'a> {
    recorder: &'a MailRecorder,
    begun: Begun,
    op: Op,
    message: RecordedMessage,
    failed: bool,
}

impl Hub {
    /// Records a call from now on, if the group is recorded.
    pub(super) fn call_if_recorded(&self, asked: Asked) -> Option<RecordedCall<'_>> {
        // Before any lock: a forked child has it as it was, perhaps locked.
        if self.group().inner.is_recorded() && !fork::is_child() { self.call(asked) } else { None }
    }

    /// Records a call from now on. None if that cannot be done, or nobody reads it any more.
    #[cold]
    pub(super) fn call(&self, asked: Asked) -> Option<RecordedCall<'_>> {
        let inner = &self.group().inner;
        let recorder = inner.mail_recorder(self.rings.number(), &self.recorder)?;
        let Asked { op, peer, tag, bytes } = asked;
        let message = RecordedMessage { peer, tag, bytes: bytes.map(|bytes| bytes as u64), number: None };
        let begun = recorder.begin(op, message);
        if begun.is_none() {
            inner.stop_recording();
        }
        begun.map(|begun| RecordedCall { recorder, begun, op, message, failed: true })
    }
}

impl RecordedCall<'_> {
    /// The operation ended like this.
    #[cold]
    pub(super) fn ended(mut self, outcome: &MailOutcome) {
        match outcome {
            MailOutcome::Sent(_, count) => (self.message.number, self.failed) = (Some(*count), false),
            MailOutcome::Received(_, what, count) => {
                (self.message, self.failed) = (RecordedMessage { number: Some(*count), ..of(what) }, false);
            }
            MailOutcome::WrongSize(what, _) => self.message = of(what),
            MailOutcome::Gone(_) => {}
        }
    }

    /// A probe ended with this.
    #[cold]
    pub(super) fn found(mut self, what: &Delivery) {
        (self.message, self.failed) = (of(what), false);
    }

    /// The call ended, and the message is still to be asked for.
    #[cold]
    pub(super) fn goes_on(mut self) {
        self.failed = false;
    }
}

/// What a message that is here says of itself.
fn of(what: &Delivery) -> RecordedMessage {
    RecordedMessage {
        peer: Some(what.source),
        tag: Some(what.tag),
        bytes: Some(what.bytes as u64),
        number: None,
    }
}

impl Drop for RecordedCall<'_> {
    fn drop(&mut self) {
        if !fork::is_child() {
            self.recorder.end(self.begun, self.op, self.failed, self.message);
        }
    }
}
