//! Memory of the host: what its allocations and handles are made of, and how operations on it begin and fail,
//! whatever its elements.
//!
//! Used by the handle (`memory/handle.rs`, `handle.rs` here) and by the collectives on host memory. What it
//! guarantees: no operation begins on memory that is closed, and none that needs memory of every rank where a
//! rank brought none; a failure or a panic that leaves an operation poisons the memory.

mod handle;

use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::MemoryBlock;
use super::offsets::Offsets;
use super::place::{Host, Place, PlaceBlock, PlaceParts};
use super::rendezvous::{Covered, HostTable, KEY, KeptTable as _, Met, NOT_WHOLE, close};
use crate::group::{Group, Running};
use crate::operation::{Algorithm, Collective, Op, OpKind};
use crate::sys::{fork, unwind};
use crate::{Error, Result};

impl Place for Host {
    type Group = Group;
    type Algorithm = Algorithm;
    type Pointer = *mut u8;
    type Block = MemoryBlock;
    type Parts = HostParts;
}

impl PlaceBlock for MemoryBlock {
    type Table = HostTable;

    fn state(&self) -> &MemoryBlock {
        self
    }
}

/// What a handle of host memory is made of.
#[derive(Debug)]
pub struct HostParts {
    pub(in crate::memory) block: Arc<MemoryBlock>,
    pub(in crate::memory) table: Arc<HostTable>,
    pub(crate) group: Group,
    /// The handle's first byte in this rank's allocation, and where it was in everybody's at the rendezvous.
    start: usize,
    offsets: Offsets,
    pub(super) bytes: usize,
    /// What must carry collectives of this handle, whatever the group's tuning says.
    pub(crate) forced: Option<Algorithm>,
}

impl PlaceParts<Host> for HostParts {
    fn kept(block: &Arc<MemoryBlock>, group: &Group) -> Result<Option<Self>> {
        // Where some rank brought nothing, that rank has no block to keep a table with.
        let table = block.tables.find(group, KEY).filter(|table| table.without.is_empty());
        let Some(table) = table else { return Ok(None) };
        block.check_usable(Op::Rendezvous.name())?;
        let bytes = table.bytes;
        let met = Met { table, offsets: Offsets::default(), rest: bytes };
        Ok(Some(Self::new(Arc::clone(block), met, group, 0, bytes)))
    }

    fn meet(block: &Arc<MemoryBlock>, group: &Group, covered: Result<Covered>) -> Result<Self> {
        let (range, covered) = match covered {
            Ok(covered) => (covered.range(), Ok(covered)),
            Err(error) => ((0, None), Err(error)),
        };
        let met = HostTable::rendezvous_at(block, group, covered)?;
        let (start, bytes) = (range.0, range.1.unwrap_or(met.rest));
        Ok(Self::new(Arc::clone(block), met, group, start, bytes))
    }

    #[inline]
    fn group(&self) -> &Group {
        &self.group
    }

    #[inline]
    fn start(&self) -> usize {
        self.start
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        once(self.start).chain(self.offsets.ranks().map(|rank| self.first_byte(rank)))
    }

    fn buffer_size(&self) -> usize {
        self.table.bytes
    }

    fn pad_size(&self) -> usize {
        self.table.pad_bytes
    }

    fn cut(&self, start: usize, bytes: usize) -> Self {
        Self { start: self.start + start, bytes, ..self.with_group(self.group.share()) }
    }

    fn using(&self, algorithm: Algorithm) -> Self {
        Self { forced: Some(algorithm), ..self.with_group(self.group.share()) }
    }

    fn reaches(&self, op: &'static str, rank: usize) -> Result<bool> {
        self.check_view(op)?;
        Ok(!self.table.data.at(rank).is_null())
    }

    fn peer_ptr(&self, op: &'static str, rank: usize) -> Result<*mut u8> {
        self.check_view(op)?;
        self.check_brought(op, rank)?;
        let (first, size) = (self.first_byte(rank), self.table.bytes);
        // Handles of parts may differ in length, so the same part of a peer's may be beyond its end.
        if first.saturating_add(self.bytes) > size {
            let [offset, bytes, size] = [first, self.bytes, size].map(|bytes| bytes as u64);
            return Err(Error::OutOfBounds { op, offset, bytes, size });
        }
        Ok(self.table.data.at(rank).wrapping_add(first))
    }

    fn pad_ptr(&self, op: &'static str, rank: usize) -> Result<*mut u8> {
        self.check_view(op)?;
        Ok(self.table.pads.at(rank))
    }

    fn multicast_ptr(&self) -> Option<u64> {
        None
    }

    fn close(&self) -> Result<()> {
        self.operate(Op::Close, None, |running| self.seal(close(running, &self.block, KEY, &self.table)))
    }
}

impl HostParts {
    /// `bytes` bytes from byte `start` of this rank's allocation on, which are within it.
    pub(super) fn new(block: Arc<MemoryBlock>, met: Met, group: &Group, start: usize, bytes: usize) -> Self {
        let Met { table, offsets, .. } = met;
        Self { block, table, group: group.share(), start, offsets, bytes, forced: None }
    }

    /// The same memory for calls of `group`.
    pub(crate) fn with_group(&self, group: Group) -> Self {
        Self {
            block: Arc::clone(&self.block),
            table: Arc::clone(&self.table),
            group,
            offsets: self.offsets.clone(),
            ..*self
        }
    }

    /// What `collective` goes by, of a call in which ranks give `bytes` at most.
    #[inline(always)]
    pub(crate) fn algorithm_for(&self, collective: Collective, bytes: usize) -> Result<Algorithm> {
        match self.forced {
            None => Ok(self.group.choices().of(collective, bytes)),
            Some(algorithm) => collective.exactly(algorithm, self.group.size(), bytes),
        }
    }

    /// Which rendezvous of the group this is.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.table.number
    }

    /// The first byte of this handle in the allocation of rank `rank`.
    #[inline]
    pub(in crate::memory) fn first_byte(&self, rank: usize) -> usize {
        self.offsets.of(rank, (self.group.rank(), self.start))
    }

    /// Runs `work` as the operation `op`. A panic that leaves it ends the group and poisons the memory.
    #[inline(always)]
    pub(crate) fn operate<R>(
        &self,
        op: Op,
        channel: Option<usize>,
        work: impl FnOnce(&Running<'_>) -> Result<R>,
    ) -> Result<R> {
        let running = self.begin(op, channel)?;
        unwind::guard(|| self.panicked(&running), || work(&running))
    }

    /// [`HostParts::operate`] as `group`, which is the handle's own but for what ranks compare.
    pub(crate) fn operate_as<R>(
        &self,
        group: &Group,
        op: Op,
        work: impl FnOnce(&Running<'_>) -> Result<R>,
    ) -> Result<R> {
        let running = self.begin_on(group, op, None)?;
        unwind::guard(|| self.panicked(&running), || work(&running))
    }

    #[cold]
    fn panicked(&self, running: &Running<'_>) {
        running.panicked();
        self.block.panicked();
    }

    #[inline(always)]
    fn begin(&self, op: Op, channel: Option<usize>) -> Result<Running<'_>> {
        self.begin_on(&self.group, op, channel)
    }

    #[inline(always)]
    fn begin_on<'a>(&self, group: &'a Group, op: Op, channel: Option<usize>) -> Result<Running<'a>> {
        if self.table.state.load(Ordering::Relaxed) != 0 {
            self.check_state(op)?;
        }
        match group.begin(op, channel) {
            Ok(running) => Ok(running),
            Err(error) => Err(self.sealed(error)),
        }
    }

    /// What this rank brings to `op`; what is wrong with it is told to the others, who make the call.
    #[inline(always)]
    pub(crate) fn told<A>(&self, op: Op, brought: Result<A>) -> Result<A> {
        match brought {
            Ok(brought) => Ok(brought),
            Err(error) => Err(self.refuse(op, error)),
        }
    }

    /// Tells the others that this rank cannot take part in `op`. Nobody waits where it cannot begin: not on
    /// memory that all ranks closed, nor on a group that has failed.
    #[cold]
    fn refuse(&self, op: Op, error: Error) -> Error {
        match self.begin(op, None) {
            Ok(running) => running.guarded(|| running.refuse(error)),
            // Not this rank's argument alone is wrong: the call is, and all ranks get the same words.
            Err(refused @ Error::NothingBrought { .. }) => refused,
            Err(_) => error,
        }
    }

    #[inline]
    pub(in crate::memory) fn check_view(&self, op: &'static str) -> Result<()> {
        if fork::is_child() {
            return Err(Error::Forked { op });
        }
        self.table.check_open(op)
    }

    /// Whether `op` can begin on memory that is closed, or to which some rank brought nothing.
    #[cold]
    fn check_state(&self, op: Op) -> Result<()> {
        self.table.check_open(op.name())?;
        let whole = self.table.state.load(Ordering::Relaxed) & NOT_WHOLE == 0;
        match whole || !matches!(op.kind(), OpKind::Symmetric(_) | OpKind::Fused) {
            true => Ok(()),
            false => Err(Error::NothingBrought { op: op.name(), ranks: self.table.without.clone() }),
        }
    }

    /// Whether rank `rank` brought memory.
    #[inline]
    pub(in crate::memory) fn check_brought(&self, op: &'static str, rank: usize) -> Result<()> {
        match self.table.data.at(rank).is_null() {
            false => Ok(()),
            true => Err(Error::NothingBrought { op, ranks: vec![rank] }),
        }
    }

    /// Whether this rank brought memory.
    #[inline]
    pub(super) fn check_own(&self, op: &'static str) -> Result<()> {
        match self.table.state.load(Ordering::Relaxed) & NOT_WHOLE {
            0 => Ok(()),
            _ => self.check_brought(op, self.group.rank()),
        }
    }

    /// Poisons the memory when the group failed under an operation on it.
    #[inline(always)]
    pub(crate) fn seal<R>(&self, result: Result<R>) -> Result<R> {
        result.map_err(|error| self.sealed(error))
    }

    #[cold]
    fn sealed(&self, error: Error) -> Error {
        if error.is_group_failure() {
            self.poison(&error);
        }
        error
    }

    /// Marks the memory as left half written by an operation that failed with `error`.
    #[cold]
    pub(crate) fn poison(&self, error: &Error) {
        self.block.poison(error.to_string());
    }
}
