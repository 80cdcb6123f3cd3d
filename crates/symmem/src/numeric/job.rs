//! What a kernel works on, and what the two ways to loop over it share.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use bytemuck::Zeroable;

use super::ReduceOp;
use super::fold::Fold;
use super::lanes::{Item, Lanes, Vector};
use super::number::{Bits, Number};
use crate::sys::copy::Stores;

/// What a kernel works on.
pub(super) struct KernelJob<'a> {
    pub(super) dsts: &'a [*mut u8],
    pub(super) srcs: &'a [*const u8],
    /// Elements in each of them.
    pub(super) len: usize,
    pub(super) stores: Stores,
    /// For the reference, which is not compiled per operation.
    pub(super) op: ReduceOp,
}

/// A compiled kernel.
///
/// # Safety
/// Every pointer is valid for the job's elements; there is at least one source; each destination equals a
/// source or overlaps none; no two destinations overlap; nobody else writes any of them or reads the
/// destinations meanwhile; and the processor has the kernel's instruction set.
pub(super) type Run = unsafe fn(&KernelJob<'_>);

/// The way of an instruction set through a job.
pub(super) trait KernelLoop {
    /// The kernel.
    ///
    /// # Safety
    /// As for [`Run`].
    unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>);
}

/// An instruction set that kernels are compiled for: its lanes for every element type, and its way through a
/// job.
pub(super) trait Target: KernelLoop {
    type I8: Lanes<Accumulators: Vector<Item: Number>>;
    type U8: Lanes<Accumulators: Vector<Item: Number + Bits>>;
    type I16: Lanes<Accumulators: Vector<Item: Number>>;
    type U16: Lanes<Accumulators: Vector<Item: Number>>;
    type I32: Lanes<Accumulators: Vector<Item: Number>>;
    type U32: Lanes<Accumulators: Vector<Item: Number>>;
    type I64: Lanes<Accumulators: Vector<Item: Number>>;
    type U64: Lanes<Accumulators: Vector<Item: Number>>;
    type F8E4M3: Lanes<Accumulators: Vector<Item: Number>>;
    type F8E5M2: Lanes<Accumulators: Vector<Item: Number>>;
    type F16: Lanes<Accumulators: Vector<Item: Number>>;
    type BF16: Lanes<Accumulators: Vector<Item: Number>>;
    type F32: Lanes<Accumulators: Vector<Item: Number>>;
    type F64: Lanes<Accumulators: Vector<Item: Number>>;
    type Bool: Lanes<Accumulators: Vector<Item: Bits>>;
}

/// The accumulators of one unit, whose bytes are at `src`.
///
/// # Safety
/// It must be valid for the read, and the processor must have the instruction set of the lanes.
#[inline(always)]
pub(super) unsafe fn load<L: Lanes>(src: *const u8) -> L::Accumulators {
    // SAFETY: the caller's duty; a unit is plain data, so any bits are one.
    unsafe { L::widen(src.cast::<L::Raw>().read_unaligned()) }
}

/// The result of one unit.
///
/// # Safety
/// The processor must have the instruction set of the lanes.
#[inline(always)]
pub(super) unsafe fn finish<L: Lanes, F: Fold<Item<L>>>(value: L::Accumulators, world: usize) -> L::Raw {
    // SAFETY: the caller's duty.
    unsafe { L::narrow(value.finish::<F>(world)) }
}

/// A unit at most: as many bytes of every source, and zeros.
///
/// # Safety
/// As for [`Run`], with so many bytes of whole elements from byte `at` on.
#[inline(always)]
pub(super) unsafe fn partial<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>, at: usize, bytes: usize) {
    // SAFETY: only `bytes` bytes of each buffer are touched, and no more of a unit, which is plain data. A
    // unit is on the stack, so it overlaps no buffer.
    unsafe {
        let mut raw = L::Raw::zeroed();
        job.srcs[0].add(at).copy_to_nonoverlapping((&raw mut raw).cast(), bytes);
        let mut value = L::widen(raw);
        for src in &job.srcs[1..] {
            src.add(at).copy_to_nonoverlapping((&raw mut raw).cast(), bytes);
            value = value.zip(L::widen(raw), F::fold);
        }
        raw = finish::<L, F>(value, job.srcs.len());
        for dst in job.dsts {
            (&raw const raw).cast::<u8>().copy_to_nonoverlapping(dst.add(at), bytes);
        }
    }
}
