//! The kernels for x86-64 processors with AVX2 and F16C.
//!
//! Vectors of numbers are made by the lanes here only, and these are used by kernels only that run where the
//! processor has the instruction set: that is what makes the intrinsics inside safe arithmetic sound.

#![allow(unsafe_code, reason = "SIMD instructions")]

mod float;
mod integer;
mod small;

use std::arch::asm;
use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

use self::float::{F32x8, F64x4};
use self::integer::{I8x32, I16x16, I32x8, I64x4, U8x32, U16x16, U32x8, U64x4};
use super::fold::Fold;
use super::job::{KernelJob, KernelLoop, Target};
use super::lanes::{Four, Item, Lanes};
use super::registers::{self, Caching};

pub(super) struct Avx2;

/// Whether this processor has it.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

impl Target for Avx2 {
    type I8 = Four<I8x32, 32>;
    type U8 = Four<U8x32, 32>;
    type I16 = Four<I16x16, 16>;
    type U16 = Four<U16x16, 16>;
    type I32 = Four<I32x8, 8>;
    type U32 = Four<U32x8, 8>;
    type I64 = Four<I64x4, 4>;
    type U64 = Four<U64x4, 4>;
    type F8E4M3 = small::E4M3Lanes;
    type F8E5M2 = small::E5M2Lanes;
    type F16 = small::F16Lanes;
    type BF16 = small::Bf16Lanes;
    type F32 = Four<F32x8, 8>;
    type F64 = Four<F64x4, 4>;
    type Bool = integer::Truths;
}

impl KernelLoop for Avx2 {
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
        // SAFETY: the caller's duty.
        unsafe { registers::run::<Self, L, F>(job) }
    }
}

impl Caching for Avx2 {
    #[inline(always)]
    unsafe fn stream<R: Copy>(dst: *mut u8, raw: R) {
        // SAFETY: a unit is a multiple of 32 bytes, so these are its parts; the rest is the caller's duty.
        unsafe {
            for part in 0..size_of::<R>() / size_of::<__m256i>() {
                let value = _mm256_loadu_si256((&raw const raw).cast::<__m256i>().add(part));
                _mm256_stream_si256(dst.cast::<__m256i>().add(part), value);
            }
        }
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { _mm_sfence() };
    }

    /// The conversions fill the processor's window, which keeps it from looking ahead by itself. A line that
    /// a peer has written is then fetched once, to be read and written.
    const AHEAD: Option<usize> = Some(2048);

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: changes nothing that a program can see; where a processor lacks the instruction it does
        // nothing.
        unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
    }
}
