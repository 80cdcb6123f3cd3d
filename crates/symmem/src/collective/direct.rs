//! The direct algorithm: work straight on the peers' memory, between two meetings.
//!
//! [`Peers`] is everybody's memory for the time between them. Its methods read with plain loads and write with plain
//! stores; that is sound because every rank is inside the same collective and has its memory borrowed for it.

use std::marker::PhantomData;
use std::ops::Range;

use crate::Result;
use crate::error::Error;
use crate::memory::{Element, SymmetricMemory};
use crate::numeric::{Kernel, Stores};

/// Worlds up to this size need no allocation per call.
const INLINE: usize = 16;

/// The address of every rank's first element.
pub(super) struct Peers<'a, T: Element> {
    inline: [*mut u8; INLINE],
    heap: Vec<*mut u8>,
    world: usize,
    rank: usize,
    len: usize,
    memory: PhantomData<&'a SymmetricMemory<T>>,
}

impl<'a, T: Element> Peers<'a, T> {
    /// Everybody's memory, from the element on that each rank's `offset` says.
    pub(super) fn new(memory: &'a SymmetricMemory<T>, offset: impl Fn(usize) -> usize) -> Result<Self> {
        let (world, rank, len) = (memory.world_size(), memory.rank(), memory.len());
        let mut peers = Self {
            inline: [std::ptr::null_mut(); INLINE],
            heap: Vec::new(),
            world,
            rank,
            len,
            memory: PhantomData,
        };
        if world > INLINE {
            peers.heap = vec![std::ptr::null_mut(); world];
        }
        for peer in 0..world {
            let start = if peer == rank { memory.offset() } else { offset(peer) };
            let address = memory.element_address(peer, start, len);
            peers.addresses_mut()[peer] = address.ok_or_else(|| {
                Error::invalid("offset", format!("rank {peer} starts at element {start}, beyond its memory"))
            })?;
        }
        Ok(peers)
    }

    fn addresses_mut(&mut self) -> &mut [*mut u8] {
        if self.heap.is_empty() { &mut self.inline[..self.world] } else { &mut self.heap }
    }

    /// Calls `f` with every rank's address of element `start`.
    fn at<R>(&self, start: usize, f: impl FnOnce(&[*mut u8]) -> R) -> R {
        let addresses = if self.heap.is_empty() { &self.inline[..self.world] } else { &self.heap };
        let skip = start * size_of::<T>();
        if self.world > INLINE {
            // SAFETY: `start` is at most `len`, which every address has room for.
            return f(&addresses.iter().map(|address| unsafe { address.add(skip) }).collect::<Vec<_>>());
        }
        let mut shifted = [std::ptr::null_mut(); INLINE];
        for (to, from) in shifted.iter_mut().zip(addresses) {
            // SAFETY: as above.
            *to = unsafe { from.add(skip) };
        }
        f(&shifted[..self.world])
    }

    /// Reduces the elements of `slice` and writes the result into everybody's memory.
    pub(super) fn reduce_everywhere(&self, kernel: &Kernel, slice: Range<usize>) {
        debug_assert!(slice.end <= self.len);
        self.at(slice.start, |addresses| {
            // SAFETY: every address has room for the slice, which is this rank's alone until the next meeting. Sources and
            // destinations are the same memory of different ranks, so each destination equals one source.
            unsafe { kernel.reduce_to_many(addresses, sources(addresses), slice.len(), Stores::Cached) }
        });
    }

    /// Reduces `out.len()` elements from `start` on into `out`.
    pub(super) fn reduce(&self, kernel: &Kernel, start: usize, out: &mut [T]) {
        debug_assert!(start + out.len() <= self.len);
        // SAFETY: every address has room for these elements, nobody writes them until the next meeting, and `out` is
        // private to this rank.
        self.at(start, |addresses| unsafe {
            kernel.reduce(out.as_mut_ptr().cast(), sources(addresses), out.len());
        });
    }

    /// Copies `out.len()` elements of `rank` from `start` on.
    pub(super) fn copy(&self, rank: usize, start: usize, out: &mut [T]) {
        debug_assert!(start + out.len() <= self.len);
        // SAFETY: as for `reduce`.
        self.at(start, |addresses| unsafe {
            crate::sys::copy::read(addresses[rank], out.as_mut_ptr().cast(), size_of_val(out));
        });
    }

    /// Copies all of `root`'s memory into this rank's.
    pub(super) fn copy_to_own(&self, root: usize) {
        if root == self.rank {
            return;
        }
        // SAFETY: both have room for `len` elements and are different memory; this rank's is borrowed for writing, and
        // nobody writes the root's until the next meeting.
        self.at(0, |addresses| unsafe {
            crate::sys::copy::read(addresses[root], addresses[self.rank], self.len * size_of::<T>());
        });
    }
}

/// The same addresses, to read from.
fn sources(addresses: &[*mut u8]) -> &[*const u8] {
    // SAFETY: `*mut u8` and `*const u8` have the same layout.
    unsafe { std::slice::from_raw_parts(addresses.as_ptr().cast(), addresses.len()) }
}
