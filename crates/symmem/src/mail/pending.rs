//! Messages that were started: something to test and to wait for.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::buffer::MailBuffer;
use super::hub::MailTicket;
use super::queues::MailOutcome;
use super::{Delivery, delivery};
use crate::group::Terms;
use crate::operation::Op;
use crate::{Error, Result};

/// A message that was started to be sent.
///
/// Dropping it does not stop it: it goes on its way, and this rank leaves the group only after that, or after
/// the group's timeout.
#[must_use = "its errors are lost unless it is waited for"]
pub struct PendingSend<B> {
    ticket: MailTicket,
    terms: Terms,
    bytes: PhantomData<fn() -> B>,
}

/// A message that was started to be received.
///
/// Dropping it does not stop it: the next message that fits is taken, and lost.
#[must_use = "the message and errors are lost unless it is waited for"]
pub struct PendingReceive<B> {
    ticket: MailTicket,
    terms: Terms,
    buffer: PhantomData<fn() -> B>,
}

impl<B: AsRef<[u8]> + Send + 'static> PendingSend<B> {
    pub(super) fn new(ticket: MailTicket, terms: Terms) -> Self {
        Self { ticket, terms, bytes: PhantomData }
    }

    /// Whether it is over, so that [`PendingSend::wait`] returns at once. Never blocks.
    pub fn test(&self) -> bool {
        self.ticket.test()
    }

    /// Blocks until the message is on its way; its bytes. What is not by the mailbox's timeout, or when its
    /// token is cancelled, is taken back.
    pub fn wait(self) -> Result<B> {
        match self.ticket.wait(&self.terms, None)? {
            MailOutcome::Sent(buffer, _) => take_back(Op::Send, buffer),
            _ => Err(lost(Op::Send)),
        }
    }

    /// Blocks for at most `timeout`; whether it is over. If not, it goes on.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.ticket.wait_for(&self.terms, timeout)
    }
}

impl<B: AsMut<[u8]> + Send + 'static> PendingReceive<B> {
    pub(super) fn new(ticket: MailTicket, terms: Terms) -> Self {
        Self { ticket, terms, buffer: PhantomData }
    }

    /// Whether it is over, so that [`PendingReceive::wait`] returns at once. Never blocks.
    pub fn test(&self) -> bool {
        self.ticket.test()
    }

    /// Blocks until the message is here; what it is, and the buffer with it. What is not by the mailbox's
    /// timeout, or when its token is cancelled, is taken back, and the message is left for another receive.
    pub fn wait(self) -> Result<(Delivery, B)> {
        let outcome = self.ticket.wait(&self.terms, None)?;
        let delivery = delivery(&outcome)?;
        match outcome {
            MailOutcome::Received(buffer, ..) => {
                take_back(Op::Receive, buffer).map(|buffer| (delivery, buffer))
            }
            _ => Err(lost(Op::Receive)),
        }
    }

    /// Blocks for at most `timeout`; whether it is over. If not, it goes on.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.ticket.wait_for(&self.terms, timeout)
    }
}

fn take_back<B: 'static>(op: Op, buffer: MailBuffer) -> Result<B> {
    buffer.take_back().ok_or_else(|| lost(op))
}

fn lost(op: Op) -> Error {
    Error::invalid(op.name(), "it ended as something else")
}

impl<B> fmt::Debug for PendingSend<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSend").field("over", &self.ticket.test()).finish()
    }
}

impl<B> fmt::Debug for PendingReceive<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingReceive").field("over", &self.ticket.test()).finish()
    }
}
