//! What only the handle of host memory can do: this rank's elements, views of other ranks', terms of its
//! calls.
//!
//! Public, as methods of [`SymmetricMemory`]. Signals and one-sided copies have files of their own
//! (`memory/signals.rs`, `memory/one_sided.rs`).

use std::sync::Arc;
use std::time::Duration;

use symmem_store::CancelToken;

use crate::Result;
use crate::group::Group;
use crate::memory::allocation::salvage;
use crate::memory::{Layout, Local, LocalMut, MemoryBlock, PadView, PeerView, SymmetricMemory};
use crate::numeric::Element;
use crate::operation::{Algorithm, Collective};

impl<T: Element> SymmetricMemory<T> {
    /// The handle's first element in the allocation of rank `rank`: where `peer`, `get` and `put` count from.
    pub fn offset_of(&self, rank: usize) -> Result<usize> {
        self.group().check_rank("offset_of", rank)?;
        Ok(self.parts.first_byte(rank) / size_of::<T>())
    }

    /// The ranks that brought nothing to the rendezvous ([`Group::rendezvous_nothing`]), in order. Where
    /// there are any, collectives are refused ([`Error::NothingBrought`](crate::Error::NothingBrought)), on
    /// all ranks alike.
    pub fn ranks_without_memory(&self) -> &[usize] {
        &self.parts.table.without
    }

    /// What the first rank that brought memory covered of it with its handle, in the rendezvous that made the
    /// table: for those who brought nothing and want to view it.
    pub fn layout(&self) -> &Layout {
        &self.parts.table.layout
    }

    /// Every rank's allocation, in rank order, at its address in this process (without the handle's offset);
    /// null for ranks that brought nothing.
    pub fn base_ptrs(&self) -> Vec<*mut u8> {
        self.parts.table.data.all()
    }

    /// Every rank's signal pad, in rank order, at its address in this process.
    pub fn pad_ptrs(&self) -> Vec<*mut u8> {
        self.parts.table.pads.all()
    }

    /// The same memory, whose blocking calls wait for at most `timeout`.
    pub fn within(&self, timeout: Duration) -> Self {
        Self::new(self.parts.with_group(self.group().within(timeout)))
    }

    /// The same memory, whose blocking calls end when `token` is cancelled.
    pub fn cancelled_by(&self, token: &CancelToken) -> Self {
        Self::new(self.parts.with_group(self.group().cancelled_by(token)))
    }

    /// The same memory, whose blocking calls wait as those of `group` do, which may be any.
    pub fn on_terms_of(&self, group: &Group) -> Self {
        Self::new(self.parts.with_group(self.group().on_terms_of(group)))
    }

    /// The same memory on another handle of its group.
    pub(crate) fn on_group(&self, group: Group) -> Self {
        Self::new(self.parts.with_group(group))
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
        self.parts.algorithm_for(collective, self.parts.bytes)
    }

    /// What [`SymmetricMemory::using`] asked for.
    pub(crate) fn forced(&self) -> Option<Algorithm> {
        self.parts.forced
    }

    /// Borrows this rank's memory for reading.
    pub fn local(&self) -> Result<Local<'_, T>> {
        self.parts.check_own("local")?;
        Local::new(&self.parts.block, self.offset(), self.len())
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
        match self.parts.check_own("salvage") {
            Ok(()) => salvage(&self.parts.block, self.offset(), self.len()),
            Err(_) => Vec::new(),
        }
    }

    /// The elements of rank `rank` that its handle has: from its own offset on, as many as this handle has.
    pub fn peer(&self, rank: usize) -> Result<PeerView<T>> {
        self.remote(rank, &[self.len()])
    }

    /// `shape` elements of `U` of rank `rank`, from the offset of its handle on.
    pub fn remote<U: Element>(&self, rank: usize, shape: &[usize]) -> Result<PeerView<U>> {
        self.group().check_rank("view", rank)?;
        self.view(rank, self.parts.first_byte(rank), shape)
    }

    /// `shape` elements of `U` of rank `rank`, from element `offset` (in units of `U`) of the *allocation*
    /// on.
    pub fn buffer<U: Element>(&self, rank: usize, shape: &[usize], offset: usize) -> Result<PeerView<U>> {
        self.view(rank, offset.saturating_mul(size_of::<U>()), shape)
    }

    fn view<U: Element>(&self, rank: usize, start: usize, shape: &[usize]) -> Result<PeerView<U>> {
        self.group().check_rank("view", rank)?;
        self.parts.check_view("view")?;
        self.parts.check_brought("view", rank)?;
        let own = (rank == self.rank()).then(|| Arc::clone(&self.parts.block));
        PeerView::new(&self.parts.table, rank, own, start, shape)
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
        self.group().check_rank("signal_pad", rank)?;
        self.parts.check_view("signal_pad")?;
        PadView::new(&self.parts.table, rank, offset.saturating_mul(size_of::<U>()), shape)
    }

    /// Borrows this rank's memory for an operation that writes it.
    #[inline]
    pub(crate) fn borrow_exclusive(&self, op: &'static str) -> Result<LocalMut<'_, T>> {
        self.parts.check_own(op)?;
        LocalMut::new(&self.parts.block, self.offset(), self.len(), op)
    }

    /// The same memory, for the helper thread that carries started operations.
    pub(crate) fn for_helper(&self) -> Self {
        Self::new(self.parts.with_group(self.group().for_helper()))
    }

    pub(crate) fn block(&self) -> &Arc<MemoryBlock> {
        &self.parts.block
    }
}
