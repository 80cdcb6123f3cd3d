//! A local allocation and the guards that give access to one's own memory.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{MemoryBlock, SymmetricMemory};
use crate::Result;
use crate::group::Group;
use crate::numeric::Element;
use crate::sys::copy;

/// Zeroed memory of this rank that can become symmetric. Local to make, local to drop.
///
/// ```
/// let mut x = symmem::RankContext::from_env()?.alloc::<u32>(4)?;
/// x.local_mut()?[2] = 7;
/// assert_eq!(*x.local()?, [0, 0, 7, 0]);
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Allocation<T: Element> {
    block: Arc<MemoryBlock>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Allocation<T> {
    pub(crate) fn new(block: Arc<MemoryBlock>, len: usize) -> Self {
        block.add_user();
        Self { block, len, element: PhantomData }
    }

    pub(super) fn block(&self) -> &Arc<MemoryBlock> {
        &self.block
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element's address; the same for the life of the allocation.
    pub fn as_ptr(&self) -> *const T {
        self.block.address() as *const T
    }

    /// Bytes of the signal pads that rendezvous will make, fixed when this was allocated.
    pub fn signal_pad_size(&self) -> usize {
        self.block.signal_pad_size()
    }

    /// Borrows the memory for reading.
    pub fn local(&self) -> Result<Local<'_, T>> {
        Local::new(&self.block, 0, self.len)
    }

    /// Borrows the memory for writing.
    pub fn local_mut(&mut self) -> Result<LocalMut<'_, T>> {
        LocalMut::new(&self.block, 0, self.len, "local_mut")
    }

    /// Sets every element.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.local_mut()?.fill(value);
        Ok(())
    }

    /// Collective over `group`: everybody maps everybody's allocation, which must agree in size, element type
    /// and pad size. Either all ranks succeed or all get the same error, and the allocation can be tried
    /// again.
    ///
    /// The result is kept with the allocation: a second call for the same group is local and gives another
    /// handle. The allocation is this rank's part of the group then: another rank, a thread that shares it,
    /// is refused ([`Error::Rank`](crate::Error::Rank)) until it is closed.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mut x = group.alloc::<u64>(8)?;
    ///     x.fill(group.rank() as u64)?;
    ///     let mem = x.rendezvous(&group)?;
    ///     mem.barrier(0)?;
    ///     assert_eq!(mem.peer(group.next())?.read(3)?, group.next() as u64);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn rendezvous(&self, group: &Group) -> Result<SymmetricMemory<T>> {
        SymmetricMemory::rendezvous(&self.block, group, self.len)
    }

    /// Collective, every time: [`Allocation::rendezvous`] with a handle that starts at element `offset`.
    /// Ranks may differ in it, and learn each other's: the handle has as many elements as all of them have
    /// behind their offsets, and a peer is seen from its own offset on.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mut x = group.alloc::<u64>(8)?;
    ///     x.local_mut()?.copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7]);
    ///     let mem = x.rendezvous_at(&group, 3 * group.rank())?;
    ///     assert_eq!((mem.offset(), mem.len()), (3 * group.rank(), 5));
    ///     mem.barrier(0)?;
    ///     assert_eq!((mem.peer(0)?.read(0)?, mem.peer(1)?.read(0)?), (0, 3));
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn rendezvous_at(&self, group: &Group, offset: usize) -> Result<SymmetricMemory<T>> {
        SymmetricMemory::rendezvous_at(&self.block, group, offset, self.len)
    }

    /// Collective, every time: [`Allocation::rendezvous`] as elements of `U`, with a handle of `len` of them
    /// from byte `start` on, which must be a multiple of their size. For allocations whose element type is
    /// known only at run time: the ranks compare `U`, not `T`. Ranks may differ in `start`, and a peer is
    /// seen from its own on; collectives need the same `len` everywhere.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let bytes = group.alloc::<u8>(64)?;
    ///     let mem = bytes.rendezvous_as::<f32>(&group, 16, 4)?;
    ///     assert_eq!((mem.offset(), mem.len()), (4, 4));
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn rendezvous_as<U: Element>(
        &self,
        group: &Group,
        start: usize,
        len: usize,
    ) -> Result<SymmetricMemory<U>> {
        self.rendezvous_shaped(group, start, &[len])
    }

    /// Collective, every time: [`Allocation::rendezvous_as`] with a handle of `shape` elements. The shape is
    /// for ranks that bring nothing, who find it in [`SymmetricMemory::layout`].
    pub fn rendezvous_shaped<U: Element>(
        &self,
        group: &Group,
        start: usize,
        shape: &[usize],
    ) -> Result<SymmetricMemory<U>> {
        SymmetricMemory::rendezvous_part(&self.block, group, start, shape)
    }

    /// As [`MemoryBlock::mark_as_cells`].
    pub(super) fn mark_as_cells(&self) {
        self.block.mark_as_cells();
    }

    /// Copies the memory out whatever its state: also while borrowed, and after the group failed.
    pub fn salvage(&self) -> Vec<T> {
        salvage(&self.block, 0, self.len)
    }
}

impl<T: Element> Drop for Allocation<T> {
    fn drop(&mut self) {
        self.block.remove_user();
    }
}

/// Copies `len` elements from element `offset` on out of `block`, opaquely: a peer may be writing.
pub(super) fn salvage<T: Element>(block: &MemoryBlock, offset: usize, len: usize) -> Vec<T> {
    let mut data = vec![T::zeroed(); len];
    let bytes = size_of_val(&data[..]);
    let start = offset * size_of::<T>();
    debug_assert!(start + bytes <= block.bytes());
    // SAFETY: the block holds `start + bytes` bytes (its handles are bounds-checked) and `data` holds
    // `bytes`.
    unsafe { copy::read((block.address() as *const u8).add(start), data.as_mut_ptr().cast(), bytes) };
    data
}

/// This rank's memory, borrowed for reading. While it lives, operations that write the memory give
/// [`Error::Borrowed`](crate::Error::Borrowed).
#[derive(Debug)]
pub struct Local<'a, T: Element> {
    block: &'a MemoryBlock,
    offset: usize,
    len: usize,
    element: PhantomData<&'a [T]>,
}

impl<'a, T: Element> Local<'a, T> {
    #[inline]
    pub(super) fn new(block: &'a MemoryBlock, offset: usize, len: usize) -> Result<Self> {
        block.borrow_shared("local")?;
        Ok(Self { block, offset, len, element: PhantomData })
    }
}

impl<T: Element> Deref for Local<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block begins with a page or, in a pool, a line of the cache; it holds these elements
        // (handles are bounds-checked), any bits are a `T`, and the shared borrow keeps every writer of this
        // rank out. Peers write into it only in operations of this rank, which the borrow refuses, or by
        // `unsafe` calls whose duty is that no borrow exists.
        unsafe { std::slice::from_raw_parts((self.block.address() as *const T).add(self.offset), self.len) }
    }
}

impl<T: Element> Drop for Local<'_, T> {
    fn drop(&mut self) {
        self.block.release_shared();
    }
}

/// This rank's memory, borrowed for writing. Peers that read it meanwhile may see a mix of old and new
/// elements.
#[derive(Debug)]
pub struct LocalMut<'a, T: Element> {
    block: &'a MemoryBlock,
    offset: usize,
    len: usize,
    element: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> LocalMut<'a, T> {
    /// For `op`, which is `local_mut` itself or an operation that writes.
    #[inline]
    pub(super) fn new(block: &'a MemoryBlock, offset: usize, len: usize, op: &'static str) -> Result<Self> {
        block.borrow_exclusive(op)?;
        Ok(Self { block, offset, len, element: PhantomData })
    }
}

impl<T: Element> Deref for LocalMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as for `Local`; the exclusive borrow is stronger.
        unsafe { std::slice::from_raw_parts((self.block.address() as *const T).add(self.offset), self.len) }
    }
}

impl<T: Element> DerefMut for LocalMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `Local`, and the exclusive borrow keeps every other access of this rank out. Peers
        // read only by opaque copies, which cannot observe anything but bytes.
        unsafe { std::slice::from_raw_parts_mut((self.block.address() as *mut T).add(self.offset), self.len) }
    }
}

impl<T: Element> Drop for LocalMut<'_, T> {
    fn drop(&mut self) {
        self.block.release_exclusive();
    }
}
