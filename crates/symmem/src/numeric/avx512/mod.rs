//! The kernels for x86-64 processors with AVX-512 (F, BW, DQ and VL, as every one since 2017 has them): f64,
//! f32, f16, bf16. Integers and f8 gain nothing that would be worth the code. A second kernel for bf16 is for
//! processors that can also round to it (AVX512-BF16).
//!
//! As in [`avx2`](super::avx2), vectors of numbers are made by the lanes here only, and these are used by
//! kernels only that run where the processor has the instruction set.

#![allow(unsafe_code, reason = "SIMD instructions")]

mod bf16;
mod float;
mod small;

use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};

use bytemuck::{Pod, Zeroable};

pub(super) use self::bf16::{Avx512Bf16, Rounded};
use self::float::{F32x16, F64x8};
use super::avx2::Avx2;
use super::fold::Fold;
use super::job::{KernelJob, KernelLoop, Target};
use super::lanes::{Four, Item, Lanes};
use super::registers::{self, Caching};

pub(super) struct Avx512;

/// Whether this processor has it.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Whether this processor can round to bf16 as well.
pub(super) fn rounds_to_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Processors before Ice Lake and Zen 4 lower their clock while they use such wide registers, which costs the
/// program more than the kernels gain. The later ones can be told by an extension that came with them.
pub(super) fn runs_at_full_clock() -> bool {
    is_x86_feature_detected!("avx512vbmi2")
}

impl Target for Avx512 {
    // For floats only, see `dispatch`.
    type I8 = <Avx2 as Target>::I8;
    type U8 = <Avx2 as Target>::U8;
    type I16 = <Avx2 as Target>::I16;
    type U16 = <Avx2 as Target>::U16;
    type I32 = <Avx2 as Target>::I32;
    type U32 = <Avx2 as Target>::U32;
    type I64 = <Avx2 as Target>::I64;
    type U64 = <Avx2 as Target>::U64;
    type F8E4M3 = <Avx2 as Target>::F8E4M3;
    type F8E5M2 = <Avx2 as Target>::F8E5M2;
    type F16 = small::F16Lanes;
    type BF16 = small::Bf16Lanes;
    type F32 = Four<F32x16, 16>;
    type F64 = Four<F64x8, 8>;
    type Bool = <Avx2 as Target>::Bool;
}

impl KernelLoop for Avx512 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
        // SAFETY: the caller's duty.
        unsafe { registers::run::<Self, L, F>(job) }
    }
}

// Nothing is asked for ahead: where it was measured, on Zen 4, that gains nothing, and costs a third where
// what a peer has written comes from far.
impl Caching for Avx512 {
    #[inline(always)]
    unsafe fn stream<R: Copy>(dst: *mut u8, raw: R) {
        // SAFETY: a unit is a multiple of 64 bytes, so these are its parts; the rest is the caller's duty.
        unsafe {
            for part in 0..size_of::<R>() / size_of::<__m512i>() {
                let value = _mm512_loadu_si512((&raw const raw).cast::<__m512i>().add(part));
                _mm512_stream_si512(dst.cast::<__m512i>().add(part), value);
            }
        }
    }

    #[inline(always)]
    fn fence() {
        Avx2::fence();
    }
}

/// The bytes of a register.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bytes(__m512i);

// SAFETY: 64 bytes of which any are valid, without padding.
unsafe impl Zeroable for Bytes {}
// SAFETY: as above.
unsafe impl Pod for Bytes {}
