//! The portable way through a job: long loops over single elements, which the compiler turns into vector
//! code.
//!
//! It does so only where what a loop writes overlaps nothing that it reads through another pointer; it checks
//! that at run time. As destinations may be sources, no loop here reads a source and writes a destination but
//! where both are the same pointer, or known to be apart.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use std::mem::MaybeUninit;

use super::fold::Fold;
use super::job::{KernelJob, finish, load, partial};
use super::lanes::{Item, Lanes, Vector};
use crate::sys::copy::{self, Stores};

/// Accumulators of a block. They stay in the first-level cache, beside the block's results and the source at
/// work.
const BLOCK: usize = 4 << 10;

#[repr(C, align(64))]
struct LoopBlock(MaybeUninit<[u8; BLOCK]>);

impl LoopBlock {
    fn pointer<T>(&mut self) -> *mut T {
        const { assert!(align_of::<T>() <= 64 && BLOCK.is_multiple_of(size_of::<T>())) };
        self.0.as_mut_ptr().cast()
    }
}

/// Does the whole job.
///
/// # Safety
/// As for [`Run`](super::job::Run).
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
    let rest = job.len % L::ELEMENTS;
    let units = job.len / L::ELEMENTS;
    // SAFETY: there are as many whole units, and then the rest; everything else is the caller's duty.
    unsafe {
        match (job.srcs, job.dsts) {
            _ if !F::COMMON => blocks::<L, F>(job, units),
            (&[a, b], &[c, d]) if [a, b] == [c.cast_const(), d.cast_const()] => in_place::<L, F>(c, d, units),
            (&[a, b], &[d, c]) if [a, b] == [c.cast_const(), d.cast_const()] => in_place::<L, F>(c, d, units),
            (&[a, b], &[dst]) if a == dst.cast_const() => pair::<L, F>(dst.cast_const(), b, dst, units),
            (&[a, b], &[dst]) if b == dst.cast_const() => pair::<L, F>(a, dst.cast_const(), dst, units),
            (&[a, b], &[dst]) => pair::<L, F>(a, b, dst, units),
            _ => blocks::<L, F>(job, units),
        }
        if rest > 0 {
            let element = size_of::<L::Raw>() / L::ELEMENTS;
            partial::<L, F>(job, units * size_of::<L::Raw>(), rest * element);
        }
    }
}

/// Two ranks, with the result in the place of both.
///
/// # Safety
/// As for [`run`], for as many units.
#[inline(always)]
unsafe fn in_place<L: Lanes, F: Fold<Item<L>>>(a: *mut u8, b: *mut u8, units: usize) {
    for unit in 0..units {
        // SAFETY: there are more units than that.
        unsafe {
            let a = a.cast::<L::Raw>().add(unit);
            let b = b.cast::<L::Raw>().add(unit);
            let value = load::<L>(a.cast()).zip(load::<L>(b.cast()), F::fold);
            let raw = finish::<L, F>(value, 2);
            a.write_unaligned(raw);
            b.write_unaligned(raw);
        }
    }
}

/// Two ranks, with the result in one place, which the compiler can tell to be a source or none.
///
/// # Safety
/// As for [`run`], for as many units.
#[inline(always)]
unsafe fn pair<L: Lanes, F: Fold<Item<L>>>(a: *const u8, b: *const u8, dst: *mut u8, units: usize) {
    for unit in 0..units {
        // SAFETY: there are more units than that.
        unsafe {
            let at = unit * size_of::<L::Raw>();
            let value = load::<L>(a.add(at)).zip(load::<L>(b.add(at)), F::fold);
            dst.add(at).cast::<L::Raw>().write_unaligned(finish::<L, F>(value, 2));
        }
    }
}

/// Any number of ranks, block by block: rank after rank into accumulators, then the results into the only
/// destination, or into a block of their own and from there to every destination.
///
/// # Safety
/// As for [`run`], for as many units.
#[inline(always)]
unsafe fn blocks<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>, units: usize) {
    let capacity = BLOCK / size_of::<L::Accumulators>();
    let mut accumulators = LoopBlock(MaybeUninit::uninit());
    let accumulators = accumulators.pointer::<L::Accumulators>();
    let mut results = LoopBlock(MaybeUninit::uninit());
    let results = results.pointer::<L::Raw>();
    let mut done = 0;
    while done < units {
        let count = capacity.min(units - done);
        let at = done * size_of::<L::Raw>();
        // SAFETY: `count` units lie at `at` in every buffer, and fit either block, as no unit is larger than
        // its accumulators. The first rank fills the accumulators before the others read them. Results are
        // written when all sources have been read.
        unsafe {
            let first = job.srcs[0].add(at).cast::<L::Raw>();
            for unit in 0..count {
                accumulators.add(unit).write(load::<L>(first.add(unit).cast()));
            }
            for src in &job.srcs[1..] {
                let src = src.add(at).cast::<L::Raw>();
                for unit in 0..count {
                    let next = load::<L>(src.add(unit).cast());
                    accumulators.add(unit).write(accumulators.add(unit).read().zip(next, F::fold));
                }
            }
            let sink = match job.dsts {
                &[dst] if job.stores == Stores::Cached => dst.add(at).cast::<L::Raw>(),
                _ => results,
            };
            for unit in 0..count {
                let raw = finish::<L, F>(accumulators.add(unit).read(), job.srcs.len());
                sink.add(unit).write_unaligned(raw);
            }
            if sink == results {
                emit(job, at, results.cast(), count * size_of::<L::Raw>());
            }
        }
        done += count;
    }
}

/// Copies a block of results to every destination.
///
/// # Safety
/// As for [`run`], with as many bytes in `results` and from `at` on in the destinations.
unsafe fn emit(job: &KernelJob<'_>, at: usize, results: *const u8, bytes: usize) {
    for dst in job.dsts {
        // SAFETY: the caller's duty. That copy is a fast one on every processor, which `memcpy` is not.
        unsafe { copy::write_with(results, dst.add(at), bytes, job.stores) };
    }
}
