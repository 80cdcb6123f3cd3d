//! Mail: messages between two ranks of a group, with tags, of any size, blocking or started.
//!
//! Called by users. A [`Mailbox`] is made collectively, once; from then on every rank sends and receives as
//! it likes, from several threads at once, and beside anything else that runs on the group. Bytes travel in
//! [`ring`]s of shared memory; a rank's sends, receives and their matching are in [`queues`]; [`hub`] waits;
//! [`helper`] goes on while nobody waits; [`recorded`] is for who traces.
//!
//! # Why a batch of sends and receives never deadlocks
//! Let every message that is sent be received, in any order, size and number the ranks ask for both.
//! - A rank with an unfinished operation moves its mail: by a thread that waits
//!   ([`Hub::wait`](hub::Hub::wait)), else by its helper. Moving mail never waits, and empties every ring of
//!   this rank, also of messages that nobody has asked for, which are kept in private memory ([`queues`]). It
//!   is done again whenever a peer filled or emptied a slot, for that rings the bell.
//! - Say a send to rank r stays unfinished. Its ring is full, and stays so; so r has nothing unfinished. But
//!   the receive that the message belongs to has not ended, as the message is not complete: so r has yet to
//!   ask for it, and that is not for the mailbox to do.
//! - Say a receive from rank s stays unfinished, though s has asked to send. What is in the ring is taken up,
//!   so the ring has room, and stays so; the send at s is unfinished, so s moves its mail, and fills the
//!   ring. Messages before it in that ring do not hold it up: they are taken up, asked for or not.
//!
//! The price is memory for messages that come before they are asked for. A rank that has nothing unfinished
//! takes nothing up, and its peers' sends wait once the ring is full: so that memory is bounded by what comes
//! while it waits for something else.
//!
//! # Failure
//! A timeout or a cancelled token takes back what was asked for, and nothing else: a message that was coming
//! in stays for the next receive, and one that was going out is void at the receiver. A rank that died or
//! left fails those who wait for it; a group that failed fails all.
//!
//! Buffers that are given away are of the caller's types. None of their code runs under the lock of the
//! queues: their bytes are asked for before ([`buffer`]), and they are dropped after ([`hub::Hub::tell`]).

#![allow(unsafe_code, reason = "buffers that another thread fills")]

mod buffer;
mod helper;
mod hub;
mod pending;
mod queues;
mod recorded;
mod ring;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use symmem_store::CancelToken;

use self::buffer::MailBuffer;
use self::hub::{Hub, HubHandle, MailTicket, Sought};
pub use self::pending::{PendingReceive, PendingSend};
use self::queues::{MailOutcome, MailQueues};
use self::recorded::{Asked, RecordedCall};
use self::ring::MailRings;
use crate::group::{Group, Terms};
use crate::operation::Op;
use crate::{Error, Result};

/// What was received, or is there to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The rank that sent it.
    pub source: usize,
    /// Its tag.
    pub tag: u64,
    /// What [`Mailbox::noted`] said of it, else 0.
    pub note: u64,
    /// Bytes of the message.
    pub bytes: usize,
}

/// A rank's end of the mail between the ranks of a group.
///
/// Messages are bytes with a tag. Those between two ranks with equal tags are received in the order they were
/// sent; a receive names its tag and its source, or leaves either open. The receiver's buffer must be as long
/// as the message, else the receive gives [`Error::MessageSize`] and the message is gone;
/// [`Mailbox::receive_vec`] takes one of any length, and [`Mailbox::probe`] says what is there. A send may
/// return before the message is received.
///
/// Any number of threads may use a mailbox at once, also while another operation runs on the group. Blocking
/// calls wait for at most the group's timeout, or what [`Mailbox::within`] says. A rank that sends to one
/// that neither waits for mail nor has started to receive waits once a few slots are full.
///
/// ```
/// symmem::spawn(2, |group| {
///     let mail = symmem::Mailbox::new(&group)?;
///     let mut answer = [0; 5];
///     if group.rank() == 0 {
///         mail.send(1, 7, b"hello")?;
///         mail.receive(1, 8, &mut answer)?;
///         assert_eq!(&answer, b"HELLO");
///     } else {
///         let delivery = mail.receive(None, 7, &mut answer)?; // from anybody
///         assert_eq!((delivery.source, delivery.bytes), (0, 5));
///         mail.send(0, 8, &answer.map(|byte| byte.to_ascii_uppercase()))?;
///     }
///     Ok(())
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
pub struct Mailbox {
    owner: Arc<HubHandle>,
    terms: Terms,
    note: u64,
}

impl Mailbox {
    /// Collective over `group`. A new mailbox, whose messages are no other mailbox's.
    pub fn new(group: &Group) -> Result<Self> {
        let hub = Hub::new(MailRings::new(group)?);
        Ok(Self { owner: Arc::new(HubHandle(Arc::new(hub))), terms: group.terms.clone(), note: 0 })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.hub().group()
    }

    /// The same mailbox, whose blocking calls wait for at most `timeout`.
    pub fn within(&self, timeout: Duration) -> Self {
        self.on(Terms { timeout: Some(timeout), cancel: self.terms.cancel.clone() })
    }

    /// The same mailbox, whose blocking calls end when `token` is cancelled.
    pub fn cancelled_by(&self, token: &CancelToken) -> Self {
        self.on(Terms { timeout: self.terms.timeout, cancel: Some(token.clone()) })
    }

    /// The same mailbox, whose messages carry `note`: a word that the receiver finds in [`Delivery::note`],
    /// for what the two agree on. It takes no part in matching.
    pub fn noted(&self, note: u64) -> Self {
        Self { note, ..self.on(self.terms.clone()) }
    }

    fn on(&self, terms: Terms) -> Self {
        Self { owner: Arc::clone(&self.owner), terms, note: self.note }
    }

    /// Sends `bytes` to rank `rank`, which may be this one. Returns when they are on their way and the buffer
    /// may be used again.
    pub fn send(&self, rank: usize, tag: u64, bytes: &[u8]) -> Result<()> {
        let asked = Asked::to(rank, tag, bytes.len());
        let call = self.begin(asked)?;
        // SAFETY: the ticket of a blocking operation withdraws it before the borrow ends, whatever happens.
        let buffer = unsafe { MailBuffer::of(bytes) };
        let address = (tag, self.note);
        let ticket = self.ask(asked, true, |queues, number| queues.send(number, rank, address, buffer))?;
        ticket.wait(&self.terms, call).map(drop)
    }

    /// Receives a message with `tag`, or with any, from rank `from`, or from anybody, which must be as long
    /// as `out`.
    pub fn receive(
        &self,
        from: impl Into<Option<usize>>,
        tag: impl Into<Option<u64>>,
        out: &mut [u8],
    ) -> Result<Delivery> {
        let (from, tag) = (from.into(), tag.into());
        let asked = Asked::from(from, tag, Some(out.len()));
        let call = self.begin(asked)?;
        // SAFETY: as for `send`; `out` is exclusive.
        let buffer = unsafe { MailBuffer::of_mut(out) };
        let ticket = self.ask(asked, true, |queues, number| queues.receive(number, from, tag, buffer))?;
        delivery(&ticket.wait(&self.terms, call)?)
    }

    /// [`Mailbox::receive`] of a message of any length, and its bytes.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mail = symmem::Mailbox::new(&group)?;
    ///     mail.noted(3).send(group.next(), 7, &vec![1; group.rank() + 5])?;
    ///     let coming = mail.probe(None, None)?; // from anybody, with any tag
    ///     let (delivery, bytes) = mail.receive_vec(coming.source, coming.tag)?;
    ///     assert_eq!(coming, delivery);
    ///     assert_eq!((delivery.note, bytes.len()), (3, group.next() + 5));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn receive_vec(
        &self,
        from: impl Into<Option<usize>>,
        tag: impl Into<Option<u64>>,
    ) -> Result<(Delivery, Vec<u8>)> {
        let (from, tag) = (from.into(), tag.into());
        let asked = Asked::from(from, tag, None);
        let call = self.begin(asked)?;
        let ticket = self.ask(asked, true, |queues, number| queues.receive_any(number, from, tag))?;
        let outcome = ticket.wait(&self.terms, call)?;
        let delivery = delivery(&outcome)?;
        let bytes = outcome.into_buffer().and_then(MailBuffer::take_back).ok_or_else(lost)?;
        Ok((delivery, bytes))
    }

    /// The next message that [`Mailbox::receive`] would get, which stays there: blocks until one has begun to
    /// arrive. Another thread of this rank may receive it first.
    pub fn probe(&self, from: impl Into<Option<usize>>, tag: impl Into<Option<u64>>) -> Result<Delivery> {
        let sought = Sought { from: from.into(), tag: tag.into() };
        let call = self.begin(Asked { op: Op::Probe, ..Asked::from(sought.from, sought.tag, None) })?;
        self.hub().probe(&self.terms, sought, call)
    }

    /// [`Mailbox::probe`] that does not wait: `None` if there is no message. An error if none can come any
    /// more.
    pub fn try_probe(
        &self,
        from: impl Into<Option<usize>>,
        tag: impl Into<Option<u64>>,
    ) -> Result<Option<Delivery>> {
        let sought = Sought { from: from.into(), tag: tag.into() };
        self.check(Op::Probe, sought.from)?;
        self.hub().try_probe(sought)
    }

    /// [`Mailbox::send`] that returns at once. The bytes come back with the result. They are asked for once,
    /// here.
    ///
    /// ```
    /// symmem::spawn(3, |group| {
    ///     let mail = symmem::Mailbox::new(&group)?;
    ///     // Everybody to everybody, in any order.
    ///     let sent: Vec<_> =
    ///         (0..3).map(|rank| mail.send_start(rank, 0, vec![1; 1 << 20])).collect::<Result<_, _>>()?;
    ///     let received: Vec<_> =
    ///         (0..3).map(|rank| mail.receive_start(rank, 0, vec![0; 1 << 20])).collect::<Result<_, _>>()?;
    ///     sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
    ///     for received in received {
    ///         assert!(received.wait()?.1.iter().all(|byte| *byte == 1));
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn send_start<B>(&self, rank: usize, tag: u64, bytes: B) -> Result<PendingSend<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.check(Op::Send, Some(rank))?;
        let buffer = MailBuffer::outbound(bytes);
        let address = (tag, self.note);
        let asked = Asked::to(rank, tag, buffer.read().len());
        let ticket = self.ask(asked, false, |queues, number| queues.send(number, rank, address, buffer))?;
        Ok(PendingSend::new(ticket, self.terms.clone()))
    }

    /// [`Mailbox::receive`] that returns at once. The buffer comes back with the result. It is asked for its
    /// bytes once, here.
    pub fn receive_start<B>(
        &self,
        from: impl Into<Option<usize>>,
        tag: impl Into<Option<u64>>,
        buffer: B,
    ) -> Result<PendingReceive<B>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let (from, tag) = (from.into(), tag.into());
        self.check(Op::Receive, from)?;
        let mut buffer = MailBuffer::inbound(buffer);
        let asked = Asked::from(from, tag, Some(buffer.write().len()));
        let ticket = self.ask(asked, false, |queues, number| queues.receive(number, from, tag, buffer))?;
        Ok(PendingReceive::new(ticket, self.terms.clone()))
    }

    fn hub(&self) -> &Arc<Hub> {
        &self.owner.0
    }

    /// Whether the group is recorded, if `op` may begin at all.
    fn check(&self, op: Op, rank: Option<usize>) -> Result<bool> {
        rank.map_or(Ok(()), |rank| self.group().check_rank(op.name(), rank))?;
        self.hub().check(op)
    }

    /// A blocking call begins; what is recorded of it, if anything is.
    fn begin(&self, asked: Asked) -> Result<Option<RecordedCall<'_>>> {
        let is_recorded = self.check(asked.op, asked.peer)?;
        Ok(if is_recorded { self.hub().call(asked) } else { None })
    }

    /// Asks the queues for an operation, and does what can be done about it at once.
    fn ask(
        &self,
        asked: Asked,
        blocking: bool,
        ask: impl FnOnce(&mut MailQueues, u64),
    ) -> Result<MailTicket> {
        let hub = self.hub();
        // Declared before the lock, so that it goes after it, whatever happens: dropping a ticket takes the
        // lock.
        let ticket;
        let mut queues = hub.lock();
        let number = queues.next();
        // There before the queues know the buffer, which may be borrowed.
        ticket = MailTicket { owner: Arc::clone(&self.owner), asked, number, blocking };
        ask(&mut queues, number);
        queues.progress(&hub.rings);
        let woken = match blocking || queues.has_ended(number) {
            true => Ok(()),
            false => hub.wake_helper(&mut queues),
        };
        if woken.is_err() {
            // Nobody gets the ticket: a receive would take, and lose, the next message.
            queues.withdraw(number);
        }
        hub.tell(queues);
        woken.map(|()| ticket)
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("group", &self.group().name()).finish_non_exhaustive()
    }
}

/// What the outcome of a receive says.
fn delivery(outcome: &MailOutcome) -> Result<Delivery> {
    match outcome {
        MailOutcome::Received(_, delivery, _) => Ok(*delivery),
        _ => Err(lost()),
    }
}

fn lost() -> Error {
    Error::invalid(Op::Receive.name(), "it ended as something else")
}
