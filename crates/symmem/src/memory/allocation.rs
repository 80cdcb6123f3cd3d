//! A local allocation, on the host or on a device, and the guards that give access to one's own memory.
//!
//! Public. `device/allocation.rs` has what only allocations on devices can do.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::place::{Host, Place, PlaceBlock as _, PlaceParts as _};
use super::rendezvous::{Covered, Layout};
use super::{MemoryBlock, SymmetricMemory};
use crate::Result;
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::sys::copy;

/// Zeroed memory of this rank that [`rendezvous`](Allocation::rendezvous) can make symmetric. To make it
/// ([`Group::alloc`](crate::Group::alloc)) and to drop it is local: no other rank takes part.
///
/// `T` is the type of the elements. `P` is the place: [`Host`], where none is named, or
/// [`Cuda`](crate::Cuda) ([`cuda::Allocation`](crate::cuda::Allocation) is short for that).
///
/// ```
/// let mut x = symmem::RankContext::from_env()?.alloc::<u32>(4)?;
/// x.local_mut()?[2] = 7;
/// assert_eq!(*x.local()?, [0, 0, 7, 0]);
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Allocation<T: Element, P: Place = Host> {
    pub(super) block: Arc<P::Block>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element, P: Place> Allocation<T, P> {
    /// Of `block`, which has `len` elements.
    pub(crate) fn of(block: Arc<P::Block>, len: usize) -> Self {
        block.state().add_user();
        Self { block, len, element: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the signal pads that rendezvous will make, fixed when this was allocated.
    pub fn signal_pad_size(&self) -> usize {
        self.block.state().signal_pad_size()
    }

    /// Collective over `group`: every rank maps every rank's allocation. On devices `group` is an engine, and
    /// the allocation is on its device. The allocations must agree in size, element type and pad size. Either
    /// all ranks succeed, or all get the same error and can try again. Not while this thread captures.
    ///
    /// What was mapped is kept with the allocation. So a second call for the same group is local, and gives
    /// another handle; all ranks must bring the allocations of the first call again, since a rank with a new
    /// one would wait for ranks that are done already. Peers' memory stays mapped, and so is not freed, until
    /// [`SymmetricMemory::close`], or until the allocation and its last handle are gone (on devices also once
    /// the engine is gone, with the next rendezvous).
    ///
    /// From then on the allocation is the memory of this rank of the group. Another rank, a thread that
    /// shares it, is refused ([`Error::Rank`](crate::Error::Rank)) until it is closed.
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
    pub fn rendezvous(&self, group: &P::Group) -> Result<SymmetricMemory<T, P>> {
        let parts = match P::Parts::kept(&self.block, group)? {
            Some(kept) => kept,
            None => self.meet(group, Ok(Layout::new(T::DTYPE, 0, &[self.len])), true)?,
        };
        Ok(SymmetricMemory::new(parts))
    }

    /// Collective, every time: [`Allocation::rendezvous`] with a handle that starts at element `offset`.
    /// Ranks may give different offsets, and learn each other's. The handle has as many elements as every
    /// rank has behind its offset, and a peer's elements are counted from the peer's offset.
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
    pub fn rendezvous_at(&self, group: &P::Group, offset: usize) -> Result<SymmetricMemory<T, P>> {
        self.meet(group, Layout::behind::<T>(offset, self.len), true).map(SymmetricMemory::new)
    }

    /// Collective, every time: [`Allocation::rendezvous`] with a handle of `len` elements of `U`, from byte
    /// `start` on, which must be a multiple of their size. It is for allocations whose element type is known
    /// only at run time: the ranks compare `U`, not `T`. Ranks may give different `start`, and a peer's
    /// elements are counted from its own. On devices all ranks must give the same `len`; on the host only
    /// collectives need that.
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
        group: &P::Group,
        start: usize,
        len: usize,
    ) -> Result<SymmetricMemory<U, P>> {
        self.rendezvous_shaped(group, start, &[len])
    }

    /// Collective, every time: [`Allocation::rendezvous_as`] with a handle of `shape` elements. On the host
    /// ranks that bring nothing find the shape in [`SymmetricMemory::layout`].
    pub fn rendezvous_shaped<U: Element>(
        &self,
        group: &P::Group,
        start: usize,
        shape: &[usize],
    ) -> Result<SymmetricMemory<U, P>> {
        let len = shape.iter().fold(1usize, |len, side| len.saturating_mul(*side));
        let fits = element::fit::<U>(Op::Rendezvous.name(), start, len, self.block.state().bytes());
        let layout = fits.map(|()| Layout::new(U::DTYPE, start, shape));
        self.meet(group, layout, false).map(SymmetricMemory::new)
    }

    fn meet(&self, group: &P::Group, layout: Result<Layout>, rest: bool) -> Result<P::Parts> {
        P::Parts::meet(&self.block, group, layout.map(|layout| Covered { layout, rest }))
    }
}

impl<T: Element, P: Place> Drop for Allocation<T, P> {
    fn drop(&mut self) {
        self.block.state().remove_user();
    }
}

impl<T: Element> Allocation<T> {
    /// The first element's address; the same for the life of the allocation.
    pub fn as_ptr(&self) -> *const T {
        self.block.address() as *const T
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

    /// Copies the memory out whatever its state: also while borrowed, and after the group failed.
    pub fn salvage(&self) -> Vec<T> {
        salvage(&self.block, 0, self.len)
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
