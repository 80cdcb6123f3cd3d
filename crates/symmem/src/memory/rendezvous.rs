//! The rendezvous: compare, exchange handles, map, vote.
//!
//! 1. Every rank makes its signal pad and says what it brings; any disagreement or local failure is the same error on
//!    every rank, before anything is sent.
//! 2. Every rank sends its handles to every other one and maps what it gets. A rank that fails here goes straight to
//!    the vote, and whoever waits for its handles sees that.
//! 3. The vote: all have the table, or nobody has, and the same allocations can try again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::Block;
use crate::error::Halt;
use crate::group::{Brought, Group, MAX_BYTES, Running};
use crate::op::Op;
use crate::provider::{Memory, Peer};
use crate::sys::fault::{self, Point};
use crate::{DType, Error, Result};

/// A rank has one table of an allocation on a group.
pub(super) const KEY: &str = "";
/// What the message with the handles says it is.
const HANDLES: &str = "data, pad";

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

/// Reads any bytes as what a rank brings to a rendezvous.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_request(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let _ = (request.error(), request.terms());
    }
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

impl Brought for Request {
    const WHAT: &str = "the allocation";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let Self { bytes, pad_bytes, dtype, provider, .. } = self;
        format!("{bytes} bytes of {dtype} in {provider}, pad of {pad_bytes} bytes")
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
        let sound = sound.and_then(|()| check_bytes(block.bytes()));
        if let Some(table) = block.tables.find(group, KEY) {
            return sound.map(|()| table);
        }
        let span = tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes = block.bytes());
        let _entered = span.enter();
        group.operate(Op::Rendezvous, None, |running| running.rendezvous(block, dtype, sound))
    }
}

/// Collectives agree on so many bytes.
fn check_bytes(bytes: usize) -> Result<()> {
    if bytes as u64 <= MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(
        "allocation",
        format!("{bytes} bytes are more than the {MAX_BYTES} that ranks can share"),
    ))
}

impl Running<'_> {
    fn rendezvous(&self, block: &Block, dtype: DType, sound: Result<()>) -> Result<Arc<Table>> {
        self.check_local()?;
        // Until the vote is over: whoever else would bring this memory does so meanwhile, and is refused.
        let claim = sound.and_then(|()| block.tables.claim(self.group(), KEY));
        let provider = self.group().context().provider();
        let pad = claim.and_then(|claim| Ok((claim, provider.alloc(block.signal_pad_size())?)));
        self.compare_blocks(block, dtype, pad.as_ref().err())?;
        let (claim, pad) = pad?;
        let table = self.exchange(block, pad)?;
        claim.keep(Arc::clone(&table));
        Ok(table)
    }

    /// Step 1: what everybody brings.
    fn compare_blocks(&self, block: &Block, dtype: DType, failure: Option<&Error>) -> Result<()> {
        let request = Request {
            bytes: block.bytes(),
            pad_bytes: block.signal_pad_size(),
            dtype: format!("{dtype:?}"),
            provider: self.group().context().backend().to_owned(),
            error: failure.map(Error::to_string),
        };
        self.compare(Op::Rendezvous, &request).map(drop)
    }

    /// Steps 2 and 3: handles, mappings, vote.
    fn exchange(&self, block: &Block, pad: Arc<dyn Memory>) -> Result<Arc<Table>> {
        let tag = self.next_tag()?;
        let outcome = self.map_everybody(tag, block, &pad);
        self.conclude(tag, outcome).map(Arc::new)
    }

    fn map_everybody(&self, tag: u64, block: &Block, pad: &Arc<dyn Memory>) -> Result<Table, Halt> {
        let inner = self.inner();
        let populate = self.group().context().config().get_populate();
        if populate {
            block.memory().populate()?;
            pad.populate()?;
        }
        for peer in (0..inner.world).filter(|rank| *rank != inner.rank) {
            self.send_handles(peer, tag, HANDLES, &[block.memory().handle(), pad.handle()])?;
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

    fn import_handles(&self, peer: usize, tag: u64, block: &Block) -> Result<(Peer, Peer), Halt> {
        let mut fds = self.receive_handles(peer, tag, HANDLES, 2)?.into_iter();
        let (Some(data), Some(pad)) = (fds.next(), fds.next()) else {
            return Err(Error::invalid(format!("handles of rank {peer}"), "some are missing").into());
        };
        let provider = self.group().context().provider();
        let data = provider.import(data, block.bytes())?;
        Ok((data, provider.import(pad, block.signal_pad_size())?))
    }
}

fn own(memory: &Arc<dyn Memory>) -> Peer {
    Peer::new(memory.address(), Arc::new(Arc::clone(memory)))
}
