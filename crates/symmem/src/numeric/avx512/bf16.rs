//! bf16 on processors that have an instruction to round to it (AVX512-BF16).
//!
//! The instruction rounds to nearest even whatever the thread has set, but it takes subnormals for zero and
//! keeps the payload of a NaN. Where there is either, integer arithmetic rounds instead, as without the
//! instruction.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::arch::x86_64::*;

use super::float::F32x16;
use super::small::Bf16Lanes;
use super::{Avx512, Bytes};
use crate::numeric::fold::Fold;
use crate::numeric::job::{KernelJob, KernelLoop};
use crate::numeric::lanes::{Item, Lanes};
use crate::numeric::number::Number;
use crate::numeric::registers;

/// AVX-512 with AVX512-BF16.
pub(in crate::numeric) struct Avx512Bf16;

impl KernelLoop for Avx512Bf16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
        // SAFETY: the caller's duty.
        unsafe { registers::run::<Avx512, L, F>(job) }
    }
}

/// bf16, widened as [`Bf16Lanes`] are.
pub(in crate::numeric) struct Rounded;

impl Lanes for Rounded {
    const ELEMENTS: usize = Bf16Lanes::ELEMENTS;
    type Raw = [Bytes; 2];
    type Accumulators = [Fused; 4];

    #[inline(always)]
    unsafe fn widen(raw: [Bytes; 2]) -> [Fused; 4] {
        // SAFETY: the caller's duty.
        let [a, b, c, d] = unsafe { Bf16Lanes::widen(raw) };
        [Fused(a), Fused(b), Fused(c), Fused(d)]
    }

    #[inline(always)]
    unsafe fn narrow([Fused(a), Fused(b), Fused(c), Fused(d)]: [Fused; 4]) -> [Bytes; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            // Added and not or-ed, which the compiler would do among the masks: that takes the time of vector
            // instructions, of which this loop is full.
            let special = special(a) + special(b) + special(c) + special(d);
            if special == 0 {
                [round(a, b), round(c, d)]
            } else {
                std::hint::cold_path();
                Bf16Lanes::narrow([a, b, c, d])
            }
        }
    }
}

/// [`F32x16`] that is added by the multipliers: to widen and to round keeps the adders busy. As a product
/// with 1 is exact, all that is rounded is the sum, so it has the same bits.
#[derive(Clone, Copy)]
pub(in crate::numeric) struct Fused(F32x16);

impl Number for Fused {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // For the instruction without a rounding mode of its own, the compiler would add after all.
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the processor has the instruction set, see the head of `avx512`.
        let sum = unsafe { _mm512_fmadd_round_ps::<NEAREST>(self.0.0, _mm512_set1_ps(1.0), other.0.0) };
        Self(F32x16(sum))
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Self(self.0.times(other.0))
    }

    #[inline(always)]
    fn least(self, other: Self) -> Self {
        Self(self.0.least(other.0))
    }

    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        Self(self.0.greatest(other.0))
    }

    #[inline(always)]
    fn share(self, world: usize) -> Self {
        Self(self.0.share(world))
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        Self(self.0.canonical())
    }
}

/// Where the instruction would not keep to the contract; zero if nowhere.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn special(values: F32x16) -> u32 {
    const QUIET_NAN: i32 = 0x01;
    const SUBNORMAL: i32 = 0x20;
    const SIGNALING_NAN: i32 = 0x80;
    // SAFETY: the caller's duty.
    u32::from(unsafe { _mm512_fpclass_ps_mask::<{ QUIET_NAN | SUBNORMAL | SIGNALING_NAN }>(values.0) })
}

/// The nearest bf16 of the lower and the upper halves of the words in turn.
///
/// # Safety
/// The processor must have AVX512-BF16.
#[inline(always)]
unsafe fn round(lower: F32x16, upper: F32x16) -> Bytes {
    /// From all lower halves before all upper ones.
    const IN_TURN: [u16; 32] = {
        let mut places = [0; 32];
        let mut i = 0;
        while i < 32 {
            places[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        places
    };
    // SAFETY: the caller's duty; both are 64 bytes of which any are valid.
    unsafe {
        let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(upper.0, lower.0));
        Bytes(_mm512_permutexvar_epi16(bytemuck::cast::<_, Bytes>(IN_TURN).0, halves))
    }
}
