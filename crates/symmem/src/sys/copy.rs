//! Copies between private and shared memory that are defined even while a peer writes.
//!
//! Called for every access to a peer's bytes that is not an atomic word. A peer may store to the shared side
//! at any moment, so an ordinary `ptr::copy` there would be a data race. These copies are none: on x86-64
//! they are inline assembly, which the compiler must take for byte-wise relaxed atomic accesses (it cannot
//! look inside, invent, split or merge accesses), elsewhere they are relaxed atomic accesses. The memory of a
//! peer is moreover reached through a mapping of its own, never through an address that the peer's own
//! references use. The result may mix old and new bytes ("torn"), and no order with other accesses is
//! promised: what must be seen together is published with a Release store and read after an Acquire load.
//! Copies of 1, 2, 4 or 8 bytes that are aligned on the shared side are not torn.

#![allow(unsafe_code, reason = "copies of memory that others write")]

#[cfg(test)]
mod tests;
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
mod words;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

use std::sync::OnceLock;

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use words::{load, load as stream_in, load as take, load as stream_take, store, store as stream_out};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::{copy as load, copy as store, stream as stream_in, stream as stream_out, stream_take, take};

/// [`write`], to memory that a peer has used last: where the processor gains by it, the lines are asked for
/// ahead.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use self::words::{lines_rest, store as give};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use self::x86_64::{give, lines_rest};

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches: what was written is at hand, but each line is fetched before it is overwritten.
    Cached,
    /// Past the caches, where the processor has such stores; else cached. For what does not stay in the
    /// caches anyway, and whose lines were not just read. Ordered before whatever the caller stores later, as
    /// cached stores are.
    Streaming,
}

impl Stores {
    /// The better one for an operation that touches so many bytes, see [`is_large`].
    pub(crate) fn for_footprint(bytes: usize) -> Self {
        if is_large(bytes) { Self::Streaming } else { Self::Cached }
    }
}

/// Whether an operation in which all ranks of the host together read and write `footprint` bytes (sources and
/// destinations, each counted once) does not fit the last-level cache, so that its results had better be
/// streamed.
///
/// Two ranks that copy `n` bytes each from the other have a footprint of `4 * n`: measured, that is where
/// streaming begins to win, whether or not the copy is read afterwards.
pub(crate) fn is_large(footprint: usize) -> bool {
    /// Less than any processor's last-level cache: small operations need not ask.
    const SMALL: usize = 1 << 20;
    footprint > SMALL && footprint > last_level_cache()
}

/// Bytes of the cache that the cores share; 32 MiB where the system does not say. A system call the first
/// time only.
fn last_level_cache() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let path = "/sys/devices/system/cpu/cpu0/cache/index3/size";
        std::fs::read_to_string(path).ok().and_then(|text| parse_size(&text)).unwrap_or(32 << 20)
    })
}

/// As the system writes it: `32768K`.
fn parse_size(text: &str) -> Option<usize> {
    let kibibytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kibibytes.checked_mul(1 << 10).filter(|&bytes| bytes > 0)
}

/// Copies `len` bytes of shared memory at `src` to private memory at `dst`.
///
/// # Safety
/// `src` must be valid for reads of `len` bytes but for races; `dst` must be valid for writes of `len` bytes
/// and be nobody else's meanwhile; the two must not overlap.
#[inline]
pub(crate) unsafe fn read(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { load(src, dst, len) }
}

/// As [`read`], with a choice of stores.
///
/// # Safety
/// As for [`read`].
#[inline]
pub(crate) unsafe fn read_with(src: *const u8, dst: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's duty.
    unsafe {
        match stores {
            Stores::Cached => load(src, dst, len),
            Stores::Streaming => stream_in(src, dst, len),
        }
    }
}

/// Copies elements that are this rank's own to as many others.
pub(crate) fn own<T: Copy>(from: &[T], to: &mut [T], stores: Stores) {
    assert_eq!(from.len(), to.len(), "as many elements");
    // SAFETY: just as many bytes, borrowed for reading and for writing.
    unsafe { read_with(from.as_ptr().cast(), to.as_mut_ptr().cast(), size_of_val(to), stores) }
}

/// [`read_with`], that may also write back what it read, some bytes of every cache line: the lines are
/// modified in this core's cache then, and on some processors whoever wrote them gets them back the faster
/// for it.
///
/// # Safety
/// As for [`read`]; `src` must be valid for writes too, and nobody may write it meanwhile.
#[inline]
pub(crate) unsafe fn take_with(src: *mut u8, dst: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's duty.
    unsafe {
        match stores {
            Stores::Cached => take(src, dst, len),
            Stores::Streaming => stream_take(src, dst, len),
        }
    }
}

/// Copies `len` bytes of private memory at `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `len` bytes but for races; `src` must be valid for reads of `len` bytes
/// and not be written meanwhile; the two must not overlap.
#[inline]
pub(crate) unsafe fn write(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { store(src, dst, len) }
}

/// As [`write`], with a choice of stores.
///
/// # Safety
/// As for [`write`].
#[inline]
pub(crate) unsafe fn write_with(src: *const u8, dst: *mut u8, len: usize, stores: Stores) {
    // SAFETY: the caller's duty.
    unsafe {
        match stores {
            Stores::Cached => store(src, dst, len),
            Stores::Streaming => stream_out(src, dst, len),
        }
    }
}
