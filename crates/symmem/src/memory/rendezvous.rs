//! The rendezvous: compare, exchange handles, map, vote.
//!
//! 1. Every rank makes its signal pad and says what it brings, and where its handle begins in it; any disagreement or local
//!    failure is the same error on every rank, before anything is sent. A rank may bring nothing, and says so: it has a pad, and
//!    no memory. Where all ranks have one table of what they bring, that is all.
//! 2. Every rank sends its handles to every other one and maps what it gets. A rank that fails here goes straight to
//!    the vote, and whoever waits for its handles sees that.
//! 3. The vote: all have the table, or nobody has, and the same allocations can try again.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use serde::{Deserialize, Serialize};

use super::Block;
use super::bases::Bases;
use super::offsets::Offsets;
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
        let _ = (request.error(), request.terms(), Shared::of(std::slice::from_ref(&request)));
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
    /// The elements are all that follow the offset, of which each rank takes as many as all have.
    #[serde(default)]
    rest: bool,
    /// The rendezvous of this memory that the rank has already.
    #[serde(default)]
    number: Option<u64>,
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

    /// What `block` is, and what the handle of it covers; without that it is nothing.
    fn new(block: &Block, covered: Option<&Covered>, provider: &str) -> Self {
        let layout = covered.map(|covered| &covered.layout);
        Self {
            bytes: block.bytes(),
            pad_bytes: block.signal_pad_size(),
            dtype: layout.map_or("nothing".to_owned(), |layout| layout.dtype.name().to_owned()),
            provider: provider.to_owned(),
            offset: layout.map_or(0, |layout| layout.start),
            shape: layout.map(|layout| layout.shape.clone()).unwrap_or_default(),
            rest: covered.is_some_and(|covered| covered.rest),
            number: None,
            nothing: layout.is_none(),
            error: None,
        }
    }

    /// What the rank's handle covers, if that can be.
    fn layout(&self) -> Option<Layout> {
        let layout = Layout::new(self.dtype()?, self.offset, &self.shape);
        layout.bytes_within(self.bytes).map(|_| layout)
    }
}

/// What a rank's handle is to cover of what it brings.
#[derive(Clone, Debug)]
pub(super) struct Covered {
    pub(super) layout: Layout,
    /// All that follows the layout's start, as far as all ranks have it.
    pub(super) rest: bool,
}

/// What comes of a rendezvous.
pub(super) struct Met {
    pub(super) table: Arc<Table>,
    /// Where the handles of all ranks begin. Those of ranks that brought nothing begin where that of the first one with memory does.
    pub(super) offsets: Offsets,
    /// Bytes that all ranks with memory have behind their offsets.
    pub(super) rest: usize,
}

impl Table {
    /// The table for the whole of `block` on `group`, kept with the block: collective, or without communication where there is one
    /// already, if all ranks have one: those that brought nothing have no block to keep it with.
    pub(super) fn rendezvous(block: &Block, group: &Group, covered: impl FnOnce() -> Covered) -> Result<Met> {
        if let Some(table) = Self::kept(block, group) {
            check_block(block)?;
            return Ok(Met { rest: table.bytes, table, offsets: Offsets::default() });
        }
        Self::rendezvous_at(block, group, Ok(covered()))
    }

    /// Collective: the table for `block` on `group`, kept with the block, and everybody's offsets. A rank whose own `arguments` are
    /// wrong, or whose memory is poisoned, tells the others instead of staying away.
    pub(super) fn rendezvous_at(block: &Block, group: &Group, arguments: Result<Covered>) -> Result<Met> {
        let sound = arguments.and_then(|covered| check_block(block).map(|()| covered));
        Self::meet(block, group, sound.map(Some))
    }

    /// Collective: the table for a rank that brings nothing but the pad of `block`.
    pub(super) fn rendezvous_nothing(block: &Block, group: &Group) -> Result<Met> {
        Self::meet(block, group, Ok(None))
    }

    fn meet(block: &Block, group: &Group, brought: Result<Option<Covered>>) -> Result<Met> {
        let span = tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes = block.bytes());
        let _entered = span.enter();
        group.operate(Op::Rendezvous, None, |running| running.rendezvous(block, brought))
    }

    /// The table of an earlier rendezvous to which all ranks brought memory.
    fn kept(block: &Block, group: &Group) -> Option<Arc<Self>> {
        block.tables.find(group, KEY).filter(|table| table.without.is_empty())
    }
}

/// Whether `block` can be brought.
fn check_block(block: &Block) -> Result<()> {
    block.check_usable(Op::Rendezvous.name())?;
    check_bytes(block.bytes())
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
    fn rendezvous(&self, block: &Block, brought: Result<Option<Covered>>) -> Result<Met> {
        self.check_local()?;
        // Until the vote is over: whoever else would bring this memory does so meanwhile, and is refused.
        let covered = brought.as_ref().ok().cloned().flatten();
        let claim = brought.and_then(|_| block.tables.claim(self.group(), KEY));
        let kept = Table::kept(block, self.group());
        let make_pad = || self.group().context().provider().alloc(block.signal_pad_size());
        let made = claim.and_then(|claim| Ok((claim, kept.is_none().then(make_pad).transpose()?)));
        let mine = Request {
            number: kept.as_ref().map(|table| table.number),
            error: made.as_ref().err().map(Error::to_string),
            ..Request::new(block, covered.as_ref(), self.group().context().backend())
        };
        let agreed = self.compare_requests(&mine)?;
        let (claim, pad) = made?;
        let (offsets, rest) = (Offsets::new(&agreed.starts), agreed.rest);
        let table = match kept.filter(|_| agreed.again) {
            Some(table) => table,
            None => {
                // Some rank has a table of another rendezvous, which needs a new pad now: whether it has one is in the vote.
                let table = self.exchange(block, pad.map_or_else(make_pad, Ok), agreed)?;
                claim.keep(Arc::clone(&table));
                table
            }
        };
        Ok(Met { table, offsets, rest })
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
        Shared::of(&requests).map_err(|impossible| match impossible {
            Some(rank) => {
                let message = "what it said about its memory cannot be".to_owned();
                Error::Rank { context: self.context(), rank, message }
            }
            None => {
                let problem = "no rank brings memory. Hint: at least one of them allocates";
                Error::invalid(Op::Rendezvous.name(), problem)
            }
        })
    }

    /// Steps 2 and 3: handles, mappings, vote.
    fn exchange(
        &self,
        block: &Block,
        pad: Result<Arc<dyn LocalMemory>>,
        agreed: Shared,
    ) -> Result<Arc<Table>> {
        let joined = self.group().context().provider().join(self)?;
        let pad = pad.and_then(|pad| match self.group().context().config().get_populate() {
            true => {
                block.memory().map_or(Ok(()), |memory| memory.populate()).and(pad.populate()).map(|()| pad)
            }
            false => Ok(pad),
        });
        let (peers, ()) = PeerTable::share(self, &joined, &[], block.memory().cloned(), pad, |_, _| Ok(()))?;
        let Shared { bytes, layout, without, .. } = agreed;
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
#[derive(Debug)]
struct Shared {
    /// Of each rank that brings memory.
    bytes: usize,
    /// What the first one of them covers.
    layout: Layout,
    /// The ranks that bring nothing.
    without: Vec<usize>,
    /// The first byte of each rank's handle.
    starts: Vec<usize>,
    /// Bytes that all of them have behind it.
    rest: usize,
    /// All ranks have the table of one rendezvous.
    again: bool,
}

impl Shared {
    /// What `requests` come to, whose terms are the same. An error is the rank that said what cannot be; none: all bring nothing.
    fn of(requests: &[Request]) -> Result<Self, Option<usize>> {
        let without: Vec<usize> = (0..requests.len()).filter(|rank| requests[*rank].nothing).collect();
        let layouts = requests.iter().enumerate().filter(|(_, request)| !request.nothing);
        let layouts: Vec<(usize, Layout)> = layouts
            .map(|(rank, request)| Ok((rank, request.layout().ok_or(Some(rank))?)))
            .collect::<Result<_, Option<usize>>>()?;
        let (first, mut layout) = layouts.first().cloned().ok_or(None)?;
        let bytes = requests[first].bytes;
        let farthest = layouts.iter().map(|(_, layout)| layout.start).max().unwrap_or(0);
        let rest = bytes - farthest;
        if requests[first].rest {
            layout.shape = vec![rest / layout.dtype.size()];
        }
        let mut starts = vec![layout.start; requests.len()];
        layouts.iter().for_each(|(rank, layout)| starts[*rank] = layout.start);
        let number = requests[0].number;
        let again = number.is_some() && requests.iter().all(|request| request.number == number);
        Ok(Self { bytes, layout, without, starts, rest, again })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(offset: usize, shape: &[usize], rest: bool) -> Request {
        Request {
            bytes: 100,
            pad_bytes: 64,
            dtype: "i32".to_owned(),
            provider: "shm".to_owned(),
            offset,
            shape: shape.to_vec(),
            rest,
            number: Some(3),
            nothing: false,
            error: None,
        }
    }

    fn nothing() -> Request {
        Request {
            nothing: true,
            number: None,
            dtype: "nothing".to_owned(),
            bytes: 0,
            ..request(0, &[], false)
        }
    }

    #[test]
    fn all_ranks_have_what_is_behind_the_farthest_offset() {
        let shared = Shared::of(&[request(8, &[23], true), request(40, &[15], true)]).unwrap();
        assert_eq!((shared.starts, shared.rest, shared.layout.shape), (vec![8, 40], 60, vec![15]));
        // What a rank asks for is what it gets.
        let shared = Shared::of(&[request(8, &[2, 3], false), request(96, &[1], true)]).unwrap();
        assert_eq!((shared.rest, shared.layout.shape), (4, vec![2, 3]));
    }

    #[test]
    fn ranks_that_bring_nothing_begin_where_the_first_one_with_memory_does() {
        let shared =
            Shared::of(&[nothing(), request(8, &[1], false), nothing(), request(4, &[1], false)]).unwrap();
        assert_eq!((shared.starts, shared.without), (vec![8, 8, 8, 4], vec![0, 2]));
        assert!(!shared.again);
        assert_eq!(Shared::of(&[nothing(), nothing()]).unwrap_err(), None);
    }

    #[test]
    fn a_rank_whose_handle_would_leave_its_memory_is_named() {
        for wrong in [
            request(104, &[0], true),
            request(100, &[1], false),
            request(0, &[26], false),
            request(2, &[1], false),
            request(usize::MAX - 3, &[1], true),
            request(0, &[usize::MAX, 8], false),
            Request { dtype: "who knows".to_owned(), ..request(0, &[1], false) },
        ] {
            assert_eq!(Shared::of(&[request(0, &[25], true), wrong]).unwrap_err(), Some(1));
        }
        assert!(Shared::of(&[request(100, &[0], true), request(0, &[25], false)]).is_ok());
    }

    #[test]
    fn a_table_is_used_again_only_where_all_mean_the_same() {
        let with = |number| Request { number, ..request(0, &[1], true) };
        let again = |all: &[Option<u64>]| {
            let requests: Vec<Request> = all.iter().map(|number| with(*number)).collect();
            Shared::of(&requests).unwrap().again
        };
        assert!(again(&[Some(3), Some(3)]));
        assert!(!again(&[Some(3), Some(4)]) && !again(&[Some(3), None]) && !again(&[None, None]));
    }
}
