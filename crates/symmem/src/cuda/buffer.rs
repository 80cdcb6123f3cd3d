//! Ordinary device memory, and views of device memory for operations that take private buffers.
//!
//! Public. A [`Buffer`] is known to its own rank only; memory that peers reach is an
//! [`Allocation`](crate::cuda::Allocation). What it guarantees: copies between host and device are done when
//! the call returns, so host memory is never read or written later; and memory that a captured operation was
//! given lives as long as any graph that was made of the capture.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::marker::PhantomData;
use std::mem;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys;

use super::activity::all_idle;
use super::driver::check;
use super::owner::{OwnedAddress, Owner};
use super::{Device, Stream, deferred, queues};
use crate::numeric::Element;
use crate::{Error, Result};

/// `len` elements of device memory.
///
/// Local to drop: while operations of engines on its device are under way it is kept, because freeing it
/// would wait for them, and they for peers. Graphs keep the memory of what was captured in them.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    block: Arc<BufferMemory>,
    len: usize,
    _elements: PhantomData<T>,
}

/// The memory of a buffer, which graphs share.
#[derive(Debug)]
struct BufferMemory {
    memory: DriverMemory,
}

/// What the driver gave.
#[derive(Debug)]
struct DriverMemory {
    device: Device,
    /// 0: nothing.
    address: u64,
    bytes: usize,
}

/// Bytes that were dropped and are kept until no operation is under way. A device that is never idle must not
/// fill up with them: beyond [`MOST_KEPT`], memory is freed at once, which waits for the device.
static KEPT: AtomicUsize = AtomicUsize::new(0);
const MOST_KEPT: usize = 256 << 20;

impl<T: Element> Buffer<T> {
    /// Memory for `len` elements; what is in it is anybody's guess.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or_else(|| Error::invalid("buffer", format!("{len} elements are too many")))?;
        let mut address = 0;
        if bytes > 0 {
            deferred::reap();
            let _bound = device.bind()?;
            // SAFETY: writes one address.
            check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        }
        let memory = DriverMemory { device: device.clone(), address, bytes };
        Ok(Self { block: Arc::new(BufferMemory { memory }), len, _elements: PhantomData })
    }

    /// Memory with these elements.
    pub fn from_slice(device: &Device, elements: &[T], stream: &Stream) -> Result<Self> {
        let buffer = Self::new(device, elements.len())?;
        buffer.write(elements, stream)?;
        Ok(buffer)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte on the device; 0 if there are no elements.
    pub fn device_ptr(&self) -> u64 {
        self.block.memory.address
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.block.memory.device
    }

    /// Writes all elements, after the work that is on `stream`, and waits until they are there.
    pub fn write(&self, elements: &[T], stream: &Stream) -> Result<()> {
        // SAFETY: the buffer's own memory.
        unsafe { write(self.device_ptr(), self.len, elements, stream) }
    }

    /// Reads all elements, after the work that is on `stream`.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>> {
        // SAFETY: the buffer's own memory.
        unsafe { read(self.device_ptr(), self.len, stream) }
    }

    /// Sets every byte, in the order of `stream`; the host does not wait.
    pub fn fill_bytes(&self, byte: u8, stream: &Stream) -> Result<()> {
        stream.keep_if_captured(&[Some(&self.block)])?;
        // SAFETY: the buffer's own memory, which is freed only after all work is done, and after the graph if
        // it is captured.
        unsafe { fill_bytes(self.device_ptr(), self.len * size_of::<T>(), byte, stream) }
    }

    /// All elements, to be read by an operation.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            address: self.device_ptr(),
            len: self.len,
            device: self.device(),
            owner: Some(&self.block),
            _elements: PhantomData,
        }
    }

    /// All elements, to be written by an operation.
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut {
            address: self.device_ptr(),
            len: self.len,
            device: self.device(),
            owner: Some(&self.block),
            _elements: PhantomData,
        }
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        let nothing = DriverMemory { device: self.memory.device.clone(), address: 0, bytes: 0 };
        let memory = mem::replace(&mut self.memory, nothing);
        if memory.address == 0 {
            return;
        }
        if KEPT.fetch_add(memory.bytes, Ordering::Relaxed) + memory.bytes > MOST_KEPT {
            KEPT.fetch_sub(memory.bytes, Ordering::Relaxed);
            return;
        }
        let device = memory.device.ordinal();
        deferred::drop_when(Box::new(move || all_idle(device)), Box::new(DeferredFree(memory)));
    }
}

/// Memory that waits to be freed.
struct DeferredFree(DriverMemory);

impl Drop for DeferredFree {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0.bytes, Ordering::Relaxed);
    }
}

impl Drop for DriverMemory {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: made by `Buffer::new`. The driver waits for the work of the context before it frees.
            self.device.release("cuMemFree", || unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

/// Device memory that an operation reads.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T: Element> {
    address: u64,
    len: usize,
    device: &'a Device,
    /// What graphs keep; `None`: whoever made the slice has promised to.
    owner: Option<&'a dyn Owner>,
    _elements: PhantomData<&'a [T]>,
}

/// Device memory that an operation writes.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T: Element> {
    address: u64,
    len: usize,
    device: &'a Device,
    /// What graphs keep; `None`: whoever made the slice has promised to.
    owner: Option<&'a dyn Owner>,
    _elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// Somebody else's memory: `len` elements from `address` on.
    ///
    /// # Safety
    /// The memory is mapped on `device`, and stays so until all work that was given this slice is done;
    /// nobody writes it meanwhile. Work that was captured is done when no graph is left that was made of the
    /// capture.
    pub unsafe fn from_raw(address: u64, len: usize, device: &'a Device) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::from_parts(address, len, device, None) }
    }

    /// [`DeviceSlice::from_raw`] of memory whose `owner` graphs ask for what to keep.
    ///
    /// # Safety
    /// The memory is mapped on `device` as long as what `owner` gives, or a clone of it, lives, and at least
    /// until all uncaptured work that was given this slice is done; nobody writes it meanwhile.
    pub unsafe fn from_owner(
        address: u64,
        len: usize,
        device: &'a Device,
        owner: &'a dyn Owner,
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::from_parts(address, len, device, Some(owner)) }
    }

    /// # Safety
    /// As for [`DeviceSlice::from_owner`]; without an owner as for [`DeviceSlice::from_raw`].
    pub(crate) unsafe fn from_parts(
        address: u64,
        len: usize,
        device: &'a Device,
        owner: Option<&'a dyn Owner>,
    ) -> Result<Self> {
        check_foreign::<T>(address, len)?;
        Ok(Self { address, len, device, owner, _elements: PhantomData })
    }

    /// Where it is, and whose.
    pub(crate) fn place(&self) -> OwnedAddress<'a> {
        OwnedAddress { address: self.address, owner: self.owner }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte on the device.
    pub fn device_ptr(&self) -> u64 {
        self.address
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// A part of it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = part::<T>(range, self.len)?;
        Ok(Self { address: self.address + (start * size_of::<T>()) as u64, len, ..*self })
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// Somebody else's memory: `len` elements from `address` on.
    ///
    /// # Safety
    /// The memory is mapped on `device`, and stays so until all work that was given this slice is done;
    /// nobody else reads or writes it meanwhile. Work that was captured is done when no graph is left that
    /// was made of the capture.
    pub unsafe fn from_raw(address: u64, len: usize, device: &'a Device) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::from_parts(address, len, device, None) }
    }

    /// [`DeviceSliceMut::from_raw`] of memory whose `owner` graphs ask for what to keep.
    ///
    /// # Safety
    /// The memory is mapped on `device` as long as what `owner` gives, or a clone of it, lives, and at least
    /// until all uncaptured work that was given this slice is done; nobody else reads or writes it meanwhile.
    pub unsafe fn from_owner(
        address: u64,
        len: usize,
        device: &'a Device,
        owner: &'a dyn Owner,
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::from_parts(address, len, device, Some(owner)) }
    }

    /// # Safety
    /// As for [`DeviceSliceMut::from_owner`]; without an owner as for [`DeviceSliceMut::from_raw`].
    pub(crate) unsafe fn from_parts(
        address: u64,
        len: usize,
        device: &'a Device,
        owner: Option<&'a dyn Owner>,
    ) -> Result<Self> {
        check_foreign::<T>(address, len)?;
        Ok(Self { address, len, device, owner, _elements: PhantomData })
    }

    /// Where it is, and whose.
    pub(crate) fn place(&self) -> OwnedAddress<'a> {
        OwnedAddress { address: self.address, owner: self.owner }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte on the device.
    pub fn device_ptr(&self) -> u64 {
        self.address
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// A part of it.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        let (start, len) = part::<T>(range, self.len)?;
        let address = self.address + (start * size_of::<T>()) as u64;
        Ok(DeviceSliceMut { address, len, device: self.device, owner: self.owner, _elements: PhantomData })
    }

    /// The same memory, to be read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            address: self.address,
            len: self.len,
            device: self.device,
            owner: self.owner,
            _elements: PhantomData,
        }
    }
}

impl<'a, T: Element> From<&'a Buffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.as_slice()
    }
}

impl<'a, T: Element> From<&'a mut Buffer<T>> for DeviceSliceMut<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.as_slice_mut()
    }
}

/// Copies `elements` to the `len` elements of device memory at `address`, and waits until they are there:
/// pinned host memory would otherwise be read after the call.
///
/// # Safety
/// The device memory is mapped and holds `len` elements.
pub(crate) unsafe fn write<T: Element>(
    address: u64,
    len: usize,
    elements: &[T],
    stream: &Stream,
) -> Result<()> {
    if elements.len() != len {
        let problem = format!("{} elements for {len}", elements.len());
        return Err(Error::invalid("write to the device", problem));
    }
    refuse_capture("write to the device", stream)?;
    if len > 0 {
        let _bound = stream.device().bind()?;
        // SAFETY: both hold `len` elements; the host's are borrowed until the copy is done.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, elements.as_ptr().cast(), size_of_val(elements), stream.raw())
        })?;
    }
    stream.synchronize()
}

/// The `len` elements of device memory at `address`, after the work that is on `stream`.
///
/// # Safety
/// The device memory is mapped and holds `len` elements.
pub(crate) unsafe fn read<T: Element>(address: u64, len: usize, stream: &Stream) -> Result<Vec<T>> {
    refuse_capture("read from the device", stream)?;
    let mut elements = vec![T::zeroed(); len];
    if len > 0 {
        let _bound = stream.device().bind()?;
        // SAFETY: both hold `len` elements, for which any bits will do; the host's stay until the copy is
        // done, below.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                elements.as_mut_ptr().cast(),
                address,
                len * size_of::<T>(),
                stream.raw(),
            )
        };
        check("cuMemcpyDtoHAsync", code)?;
    }
    match stream.synchronize() {
        Ok(()) => Ok(elements),
        Err(error) => {
            // Whether the copy still runs is not known: better to lose the memory than to have it written
            // when it is somebody else's.
            std::mem::forget(elements);
            Err(error)
        }
    }
}

/// Sets `bytes` bytes at `address`, in the order of `stream`.
///
/// # Safety
/// The device memory is mapped, and stays so until the work on `stream` is done.
pub(crate) unsafe fn fill_bytes(address: u64, bytes: usize, byte: u8, stream: &Stream) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let _bound = stream.device().bind()?;
    let _turn = queues::turn();
    // SAFETY: as promised by the caller.
    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream.raw()) })
}

/// A captured copy would use the host's memory at every replay, long after the borrow ended.
fn refuse_capture(what: &'static str, stream: &Stream) -> Result<()> {
    match stream.capture_id()? {
        None => Ok(()),
        Some(_) => {
            Err(Error::invalid(what, "the stream is being captured. Hint: copy before or after the capture"))
        }
    }
}

fn check_foreign<T: Element>(address: u64, len: usize) -> Result<()> {
    let fits = len.checked_mul(size_of::<T>()).and_then(|bytes| address.checked_add(bytes as u64)).is_some();
    let aligned = address.is_multiple_of(align_of::<T>() as u64);
    if !fits || !aligned || (address == 0 && len > 0) {
        let problem = format!("{len} elements of {} cannot be at {address:#x}", T::DTYPE);
        return Err(Error::invalid("device slice", problem));
    }
    Ok(())
}

/// Start and length of `range` among `len` elements.
pub(crate) fn part<T: Element>(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        let size = size_of::<T>() as u64;
        return Err(Error::OutOfBounds {
            op: "slice",
            offset: (start as u64).saturating_mul(size),
            bytes: (end.saturating_sub(start) as u64).saturating_mul(size),
            size: (len as u64).saturating_mul(size),
        });
    }
    Ok((start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside() {
        assert_eq!(part::<f32>(2..5, 8).unwrap(), (2, 3));
        assert_eq!(part::<f32>(.., 8).unwrap(), (0, 8));
        assert_eq!(part::<f32>(8.., 8).unwrap(), (8, 0));
        assert_eq!(part::<f32>(..=7, 8).unwrap(), (0, 8));
        assert!(matches!(
            part::<f32>(4..9, 8),
            Err(Error::OutOfBounds { offset: 16, bytes: 20, size: 32, .. })
        ));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = part::<f32>(5..4, 8);
        assert!(reversed.is_err());
        assert!(part::<f32>(0..=usize::MAX, 8).is_err());
    }

    #[test]
    fn foreign_memory_is_aligned_and_has_an_end() {
        assert!(check_foreign::<f32>(256, 4).is_ok());
        assert!(check_foreign::<f32>(0, 0).is_ok());
        for (address, len) in [(258, 4), (0, 1), (u64::MAX - 3, 2), (256, usize::MAX)] {
            assert!(check_foreign::<f32>(address, len).is_err(), "{address} {len}");
        }
    }

    #[test]
    fn a_buffer_holds_what_was_written() {
        let Ok(device) = Device::new(0) else {
            println!("skipped: no CUDA device");
            return;
        };
        let stream = Stream::new(&device).unwrap();
        let numbers: Vec<u32> = (0..1000).collect();
        let buffer = Buffer::from_slice(&device, &numbers, &stream).unwrap();
        assert_eq!(buffer.read(&stream).unwrap(), numbers);
        buffer.fill_bytes(1, &stream).unwrap();
        assert_eq!(buffer.read(&stream).unwrap(), [0x0101_0101; 1000]);
        assert!(buffer.write(&numbers[1..], &stream).is_err());
        assert!(Buffer::<u8>::new(&device, 0).unwrap().read(&stream).unwrap().is_empty());
    }
}
