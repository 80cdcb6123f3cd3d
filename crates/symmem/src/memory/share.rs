//! Sharing memory outside of groups: a handle that any process of this user can open.
//!
//! Called by users. The process that shares offers the memory file on a socket (`sys/channel/offer.rs`), as
//! long as the memory lives. The process that opens it has a mapping of its own, which stays whatever becomes
//! of the other. Nobody synchronises the two: the access rules are those for a peer's memory after a
//! rendezvous.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, Weak};

use symmem_store::Wait;

use super::block::check_process;
use super::view::ByteRange;
use super::{Allocation, MemoryBlock};
use crate::numeric::Element;
use crate::sys::channel::{Offer, OfferTicket, ask, source_here};
use crate::sys::memfd::Mapping;
use crate::{Error, Result};

impl<T: Element> Allocation<T> {
    /// Local. A handle that other processes of this user can open, as text if need be. It can be opened as
    /// long as the memory lives here: this allocation, or anything that keeps its memory. Sharing again gives
    /// the same handle.
    ///
    /// From here on the memory counts as shared, as after a rendezvous: others may read it at any time, and
    /// write it by `unsafe` calls whose duty is that no guard (`local`, `local_mut`) exists.
    ///
    /// ```
    /// use symmem::store::Wait;
    /// let mut x = symmem::RankContext::from_env()?.alloc::<u32>(4)?;
    /// x.fill(7)?;
    /// let text = x.share()?.to_string(); // ... in another process:
    /// let wait = Wait::for_at_most(std::time::Duration::from_secs(5));
    /// let view = text.parse::<symmem::ShareHandle>()?.open::<u32>(&wait)?;
    /// assert_eq!(view.to_vec()?, [7; 4]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn share(&self) -> Result<ShareHandle> {
        self.block.share()
    }
}

impl MemoryBlock {
    fn share(self: &Arc<Self>) -> Result<ShareHandle> {
        check_process("share")?;
        let mut offer = self.offer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offer) = offer.as_ref().filter(|offer| offer.is_own()) {
            return Ok(ShareHandle(offer.ticket().clone()));
        }
        let Some(file) = self.memory().and_then(|memory| memory.file()) else {
            return Err(Error::invalid("share", "there is no memory file to share"));
        };
        let size = (self.bytes() as u64).to_le_bytes().to_vec();
        let source: Weak<dyn Any + Send + Sync> = Arc::<Self>::downgrade(self);
        let made = offer.insert(Offer::new(file, size, source)?);
        Ok(ShareHandle(made.ticket().clone()))
    }
}

/// What another process of this user needs to open memory that [`Allocation::share`] shares. As text it holds
/// a secret: who has that, and is of this user, can read and write the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareHandle(OfferTicket);

impl ShareHandle {
    /// The process that shares the memory.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The memory, as elements of `T`. At once where it can no longer be had ([`Error::NotShared`]); a
    /// process that does not answer is waited for as long as `wait` says. In the process that shares it, it
    /// is that very memory.
    pub fn open<T: Element>(&self, wait: &Wait<'_>) -> Result<SharedView<T>> {
        if let Some(source) = source_here(&self.0) {
            let nonsense = |_| Error::invalid("share handle", "it does not stand for memory");
            let block = source?.downcast::<MemoryBlock>().map_err(nonsense)?;
            let (base, size) = (block.address() as *mut u8, block.bytes());
            return SharedView::new(base, size, Arc::<MemoryBlock>::clone(&block), Some(block));
        }
        let (fd, size) = ask(&self.0, wait)?;
        let size = size.try_into().map(u64::from_le_bytes).ok().and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or_else(|| Error::invalid("shared memory", "its size is missing"))?;
        let mapping = Mapping::import(fd, size)?;
        SharedView::new(mapping.ptr(), size, Arc::new(mapping), None)
    }
}

impl fmt::Display for ShareHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ShareHandle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self)
    }
}

/// Memory that another process shares, or this one; as many whole elements of `T` as it holds. It keeps the
/// memory.
#[derive(Clone, Debug)]
pub struct SharedView<T: Element> {
    range: ByteRange,
    /// Set when this process shares it: then reads respect its borrows.
    own: Option<Arc<MemoryBlock>>,
    element: PhantomData<T>,
}

impl<T: Element> SharedView<T> {
    /// The `size` bytes at `base`, mapped as long as `keep`.
    fn new(
        base: *mut u8,
        size: usize,
        keep: Arc<dyn Any + Send + Sync>,
        own: Option<Arc<MemoryBlock>>,
    ) -> Result<Self> {
        let range = ByteRange::new::<T>("open", base, size, 0, &[size / size_of::<T>()], keep)?;
        Ok(Self { range, own, element: PhantomData })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first element's address in this process.
    pub fn as_ptr(&self) -> *const T {
        self.range.address().cast()
    }

    /// Reads `out.len()` elements from `start` on. They may be torn by a concurrent write.
    pub fn read_into(&self, start: usize, out: &mut [T]) -> Result<()> {
        self.range.read_as(self.own.as_deref(), start, out)
    }

    /// Reads everything.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = vec![T::zeroed(); self.len()];
        self.read_into(0, &mut data)?;
        Ok(data)
    }

    /// Writes `values` from element `start` on.
    ///
    /// # Safety
    /// The process that shares the memory holds no guard (`local`, `local_mut`) of these bytes until it has
    /// synchronised with this one after the write, and runs no operation on them meanwhile.
    pub unsafe fn write_from(&self, start: usize, values: &[T]) -> Result<()> {
        self.range.write_from(start, values)
    }

    /// The elements in place.
    ///
    /// # Safety
    /// Nobody, in any process, writes these bytes while the slice lives.
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: mapped while `self` lives, page-aligned, any bits are a `T`; no writers is the caller's
        // duty.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}
