//! Lanes of the floats that accumulate in f32: f16 by its conversions, bf16 in pairs.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::arch::x86_64::*;

use super::Bytes;
use super::float::F32x16;
use crate::numeric::lanes::Lanes;
use crate::numeric::number::Number;

/// f16.
pub(in crate::numeric) struct F16Lanes;

impl Lanes for F16Lanes {
    const ELEMENTS: usize = 64;
    type Raw = [Bytes; 2];
    type Accumulators = [F32x16; 4];

    #[inline(always)]
    unsafe fn widen([a, b]: [Bytes; 2]) -> [F32x16; 4] {
        // SAFETY: the caller's duty.
        unsafe { from_halves([a.0, b.0]) }
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [F32x16; 4]) -> [Bytes; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b] = to_halves(canonical(accumulators));
            [Bytes(a), Bytes(b)]
        }
    }
}

/// Exact.
/// The processor must have AVX-512. So for all below.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn from_halves([a, b]: [__m512i; 2]) -> [F32x16; 4] {
    [
        F32x16(_mm512_cvtph_ps(_mm512_castsi512_si256(a))),
        F32x16(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(a))),
        F32x16(_mm512_cvtph_ps(_mm512_castsi512_si256(b))),
        F32x16(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(b))),
    ]
}

/// Rounds and keeps subnormals as IEEE 754 says. A NaN keeps its sign and the upper bits of its payload, so
/// the canonical one becomes the canonical one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn to_halves([a, b, c, d]: [F32x16; 4]) -> [__m512i; 2] {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    let a = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(a.0));
    let c = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(c.0));
    [
        _mm512_inserti64x4::<1>(a, _mm512_cvtps_ph::<NEAREST>(b.0)),
        _mm512_inserti64x4::<1>(c, _mm512_cvtps_ph::<NEAREST>(d.0)),
    ]
}

/// Canonical NaN, by a branch, as there hardly ever is a NaN. Where conversions keep the processor busy that
/// is faster.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn canonical([a, b, c, d]: [F32x16; 4]) -> [F32x16; 4] {
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a.0, b.0) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(c.0, d.0);
    if nan == 0 {
        [a, b, c, d]
    } else {
        std::hint::cold_path();
        [a.canonical(), b.canonical(), c.canonical(), d.canonical()]
    }
}

/// bf16, taken as pairs in a word: both halves become an f32 by a shift or a mask, with no shuffle, and go
/// back the same way. Accumulators are those of the lower and of the upper halves in turn.
pub(in crate::numeric) struct Bf16Lanes;

impl Lanes for Bf16Lanes {
    const ELEMENTS: usize = 64;
    type Raw = [Bytes; 2];
    type Accumulators = [F32x16; 4];

    #[inline(always)]
    unsafe fn widen([a, b]: [Bytes; 2]) -> [F32x16; 4] {
        // SAFETY: the caller's duty.
        unsafe { [lower(a.0), upper(a.0), lower(b.0), upper(b.0)] }
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [F32x16; 4]) -> [Bytes; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b, c, d] = canonical(accumulators);
            [Bytes(to_bf16(a, b)), Bytes(to_bf16(c, d))]
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn lower(words: __m512i) -> F32x16 {
    F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn upper(words: __m512i) -> F32x16 {
    F32x16(_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0 << 16))))
}

/// The nearest bf16, in 16-bit arithmetic for both halves together: one more than the upper half of the f32
/// if its lower half is more than a half, or just a half where the upper one is odd. No carry makes a number
/// of the canonical NaN, as its lower half is zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn to_bf16(lower: F32x16, upper: F32x16) -> __m512i {
    const ODD: u32 = 0xaaaa_aaaa;
    let (lower, upper) = (_mm512_castps_si512(lower.0), _mm512_castps_si512(upper.0));
    let kept = _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(lower), upper);
    let dropped = _mm512_mask_blend_epi16(ODD, lower, _mm512_slli_epi32::<16>(upper));
    let even = _mm512_andnot_si512(kept, _mm512_set1_epi16(1));
    let up = _mm512_srli_epi16::<15>(_mm512_subs_epu16(dropped, even));
    _mm512_add_epi16(kept, up)
}
