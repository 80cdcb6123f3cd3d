//! The rendezvous: compare, exchange handles, map, vote.
//!
//! 1. Every rank makes its signal pad and says what it brings; any disagreement or local failure is the same error on
//!    every rank, before anything is sent.
//! 2. Every rank sends its handles to every other one and maps what it gets. A rank that fails here goes straight to
//!    the vote, and whoever waits for its handles sees that.
//! 3. The vote: all have the table, or nobody has, and the same allocations can try again.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use symmem_store::{Interrupt, Watch};

use super::Block;
use crate::error::Halt;
use crate::group::{GaveUp, Group, GroupWatch, Running, Vote};
use crate::op::Op;
use crate::provider::{Memory, Peer};
use crate::sync::protocol::arrived;
use crate::sys::fault::{self, Point};
use crate::{DType, Error, Result};

/// What the message with data and pad says it is.
const HANDLES: &[u8] = b"data, pad";

/// Everybody's memory and pad, as this rank reaches them.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) data: Vec<Peer>,
    pub(super) pads: Vec<Peer>,
    /// Bytes of each rank's data and pad.
    pub(super) bytes: usize,
    pub(super) pad_bytes: usize,
    /// Which rendezvous of the group this is, the same on every rank.
    pub(super) number: u64,
    pub(super) closed: AtomicBool,
}

/// What a rank brings to a rendezvous. All must bring the same.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    bytes: usize,
    pad_bytes: usize,
    dtype: String,
    provider: String,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Request {
    fn terms(&self) -> String {
        let Self { bytes, pad_bytes, dtype, provider, .. } = self;
        format!("{bytes} bytes of {dtype} in {provider}, pad of {pad_bytes} bytes")
    }
}

/// Waits for handles: the group's life, and whether the sender has voted already.
struct HandleWatch<'a, F> {
    group: GroupWatch<'a, F>,
    voted: &'a dyn Fn() -> bool,
}

impl<F: Fn(usize) -> bool> Watch for HandleWatch<'_, F> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        self.group.look()?;
        if (self.voted)() { Err(Box::new(GaveUp)) } else { Ok(()) }
    }
}

impl Table {
    /// Collective: the table for `block` on `group`, kept with the block. A table that is there already is returned
    /// without communication.
    /// A rank whose own `arguments` are wrong, or whose memory is poisoned, tells the others instead of staying away.
    pub(super) fn rendezvous(
        block: &Block,
        group: &Group,
        dtype: DType,
        arguments: Result<()>,
    ) -> Result<Arc<Self>> {
        let sound = arguments.and_then(|()| block.check_usable(Op::Rendezvous.name()));
        if let Some(table) = block.table(group.id()) {
            return sound.map(|()| table);
        }
        let span = tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes = block.bytes());
        let _entered = span.enter();
        let running = group.begin(Op::Rendezvous, None)?;
        running.check_local()?;
        let pad = sound.and_then(|()| group.context().provider().alloc(block.signal_pad_size()));
        running.compare(block, dtype, pad.as_ref().err())?;
        let table = running.exchange(block, pad?)?;
        block.keep_table(group.id(), &table);
        Ok(table)
    }
}

impl Running<'_> {
    /// Step 1: what everybody brings.
    fn compare(&self, block: &Block, dtype: DType, failure: Option<&Error>) -> Result<()> {
        let request = Request {
            bytes: block.bytes(),
            pad_bytes: block.signal_pad_size(),
            dtype: format!("{dtype:?}"),
            provider: self.group().context().backend().to_owned(),
            error: failure.map(Error::to_string),
        };
        let encoded =
            serde_json::to_vec(&request).map_err(|error| Error::invalid("request", error.to_string()))?;
        let parts = self.all_gather(Op::Rendezvous, 0, 0, &encoded)?;
        fault::point(Point::RequestSent);
        let requests: Result<Vec<Request>, _> =
            parts.iter().map(|part| serde_json::from_slice(part)).collect();
        let requests = requests.map_err(|error| Error::invalid("request of a rank", error.to_string()))?;
        let failed =
            requests.iter().enumerate().find_map(|(rank, request)| Some((rank, request.error.clone()?)));
        if let Some((rank, message)) = failed {
            return Err(Error::Rank { context: self.context(), rank, message });
        }
        if requests.iter().all(|theirs| theirs.terms() == requests[0].terms()) {
            return Ok(());
        }
        let said = requests.iter().enumerate();
        let values = said.map(|(rank, request)| format!("rank {rank}: {}", request.terms())).collect();
        Err(Error::Mismatch { context: self.context(), what: "the allocation", values })
    }

    /// Steps 2 and 3: handles, mappings, vote.
    fn exchange(&self, block: &Block, pad: Arc<dyn Memory>) -> Result<Arc<Table>> {
        let outcome = self.map_everybody(block, &pad);
        let vote = match &outcome {
            Ok(_) => Vote::yes(),
            Err(Halt::Failed(error)) => Vote::no(error),
            Err(Halt::Interrupted(_)) => Vote::waited_in_vain(),
        };
        let outcome = match outcome {
            Err(Halt::Interrupted(interrupt)) if !GaveUp::ended(&interrupt) => {
                return Err(self.fail(interrupt, |_| true));
            }
            other => other,
        };
        let votes = self.all_gather(Op::Vote, 0, 0, &vote.encode())?;
        fault::point(Point::RendezvousVoted);
        match (Vote::tally(&votes), outcome) {
            (None, Ok(table)) => Ok(Arc::new(table)),
            (Some((rank, message)), _) => Err(Error::Rank { context: self.context(), rank, message }),
            (None, Err(Halt::Failed(error))) => Err(error),
            (None, Err(Halt::Interrupted(interrupt))) => Err(self.interrupted(interrupt, Vec::new())),
        }
    }

    fn map_everybody(&self, block: &Block, pad: &Arc<dyn Memory>) -> Result<Table, Halt> {
        let inner = self.inner();
        let tag = inner.fd_tag.fetch_add(1, Ordering::Relaxed) + 1;
        let populate = self.group().context().config().get_populate();
        if populate {
            block.memory().populate()?;
            pad.populate()?;
        }
        let peers = || (0..inner.world).filter(|rank| *rank != inner.rank);
        for peer in peers() {
            self.send_handles(peer, tag, block, pad)?;
        }
        fault::point(Point::PadFdSent);
        let mut data = Vec::with_capacity(inner.world);
        let mut pads = Vec::with_capacity(inner.world);
        for rank in 0..inner.world {
            let (their_data, their_pad) = match rank == inner.rank {
                true => (own(block.memory()), own(pad)),
                false => self.import_handles(rank, tag, block)?,
            };
            data.push(their_data);
            pads.push(their_pad);
        }
        fault::point(Point::PadMapped);
        let (bytes, pad_bytes) = (block.bytes(), block.signal_pad_size());
        Ok(Table { data, pads, bytes, pad_bytes, number: tag, closed: AtomicBool::new(false) })
    }

    fn send_handles(&self, peer: usize, tag: u64, block: &Block, pad: &Arc<dyn Memory>) -> Result<(), Halt> {
        let inner = self.inner();
        let watch = GroupWatch { inner, awaited: |rank| rank == peer };
        let fds = [block.memory().handle(), pad.handle()];
        let address = &inner.members[peer].address;
        let sent =
            inner.endpoint.send(peer, address, tag, inner.rank as u32, HANDLES, &fds, &self.terms(&watch));
        sent.map_err(|error| self.or_a_death(error))
    }

    fn import_handles(&self, peer: usize, tag: u64, block: &Block) -> Result<(Peer, Peer), Halt> {
        let inner = self.inner();
        let next_epoch = inner.epoch.load(Ordering::Relaxed) + 1;
        let voted = || arrived(inner, inner.rank, peer, next_epoch).is_some();
        let watch = HandleWatch { group: GroupWatch { inner, awaited: |rank| rank == peer }, voted: &voted };
        let message = inner.endpoint.recv(tag, peer as u32, &self.terms(&watch))?;
        let mut fds = message.fds.into_iter();
        let (HANDLES, Some(data), Some(pad)) = (&message.payload[..], fds.next(), fds.next()) else {
            return Err(
                Error::invalid(format!("handles of rank {peer}"), "the message is not data and pad").into()
            );
        };
        let provider = self.group().context().provider();
        let data = provider.import(data, block.bytes())?;
        Ok((data, provider.import(pad, block.signal_pad_size())?))
    }

    /// A broken channel is explained by a death, if there is one.
    fn or_a_death(&self, error: Halt) -> Halt {
        let Halt::Failed(error) = error else { return error };
        match self.inner().look_for_a_death() {
            Some(rank) => Halt::Interrupted(Interrupt::Watch(Box::new(crate::group::Stop::Died(rank)))),
            None => Halt::Failed(error),
        }
    }
}

fn own(memory: &Arc<dyn Memory>) -> Peer {
    Peer::new(memory.address(), Arc::new(Arc::clone(memory)))
}
