//! Where a rank finds every rank's elements while a collective runs, and what it does with them.
//!
//! The addresses are those of the ranks' own memory, of their staging, or of parcels that came with their
//! announcements: algorithms differ in that, operations do not. Elements are read with plain loads and
//! written with plain stores; that is sound because every rank is inside the same collective: between the
//! meetings of an algorithm nobody writes what others read.
//!
//! Large work is shared by the threads of the rank, see [`crate::sync::team`]: each takes ranges of its own.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::marker::PhantomData;
use std::ops::Range;

use super::two_shot::slice_of;
use crate::group::Membership;
use crate::numeric::{Element, ReduceKernel};
use crate::sync::team::RankThreads;
use crate::sys::copy::{self, Stores};
use crate::tuning::PUSH_RANKS;

/// Worlds up to this size need no allocation per call.
const INLINE: usize = PUSH_RANKS;

/// The address of every rank's first element.
pub(super) struct Peers<'a, T: Element> {
    inline: [*mut u8; INLINE],
    heap: Vec<*mut u8>,
    world: usize,
    rank: usize,
    len: usize,
    /// Whether the addresses are the ranks' own memory, in which results may be put.
    shared: bool,
    /// How to write what is not read at once.
    stores: Stores,
    threads: &'a RankThreads,
    element: PhantomData<T>,
}

// SAFETY: a table of addresses. The threads of a rank work on disjoint ranges of what is there, see
// `RankThreads::share` below.
unsafe impl<T: Element> Sync for Peers<'_, T> {}

impl<'a, T: Element> Peers<'a, T> {
    /// The `len` elements of each rank that are at `address`; `shared` says that this is the rank's own
    /// memory.
    ///
    /// # Safety
    /// The addresses are valid for that many elements until the value is dropped, and who may write them
    /// meanwhile is as the module says.
    #[inline(always)]
    pub(super) unsafe fn new(
        inner: &'a Membership,
        len: usize,
        shared: bool,
        address: impl Fn(usize) -> *mut u8,
    ) -> Self {
        let (rank, world) = (inner.rank, inner.world);
        // Everybody's memory, and as much written; staging and parcels are small.
        let footprint = if shared { 2 * world * len * size_of::<T>() } else { 0 };
        let stores = Stores::for_footprint(footprint);
        let (inline, heap) = ([std::ptr::null_mut(); INLINE], Vec::new());
        let mut peers = Self {
            inline,
            heap,
            world,
            rank,
            len,
            shared,
            stores,
            threads: &inner.threads,
            element: PhantomData,
        };
        // In their place at once: copying what was just written word by word stalls the processor.
        match world > INLINE {
            true => peers.heap.extend((0..world).map(address)),
            false => (0..world).for_each(|rank| peers.inline[rank] = address(rank)),
        }
        peers
    }

    /// Whether results may be put into the peers' memory.
    pub(super) fn are_shared(&self) -> bool {
        self.shared
    }

    /// Calls `f` with every rank's address of element `start`.
    #[inline]
    pub(super) fn at<R>(&self, start: usize, f: impl FnOnce(&[*mut u8]) -> R) -> R {
        let skip = start * size_of::<T>();
        if self.world > INLINE {
            // SAFETY: `start` is within the elements that every address has.
            return f(&self.heap.iter().map(|address| unsafe { address.add(skip) }).collect::<Vec<_>>());
        }
        let mut shifted = [std::ptr::null_mut(); INLINE];
        for (to, address) in shifted.iter_mut().zip(&self.inline[..self.world]) {
            // SAFETY: as above.
            *to = unsafe { address.add(skip) };
        }
        f(&shifted[..self.world])
    }

    /// Reduces the elements of `slice` and writes the result into everybody's memory.
    pub(super) fn reduce_everywhere(&self, kernel: &ReduceKernel, slice: Range<usize>) {
        debug_assert!(self.shared && slice.end <= self.len);
        let bytes = slice.len() * size_of::<T>() * 2 * self.world;
        self.threads.share(bytes, |part, parts| {
            let part = slice_of(slice.len(), parts, part);
            // SAFETY: every address has room for the slice, which is this rank's alone until the next
            // meeting, and its parts are one thread's each. Sources and destinations are the same memory of
            // different ranks, so each destination equals one source.
            self.at(slice.start + part.start, |addresses| unsafe {
                kernel.reduce_to_many(addresses, sources(addresses), part.len(), Stores::Cached);
            });
        });
    }

    /// Reduces the elements of `slice` into `out`, if it is given, and in place of what the ranks of `back`
    /// have there.
    ///
    /// # Safety
    /// `out` must be valid for that many elements and this rank's alone; it is this rank's address of the
    /// slice, or apart from it. What the ranks of `back` have there nobody else uses until the next meeting.
    pub(super) unsafe fn reduce_back(
        &self,
        kernel: &ReduceKernel,
        slice: Range<usize>,
        out: Option<*mut T>,
        back: impl Fn(usize) -> bool + Sync,
    ) {
        debug_assert!(!self.shared && slice.end <= self.len);
        let out = Start(out);
        self.threads.share(slice.len() * size_of::<T>() * 2 * self.world, |part, parts| {
            let part = slice_of(slice.len(), parts, part);
            // SAFETY: within what the caller vouches for; parts are one thread's each.
            let out = out.get().map(|out| unsafe { out.add(part.start) });
            self.at(slice.start + part.start, |addresses| {
                let place = |(rank, address): (usize, &*mut u8)| match rank == self.rank {
                    true => out.map(<*mut T>::cast),
                    false => back(rank).then_some(*address),
                };
                let places = addresses.iter().enumerate().filter_map(place);
                // SAFETY: every address has room for the slice. A destination is a source, or apart from all
                // of them.
                let reduce = |to: &[*mut u8]| unsafe {
                    kernel.reduce_to_many(to, sources(addresses), part.len(), Stores::Cached);
                };
                match self.world > INLINE {
                    true => reduce(&places.collect::<Vec<_>>()),
                    false => {
                        let (mut inline, mut count) = ([std::ptr::null_mut(); INLINE], 0);
                        for place in places {
                            inline[count] = place;
                            count += 1;
                        }
                        reduce(&inline[..count]);
                    }
                }
            });
        });
    }

    /// Reduces all elements into `out`.
    ///
    /// # Safety
    /// `out` must be valid for them and this rank's alone; it is this rank's address of them, or apart from
    /// it.
    #[inline]
    pub(super) unsafe fn reduce_all(&self, kernel: &ReduceKernel, out: *mut T) {
        let out = Start(out);
        self.threads.share(self.len * size_of::<T>() * (self.world + 1), |part, parts| {
            let part = slice_of(self.len, parts, part);
            // SAFETY: the caller's duty; parts are one thread's each.
            unsafe { self.reduce_to(kernel, part.start, out.get().add(part.start), part.len()) };
        });
    }

    /// Reduces `out.len()` elements from `start` on into `out`.
    pub(super) fn reduce(&self, kernel: &ReduceKernel, start: usize, out: &mut [T]) {
        self.reduce_first(self.world, kernel, start, out);
    }

    /// [`Peers::reduce`] of the first `count` ranks.
    #[inline(always)]
    pub(super) fn reduce_first(&self, count: usize, kernel: &ReduceKernel, start: usize, out: &mut [T]) {
        debug_assert!(start + out.len() <= self.len);
        self.share_output(out, count + 1, |at, part| {
            // SAFETY: every address has room for these elements, nobody writes them until the next meeting,
            // and the part is private to this thread.
            self.at(start + at, |addresses| unsafe {
                let first = &sources(addresses)[..count];
                kernel.reduce_to_many(&[part.as_mut_ptr().cast()], first, part.len(), self.stores);
            });
        });
    }

    /// `out` becomes, in rank order, everybody's elements from `start` on, as many of each rank as fill it.
    pub(super) fn gather(&self, start: usize, out: &mut [T]) {
        let chunk = out.len() / self.world;
        self.share_output(out, 2, |at, part| {
            // Ranks start with themselves, so that not everybody reads the same one at once.
            for rank in (0..self.world).map(|step| (self.rank + step) % self.world) {
                let from = (rank * chunk).max(at);
                let end = ((rank + 1) * chunk).min(at + part.len());
                if from < end {
                    self.copy(rank, start + from - rank * chunk, &mut part[from - at..end - at]);
                }
            }
        });
    }

    /// `out` becomes, in rank order, the first `counts[rank]` elements of each rank.
    pub(super) fn gather_counts(&self, counts: &[usize], out: &mut [T]) {
        self.share_output(out, 2, |at, part| {
            let mut start = 0;
            for (rank, count) in counts.iter().copied().enumerate() {
                let (from, end) = (start.max(at), (start + count).min(at + part.len()));
                if from < end {
                    self.copy(rank, from - start, &mut part[from - at..end - at]);
                }
                start += count;
            }
        });
    }

    /// Lets the threads of this rank call `fill` with disjoint parts of `out` and where they start; for each
    /// byte of it `touched` bytes are read or written.
    fn share_output(&self, out: &mut [T], touched: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
        let (first, len) = (Start(out.as_mut_ptr()), out.len());
        self.threads.share(size_of_val(out) * touched, |part, parts| {
            let part = slice_of(len, parts, part);
            // SAFETY: within `out`, which is borrowed until all parts are done; parts are disjoint.
            let slice = unsafe { std::slice::from_raw_parts_mut(first.get().add(part.start), part.len()) };
            fill(part.start, slice);
        });
    }

    /// Reduces `len` elements from `start` on into `out`.
    ///
    /// # Safety
    /// `out` must be valid for that many elements, and be this rank's alone; it may be its address of element
    /// `start`.
    pub(super) unsafe fn reduce_to(&self, kernel: &ReduceKernel, start: usize, out: *mut T, len: usize) {
        // SAFETY: as for `reduce`; else the caller's duty.
        self.at(start, |addresses| unsafe {
            kernel.reduce_to_many(&[out.cast()], sources(addresses), len, self.stores);
        });
    }

    /// Reduces all elements into this rank's own memory, which is one of the addresses.
    pub(super) fn reduce_to_own(&self, kernel: &ReduceKernel) {
        debug_assert!(!self.shared);
        // SAFETY: this rank's own memory is borrowed for writing, and peers read copies of it.
        self.at(0, |addresses| unsafe {
            kernel.reduce(addresses[self.rank], sources(addresses), self.len);
        });
    }

    /// Copies `out.len()` elements of `rank` from `start` on.
    pub(super) fn copy(&self, rank: usize, start: usize, out: &mut [T]) {
        debug_assert!(start + out.len() <= self.len);
        // SAFETY: as for `reduce`.
        unsafe {
            let from = self.address(rank, start);
            copy::read_with(from, out.as_mut_ptr().cast(), size_of_val(out), self.stores);
        }
    }

    /// Copies all of `root`'s elements into this rank's own memory.
    pub(super) fn copy_to_own(&self, root: usize) {
        if root == self.rank {
            return;
        }
        self.threads.share(2 * self.len * size_of::<T>(), |part, parts| {
            let part = slice_of(self.len, parts, part);
            let (from, to) = (self.address(root, part.start), self.address(self.rank, part.start));
            // SAFETY: both have room for `len` elements and are different memory; this rank's is borrowed for
            // writing, its parts are one thread's each, and nobody writes the root's until the next meeting.
            unsafe { copy::read_with(from, to, part.len() * size_of::<T>(), self.stores) };
        });
    }

    fn address(&self, rank: usize, start: usize) -> *mut u8 {
        let first = if self.world > INLINE { self.heap[rank] } else { self.inline[rank] };
        // SAFETY: `start` is within the elements that every address has.
        unsafe { first.add(start * size_of::<T>()) }
    }
}

/// Where an output starts, for all threads of a rank.
struct Start<P>(P);

// SAFETY: only used for parts of their own by several threads; elements are plain data.
unsafe impl<P> Sync for Start<P> {}

impl<P: Copy> Start<P> {
    fn get(&self) -> P {
        self.0
    }
}

/// The same addresses, to read from.
fn sources(addresses: &[*mut u8]) -> &[*const u8] {
    // SAFETY: `*mut u8` and `*const u8` have the same layout.
    unsafe { std::slice::from_raw_parts(addresses.as_ptr().cast(), addresses.len()) }
}
