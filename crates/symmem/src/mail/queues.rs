//! What one rank has to send, has asked for, and has been sent: queues and matching, without any waiting.
//!
//! Used by `mail` only, under one lock per rank. [`MailQueues::progress`] is the only place where bytes move:
//! it takes up anything that lies in the rings for this rank, into the buffer of the receive it belongs to
//! or, where nobody has asked for it yet, into memory of the queues; and it fills the rings of the others as
//! far as there is room. It never waits, and never leaves a slot filled because of what nobody has asked for.
//!
//! Messages between two ranks arrive in the order they were sent. A receive gets the first that fits it, in
//! the order of arrival; a message goes to the first receive that it fits, in the order these were posted.
//!
//! The queues of two ranks count the messages from one to the other alike: by their first slots, which go
//! through a ring in order. So who looks at both knows which send a receive has its message of.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use super::Delivery;
use super::buffer::MailBuffer;
use super::ring::{Filled, Label, MailRings, SlotKind};
use crate::group::Stop;

/// How an operation ended.
pub(super) enum MailOutcome {
    /// With the message's count, see [`MessageCounts`].
    Sent(MailBuffer, u64),
    Received(MailBuffer, Delivery, u64),
    /// The message was longer or shorter than the buffer.
    WrongSize(Delivery, usize),
    /// Its peer is gone.
    Gone(Stop),
}

impl MailOutcome {
    pub(super) fn into_buffer(self) -> Option<MailBuffer> {
        match self {
            Self::Sent(buffer, _) | Self::Received(buffer, ..) => Some(buffer),
            _ => None,
        }
    }
}

/// Whom an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Rank(usize),
    Anybody,
}

impl Awaited {
    pub(super) fn of(from: Option<usize>) -> Self {
        from.map_or(Self::Anybody, Self::Rank)
    }
}

/// Whether who asks for messages `from` somebody with `tag`, if they name them, may get `what`.
fn fits(from: Option<usize>, tag: Option<u64>, what: &Delivery) -> bool {
    tag.is_none_or(|tag| tag == what.tag) && from.is_none_or(|from| from == what.source)
}

/// Memory for a message, if there is that much.
fn memory_for(bytes: usize) -> Option<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).ok()?;
    Some(memory)
}

/// How many messages have begun to go to a rank, and to come from it. A message's count is which of them it
/// is, from 1 on.
#[derive(Clone, Copy, Default)]
struct MessageCounts {
    sent: u64,
    come: u64,
}

/// A message on its way out.
struct Outgoing {
    number: u64,
    /// Once it has begun.
    count: u64,
    tag: u64,
    note: u64,
    buffer: MailBuffer,
    total: usize,
    sent: usize,
    begun: bool,
    /// Withdrawn when a part of it was out already: the receiver is to forget that.
    void: bool,
    /// Whether somebody asks for the outcome.
    wanted: bool,
}

/// A receive that has not ended.
struct Receive {
    number: u64,
    from: Option<usize>,
    tag: Option<u64>,
    /// Bytes of the message that it is for; `None` takes any message, in memory that the queues allocate.
    room: Option<usize>,
    buffer: MailBuffer,
    wanted: bool,
}

impl Receive {
    fn awaited(&self) -> Awaited {
        Awaited::of(self.from)
    }
}

/// A message of which a part is here.
struct Incoming {
    /// Its place in the order of arrival.
    number: u64,
    count: u64,
    what: Delivery,
    got: usize,
    to: To,
}

/// Where the bytes of a message go.
enum To {
    /// To the [`Arrived`] of the same number.
    Queues,
    Receive(Receive),
    Nobody,
}

/// A message that nobody has asked for: its first bytes, or all of them.
struct Arrived {
    number: u64,
    count: u64,
    what: Delivery,
    /// With room for all of it.
    bytes: Vec<u8>,
}

/// The mail of one rank.
pub(super) struct MailQueues {
    me: usize,
    /// The number of the last operation or arrival.
    last: u64,
    /// For each rank, in order.
    outgoing: Vec<VecDeque<Outgoing>>,
    /// Of each rank.
    incoming: Vec<Option<Incoming>>,
    /// Of each rank.
    counts: Vec<MessageCounts>,
    /// By number.
    arrived: VecDeque<Arrived>,
    /// By number.
    posted: VecDeque<Receive>,
    ended: HashMap<u64, MailOutcome>,
    /// Buffers that nobody gets back. To drop one runs its owner's code, which may use the mailbox: not under
    /// the lock.
    dead: Vec<MailBuffer>,
    /// Whether something ended since somebody last asked.
    news: bool,
    /// Threads inside a blocking call.
    pub(super) waiters: usize,
    /// All handles are gone.
    pub(super) closed: bool,
    pub(super) has_helper: bool,
}

impl MailQueues {
    pub(super) fn new(me: usize, world: usize) -> Self {
        Self {
            me,
            last: 0,
            outgoing: (0..world).map(|_| VecDeque::new()).collect(),
            incoming: (0..world).map(|_| None).collect(),
            counts: vec![MessageCounts::default(); world],
            arrived: VecDeque::new(),
            posted: VecDeque::new(),
            ended: HashMap::new(),
            dead: Vec::new(),
            news: false,
            waiters: 0,
            closed: false,
            has_helper: false,
        }
    }

    /// Whether nothing that was asked for is unfinished.
    pub(super) fn is_idle(&self) -> bool {
        let matched = |incoming: &Option<Incoming>| {
            incoming.as_ref().is_some_and(|incoming| matches!(incoming.to, To::Receive(_)))
        };
        self.posted.is_empty() && !self.has_outgoing() && !self.incoming.iter().any(matched)
    }

    pub(super) fn has_outgoing(&self) -> bool {
        self.outgoing.iter().any(|queue| !queue.is_empty())
    }

    /// Whether something ended since this was last asked.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// What is to be dropped once the queues are unlocked.
    pub(super) fn take_dead(&mut self) -> Vec<MailBuffer> {
        std::mem::take(&mut self.dead)
    }

    /// The number of the next operation.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Asks for a message to be sent, as operation `number`.
    pub(super) fn send(&mut self, number: u64, rank: usize, (tag, note): (u64, u64), buffer: MailBuffer) {
        let total = buffer.read().len();
        if rank == self.me {
            self.counts[rank].sent += 1;
            let count = self.counts[rank].sent;
            self.send_to_self(Delivery { source: rank, tag, note, bytes: total }, count, buffer.read());
            self.end(number, true, MailOutcome::Sent(buffer, count));
            return;
        }
        let (begun, void, wanted) = (false, false, true);
        let message = Outgoing { number, count: 0, tag, note, buffer, total, sent: 0, begun, void, wanted };
        self.outgoing[rank].push_back(message);
    }

    /// Asks for a message, as operation `number`.
    pub(super) fn receive(
        &mut self,
        number: u64,
        from: Option<usize>,
        tag: Option<u64>,
        mut buffer: MailBuffer,
    ) {
        let room = Some(buffer.write().len());
        self.post(Receive { number, from, tag, room, buffer, wanted: true });
    }

    /// Asks for a message of any size, as operation `number`; what it ends with holds a `Vec<u8>`.
    pub(super) fn receive_any(&mut self, number: u64, from: Option<usize>, tag: Option<u64>) {
        self.post(Receive { number, from, tag, room: None, buffer: MailBuffer::none(), wanted: true });
    }

    /// The message that such a receive would get, if one has begun to arrive.
    pub(super) fn peek(&self, from: Option<usize>, tag: Option<u64>) -> Option<Delivery> {
        self.arrived.iter().map(|arrived| arrived.what).find(|what| fits(from, tag, what))
    }

    /// Moves bytes as far as that goes without waiting; whether any moved.
    pub(super) fn progress(&mut self, rings: &MailRings) -> bool {
        let mut moved = false;
        for rank in self.others() {
            moved |= self.take_in(rings, rank);
            moved |= self.put_out(rings, rank);
        }
        moved
    }

    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.ended.contains_key(&number)
    }

    /// How the operation ended, if it has. Given out once.
    pub(super) fn take(&mut self, number: u64) -> Option<MailOutcome> {
        self.ended.remove(&number)
    }

    /// Whom an unfinished operation waits for.
    pub(super) fn awaited(&self, number: u64) -> Option<Awaited> {
        let sent = (0..self.outgoing.len())
            .find(|rank| self.outgoing[*rank].iter().any(|message| message.number == number));
        let receive = || self.posted.iter().find(|receive| receive.number == number).map(Receive::awaited);
        sent.or_else(|| self.source_of(number)).map(Awaited::Rank).or_else(receive)
    }

    /// Ends an operation as if it had never been asked for; its buffer is not used any more. A message that
    /// was coming in for it stays in the queues. False if it had ended.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        if let Some(place) = self.posted.iter().position(|receive| receive.number == number) {
            let receive = self.posted.remove(place);
            self.dead.extend(receive.map(|receive| receive.buffer));
            return true;
        }
        if let Some(source) = self.source_of(number) {
            self.keep_incoming(source);
            return true;
        }
        let find = |queue: &VecDeque<Outgoing>| queue.iter().position(|message| message.number == number);
        let found = self.outgoing.iter_mut().find_map(|queue| find(queue).map(|place| (queue, place)));
        let Some((queue, place)) = found else { return false };
        if !queue[place].begun {
            self.dead.extend(queue.remove(place).map(|message| message.buffer));
        } else {
            let message = &mut queue[place];
            self.dead.push(std::mem::replace(&mut message.buffer, MailBuffer::none()));
            (message.void, message.wanted) = (true, false);
        }
        true
    }

    /// Lets the operation run to its end without anybody asking for the outcome.
    pub(super) fn abandon(&mut self, number: u64) {
        let ended = self.ended.remove(&number);
        self.dead.extend(ended.and_then(MailOutcome::into_buffer));
        let outgoing = self.outgoing.iter_mut().flatten().find(|message| message.number == number);
        if let Some(message) = outgoing {
            message.wanted = false;
        }
        let matched = self.incoming.iter_mut().flatten().filter_map(|incoming| match &mut incoming.to {
            To::Receive(receive) => Some(receive),
            _ => None,
        });
        let mut receives = self.posted.iter_mut().chain(matched);
        if let Some(receive) = receives.find(|receive| receive.number == number) {
            receive.wanted = false;
        }
    }

    /// Whose end would matter: who has mail to come or to be sent, if anything that was asked for is
    /// unfinished.
    pub(super) fn concerned(&self) -> Vec<Awaited> {
        if self.is_idle() {
            return Vec::new();
        }
        let busy = |rank: &usize| !self.outgoing[*rank].is_empty() || self.incoming[*rank].is_some();
        let mut concerned: Vec<Awaited> = self.others().filter(busy).map(Awaited::Rank).collect();
        for awaited in self.posted.iter().map(Receive::awaited) {
            if !concerned.contains(&awaited) {
                concerned.push(awaited);
            }
        }
        concerned
    }

    /// Ends anything that waits for somebody of whom `gone` says that it is gone, as it was before the
    /// last [`MailQueues::progress`]: that took up all that such a rank published, for a ring has no more
    /// slots than it looks at.
    pub(super) fn sweep(&mut self, gone: impl Fn(Awaited) -> Option<Stop>) {
        for rank in self.others() {
            if self.outgoing[rank].is_empty() && self.incoming[rank].is_none() {
                continue;
            }
            let Some(stop) = gone(Awaited::Rank(rank)) else { continue };
            for message in std::mem::take(&mut self.outgoing[rank]) {
                self.dead.push(message.buffer);
                self.end(message.number, message.wanted, MailOutcome::Gone(stop));
            }
            // Its rest never comes. Who receives from anybody may still get another message.
            self.forget(rank);
        }
        for receive in std::mem::take(&mut self.posted) {
            match gone(receive.awaited()) {
                Some(stop) => self.fail(receive, MailOutcome::Gone(stop)),
                None => self.posted.push_back(receive),
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.outgoing.len()).filter(move |rank| *rank != me)
    }

    fn end(&mut self, number: u64, wanted: bool, outcome: MailOutcome) {
        if wanted {
            self.ended.insert(number, outcome);
            self.news = true;
        } else {
            self.dead.extend(outcome.into_buffer());
        }
    }

    /// Ends a receive with an outcome that does not give its buffer back.
    fn fail(&mut self, receive: Receive, outcome: MailOutcome) {
        self.dead.push(receive.buffer);
        self.end(receive.number, receive.wanted, outcome);
    }

    /// The rank whose message is coming in for receive `number`.
    fn source_of(&self, number: u64) -> Option<usize> {
        let is_it = |incoming: &Option<Incoming>| match incoming.as_ref().map(|incoming| &incoming.to) {
            Some(To::Receive(receive)) => receive.number == number,
            _ => false,
        };
        self.incoming.iter().position(is_it)
    }

    fn send_to_self(&mut self, what: Delivery, count: u64, bytes: &[u8]) {
        let Some(mut receive) = self.match_posted(&what) else {
            let number = self.next();
            self.arrived.push_back(Arrived { number, count, what, bytes: bytes.to_vec() });
            return;
        };
        match receive.room {
            Some(room) if room != what.bytes => {
                return self.fail(receive, MailOutcome::WrongSize(what, room));
            }
            Some(_) => receive.buffer.write().copy_from_slice(bytes),
            None => receive.buffer = MailBuffer::inbound(bytes.to_vec()),
        }
        self.end(receive.number, receive.wanted, MailOutcome::Received(receive.buffer, what, count));
    }

    /// Gives `receive` the first message that fits, or lets it wait in its place for one.
    fn post(&mut self, mut receive: Receive) {
        let fits = |arrived: &Arrived| fits(receive.from, receive.tag, &arrived.what);
        let Some(arrived) = self.arrived.iter().position(fits).and_then(|at| self.arrived.remove(at)) else {
            return self.put_in_line(receive);
        };
        let Arrived { number, count, what, mut bytes } = arrived;
        // The rest of it, if there is one, is still to come.
        let rest = self.incoming[what.source].as_mut().filter(|incoming| incoming.number == number);
        match receive.room {
            Some(room) if room != what.bytes => {
                if let Some(rest) = rest {
                    rest.to = To::Nobody;
                }
                return self.fail(receive, MailOutcome::WrongSize(what, room));
            }
            Some(_) => receive.buffer.write()[..bytes.len()].copy_from_slice(&bytes),
            None => {
                bytes.resize(what.bytes, 0);
                receive.buffer = MailBuffer::inbound(bytes);
            }
        }
        match rest {
            Some(rest) => rest.to = To::Receive(receive),
            None => {
                self.end(receive.number, receive.wanted, MailOutcome::Received(receive.buffer, what, count))
            }
        }
    }

    /// Lets `receive` wait for a message that is yet to come.
    fn put_in_line(&mut self, receive: Receive) {
        let place = self.posted.partition_point(|posted| posted.number < receive.number);
        self.posted.insert(place, receive);
    }

    fn match_posted(&mut self, what: &Delivery) -> Option<Receive> {
        let place = self.posted.iter().position(|receive| fits(receive.from, receive.tag, what))?;
        self.posted.remove(place)
    }

    /// Empties the ring that `source` fills.
    fn take_in(&mut self, rings: &MailRings, source: usize) -> bool {
        let mut moved = false;
        // As often as there are slots: what comes later rings the bell again, and others have their turn.
        for _ in 0..super::ring::SLOTS {
            let Some(filled) = rings.filled_slot(self.me, source) else { break };
            if !self.accept(source, &filled) {
                break;
            }
            filled.empty();
            rings.ring(source);
            moved = true;
        }
        moved
    }

    /// Takes one slot up. False if there is no memory for it: then it stays where it is, to be tried again.
    fn accept(&mut self, source: usize, filled: &Filled<'_>) -> bool {
        match filled.label.kind {
            SlotKind::First => {
                let Some(incoming) = self.begin(source, &filled.label) else { return false };
                self.counts[source].come = incoming.count;
                self.incoming[source] = Some(incoming);
            }
            SlotKind::More => {}
            SlotKind::Void => {
                self.forget(source);
                return true;
            }
        }
        self.append(source, filled);
        true
    }

    /// A new message of `source`, and where it goes.
    fn begin(&mut self, source: usize, label: &Label) -> Option<Incoming> {
        let (number, count) = (self.next(), self.counts[source].come + 1);
        let what = Delivery { source, tag: label.tag, note: label.note, bytes: label.total };
        let to = match self.match_posted(&what) {
            Some(receive) => match receive.room {
                Some(room) if room != what.bytes => {
                    self.fail(receive, MailOutcome::WrongSize(what, room));
                    To::Nobody
                }
                Some(_) => To::Receive(receive),
                None => To::Receive(self.with_memory(receive, what.bytes)?),
            },
            None => {
                let bytes = memory_for(what.bytes)?;
                self.arrived.push_back(Arrived { number, count, what, bytes });
                To::Queues
            }
        };
        Some(Incoming { number, count, what, got: 0, to })
    }

    /// A receive of any size, with memory for a message of `bytes`. Without memory it waits on, in its place.
    fn with_memory(&mut self, mut receive: Receive, bytes: usize) -> Option<Receive> {
        let Some(mut memory) = memory_for(bytes) else {
            self.put_in_line(receive);
            return None;
        };
        memory.resize(bytes, 0);
        receive.buffer = MailBuffer::inbound(memory);
        Some(receive)
    }

    /// Adds the bytes of a slot to the message that they belong to.
    fn append(&mut self, source: usize, filled: &Filled<'_>) {
        let Some(mut incoming) = self.incoming[source].take() else { return };
        let range = incoming.got..(incoming.got + filled.label.bytes).min(incoming.what.bytes);
        match &mut incoming.to {
            To::Nobody => {}
            To::Queues => {
                let arrived = self.arrived.iter_mut().find(|arrived| arrived.number == incoming.number);
                if let Some(arrived) = arrived {
                    arrived.bytes.resize(range.end, 0);
                    filled.read(&mut arrived.bytes[range.clone()]);
                }
            }
            // As long as the message, or it would not have been given it.
            To::Receive(receive) => filled.read(&mut receive.buffer.write()[range.clone()]),
        }
        incoming.got = range.end;
        if incoming.got < incoming.what.bytes {
            self.incoming[source] = Some(incoming);
        } else if let To::Receive(receive) = incoming.to {
            let outcome = MailOutcome::Received(receive.buffer, incoming.what, incoming.count);
            self.end(receive.number, receive.wanted, outcome);
        }
    }

    /// The message that was coming in from `source` is void.
    fn forget(&mut self, source: usize) {
        let Some(incoming) = self.incoming[source].take() else { return };
        match incoming.to {
            To::Nobody => {}
            To::Queues => self.arrived.retain(|arrived| arrived.number != incoming.number),
            To::Receive(receive) => self.post(receive),
        }
    }

    /// Keeps the message that is coming in from `source` in the queues, instead of the receive it was for.
    fn keep_incoming(&mut self, source: usize) {
        let Some(incoming) = &mut self.incoming[source] else { return };
        let To::Receive(mut receive) = std::mem::replace(&mut incoming.to, To::Nobody) else { return };
        let (number, count, what) = (incoming.number, incoming.count, incoming.what);
        // Without memory for it, it is lost.
        let kept = memory_for(what.bytes).map(|mut bytes| {
            bytes.extend_from_slice(&receive.buffer.write()[..incoming.got]);
            bytes
        });
        self.dead.push(receive.buffer);
        if let Some(bytes) = kept {
            incoming.to = To::Queues;
            let place = self.arrived.partition_point(|arrived| arrived.number < number);
            self.arrived.insert(place, Arrived { number, count, what, bytes });
            // A receive that was posted later may have been waiting for just this.
            if let Some(receive) = self.match_posted(&what) {
                self.post(receive);
            }
        }
    }

    /// Fills the ring of `rank` as far as there is room.
    fn put_out(&mut self, rings: &MailRings, rank: usize) -> bool {
        let mut moved = false;
        while !self.outgoing[rank].is_empty()
            && let Some(free) = rings.free_slot(self.me, rank)
            && let Some(message) = self.outgoing[rank].front_mut()
        {
            if !message.begun {
                self.counts[rank].sent += 1;
                message.count = self.counts[rank].sent;
            }
            let end = message.total.min(message.sent + free.room());
            let address = (message.tag, message.note);
            match message.void {
                false => {
                    let kind = if message.begun { SlotKind::More } else { SlotKind::First };
                    let part = &message.buffer.read()[message.sent..end];
                    free.fill(kind, address, message.total, part);
                }
                true => free.fill(SlotKind::Void, address, 0, &[]),
            }
            (message.begun, message.sent, moved) = (true, end, true);
            rings.ring(rank);
            let over = message.void || end == message.total;
            if over && let Some(message) = self.outgoing[rank].pop_front() {
                self.end(message.number, message.wanted, MailOutcome::Sent(message.buffer, message.count));
            }
        }
        moved
    }
}
