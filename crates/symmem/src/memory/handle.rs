//! The handle of symmetric memory: what a rank can do once everybody maps everybody.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use symmem_store::CancelToken;

use super::MemoryBlock;
use super::allocation::{Local, LocalMut, salvage};
use super::offsets::Offsets;
use super::rendezvous::{Covered, HostTable, KEY, KeptTable as _, Layout, Met, NOT_WHOLE, close};
use super::view::{PadView, PeerView};
use crate::engine::cpu;
use crate::group::{Group, Running};
use crate::numeric::{Element, element};
use crate::operation::{Algorithm, Collective, Op, OpKind};
use crate::sys::{fork, unwind};
use crate::{Error, Result};

/// Memory that every rank of a group maps.
///
/// A light handle: it keeps the mappings and the membership alive, and goes without a word to the peers. End
/// with [`SymmetricMemory::close`] where all ranks end together.
#[derive(Debug)]
pub struct SymmetricMemory<T: Element> {
    block: Arc<MemoryBlock>,
    pub(super) table: Arc<HostTable>,
    group: Group,
    /// First element of the handle in this rank's allocation, and where it was in everybody's at the
    /// rendezvous.
    offset: usize,
    offsets: Offsets,
    len: usize,
    /// What must carry collectives of this handle, whatever the group's tuning says.
    forced: Option<Algorithm>,
    element: PhantomData<T>,
}

impl<T: Element> SymmetricMemory<T> {
    /// A handle of all `len` elements of `block`.
    pub(super) fn rendezvous(block: &Arc<MemoryBlock>, group: &Group, len: usize) -> Result<Self> {
        let covered = || Covered { layout: Layout::new(T::DTYPE, 0, &[len]), rest: true };
        let met = HostTable::rendezvous(block, group, covered)?;
        let len = met.rest / size_of::<T>();
        Ok(Self::new(Arc::clone(block), met, group.share(), 0, len))
    }

    /// A handle of the elements from `offset` on, of `len` in all: as many as there are behind everybody's
    /// offset.
    pub(super) fn rendezvous_at(
        block: &Arc<MemoryBlock>,
        group: &Group,
        offset: usize,
        len: usize,
    ) -> Result<Self> {
        let covered = Layout::behind::<T>(offset, len).map(|layout| Covered { layout, rest: true });
        let met = HostTable::rendezvous_at(block, group, covered)?;
        let len = met.rest / size_of::<T>();
        Ok(Self::new(Arc::clone(block), met, group.share(), offset, len))
    }

    /// A handle of `shape` elements from byte `start` of the allocation on.
    pub(super) fn rendezvous_part(
        block: &Arc<MemoryBlock>,
        group: &Group,
        start: usize,
        shape: &[usize],
    ) -> Result<Self> {
        let len = shape.iter().fold(1usize, |len, side| len.saturating_mul(*side));
        let fits = element::fit::<T>(Op::Rendezvous.name(), start, len, block.bytes());
        let covered = fits.map(|()| Covered { layout: Layout::new(T::DTYPE, start, shape), rest: false });
        let met = HostTable::rendezvous_at(block, group, covered)?;
        Ok(Self::new(Arc::clone(block), met, group.share(), start / size_of::<T>(), len))
    }

    /// `len` elements from element `offset` of this rank's allocation on, which are within it.
    pub(super) fn new(block: Arc<MemoryBlock>, met: Met, group: Group, offset: usize, len: usize) -> Self {
        let Met { table, offsets, .. } = met;
        Self { block, table, group, offset, offsets, len, forced: None, element: PhantomData }
    }

    /// This rank in the group.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.group.size()
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Number of elements from the handle's offset on. Where the ranks' offsets differ, as many as all of
    /// them have behind theirs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The handle's first element in this rank's allocation.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The handle's first element in the allocation of rank `rank`: where `peer`, `get` and `put` count from.
    pub fn offset_of(&self, rank: usize) -> Result<usize> {
        self.group.check_rank("offset_of", rank)?;
        Ok(self.first_byte(rank) / size_of::<T>())
    }

    /// The ranks that brought nothing to the rendezvous ([`Group::rendezvous_nothing`]), in order. Where
    /// there are any, collectives are refused ([`Error::NothingBrought`]), on all ranks alike.
    pub fn ranks_without_memory(&self) -> &[usize] {
        &self.table.without
    }

    /// What the first rank that brought memory covered of it with its handle, in the rendezvous that made the
    /// table: for those who brought nothing and want to view it.
    pub fn layout(&self) -> &Layout {
        &self.table.layout
    }

    /// Bytes of the whole allocation, the same on every rank that brought one.
    pub fn buffer_size(&self) -> usize {
        self.table.bytes
    }

    /// Bytes of each rank's signal pad.
    pub fn signal_pad_size(&self) -> usize {
        self.table.pad_bytes
    }

    /// Every rank's allocation, in rank order, at its address in this process (without the handle's offset);
    /// null for ranks that brought nothing.
    pub fn buffer_ptrs(&self) -> Vec<*mut u8> {
        self.table.data.all()
    }

    /// Every rank's signal pad, in rank order, at its address in this process.
    pub fn signal_pad_ptrs(&self) -> Vec<*mut u8> {
        self.table.pads.all()
    }

    /// The same memory, whose blocking calls wait for at most `timeout`.
    pub fn within(&self, timeout: Duration) -> Self {
        self.with_group(self.group.within(timeout))
    }

    /// The same memory, whose blocking calls end when `token` is cancelled.
    pub fn cancelled_by(&self, token: &CancelToken) -> Self {
        self.with_group(self.group.cancelled_by(token))
    }

    /// The same memory, whose blocking calls wait as those of `group` do, which may be any.
    pub fn on_terms_of(&self, group: &Group) -> Self {
        self.with_group(self.group.on_terms_of(group))
    }

    /// The same memory, cut to its first `len` elements. Collectives work on what the handle covers, so all
    /// ranks must cut alike.
    pub fn first(mut self, len: usize) -> Result<Self> {
        if len > self.len {
            return Err(element::out_of_bounds::<T>("first", 0, len, self.len));
        }
        self.len = len;
        Ok(self)
    }

    /// Local. `len` elements of this memory from element `start` on. Collectives work on what the handle
    /// covers, so all ranks must cut alike.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<i32>(8)?.rendezvous(&group)?;
    ///     let middle = mem.part(2, 4)?;
    ///     assert_eq!((middle.offset(), middle.len()), (2, 4));
    ///     assert!(mem.part(5, 4).is_err());
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn part(&self, start: usize, len: usize) -> Result<Self> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(element::out_of_bounds::<T>("part", start, len, self.len));
        }
        Ok(self.over(self.group.share(), self.offset + start, len))
    }

    /// Local. The same memory as elements of `U`: everybody's first byte and the length must be multiples of
    /// their size. Ranks may differ in what they make of the memory, but not in one collective.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<u8>(16)?.rendezvous(&group)?;
    ///     let mut words = mem.cast::<u32>()?;
    ///     words.fill(1)?;
    ///     words.all_reduce(symmem::ReduceOp::Sum)?;
    ///     assert_eq!(*words.local()?, [2; 4]);
    ///     assert!(mem.part(1, 8)?.cast::<u32>().is_err());
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn cast<U: Element>(&self) -> Result<SymmetricMemory<U>> {
        let (offset, len) = element::recount::<T, U>(self.offset, self.len)?;
        self.offsets
            .ranks()
            .try_for_each(|rank| element::recount::<u8, U>(self.first_byte(rank), 0).map(drop))?;
        Ok(self.over(self.group.share(), offset, len))
    }

    fn with_group(&self, group: Group) -> Self {
        self.over(group, self.offset, self.len)
    }

    /// The same memory for calls of `group`, which begins at element `offset`, counted in `U`, and has `len`
    /// of them.
    fn over<U: Element>(&self, group: Group, offset: usize, len: usize) -> SymmetricMemory<U> {
        SymmetricMemory {
            block: Arc::clone(&self.block),
            table: Arc::clone(&self.table),
            group,
            offset,
            offsets: self.offsets.clone(),
            len,
            forced: self.forced,
            element: PhantomData,
        }
    }

    /// The same memory, whose collectives go by `algorithm` and no other: one that it cannot carry (because
    /// it is not among [`Collective::algorithms`], or the message is too large for it) is an error on all
    /// ranks, before anything changes. All ranks must choose alike. What has no row in [`Collective`]
    /// (`gather`, `scatter`, `all_to_all_v` and the like) has one way, and takes it.
    ///
    /// [`Config::algorithm`](crate::Config::algorithm) is for whole programs, and a wish: it gives way where
    /// it cannot carry a message.
    ///
    /// ```
    /// use symmem::{ReduceOp, tuning::Algorithm};
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
    ///     mem.using(Algorithm::Staged).all_reduce(ReduceOp::Sum)?;
    ///     assert!(mem.using(Algorithm::Push).all_reduce(ReduceOp::Sum).is_err(), "4000 bytes are too many");
    ///     mem.using(Algorithm::Push).first(4)?.all_reduce(ReduceOp::Sum)?;
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn using(&self, algorithm: Algorithm) -> Self {
        Self { forced: Some(algorithm), ..self.with_group(self.group.share()) }
    }

    /// The algorithm that `collective` takes on this handle; an error where [`SymmetricMemory::using`] asked
    /// for one that cannot carry it.
    ///
    /// ```
    /// use symmem::tuning::{Algorithm, Collective};
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<f32>(1 << 20)?.rendezvous(&group)?;
    ///     assert_eq!(mem.algorithm(Collective::AllReduce)?, Algorithm::TwoShot);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    #[inline]
    pub fn algorithm(&self, collective: Collective) -> Result<Algorithm> {
        self.algorithm_for(collective, self.len * size_of::<T>())
    }

    /// What [`SymmetricMemory::using`] asked for.
    pub(crate) fn forced(&self) -> Option<Algorithm> {
        self.forced
    }

    /// [`SymmetricMemory::algorithm`] of a call in which ranks give `bytes` at most.
    #[inline(always)]
    pub(crate) fn algorithm_for(&self, collective: Collective, bytes: usize) -> Result<Algorithm> {
        match self.forced {
            None => Ok(self.group.choices().of(collective, bytes)),
            Some(algorithm) => collective.exactly(algorithm, self.world_size(), bytes),
        }
    }

    /// Borrows this rank's memory for reading.
    pub fn local(&self) -> Result<Local<'_, T>> {
        self.check_own("local")?;
        Local::new(&self.block, self.offset, self.len)
    }

    /// Borrows this rank's memory for writing.
    pub fn local_mut(&mut self) -> Result<LocalMut<'_, T>> {
        self.borrow_exclusive("local_mut")
    }

    /// Sets every element of this rank's memory.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.local_mut()?.fill(value);
        Ok(())
    }

    /// Copies this rank's memory out whatever its state: also while borrowed, and after the group failed.
    /// Nothing, if the rank brought nothing.
    pub fn salvage(&self) -> Vec<T> {
        match self.check_own("salvage") {
            Ok(()) => salvage(&self.block, self.offset, self.len),
            Err(_) => Vec::new(),
        }
    }

    /// The elements of rank `rank` that its handle has: from its own offset on, as many as this handle has.
    pub fn peer(&self, rank: usize) -> Result<PeerView<T>> {
        self.remote(rank, &[self.len])
    }

    /// `shape` elements of `U` of rank `rank`, from the offset of its handle on.
    pub fn remote<U: Element>(&self, rank: usize, shape: &[usize]) -> Result<PeerView<U>> {
        self.group.check_rank("view", rank)?;
        self.view(rank, self.first_byte(rank), shape)
    }

    /// `shape` elements of `U` of rank `rank`, from element `offset` (in units of `U`) of the *allocation*
    /// on.
    pub fn buffer<U: Element>(&self, rank: usize, shape: &[usize], offset: usize) -> Result<PeerView<U>> {
        self.view(rank, offset.saturating_mul(size_of::<U>()), shape)
    }

    fn view<U: Element>(&self, rank: usize, start: usize, shape: &[usize]) -> Result<PeerView<U>> {
        self.group.check_rank("view", rank)?;
        self.check_view("view")?;
        self.check_brought("view", rank)?;
        let own = (rank == self.rank()).then(|| Arc::clone(&self.block));
        PeerView::new(&self.table, rank, own, start, shape)
    }

    /// The signal pad of rank `rank` as `u32`, whole.
    pub fn signal_pad(&self, rank: usize) -> Result<PadView<u32>> {
        self.signal_pad_view(rank, &[self.signal_pad_size() / size_of::<u32>()], 0)
    }

    /// `shape` elements of `U` of rank `rank`'s signal pad, from element `offset` on.
    pub fn signal_pad_view<U: Element>(
        &self,
        rank: usize,
        shape: &[usize],
        offset: usize,
    ) -> Result<PadView<U>> {
        self.group.check_rank("signal_pad", rank)?;
        self.check_view("signal_pad")?;
        PadView::new(&self.table, rank, offset.saturating_mul(size_of::<U>()), shape)
    }

    /// Reads `out.len()` elements of rank `rank` from `start` on (counted from the offset of its handle),
    /// like [`PeerView::read_into`], but as an operation of the group: it ends when the group fails, and
    /// counts.
    pub fn get(&self, rank: usize, start: usize, out: &mut [T]) -> Result<()> {
        self.group.check_rank(Op::Copy.name(), rank)?;
        self.check_brought(Op::Copy.name(), rank)?;
        self.operate(Op::Copy, None, |running| self.copy_out(running, rank, start, out))
    }

    fn copy_out(&self, running: &Running<'_>, rank: usize, start: usize, out: &mut [T]) -> Result<()> {
        let from = self.checked_address(Op::Copy, rank, start, out.len())?;
        let own = (rank == self.rank()).then_some(&*self.block);
        let _borrow = own.map(|block| Local::<T>::new(block, self.offset, self.len)).transpose()?;
        // SAFETY: in range, as just checked, and mapped while the table lives; `out` is exclusive, and so no
        // part of the memory: this rank's own is borrowed for reading.
        let copied = unsafe { cpu::copy_from_peer(running, from, out.as_mut_ptr().cast(), size_of_val(out)) };
        self.seal(copied)
    }

    /// Collective. Returns once every rank is here; what any rank wrote before is visible to all after.
    #[inline]
    pub fn barrier(&self, channel: usize) -> Result<()> {
        // Before the operation begins: inside of it the check would cost a barrier a fifth of its
        // instructions.
        self.told(Op::MemoryBarrier, self.check_channel(Op::MemoryBarrier.name(), channel))?;
        self.operate(Op::MemoryBarrier, Some(channel), |running| {
            self.seal(cpu::barrier(running, channel, self.table.number))
        })
    }

    /// Raises this rank's signal on `channel` at `rank`, after waiting until the previous one was consumed.
    /// What this rank wrote before is visible to `rank` once it has waited for the signal.
    pub fn put_signal(&self, rank: usize, channel: usize) -> Result<()> {
        let slot = self.slot(Op::PutSignal, rank, channel, rank, self.rank())?;
        let put = |running: &Running<'_>| self.seal(cpu::put_signal(running, slot, rank));
        self.operate(Op::PutSignal, Some(channel), put)
    }

    /// Consumes the signal on `channel` from `rank`, waiting for it.
    pub fn wait_signal(&self, rank: usize, channel: usize) -> Result<()> {
        let slot = self.slot(Op::WaitSignal, rank, channel, self.rank(), rank)?;
        let wait = |running: &Running<'_>| self.seal(cpu::wait_signal(running, slot, rank));
        self.operate(Op::WaitSignal, Some(channel), wait)
    }

    /// [`SymmetricMemory::put_signal`] without waiting: false if the previous signal is still pending.
    pub fn try_put_signal(&self, rank: usize, channel: usize) -> Result<bool> {
        let slot = self.slot(Op::PutSignal, rank, channel, rank, self.rank())?;
        self.operate(Op::PutSignal, Some(channel), |running| Ok(cpu::try_put_signal(running, slot, rank)))
    }

    /// [`SymmetricMemory::wait_signal`] without waiting: false if there is no signal.
    pub fn try_wait_signal(&self, rank: usize, channel: usize) -> Result<bool> {
        let slot = self.slot(Op::WaitSignal, rank, channel, self.rank(), rank)?;
        self.operate(Op::WaitSignal, Some(channel), |running| Ok(cpu::try_wait_signal(running, slot, rank)))
    }

    /// Collective. Ends the use of the memory on this group: all its handles give [`Error::Closed`] from here
    /// on. Views that exist stay valid, and the allocation can be rendezvoused again.
    pub fn close(self) -> Result<()> {
        self.close_all()
    }

    /// [`SymmetricMemory::close`], for who keeps a handle: one that could not begin can be repeated.
    pub(super) fn close_all(&self) -> Result<()> {
        self.operate(Op::Close, None, |running| self.seal(close(running, &self.block, KEY, &self.table)))
    }

    /// Borrows this rank's memory for an operation that writes it.
    #[inline]
    pub(crate) fn borrow_exclusive(&self, op: &'static str) -> Result<LocalMut<'_, T>> {
        self.check_own(op)?;
        LocalMut::new(&self.block, self.offset, self.len, op)
    }

    /// The same memory, for the helper thread that carries started operations.
    pub(crate) fn for_helper(&self) -> Self {
        self.with_group(self.group.for_helper())
    }

    pub(crate) fn block(&self) -> &Arc<MemoryBlock> {
        &self.block
    }

    /// Which rendezvous of the group this is.
    pub(crate) fn number(&self) -> u64 {
        self.table.number
    }

    /// The first byte of this handle in the allocation of rank `rank`.
    #[inline]
    pub(super) fn first_byte(&self, rank: usize) -> usize {
        self.offsets.of(rank, (self.rank(), self.offset * size_of::<T>()))
    }

    /// The address of element `start` of rank `rank`'s allocation, if it brought one, and if `len` elements
    /// follow.
    pub(crate) fn element_address(&self, rank: usize, start: usize, len: usize) -> Option<*mut u8> {
        let end = start.checked_add(len)?.checked_mul(size_of::<T>())?;
        let first = self.table.data.at(rank);
        // SAFETY: within the allocation, as just checked, which has the same size on every rank that brought
        // one.
        (end <= self.table.bytes && !first.is_null()).then(|| unsafe { first.add(start * size_of::<T>()) })
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

    /// [`SymmetricMemory::operate`] as `group`, which is the handle's own but for what ranks compare.
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
    pub(super) fn check_view(&self, op: &'static str) -> Result<()> {
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
    pub(super) fn check_brought(&self, op: &'static str, rank: usize) -> Result<()> {
        match self.table.data.at(rank).is_null() {
            false => Ok(()),
            true => Err(Error::NothingBrought { op, ranks: vec![rank] }),
        }
    }

    /// Whether this rank brought memory.
    #[inline]
    fn check_own(&self, op: &'static str) -> Result<()> {
        match self.table.state.load(Ordering::Relaxed) & NOT_WHOLE {
            0 => Ok(()),
            _ => self.check_brought(op, self.rank()),
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

    fn check_channel(&self, op: &'static str, channel: usize) -> Result<()> {
        let channels = self.table.pad_bytes / (size_of::<u32>() * self.world_size());
        if channel < channels {
            return Ok(());
        }
        Err(Error::ChannelOutOfRange { op, channel, channels })
    }

    /// The slot in rank `at`'s pad that rank `from` raises.
    fn slot(&self, op: Op, rank: usize, channel: usize, at: usize, from: usize) -> Result<&AtomicU32> {
        self.group.check_rank(op.name(), rank)?;
        self.check_channel(op.name(), channel)?;
        let index = self.world_size() * channel + from;
        // SAFETY: the pad begins with a page or, in a pool, a line of the cache, and has this slot, as
        // `check_channel` saw; it is mapped while `self` lives; everybody accesses it by atomics or opaque
        // copies.
        Ok(unsafe { &*self.table.pads.at(at).cast::<AtomicU32>().add(index) })
    }
}
