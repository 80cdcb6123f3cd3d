//! The way through a job for an instruction set: unit by unit, the accumulators in registers.
//!
//! Each unit is read from all sources before it is written to any destination, so a destination may be a
//! source.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::marker::PhantomData;

use super::fold::Fold;
use super::job::{KernelJob, finish, load, partial};
use super::lanes::{Item, Lanes, Vector};
use crate::sys::copy::Stores;

/// How an instruction set goes past the caches, or ahead of the loop.
pub(super) trait Caching {
    /// # Safety
    /// `dst` must be valid for the write and a multiple of 64, or of the unit if that is less; and the
    /// processor must have the instruction set.
    unsafe fn stream<R: Copy>(dst: *mut u8, raw: R);

    /// Orders what was streamed before later stores.
    fn fence();

    /// How far ahead of a result its destination is asked for where elements are converted, if at all.
    const AHEAD: Option<usize> = None;

    /// Asks for the cache line at any address, to write it.
    fn prefetch(_at: *const u8) {}
}

/// Does the whole job.
///
/// # Safety
/// As for [`Run`](super::job::Run).
#[inline(always)]
pub(super) unsafe fn run<S: Caching, L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
    let unit = size_of::<L::Raw>();
    let element = unit / L::ELEMENTS;
    let bytes = job.len * element;
    let to_line = if F::COMMON { streams_after(job, element) } else { None };
    let start = to_line.unwrap_or(0);
    let end = bytes - (bytes - start) % unit;
    // SAFETY: from `start` to `end` there are whole units; everything else is the caller's duty.
    unsafe {
        parts::<L, F>(job, 0, start);
        match (job.srcs, job.dsts) {
            _ if !F::COMMON => any::<Through<S>, L, F>(job, start, end),
            (&[a, b], &[dst]) if to_line.is_some() => {
                known::<Past<S>, L, F, 2, 1>([a, b], [dst], start, end);
            }
            _ if to_line.is_some() => any::<Past<S>, L, F>(job, start, end),
            (&[a, b], &[dst]) => known::<Through<S>, L, F, 2, 1>([a, b], [dst], start, end),
            (&[a, b], &[c, d]) => known::<Through<S>, L, F, 2, 2>([a, b], [c, d], start, end),
            (&[a, b, c, d], &[e, f, g, h]) => {
                known::<Through<S>, L, F, 4, 4>([a, b, c, d], [e, f, g, h], start, end);
            }
            _ => any::<Through<S>, L, F>(job, start, end),
        }
        if to_line.is_some() {
            S::fence();
        }
        parts::<L, F>(job, end, bytes);
    }
}

/// If streaming is wanted: after how many bytes a cache line starts in every destination, and with it an
/// element.
fn streams_after(job: &KernelJob<'_>, element: usize) -> Option<usize> {
    let to_line = |dst: &*mut u8| dst.addr().wrapping_neg() % 64;
    let head = to_line(job.dsts.first()?);
    let fits = head.is_multiple_of(element) && head <= job.len * element;
    let wanted = job.stores == Stores::Streaming && fits;
    (wanted && job.dsts.iter().all(|dst| to_line(dst) == head)).then_some(head)
}

/// Fewer elements than make it worth a loop of its own, from byte `at` to `end`.
///
/// # Safety
/// As for [`run`], with whole elements from `at` to `end`.
#[inline(always)]
unsafe fn parts<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>, mut at: usize, end: usize) {
    while at < end {
        let bytes = size_of::<L::Raw>().min(end - at);
        // SAFETY: the caller's duty.
        unsafe { partial::<L, F>(job, at, bytes) };
        at += bytes;
    }
}

/// How results are written.
trait Write {
    /// At byte `at` of a destination that is written up to byte `end`.
    ///
    /// # Safety
    /// The destination must be valid for the write there, and fit for it.
    unsafe fn write<L: Lanes>(dst: *mut u8, at: usize, end: usize, raw: L::Raw);
}

/// Through the caches.
struct Through<S>(PhantomData<S>);

/// Past the caches.
struct Past<S>(PhantomData<S>);

impl<S: Caching> Write for Through<S> {
    #[inline(always)]
    unsafe fn write<L: Lanes>(dst: *mut u8, at: usize, end: usize, raw: L::Raw) {
        let unit = size_of::<L::Raw>();
        if let Some(ahead) = S::AHEAD
            && size_of::<L::Accumulators>() > unit
        {
            // Beyond the end is what a peer writes: to ask for it would take it away from there.
            let next = (at + ahead).min(end - unit);
            let mut line = 0;
            while line < unit {
                S::prefetch(dst.wrapping_add(next + line));
                line += 64;
            }
        }
        // SAFETY: the caller's duty.
        unsafe { dst.add(at).cast::<L::Raw>().write_unaligned(raw) }
    }
}

impl<S: Caching> Write for Past<S> {
    #[inline(always)]
    unsafe fn write<L: Lanes>(dst: *mut u8, at: usize, _end: usize, raw: L::Raw) {
        // SAFETY: the caller's duty.
        unsafe { S::stream(dst.add(at), raw) }
    }
}

/// As many ranks and destinations as the compiler knows of.
///
/// # Safety
/// As for [`run`], with whole units from `at` to `end`.
#[inline(always)]
unsafe fn known<S: Write, L: Lanes, F: Fold<Item<L>>, const W: usize, const D: usize>(
    srcs: [*const u8; W],
    dsts: [*mut u8; D],
    mut at: usize,
    end: usize,
) {
    while at < end {
        // SAFETY: a whole unit lies between `at` and `end`.
        unsafe {
            let mut value = load::<L>(srcs[0].add(at));
            for src in &srcs[1..] {
                value = value.zip(load::<L>(src.add(at)), F::fold);
            }
            let raw = finish::<L, F>(value, W);
            for dst in dsts {
                S::write::<L>(dst, at, end, raw);
            }
        }
        at += size_of::<L::Raw>();
    }
}

/// Any number of ranks and destinations.
///
/// # Safety
/// As for [`known`].
#[inline(always)]
unsafe fn any<S: Write, L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>, mut at: usize, end: usize) {
    while at < end {
        // SAFETY: a whole unit lies between `at` and `end`.
        unsafe {
            let mut value = load::<L>(job.srcs[0].add(at));
            for src in &job.srcs[1..] {
                value = value.zip(load::<L>(src.add(at)), F::fold);
            }
            let raw = finish::<L, F>(value, job.srcs.len());
            for &dst in job.dsts {
                S::write::<L>(dst, at, end, raw);
            }
        }
        at += size_of::<L::Raw>();
    }
}
