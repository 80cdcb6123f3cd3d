//! Views of a peer's memory or signal pad: typed, shaped, bounds-checked.
//!
//! Reading is an opaque copy: it may be torn by a concurrent write, never undefined. Writing into a peer's
//! buffer is `unsafe`, because the peer may hold a borrow of it. Pads are never borrowed, so writing into
//! them is safe.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use super::block::check_process;
use super::rendezvous::HostTable;
use super::{AtomicElement, MemoryBlock};
use crate::numeric::Element;
use crate::sys::copy;
use crate::{Error, Result};

/// A range of bytes of one rank, checked, with what keeps it mapped.
#[derive(Clone, Debug)]
pub(super) struct ByteRange {
    address: *mut u8,
    len: usize,
    shape: Vec<usize>,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the address stays mapped while `_keep` lives, and is only accessed by opaque copies or under the
// duties of `unsafe` functions.
unsafe impl Send for ByteRange {}
// SAFETY: as above.
unsafe impl Sync for ByteRange {}

/// The number of elements of `shape`, and the bytes they take from element `offset` on, within `size` bytes.
fn check_shape<T>(op: &'static str, shape: &[usize], start: usize, size: usize) -> Result<usize> {
    let len = shape.iter().try_fold(1usize, |len, side| len.checked_mul(*side));
    let bytes = len.and_then(|len| len.checked_mul(size_of::<T>()));
    match (len, bytes, bytes.and_then(|bytes| bytes.checked_add(start))) {
        (Some(len), _, Some(end)) if end <= size => Ok(len),
        (_, bytes, _) => Err(Error::OutOfBounds {
            op,
            offset: start as u64,
            bytes: bytes.map_or(u64::MAX, |bytes| bytes as u64),
            size: size as u64,
        }),
    }
}

impl ByteRange {
    /// `shape` elements of `T` from byte `start` on, of the `size` bytes at `base`.
    pub(super) fn new<T>(
        op: &'static str,
        base: *mut u8,
        size: usize,
        start: usize,
        shape: &[usize],
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let len = check_shape::<T>(op, shape, start, size)?;
        // SAFETY: `start` is within the `size` mapped bytes at `base`.
        let address = unsafe { base.add(start) };
        Ok(Self { address, len, shape: shape.to_vec(), _keep: keep })
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// The address of element `start`, if `count` elements from there on are in range.
    fn at<T>(&self, op: &'static str, start: usize, count: usize) -> Result<*mut u8> {
        if start.checked_add(count).is_none_or(|end| end > self.len) {
            let size = size_of::<T>() as u64;
            return Err(Error::OutOfBounds {
                op,
                offset: (start as u64).saturating_mul(size),
                bytes: (count as u64).saturating_mul(size),
                size: self.len as u64 * size,
            });
        }
        // SAFETY: in range, as just checked.
        Ok(unsafe { self.address.add(start * size_of::<T>()) })
    }

    fn read_into<T: Element>(&self, start: usize, out: &mut [T]) -> Result<()> {
        let from = self.at::<T>("read", start, out.len())?;
        // SAFETY: `from` has as many bytes as `out`, mapped while `_keep` lives; the copy is opaque.
        unsafe { copy::read(from, out.as_mut_ptr().cast(), size_of_val(out)) };
        Ok(())
    }

    /// [`ByteRange::read_into`], with the borrows of the block respected, if it is of one of this process.
    pub(super) fn read_as<T: Element>(
        &self,
        own: Option<&MemoryBlock>,
        start: usize,
        out: &mut [T],
    ) -> Result<()> {
        let Some(block) = own else { return self.read_into(start, out) };
        block.borrow_shared("read")?;
        let result = self.read_into(start, out);
        block.release_shared();
        result
    }

    pub(super) fn write_from<T: Element>(&self, start: usize, values: &[T]) -> Result<()> {
        let to = self.at::<T>("write", start, values.len())?;
        // SAFETY: `to` has as many bytes as `values`; the copy is opaque. That nobody borrows them is the
        // caller's duty.
        unsafe { copy::write(values.as_ptr().cast(), to, size_of_val(values)) };
        Ok(())
    }

    /// The position of a multi-dimensional index.
    fn position(&self, index: &[usize]) -> Result<usize> {
        let in_shape =
            index.len() == self.shape.len() && index.iter().zip(&self.shape).all(|(i, side)| i < side);
        if !in_shape {
            return Err(Error::invalid(
                "index",
                format!("{index:?} is not in a view of shape {:?}", self.shape),
            ));
        }
        Ok(index.iter().zip(&self.shape).fold(0, |position, (i, side)| position * side + i))
    }
}

/// A peer's buffer, or a part of it, as elements of `T`.
///
/// The view keeps the memory mapped, also after the handle is closed.
#[derive(Clone, Debug)]
pub struct PeerView<T: Element> {
    rank: usize,
    range: ByteRange,
    /// Set when this is the rank's own memory: then reads respect its borrows.
    own: Option<Arc<MemoryBlock>>,
    element: PhantomData<T>,
}

impl<T: Element> PeerView<T> {
    pub(super) fn new(
        table: &Arc<HostTable>,
        rank: usize,
        own: Option<Arc<MemoryBlock>>,
        start: usize,
        shape: &[usize],
    ) -> Result<Self> {
        let base = table.data.at(rank);
        let range =
            ByteRange::new::<T>("view", base, table.bytes, start, shape, Arc::<HostTable>::clone(table))?;
        Ok(Self { rank, range, own, element: PhantomData })
    }

    /// The rank whose memory this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The sides of the view.
    pub fn shape(&self) -> &[usize] {
        &self.range.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// The first element's address in this process.
    pub fn as_ptr(&self) -> *const T {
        self.range.address.cast()
    }

    /// Reads element `position`.
    pub fn read(&self, position: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.read_into(position, &mut value)?;
        Ok(value[0])
    }

    /// Reads the element at a multi-dimensional index.
    pub fn read_at(&self, index: &[usize]) -> Result<T> {
        self.read(self.range.position(index)?)
    }

    /// Reads `out.len()` elements from `start` on.
    pub fn read_into(&self, start: usize, out: &mut [T]) -> Result<()> {
        check_process("view")?;
        self.range.read_as(self.own.as_deref(), start, out)
    }

    /// Reads everything.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut data = vec![T::zeroed(); self.len()];
        self.read_into(0, &mut data)?;
        Ok(data)
    }

    /// Writes element `position`.
    ///
    /// # Safety
    /// As for [`PeerView::write_from`].
    pub unsafe fn write(&self, position: usize, value: T) -> Result<()> {
        // SAFETY: the caller's duty.
        unsafe { self.write_from(position, &[value]) }
    }

    /// Writes `values` from element `start` on.
    ///
    /// # Safety
    /// The rank whose memory this is holds no guard (`local`, `local_mut`) of these bytes until it has
    /// synchronised with this rank after the write, and runs no operation on them meanwhile.
    pub unsafe fn write_from(&self, start: usize, values: &[T]) -> Result<()> {
        check_process("view")?;
        self.range.write_from(start, values)
    }

    /// Element `position` as the cell that it is, of memory that is [`Atomics`](super::Atomics).
    #[inline]
    pub(super) fn cell(&self, position: usize) -> Result<&T::Cell>
    where
        T: AtomicElement,
    {
        check_process("atomics")?;
        let cell = self.range.at::<T>("atomics", position, 1)?;
        // SAFETY: in range, mapped while `self` lives, and aligned, since such memory begins with a page. It
        // hands out nothing but cells, on any rank, so that all accesses are atomic.
        Ok(unsafe { &*cell.cast() })
    }

    /// The elements in place.
    ///
    /// # Safety
    /// Nobody, the owner included, writes these bytes while the slice lives.
    pub unsafe fn as_slice(&self) -> Result<&[T]> {
        if !self.range.address.cast::<T>().is_aligned() {
            return Err(Error::invalid(
                "as_slice",
                "the view does not start at a multiple of its element's alignment",
            ));
        }
        // SAFETY: mapped while `self` lives, in range, aligned, any bits are a `T`; no writers is the
        // caller's duty.
        Ok(unsafe { std::slice::from_raw_parts(self.range.address.cast(), self.len()) })
    }
}

/// A rank's signal pad, or a part of it, as elements of `T`. For protocols of one's own; the pad's words that
/// `put_signal` and `wait_signal` use are u32, slot `world * channel + source`, 0 idle and 1 pending.
#[derive(Clone, Debug)]
pub struct PadView<T: Element> {
    range: ByteRange,
    element: PhantomData<T>,
}

/// What views of pads are called in errors.
const PAD: &str = "signal_pad";

impl<T: Element> PadView<T> {
    pub(super) fn new(table: &Arc<HostTable>, rank: usize, start: usize, shape: &[usize]) -> Result<Self> {
        let base = table.pads.at(rank);
        let keep = Arc::<HostTable>::clone(table);
        let range = ByteRange::new::<T>(PAD, base, table.pad_bytes, start, shape, keep)?;
        Ok(Self { range, element: PhantomData })
    }

    /// The sides of the view.
    pub fn shape(&self) -> &[usize] {
        &self.range.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// The first element's address in this process.
    pub fn as_ptr(&self) -> *mut T {
        self.range.address.cast()
    }

    /// Reads element `position`.
    pub fn read(&self, position: usize) -> Result<T> {
        check_process(PAD)?;
        let mut value = [T::zeroed()];
        self.range.read_into(position, &mut value)?;
        Ok(value[0])
    }

    /// Reads everything.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        check_process(PAD)?;
        let mut data = vec![T::zeroed(); self.len()];
        self.range.read_into(0, &mut data)?;
        Ok(data)
    }

    /// Writes element `position`.
    pub fn write(&self, position: usize, value: T) -> Result<()> {
        check_process(PAD)?;
        self.range.write_from(position, &[value])
    }

    /// Writes every element.
    pub fn fill(&self, value: T) -> Result<()> {
        check_process(PAD)?;
        self.range.write_from(0, &vec![value; self.len()])
    }
}
