//! The rendezvous: compare, exchange handles, map, vote. It is the same for memory of the host and of devices
//! (`device/rendezvous.rs`), which differ in what they make of everybody's addresses.
//!
//! 1. Every rank says what it brings, where its handle begins in it, and which table it has of that already;
//!    any disagreement or local failure is the same error on every rank, before anything is sent. A rank may
//!    bring nothing, and says so: it has a pad, and no memory. Where all ranks have the same table already,
//!    the rendezvous ends here.
//! 2. Every rank sends its handles to every other one and maps what it gets. A rank that fails here goes
//!    straight to the vote, and whoever waits for its handles sees that.
//! 3. The vote: all have the table, or nobody has, and the same allocations can try again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use super::MemoryBlock;
use super::bases::Bases;
use super::offsets::Offsets;
use crate::group::{Group, Proposal, Running};
use crate::numeric::{DType, Element};
use crate::operation::{MAX_BYTES, Op, signature};
use crate::sys::fault::{self, Point};
use crate::table::PeerTable;
use crate::{Error, Result};

/// A rank has one table of an allocation on a group.
pub(super) const KEY: usize = 0;

/// What all tables have, for any memory.
pub(super) trait KeptTable {
    /// Which rendezvous of the group it is of, the same on every rank.
    fn number(&self) -> u64;

    /// Where [`CLOSED`] is, beside what else operations look at.
    fn state(&self) -> &AtomicU8;

    #[inline]
    fn check_open(&self, op: &'static str) -> Result<()> {
        let closed = self.state().load(Ordering::Relaxed) & CLOSED != 0;
        if closed { Err(Error::Closed { op }) } else { Ok(()) }
    }
}

/// Everybody's memory and pad, as this rank reaches them.
#[derive(Debug)]
pub struct HostTable {
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

    /// All elements from `offset` on, of `len` in all.
    pub(super) fn behind<T: Element>(offset: usize, len: usize) -> Result<Self> {
        let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<T>() as u64);
        let beyond = || Error::OutOfBounds {
            op: Op::Rendezvous.name(),
            offset: bytes(offset),
            bytes: 0,
            size: bytes(len),
        };
        let left = len.checked_sub(offset).ok_or_else(beyond)?;
        Ok(Self::new(T::DTYPE, offset * size_of::<T>(), &[left]))
    }

    /// Bytes of the elements, if they are aligned and within the first `size` bytes.
    pub(super) fn bytes_within(&self, size: usize) -> Option<usize> {
        // One side of none makes it empty, however long the others are.
        let bytes = match self.shape.contains(&0) {
            true => 0,
            false => self.shape.iter().copied().try_fold(self.dtype.size(), usize::checked_mul)?,
        };
        let fits = self.start.is_multiple_of(self.dtype.size()) && self.start.checked_add(bytes)? <= size;
        fits.then_some(bytes)
    }
}

/// Reads any bytes as what a rank brings to a rendezvous.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_request(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<RendezvousProposal>(bytes) {
        let _ = (request.error(), request.terms(), request.layout());
    }
}

/// What a rank brings to a rendezvous. All that bring something must bring the same. Who brings device memory
/// names a provider of devices, so where ranks do not mean the same place all find it.
#[derive(Debug, Serialize, Deserialize)]
struct RendezvousProposal {
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
    /// Elements of the handle, where the ranks may not differ in that.
    #[serde(default)]
    part: Option<usize>,
    /// The rendezvous that this rank has already.
    #[serde(default)]
    number: Option<u64>,
    #[serde(default)]
    nothing: bool,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Proposal for RendezvousProposal {
    const WHAT: &str = "the allocation";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let Self { bytes, pad_bytes, dtype, provider, part, .. } = self;
        let what = match self.dtype() {
            Some(dtype) => format!("{} x {dtype}", bytes / dtype.size()),
            None => format!("{bytes} bytes of {dtype}"),
        };
        let part = part.map(|len| format!(", a part of {len} elements")).unwrap_or_default();
        format!("{what} in {provider}, pad of {pad_bytes} bytes{part}")
    }

    fn is_nothing(&self) -> bool {
        self.nothing
    }
}

impl RendezvousProposal {
    fn dtype(&self) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == self.dtype)
    }

    /// What the rank's handle covers, if that can be.
    fn layout(&self) -> Option<Layout> {
        let layout = Layout::new(self.dtype()?, self.offset, &self.shape);
        layout.bytes_within(self.bytes).map(|_| layout)
    }
}

/// What a rank's handle is to cover of what it brings.
#[derive(Clone, Debug)]
pub struct Covered {
    pub(super) layout: Layout,
    /// All that follows the layout's start, as far as all ranks have it.
    pub(super) rest: bool,
}

impl Covered {
    /// The first byte, and how many; `None` where all ranks say how many.
    pub(super) fn range(&self) -> (usize, Option<usize>) {
        let Layout { dtype, start, shape } = &self.layout;
        let bytes = || shape.iter().copied().fold(dtype.size(), usize::saturating_mul);
        (*start, (!self.rest).then(bytes))
    }
}

/// How a rank comes to a rendezvous.
pub(super) struct Coming<'a, T> {
    pub(super) block: &'a MemoryBlock<T>,
    /// Which of the rank's tables on the group is meant.
    pub(super) key: usize,
    /// The name of where the memory is from.
    pub(super) provider: &'a str,
    /// What the handle is to cover, if the rank brings something. A rank whose own arguments are wrong, or
    /// whose memory cannot be used, tells the others instead of staying away.
    pub(super) covered: Result<Option<Covered>>,
    /// Elements of the handle, if all ranks must have as many.
    pub(super) part: Option<usize>,
}

/// What the ranks agreed on.
#[derive(Debug)]
pub(super) struct AgreedRendezvous {
    /// Of each rank that brings memory.
    bytes: usize,
    /// What the first one of them covers.
    layout: Layout,
    /// The ranks that bring nothing.
    without: Vec<usize>,
    /// Where the handle of each rank begins, in bytes. Those of ranks that bring nothing begin where that of
    /// the first one with memory does.
    pub(super) offsets: Vec<usize>,
    /// Bytes that all ranks with memory have behind their offsets.
    pub(super) rest: usize,
    /// Whether all ranks have the same table of it.
    is_kept: bool,
}

impl AgreedRendezvous {
    /// What `requests` come to, whose terms are the same. An error is the rank that said what cannot be;
    /// none: all bring nothing.
    fn of(requests: &[RendezvousProposal]) -> Result<Self, Option<usize>> {
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
        let mut offsets = vec![layout.start; requests.len()];
        layouts.iter().for_each(|(rank, layout)| offsets[*rank] = layout.start);
        let number = requests[0].number;
        let is_kept = number.is_some() && requests.iter().all(|request| request.number == number);
        Ok(Self { bytes, layout, without, offsets, rest, is_kept })
    }

    pub(super) fn offsets_differ(&self) -> bool {
        self.offsets.iter().any(|offset| *offset != self.offsets[0])
    }
}

impl<T: KeptTable> Coming<'_, T> {
    /// Collective: what `make` makes of the table that all ranks have already, if they have one; it is kept
    /// with the block.
    pub(super) fn meet(
        self,
        group: &Group,
        make: impl FnOnce(&Running<'_>, &AgreedRendezvous, Option<Arc<T>>) -> Result<Arc<T>>,
    ) -> Result<(Arc<T>, AgreedRendezvous)> {
        let bytes = self.block.bytes();
        let span = tracing::debug_span!("symmem.rendezvous", group = group.name(), bytes);
        let _entered = span.enter();
        group.operate(Op::Rendezvous, None, |running| self.meet_in(running, make))
    }

    fn meet_in(
        self,
        running: &Running<'_>,
        make: impl FnOnce(&Running<'_>, &AgreedRendezvous, Option<Arc<T>>) -> Result<Arc<T>>,
    ) -> Result<(Arc<T>, AgreedRendezvous)> {
        let Self { block, key, provider, covered, part } = self;
        let (group, tables) = (running.group(), &block.tables);
        // Until the vote is over: whoever else would bring this memory does so meanwhile, and is refused.
        let claim = covered.and_then(|covered| Ok((tables.claim(group, key)?, covered)));
        let kept = tables.find(group, key);
        let covered = claim.as_ref().ok().and_then(|(_, covered)| covered.as_ref());
        let layout = covered.map(|covered| &covered.layout);
        let request = RendezvousProposal {
            bytes: block.bytes(),
            pad_bytes: block.signal_pad_size(),
            dtype: layout.map_or("nothing", |layout| layout.dtype.name()).to_owned(),
            provider: provider.to_owned(),
            offset: layout.map_or(0, |layout| layout.start),
            shape: layout.map(|layout| layout.shape.clone()).unwrap_or_default(),
            rest: covered.is_some_and(|covered| covered.rest),
            part,
            number: kept.as_ref().map(|table| table.number()),
            nothing: layout.is_none(),
            error: claim.as_ref().err().map(Error::to_string),
        };
        let agreed = running.compare_requests(&request)?;
        let (claim, _) = claim?;
        let table = make(running, &agreed, kept.filter(|_| agreed.is_kept))?;
        claim.keep(Arc::clone(&table));
        Ok((table, agreed))
    }
}

/// Collective: ends the use of `table` by all its handles, and gives the memory of `block` free.
pub(super) fn close<T: KeptTable>(
    running: &Running<'_>,
    block: &MemoryBlock<T>,
    key: usize,
    table: &Arc<T>,
) -> Result<()> {
    fault::point(Point::Closing);
    let number = table.number();
    match running.inner().is_local() {
        true => running.meet(signature(Op::Close, 0, number)).map(drop)?,
        false => running.all_gather(Op::Close, 0, number, &[]).map(drop)?,
    }
    table.state().fetch_or(CLOSED, Ordering::Relaxed);
    block.tables.forget(running.group(), key, table);
    Ok(())
}

impl KeptTable for HostTable {
    fn number(&self) -> u64 {
        self.number
    }

    fn state(&self) -> &AtomicU8 {
        &self.state
    }
}

/// What comes of a rendezvous.
pub(super) struct Met {
    pub(super) table: Arc<HostTable>,
    /// Where the handles of all ranks begin.
    pub(super) offsets: Offsets,
    /// Bytes that all ranks with memory have behind their offsets.
    pub(super) rest: usize,
}

impl HostTable {
    /// Collective: the table for `block` on `group`, kept with the block, and everybody's offsets. A rank
    /// whose own `arguments` are wrong, or whose memory is poisoned, tells the others instead of staying
    /// away.
    pub(super) fn rendezvous_at(
        block: &MemoryBlock,
        group: &Group,
        arguments: Result<Covered>,
    ) -> Result<Met> {
        let sound = arguments.and_then(|covered| block.check_usable(Op::Rendezvous.name()).map(|()| covered));
        Self::meet(block, group, sound.map(Some))
    }

    /// Collective: the table for a rank that brings nothing but the pad of `block`.
    pub(super) fn rendezvous_nothing(block: &MemoryBlock, group: &Group) -> Result<Met> {
        Self::meet(block, group, Ok(None))
    }

    fn meet(block: &MemoryBlock, group: &Group, covered: Result<Option<Covered>>) -> Result<Met> {
        let provider = Self::provider_of(block, group);
        let coming = Coming { block, key: KEY, provider: &provider, covered, part: None };
        let (table, agreed) =
            coming.meet(group, |running, agreed, kept| Self::kept_or_shared(running, block, agreed, kept))?;
        Ok(Met { table, offsets: Offsets::new(&agreed.offsets), rest: agreed.rest })
    }

    /// [`HostTable::rendezvous_at`] as a part of an operation that runs already.
    pub(super) fn rendezvous_in(
        running: &Running<'_>,
        block: &MemoryBlock,
        covered: Result<Covered>,
    ) -> Result<Met> {
        let provider = Self::provider_of(block, running.group());
        let coming = Coming { block, key: KEY, provider: &provider, covered: covered.map(Some), part: None };
        let (table, agreed) = coming
            .meet_in(running, |running, agreed, kept| Self::kept_or_shared(running, block, agreed, kept))?;
        Ok(Met { table, offsets: Offsets::new(&agreed.offsets), rest: agreed.rest })
    }

    /// Compared with the rest: what one rank changes as cells another must not have as elements.
    fn provider_of(block: &MemoryBlock, group: &Group) -> String {
        match block.is_cells() {
            false => group.context().backend().to_owned(),
            true => format!("{} for atomic cells", group.context().backend()),
        }
    }

    fn kept_or_shared(
        running: &Running<'_>,
        block: &MemoryBlock,
        agreed: &AgreedRendezvous,
        kept: Option<Arc<Self>>,
    ) -> Result<Arc<Self>> {
        match kept {
            Some(table) => Ok(table),
            None => Ok(Arc::new(Self::share(running, block, agreed)?)),
        }
    }

    /// Of memory of `bytes` that every rank has, with pads of `pad_bytes`, which the ranks have mapped
    /// otherwise.
    pub(super) fn of_whole(
        data: Bases,
        pads: Bases,
        (bytes, pad_bytes): (usize, usize),
        number: u64,
        layout: Layout,
    ) -> Self {
        let state = AtomicU8::new(0);
        Self { data, pads, bytes, pad_bytes, number, layout, without: Vec::new(), state }
    }

    /// Steps 2 and 3: handles, mappings, vote.
    fn share(running: &Running<'_>, block: &MemoryBlock, agreed: &AgreedRendezvous) -> Result<Self> {
        running.check_local()?;
        let context = running.group().context();
        let joined = context.provider().join(running)?;
        let pad = context.provider().alloc(block.signal_pad_size()).and_then(|pad| {
            if *context.config().populate {
                block.memory().map_or(Ok(()), |memory| memory.populate())?;
                pad.populate()?;
            }
            Ok(pad)
        });
        let memory = block.memory().cloned();
        let (peers, ()) = PeerTable::share(running, &joined, &[], memory, pad, |_, _| Ok(()))?;
        Ok(Self {
            data: Bases::new(peers.data),
            pads: Bases::new(peers.pads),
            bytes: agreed.bytes,
            pad_bytes: block.signal_pad_size(),
            number: peers.number,
            layout: agreed.layout.clone(),
            state: AtomicU8::new(if agreed.without.is_empty() { 0 } else { NOT_WHOLE }),
            without: agreed.without.clone(),
        })
    }
}

impl Running<'_> {
    /// Step 1: what everybody brings. What is wrong is the same error on every rank: all see the same
    /// requests.
    fn compare_requests(&self, mine: &RendezvousProposal) -> Result<AgreedRendezvous> {
        let requests = self.compare(Op::Rendezvous, mine)?;
        // Those that bring nothing must agree with the others on the rest.
        let common = |request: &RendezvousProposal| (request.pad_bytes, request.provider.clone());
        if requests.iter().any(|request| common(request) != common(&requests[0])) {
            let terms: Vec<String> = requests.iter().map(Proposal::terms).collect();
            return Err(self.disagreement(RendezvousProposal::WHAT, &terms));
        }
        let agreed = AgreedRendezvous::of(&requests).map_err(|impossible| match impossible {
            Some(rank) => {
                let message = "what it announced about its memory is impossible".to_owned();
                Error::Rank { context: self.context(), rank, message }
            }
            None => {
                let problem = "no rank brings memory. Hint: at least one of them allocates";
                Error::invalid(Op::Rendezvous.name(), problem)
            }
        })?;
        // Collectives agree on so many bytes.
        if agreed.bytes as u64 > MAX_BYTES {
            let problem =
                format!("{} bytes are more than the {MAX_BYTES} that ranks can share", agreed.bytes);
            return Err(Error::invalid("allocation", problem));
        }
        Ok(agreed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(offset: usize, shape: &[usize], rest: bool) -> RendezvousProposal {
        RendezvousProposal {
            bytes: 100,
            pad_bytes: 64,
            dtype: "i32".to_owned(),
            provider: "shm".to_owned(),
            offset,
            shape: shape.to_vec(),
            rest,
            part: None,
            number: Some(3),
            nothing: false,
            error: None,
        }
    }

    fn nothing() -> RendezvousProposal {
        RendezvousProposal {
            nothing: true,
            number: None,
            dtype: "nothing".to_owned(),
            bytes: 0,
            ..request(0, &[], false)
        }
    }

    #[test]
    fn all_ranks_have_what_is_behind_the_farthest_offset() {
        let shared = AgreedRendezvous::of(&[request(8, &[23], true), request(40, &[15], true)]).unwrap();
        assert_eq!((shared.offsets, shared.rest, shared.layout.shape), (vec![8, 40], 60, vec![15]));
        // What a rank asks for is what it gets.
        let shared = AgreedRendezvous::of(&[request(8, &[2, 3], false), request(96, &[1], true)]).unwrap();
        assert_eq!((shared.rest, shared.layout.shape), (4, vec![2, 3]));
    }

    #[test]
    fn ranks_that_bring_nothing_begin_where_the_first_one_with_memory_does() {
        let shared =
            AgreedRendezvous::of(&[nothing(), request(8, &[1], false), nothing(), request(4, &[1], false)])
                .unwrap();
        assert_eq!((shared.offsets, shared.without), (vec![8, 8, 8, 4], vec![0, 2]));
        assert!(!shared.is_kept);
        assert_eq!(AgreedRendezvous::of(&[nothing(), nothing()]).unwrap_err(), None);
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
            RendezvousProposal { dtype: "who knows".to_owned(), ..request(0, &[1], false) },
        ] {
            assert_eq!(AgreedRendezvous::of(&[request(0, &[25], true), wrong]).unwrap_err(), Some(1));
        }
        assert!(AgreedRendezvous::of(&[request(100, &[0], true), request(0, &[25], false)]).is_ok());
    }

    #[test]
    fn a_table_is_used_again_only_where_all_mean_the_same() {
        let with = |number| RendezvousProposal { number, ..request(0, &[1], true) };
        let again = |all: &[Option<u64>]| {
            let requests: Vec<RendezvousProposal> = all.iter().map(|number| with(*number)).collect();
            AgreedRendezvous::of(&requests).unwrap().is_kept
        };
        assert!(again(&[Some(3), Some(3)]));
        assert!(!again(&[Some(3), Some(4)]) && !again(&[Some(3), None]) && !again(&[None, None]));
    }
}
