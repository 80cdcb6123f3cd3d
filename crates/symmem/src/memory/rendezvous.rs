//! The rendezvous: compare, exchange handles, map, vote.
//!
//! 1. Every rank makes its signal pad and says what it brings; any disagreement or local failure is the same error on
//!    every rank, before anything is sent. A rank may bring nothing, and says so: it has a pad, and no memory.
//! 2. Every rank sends its handles to every other one and maps what it gets. A rank that fails here goes straight to
//!    the vote, and whoever waits for its handles sees that.
//! 3. The vote: all have the table, or nobody has, and the same allocations can try again.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use serde::{Deserialize, Serialize};

use super::Block;
use super::bases::Bases;
use super::peers::PeerTable;
use crate::group::{Brought, Group, Running};
use crate::numeric::DType;
use crate::operation::{MAX_BYTES, Op};
use crate::provider::LocalMemory;
use crate::{Error, Result};

/// A rank has one table of an allocation on a group.
pub(super) const KEY: &str = "";

/// Everybody's memory and pad, as this rank reaches them.
#[derive(Debug)]
pub(crate) struct Table {
    /// At address 0 for ranks that brought nothing.
    pub(super) data: Bases,
    pub(super) pads: Bases,
    /// Bytes of each rank's data, if it brought any, and pad.
    pub(super) bytes: usize,
    pub(super) pad_bytes: usize,
    /// Which rendezvous of the group this is, the same on every rank.
    pub(super) number: u64,
    /// What the first rank that brought memory covers with its handle.
    pub(super) layout: Layout,
    /// The ranks that brought nothing.
    pub(super) without: Vec<usize>,
    /// 0, or some of [`CLOSED`] and [`NOT_WHOLE`]: operations look at one word only.
    pub(super) state: AtomicU8,
}

/// All ranks have closed the memory.
pub(super) const CLOSED: u8 = 1;
/// Some rank brought nothing, so there are no collectives.
pub(super) const NOT_WHOLE: u8 = 2;

/// What a rank covers of its allocation with a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// The element type.
    pub dtype: DType,
    /// The first byte in the allocation.
    pub start: usize,
    /// The sides, in elements.
    pub shape: Vec<usize>,
}

impl Layout {
    pub(super) fn new(dtype: DType, start: usize, shape: &[usize]) -> Self {
        Self { dtype, start, shape: shape.to_vec() }
    }

    /// Bytes of the elements, if they are aligned and within the first `size` bytes.
    pub(super) fn bytes_within(&self, size: usize) -> Option<usize> {
        let sides = self.shape.iter();
        let bytes = sides.copied().try_fold(self.dtype.size(), usize::checked_mul)?;
        let fits = self.start.is_multiple_of(self.dtype.size()) && self.start.checked_add(bytes)? <= size;
        fits.then_some(bytes)
    }
}

/// Reads any bytes as what a rank brings to a rendezvous.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_request(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let _ = (request.error(), request.terms(), request.layout());
    }
}

/// What a rank brings to a rendezvous. All that bring something must bring the same. Ranks that bring device memory say as much
/// (`device/rendezvous.rs`), with a provider of their own, so that both find the disagreement.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    bytes: usize,
    pad_bytes: usize,
    dtype: String,
    provider: String,
    /// Where the handle's elements start, in bytes, and their sides: ranks may differ in it.
    offset: usize,
    #[serde(default)]
    shape: Vec<usize>,
    #[serde(default)]
    nothing: bool,
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
        let what = match self.dtype() {
            Some(dtype) => format!("{} x {dtype}", bytes / dtype.size()),
            None => format!("{bytes} bytes of {dtype}"),
        };
        format!("{what} in {provider}, pad of {pad_bytes} bytes")
    }

    fn is_nothing(&self) -> bool {
        self.nothing
    }
}

impl Request {
    fn dtype(&self) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == self.dtype)
    }

    /// What `block` is, and what the handle of it covers; without a layout it is nothing.
    fn new(block: &Block, layout: Option<&Layout>, provider: &str, failure: Option<&Error>) -> Self {
        Self {
            bytes: block.bytes(),
            pad_bytes: block.signal_pad_size(),
            dtype: layout.map_or("nothing".to_owned(), |layout| layout.dtype.name().to_owned()),
            provider: provider.to_owned(),
            offset: layout.map_or(0, |layout| layout.start),
            shape: layout.map(|layout| layout.shape.clone()).unwrap_or_default(),
            nothing: layout.is_none(),
            error: failure.map(Error::to_string),
        }
    }

    /// What the rank's handle covers, if that can be.
    fn layout(&self) -> Option<Layout> {
        let layout = Layout::new(self.dtype()?, self.offset, &self.shape);
        layout.bytes_within(self.bytes).map(|_| layout)
    }
}

impl Table {
    /// Collective: the table for `block` on `group`, kept with the block. A table that is there already is returned
    /// without communication, if all ranks have one: those that brought nothing have no block to keep it with.
    /// A rank whose own `arguments` are wrong, or whose memory is poisoned, tells the others instead of staying away.
    pub(super) fn rendezvous(block: &Block, group: &Group, arguments: Result<Layout>) -> Result<Arc<Self>> {
        let sound = arguments.and_then(|layout| {
            block.check_usable(Op::Rendezvous.name())?;
            check_bytes(block.bytes()).map(|()| layout)
        });
        if let Some(table) = block.tables.find(group, KEY).filter(|table| table.without.is_empty()) {
            return sound.map(|_| table);
        }
        Self::meet(block, group, sound.map(Some))
    }

    /// Collective: the table for a rank that brings nothing but the pad of `block`.
    pub(super) fn rendezvous_nothing(block: &Block, group: &Group) -> Result<Arc<Self>> {
        Self::meet(block, group, Ok(None))
    }

    fn meet(block: &Block, group: &Group, brought: Result<Option<Layout>>) -> Result<Arc<Self>> {
        let span = tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes = block.bytes());
        let _entered = span.enter();
        group.operate(Op::Rendezvous, None, |running| running.rendezvous(block, brought))
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
    fn rendezvous(&self, block: &Block, brought: Result<Option<Layout>>) -> Result<Arc<Table>> {
        self.check_local()?;
        // Until the vote is over: whoever else would bring this memory does so meanwhile, and is refused.
        let layout = brought.as_ref().ok().cloned().flatten();
        let claim = brought.and_then(|_| block.tables.claim(self.group(), KEY));
        let provider = self.group().context().provider();
        let pad = claim.and_then(|claim| Ok((claim, provider.alloc(block.signal_pad_size())?)));
        let backend = self.group().context().backend();
        let request = Request::new(block, layout.as_ref(), backend, pad.as_ref().err());
        let agreed = self.compare_requests(&request)?;
        let (claim, pad) = pad?;
        let table = self.exchange(block, pad, agreed)?;
        claim.keep(Arc::clone(&table));
        Ok(table)
    }

    /// Step 1: what everybody brings. What is wrong is the same error on every rank: all see the same requests.
    fn compare_requests(&self, mine: &Request) -> Result<Shared> {
        let requests = self.compare(Op::Rendezvous, mine)?;
        // Those that bring nothing must agree with the others on the rest.
        let common = |request: &Request| (request.pad_bytes, request.provider.clone());
        if requests.iter().any(|request| common(request) != common(&requests[0])) {
            let terms: Vec<String> = requests.iter().map(Brought::terms).collect();
            return Err(self.disagreement(Request::WHAT, &terms));
        }
        let without = (0..requests.len()).filter(|rank| requests[*rank].nothing).collect();
        let Some((rank, first)) = requests.iter().enumerate().find(|(_, request)| !request.nothing) else {
            let problem = "no rank brings memory. Hint: at least one of them allocates";
            return Err(Error::invalid(Op::Rendezvous.name(), problem));
        };
        let cannot_be = || {
            let message = "what it said about its memory cannot be".to_owned();
            Error::Rank { context: self.context(), rank, message }
        };
        Ok(Shared { bytes: first.bytes, layout: first.layout().ok_or_else(cannot_be)?, without })
    }

    /// Steps 2 and 3: handles, mappings, vote.
    fn exchange(&self, block: &Block, pad: Arc<dyn LocalMemory>, agreed: Shared) -> Result<Arc<Table>> {
        let joined = self.group().context().provider().join(self)?;
        let pad = match self.group().context().config().get_populate() {
            true => {
                block.memory().map_or(Ok(()), |memory| memory.populate()).and(pad.populate()).map(|()| pad)
            }
            false => Ok(pad),
        };
        let (peers, ()) = PeerTable::share(self, &joined, &[], block.memory().cloned(), pad, |_, _| Ok(()))?;
        let Shared { bytes, layout, without } = agreed;
        Ok(Arc::new(Table {
            data: Bases::new(peers.data),
            pads: Bases::new(peers.pads),
            bytes,
            pad_bytes: block.signal_pad_size(),
            number: peers.number,
            layout,
            state: AtomicU8::new(if without.is_empty() { 0 } else { NOT_WHOLE }),
            without,
        }))
    }
}

/// What the ranks agreed on.
struct Shared {
    /// Of each rank that brings memory.
    bytes: usize,
    layout: Layout,
    /// The ranks that bring nothing.
    without: Vec<usize>,
}
