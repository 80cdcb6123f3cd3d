//! Traces: what every rank of a job did and when, so that it can be seen who waits for whom.
//!
//! For programs that look at others, as `symmem trace` does. A [`Tracer`] has the groups of a job record
//! their operations, in shared memory that it reads from outside; the job's own threads do nothing for it but
//! write. A job that is not traced pays nothing; one that is pays a few ten nanoseconds per operation.
//!
//! Operations that all ranks make together have the number of their meeting in common, so the last rank to
//! arrive at each is known ([`Trace::meetings`]); and which receive got the message of which send
//! ([`Trace::messages`]). All times are nanoseconds since boot, alike for all processes of a host.
//!
//! ```
//! use symmem::trace::Tracer;
//!
//! let mut tracer = Tracer::listen()?;
//! let (variable, value) = tracer.environment();
//! // Start the ranks with `variable` set to `value`, and while they run:
//! tracer.poll()?;
//! let trace = tracer.finish()?;
//! assert!(trace.tracks.is_empty(), "nobody was started");
//! # let _ = (variable, value);
//! # Ok::<(), symmem::Error>(())
//! ```

mod attach;
mod meeting;
mod message;
mod scale;

use std::collections::HashSet;

use symmem_store::TICK;

use self::attach::Attached;
use self::scale::Scale;
use crate::Result;
use crate::group::recording::TRACE_TO;
use crate::inspect::GroupState;
use crate::numeric::{DType, ReduceOp};
use crate::operation::signature;
use crate::sync::record::{Detail, Reader, Recorded, RecordedPart};
use crate::sys::channel::{ChannelPeers, Endpoint};
use crate::sys::ids;

pub use self::meeting::{Arrival, Meeting};
pub use self::message::Message;

/// Reads what the ranks of a job record, until [`Tracer::finish`].
#[derive(Debug)]
pub struct Tracer {
    listener: Endpoint,
    token: [u8; 16],
    scale: Scale,
    rings: Vec<TracedRing>,
    lost: u64,
    attached: Option<Attached>,
}

/// What one rank has recorded so far.
#[derive(Debug)]
struct TracedRing {
    reader: Reader,
    records: Vec<Recorded>,
}

impl Tracer {
    /// A tracer of a job that is about to start, with [`Tracer::environment`] in the environment of its
    /// ranks.
    pub fn listen() -> Result<Self> {
        let token = ids::random()?;
        let listener = Endpoint::bind(token, None, ChannelPeers::OfThisUser)?;
        Ok(Self { listener, token, scale: Scale::start(), rings: Vec::new(), lost: 0, attached: None })
    }

    /// A tracer of `groups`, which run already. They record from their next operation on, until the tracer is
    /// done or dropped.
    ///
    /// ```
    /// use symmem::{inspect, trace::Tracer};
    ///
    /// let tracks = symmem::spawn(2, |group| {
    ///     let mut tracer = None;
    ///     if group.rank() == 0 {
    ///         let mine = inspect::groups()?.into_iter().filter(|seen| seen.id == group.id());
    ///         tracer = Some(Tracer::attach(&mine.collect::<Vec<_>>())?);
    ///     }
    ///     group.barrier()?;
    ///     group.barrier()?; // began after the tracer was there, on all ranks
    ///     let trace = tracer.map(Tracer::finish).transpose()?;
    ///     group.barrier()?; // nobody leaves before what it recorded was read
    ///     Ok(trace.map_or(0, |trace| trace.tracks.len()))
    /// })?;
    /// assert_eq!(tracks[0], 2);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn attach(groups: &[GroupState]) -> Result<Self> {
        Ok(Self { attached: Some(Attached::new(groups)), ..Self::listen()? })
    }

    /// Whether a process of an attached job is there; true for a job that is started to be traced.
    pub fn is_alive(&self) -> bool {
        self.attached.as_ref().is_none_or(Attached::is_alive)
    }

    /// The variable that ranks need in their environment, and its value.
    pub fn environment(&self) -> (&'static str, String) {
        (TRACE_TO, format!("{}:{}", ids::hex(&self.token), self.listener.address()))
    }

    /// Takes what has been recorded since the last call. To be called every few milliseconds: ranks that are
    /// faster write over what nobody has taken, which is then [lost](Trace::lost).
    pub fn poll(&mut self) -> Result<()> {
        let sent = self.listener.drain()?.into_iter().flat_map(|message| message.fds);
        let found = self.attached.as_mut().map(Attached::look).unwrap_or_default();
        let readers = sent.filter_map(Reader::of).chain(found);
        self.rings.extend(readers.map(|reader| TracedRing { reader, records: Vec::new() }));
        for ring in &mut self.rings {
            self.lost += ring.reader.take(&mut ring.records);
        }
        Ok(())
    }

    /// How many operations have been taken, and of how many ranks.
    pub fn progress(&self) -> (usize, usize) {
        let ranks: HashSet<(&str, usize)> =
            self.rings.iter().map(|ring| (ring.reader.owner.id.as_str(), ring.reader.owner.rank)).collect();
        (self.rings.iter().map(|ring| ring.records.len()).sum(), ranks.len())
    }

    /// Stops recording; what was recorded, with the operations that have not ended.
    pub fn finish(mut self) -> Result<Trace> {
        // What a rank sent before it ended is in the socket by now; what others have just made is looked for
        // once more.
        std::thread::sleep(TICK);
        if let Some(attached) = &mut self.attached {
            attached.hurry();
        }
        self.rings.iter_mut().for_each(|ring| ring.reader.hurry());
        self.poll()?;
        let scale = self.scale.end();
        let mut tracks: Vec<Track> = self.rings.iter().map(|ring| Track::of(ring, &scale)).collect();
        tracks.sort_by(|a, b| a.place().cmp(&b.place()));
        Ok(Trace { tracks, lost: self.lost })
    }
}

/// What the ranks of a job did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Trace {
    /// One per rank and group, one per lane of each engine of a rank, and one per mailbox of a rank.
    pub tracks: Vec<Track>,
    /// Operations that were written over before they were read.
    pub lost: u64,
}

/// What one rank did in one group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Track {
    /// The group's name.
    pub group: String,
    /// What tells the group from all others.
    pub id: String,
    /// The rank in the group.
    pub rank: usize,
    /// Ranks of the group.
    pub world: usize,
    /// The rank's process.
    pub pid: u32,
    /// The device, for operations of one.
    pub device: Option<usize>,
    /// The lane of that device.
    pub lane: Option<usize>,
    /// The engine that has the lane: how many engines the group had before it, which all ranks count alike.
    pub engine: Option<usize>,
    /// The mailbox, for messages: its number, by which all ranks of the group know it. Several threads may
    /// have used it at once.
    pub mailbox: Option<u64>,
    /// In the order in which they ended; those of a device in the order in which they began.
    pub operations: Vec<Operation>,
}

/// One operation of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// What was called.
    pub name: &'static str,
    /// When it began, in nanoseconds since boot.
    pub begin_ns: u64,
    /// When it ended; `None` if it has not.
    pub end_ns: Option<u64>,
    /// The number of the meeting of all ranks that it ended with, if it was one that all ranks make together.
    pub meeting: Option<u64>,
    /// Whether the group had failed when it ended; of a message, whether the call ended in an error.
    pub failed: bool,
    /// Bytes of each rank, where the operation has a size; of a message its own.
    pub bytes: Option<u64>,
    /// The channel, where it has one.
    pub channel: Option<usize>,
    /// Element type of a collective on memory.
    pub dtype: Option<DType>,
    /// How a collective reduces.
    pub reduce: Option<ReduceOp>,
    /// Which algorithm carried a collective: the name of one of the host's, or of the device's.
    pub algorithm: Option<&'static str>,
    /// The other rank of a message, as far as it is known: a receive from anybody that got none has no other.
    pub peer: Option<usize>,
    /// The tag of a message, as far as it is known.
    pub tag: Option<u64>,
    /// Which message from its sender to its receiver it is, in their mailbox, once it was sent or received:
    /// see [`Trace::messages`].
    pub message: Option<u64>,
}

impl Track {
    /// Where it stands among others.
    fn place(&self) -> (&str, &str, usize, [Option<usize>; 3], Option<u64>) {
        (&self.group, &self.id, self.rank, [self.device, self.engine, self.lane], self.mailbox)
    }

    fn of(ring: &TracedRing, scale: &Scale) -> Self {
        let owner = &ring.reader.owner;
        let open = ring.reader.open();
        let recorded = ring.records.iter().chain(&open);
        let operations = recorded.map(|one| operation(one, &ring.reader, scale)).collect();
        let (on, mailbox) = match owner.part {
            RecordedPart::Host => (None, None),
            RecordedPart::Device(on) => (Some(on), None),
            RecordedPart::Mailbox(number) => (None, Some(number)),
        };
        Self {
            group: owner.group.clone(),
            id: owner.id.clone(),
            rank: owner.rank,
            world: owner.world,
            pid: owner.pid,
            device: on.map(|on| on.device),
            lane: on.map(|on| on.lane),
            engine: on.map(|on| on.engine),
            mailbox,
            operations,
        }
    }
}

fn operation(recorded: &Recorded, reader: &Reader, scale: &Scale) -> Operation {
    let ns = |ticks: u64| scale.nanoseconds(reader.ticks, ticks);
    let bare = Operation {
        name: recorded.what.op.name(),
        begin_ns: ns(recorded.begin),
        end_ns: recorded.end.map(ns),
        meeting: (recorded.epoch > 0).then_some(recorded.epoch),
        failed: recorded.what.failed,
        bytes: None,
        channel: recorded.what.channel,
        dtype: None,
        reduce: None,
        algorithm: None,
        peer: None,
        tag: None,
        message: None,
    };
    match recorded.detail {
        Detail::Announced(signature) => match signature::announced((signature, 0)) {
            Some(said) => Operation {
                bytes: said.bytes,
                dtype: said.dtype,
                reduce: said.reduce,
                algorithm: said.algorithm.map(|algorithm| algorithm.name()),
                ..bare
            },
            None => bare,
        },
        Detail::Launched(launched, bytes) => {
            let number = |plus_one: u8| usize::from(plus_one).checked_sub(1);
            Operation {
                bytes: Some(bytes).filter(|bytes| *bytes > 0),
                dtype: number(launched.dtype)
                    .and_then(|at| DType::ALL.into_iter().find(|one| *one as usize == at)),
                reduce: number(launched.reduce)
                    .and_then(|at| ReduceOp::ALL.into_iter().find(|one| *one as usize == at)),
                algorithm: number(launched.algorithm).and_then(algorithm_of_devices),
                ..bare
            }
        }
        Detail::Message(said) => {
            Operation { bytes: said.bytes, peer: said.peer, tag: said.tag, message: said.number, ..bare }
        }
    }
}

/// The name of the device's algorithm with this number.
fn algorithm_of_devices(number: usize) -> Option<&'static str> {
    use crate::engine::cuda::Algorithm;
    Algorithm::EVERY.iter().find(|one| **one as usize == number).map(|one| one.name())
}

#[cfg(test)]
mod tests {
    use super::Operation;

    /// One that ended, of which nothing but its name is known.
    pub(super) fn operation(name: &'static str) -> Operation {
        Operation {
            name,
            begin_ns: 0,
            end_ns: Some(1),
            meeting: None,
            failed: false,
            bytes: None,
            channel: None,
            dtype: None,
            reduce: None,
            algorithm: None,
            peer: None,
            tag: None,
            message: None,
        }
    }
}
