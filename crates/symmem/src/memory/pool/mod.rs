//! A pool: many small symmetric arrays from few blocks, which the ranks have mapped once.
//!
//! Called by users. To make an array the ranks compare what they ask for and what they have dropped since,
//! and nothing is mapped unless a block is needed. What it guarantees:
//!
//! - An array is in the same place of its block on all ranks: all take it from the same free bytes
//!   (`space.rs`), and compare that they do.
//! - The bytes of an array are used again when every rank has dropped it, with all its handles and views, on
//!   whichever group terms: each rank says so in the next call. So no old handle reaches a new array, not
//!   even another rank's.
//! - An array has borrows, poison and a signal pad of its own, and starts with zeros. Its bytes are zeroed by
//!   their own rank before any rank has the new array.
//! - An array keeps its block, whatever becomes of the pool.

mod space;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::space::{ALIGNMENT, PoolRange, Space};
use super::bases::Bases;
use super::context::bytes_of;
use super::host::HostParts;
use super::offsets::Offsets;
use super::rendezvous::{Covered, HostTable, Layout, Met};
use super::{LocalMut, MemoryBlock, SymmetricMemory};
use crate::group::{Group, Proposal, Running};
use crate::numeric::{DType, Element};
use crate::operation::{Op, signature};
use crate::provider::LocalMemory;
use crate::sys::fork;
use crate::table::{Column, Keep, Reach};
use crate::{Error, Result};

/// Bytes of a block, unless told otherwise.
const BLOCK: usize = 4 << 20;
/// The smallest block: what is asked for has a signal pad too.
const SMALLEST: usize = 64 << 10;
/// The largest: sums of a few of them fit every type.
const LARGEST: usize = isize::MAX as usize / 4;
/// What is more than this part of a block gets memory of its own, so that a block is never left half empty by
/// one array.
const LARGE: usize = 4;
/// Most arrays that a rank says it dropped in one call; the others wait for the next one.
const TOLD: usize = 4096;

/// Many small symmetric arrays from few blocks of memory. Local to make and to drop; arrays outlive it.
///
/// [`Pool::alloc`] takes one exchange between the ranks, where
/// [`Allocation::rendezvous`](crate::Allocation::rendezvous) also sends handles and maps them. Memory of
/// arrays that all ranks have dropped is used again.
///
/// ```
/// symmem::spawn(2, |group| {
///     let pool = group.pool();
///     let mut x = pool.alloc::<f32>(100)?;
///     let mut y = pool.alloc::<u64>(8)?;
///     x.fill(1.0)?;
///     y.fill(2)?;
///     x.all_reduce(symmem::ReduceOp::Sum)?;
///     y.all_reduce(symmem::ReduceOp::Sum)?;
///     assert_eq!((x.local()?[99], y.local()?[7]), (2.0, 4));
///     assert_eq!(pool.usage().blocks, 1);
///     Ok(())
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
pub struct Pool {
    group: Group,
    block_bytes: usize,
    /// Locked by operations of the group only, of which one runs at a time.
    state: Mutex<PoolState>,
    usage: UsageWords,
    dropped: Dropped,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// Blocks that the pool has. They stay until it is dropped, with the last of their arrays.
    pub blocks: usize,
    /// Bytes of these blocks.
    pub bytes: usize,
    /// Bytes of them that arrays have, with their signal pads, or had: until all ranks have said that they
    /// dropped them.
    pub used: usize,
    /// Arrays in these blocks that some rank has, as far as this rank was told.
    pub arrays: usize,
}

/// What [`PoolUsage`] is made of, for who asks while an operation runs.
#[derive(Default)]
struct UsageWords {
    blocks: AtomicUsize,
    used: AtomicUsize,
    arrays: AtomicUsize,
}

impl UsageWords {
    fn note(&self, state: &PoolState, block_bytes: usize) {
        self.blocks.store(state.blocks.len(), Ordering::Relaxed);
        self.used.store(state.blocks.len() * block_bytes - state.space.free(), Ordering::Relaxed);
        self.arrays.store(state.arrays.len(), Ordering::Relaxed);
    }
}

/// The numbers of arrays that this rank has dropped and not told yet.
type Dropped = Arc<Mutex<Vec<u64>>>;

#[derive(Default)]
struct PoolState {
    blocks: Vec<MappedBlock>,
    space: Space,
    arrays: HashMap<u64, Array>,
}

/// A block that all ranks have mapped.
struct MappedBlock {
    block: Arc<MemoryBlock>,
    table: Arc<HostTable>,
}

/// An array that some rank may still have.
struct Array {
    place: PoolRange,
    /// Ranks that have dropped it: what one of them says twice does not speak for another, which has it.
    dropped_by: BTreeSet<usize>,
}

/// Says that this rank has dropped an array, when its memory and its table are gone: with the last handle and
/// view.
#[derive(Debug)]
struct Lease {
    number: u64,
    dropped: Dropped,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The list may be locked by a thread that a forked child does not have.
        if !fork::is_child() {
            lock(&self.dropped).push(self.number);
        }
    }
}

/// This rank's bytes of an array.
#[derive(Debug)]
struct PoolPart {
    block: Arc<MemoryBlock>,
    start: usize,
    bytes: usize,
    _lease: Arc<Lease>,
}

impl LocalMemory for PoolPart {
    fn address(&self) -> u64 {
        (self.block.address() + self.start) as u64
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn mapped_bytes(&self) -> usize {
        self.bytes
    }
}

/// What a rank asks a pool for.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    dtype: String,
    len: usize,
    pad_bytes: usize,
    block_bytes: usize,
    /// The rendezvous that the pool's blocks are of, and the arrays in them: the same on all ranks, or these
    /// are different pools.
    blocks: Vec<u64>,
    arrays: usize,
    /// Arrays that this rank has dropped since it was asked last.
    dropped: Vec<u64>,
    /// Why this rank cannot take part after all.
    error: Option<String>,
}

impl Proposal for Request {
    const WHAT: &str = "the pool's array";

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn terms(&self) -> String {
        let Self { dtype, len, pad_bytes, block_bytes, blocks, arrays, .. } = self;
        format!(
            "{len} x {dtype}, pad of {pad_bytes} bytes, from a pool with {arrays} arrays in blocks {blocks:?} of {block_bytes} bytes"
        )
    }
}

impl Group {
    /// Local. A pool of this group, of blocks of 4 MiB.
    pub fn pool(&self) -> Pool {
        let (state, usage, dropped) = Default::default();
        Pool { group: self.share(), block_bytes: BLOCK, state, usage, dropped }
    }
}

impl Pool {
    /// Local. A pool of `group`, of blocks of `block_bytes`, from 64 KiB on. All ranks must say the same.
    pub fn with_blocks(group: &Group, block_bytes: usize) -> Result<Self> {
        if !(SMALLEST..=LARGEST).contains(&block_bytes) {
            let problem =
                format!("{block_bytes} bytes are not in {SMALLEST}..={LARGEST}, which blocks can have");
            return Err(Error::invalid("pool", problem));
        }
        Ok(Self { block_bytes: block_bytes.next_multiple_of(ALIGNMENT), ..group.pool() })
    }

    /// Collective. A zeroed array of `len` elements on all ranks, which must ask for the same; what differs
    /// is an error on all of them, and the next call goes on. More than a quarter of a block gets memory of
    /// its own, as by [`Group::alloc`].
    ///
    /// The group's other operations are not told apart from this one: it is one of them, and waits as long as
    /// they do.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<SymmetricMemory<T>> {
        let span = tracing::debug_span!("symmem.pool", group = self.group.name(), len);
        let _entered = span.enter();
        let made = self.group.operate(Op::PoolAlloc, None, |running| {
            // Not before: there a forked child, in which nobody may unlock it, and a second thread are
            // refused.
            let mut state = lock(&self.state);
            let pad_bytes = self.group.context().signal_pad_size();
            let bytes = bytes_of::<T>(len);
            let error = bytes.as_ref().err().map(Error::to_string);
            let fresh = self.compare(running, &mut state, (T::DTYPE, len, pad_bytes), error)?;
            let layout = Layout::new(T::DTYPE, 0, &[len]);
            let made = self.make(running, &mut state, layout, bytes?, pad_bytes, &fresh);
            self.usage.note(&state, self.block_bytes);
            made
        });
        let (block, met) = made?;
        let parts = HostParts::new(block, met, &self.group, 0, len * size_of::<T>());
        Ok(SymmetricMemory::new(parts))
    }

    /// Local. How much is in use since the last [`Pool::alloc`] that ended.
    pub fn usage(&self) -> PoolUsage {
        let [blocks, used, arrays] = [&self.usage.blocks, &self.usage.used, &self.usage.arrays]
            .map(|count| count.load(Ordering::Relaxed));
        PoolUsage { blocks, bytes: blocks * self.block_bytes, used, arrays }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Collective: everybody says what it asks for and what it dropped. The places that are free since.
    fn compare(
        &self,
        running: &Running<'_>,
        state: &mut PoolState,
        (dtype, len, pad_bytes): (DType, usize, usize),
        error: Option<String>,
    ) -> Result<Vec<PoolRange>> {
        let dropped: Vec<u64> = {
            let mut dropped = lock(&self.dropped);
            let first = dropped.len().min(TOLD);
            dropped.drain(..first).collect()
        };
        let mine = Request {
            dtype: dtype.name().to_owned(),
            len,
            pad_bytes,
            block_bytes: self.block_bytes,
            blocks: state.blocks.iter().map(|shared| shared.table.number).collect(),
            arrays: state.arrays.len(),
            dropped,
            error,
        };
        let brought = running.all_brought(Op::PoolAlloc, &mine);
        let agreed = brought.and_then(|requests| running.agree(&requests).map(|()| requests));
        // Where they do not, the others may not have heard it, or with another pool: it is told again.
        let requests = agreed.inspect_err(|_| lock(&self.dropped).extend(&mine.dropped))?;
        let fresh = state.forget(requests.iter().map(|theirs| &*theirs.dropped));
        // Their own rank's, before anybody can be given them again: see `make`.
        for place in &fresh {
            let block = &state.blocks[place.block].block;
            LocalMut::<u8>::new(block, place.bytes.start, place.bytes.len(), Op::PoolAlloc.name())?.fill(0);
        }
        Ok(fresh)
    }

    /// The array that the ranks have agreed on: its memory, and everybody's.
    fn make(
        &self,
        running: &Running<'_>,
        state: &mut PoolState,
        layout: Layout,
        bytes: usize,
        pad_bytes: usize,
        fresh: &[PoolRange],
    ) -> Result<(Arc<MemoryBlock>, Met)> {
        let pad_room = pad_bytes.next_multiple_of(ALIGNMENT);
        let room = pad_room + bytes.next_multiple_of(ALIGNMENT);
        if room > self.block_bytes / LARGE {
            return share(running, bytes, layout);
        }
        let number = running.next_tag()?;
        let place = match state.space.take(room) {
            Some(place) => place,
            None => {
                let whole = Layout::new(DType::U8, 0, &[self.block_bytes]);
                let (block, met) = share(running, self.block_bytes, whole)?;
                state.blocks.push(MappedBlock { block, table: met.table });
                state.space.add(self.block_bytes);
                let place = state.space.take(room);
                place.unwrap_or_else(|| unreachable!("a part of a block fits into an empty one"))
            }
        };
        if fresh.iter().any(|fresh| fresh.overlaps(&place)) {
            // A rank that is slower may not have zeroed them yet. Those that nobody gets now it has zeroed
            // when it comes again.
            running.meet(signature(Op::PoolAlloc, 0, number))?;
        }
        let MappedBlock { block, table } = &state.blocks[place.block];
        let lease = Arc::new(Lease { number, dropped: Arc::clone(&self.dropped) });
        let (pad_start, start) = (place.bytes.start, place.bytes.start + pad_room);
        let part = PoolPart { block: Arc::clone(block), start, bytes, _lease: Arc::clone(&lease) };
        let part = Arc::new(MemoryBlock::new(Arc::new(part), bytes, pad_bytes));
        let column = |start: usize| {
            let reach = table.data.all().into_iter().map(|base| Reach::at((base as usize + start) as u64));
            let keep: Vec<Keep> = vec![Arc::<HostTable>::clone(table), Arc::<Lease>::clone(&lease)];
            Bases::new(Column::new(reach.collect(), None, keep))
        };
        let table = HostTable::of_whole(column(start), column(pad_start), (bytes, pad_bytes), number, layout);
        state.arrays.insert(number, Array { place, dropped_by: BTreeSet::new() });
        Ok((part, Met { table: Arc::new(table), offsets: Offsets::default(), rest: bytes }))
    }
}

/// Collective, as a part of an operation: memory of `bytes` of every rank. One that has none tells the
/// others.
fn share(running: &Running<'_>, bytes: usize, layout: Layout) -> Result<(Arc<MemoryBlock>, Met)> {
    let context = running.group().context();
    let (block, covered) = match context.new_block(bytes) {
        Ok(block) => (block, Ok(Covered { layout, rest: false })),
        Err(error) => (Arc::new(MemoryBlock::nothing(context.signal_pad_size())), Err(error)),
    };
    let met = HostTable::rendezvous_in(running, &block, covered)?;
    Ok((block, met))
}

impl PoolState {
    /// Notes which arrays each of the ranks has dropped; the places of those that all have dropped, now free.
    fn forget<'a>(&mut self, dropped: impl ExactSizeIterator<Item = &'a [u64]>) -> Vec<PoolRange> {
        let (world, mut fresh) = (dropped.len(), Vec::new());
        for (rank, number) in
            dropped.enumerate().flat_map(|(rank, numbers)| numbers.iter().map(move |number| (rank, number)))
        {
            let Some(array) = self.arrays.get_mut(number) else { continue };
            array.dropped_by.insert(rank);
            if array.dropped_by.len() == world
                && let Some(array) = self.arrays.remove(number)
            {
                self.space.give_back(&array.place);
                fresh.push(array.place);
            }
        }
        fresh
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("group", &self.group.name())
            .field("block_bytes", &self.block_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else the memory of an array that this rank still has would be another one's as well.
    #[test]
    fn a_rank_that_says_twice_what_it_dropped_speaks_for_itself_alone() {
        let mut state = PoolState::default();
        state.space.add(1024);
        let place = state.space.take(128).unwrap();
        state.arrays.insert(7, Array { place: place.clone(), dropped_by: BTreeSet::new() });
        let none: &[u64] = &[];
        assert!(state.forget([none, &[7, 7, 7], none].into_iter()).is_empty());
        assert!(state.forget([none, &[7], &[7]].into_iter()).is_empty());
        assert_eq!(state.forget([&[7, 9][..], none, none].into_iter()), [place]);
        assert_eq!((state.arrays.len(), state.space.free()), (0, 1024));
    }
}
