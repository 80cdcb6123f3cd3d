//! Lanes of the floats that accumulate in f32: f16 by F16C, bf16 in pairs, f8 by way of f16.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::arch::x86_64::*;

use super::float::F32x8;
use crate::numeric::lanes::Lanes;
use crate::numeric::minifloat::{self, Format};
use crate::numeric::number::Number;

/// f16.
pub(in crate::numeric) struct F16Lanes;

impl Lanes for F16Lanes {
    const ELEMENTS: usize = 32;
    type Raw = [__m256i; 2];
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen(raw: [__m256i; 2]) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe { from_halves(raw) }
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [F32x8; 4]) -> [__m256i; 2] {
        // SAFETY: the caller's duty.
        unsafe { to_halves(canonical(accumulators)) }
    }
}

/// Exact.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn from_halves([a, b]: [__m256i; 2]) -> [F32x8; 4] {
    [
        F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(a))),
        F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(a))),
        F32x8(_mm256_cvtph_ps(_mm256_castsi256_si128(b))),
        F32x8(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(b))),
    ]
}

/// Rounds and keeps subnormals as IEEE 754 says. A NaN keeps its sign and the upper bits of its payload, so
/// the canonical one becomes the canonical one.
///
/// The results are put together in registers: for the store of a part, the compiler would convert again at
/// each destination.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn to_halves([a, b, c, d]: [F32x8; 4]) -> [__m256i; 2] {
    let a = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a.0);
    let b = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(b.0);
    let c = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(c.0);
    let d = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(d.0);
    [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]
}

/// Canonical NaN, by a branch, as there hardly ever is a NaN. Where conversions keep the processor busy that
/// is faster.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn canonical([a, b, c, d]: [F32x8; 4]) -> [F32x8; 4] {
    let nan = _mm256_or_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(a.0, b.0), _mm256_cmp_ps::<_CMP_UNORD_Q>(c.0, d.0));
    if _mm256_movemask_ps(nan) == 0 {
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
    const ELEMENTS: usize = 32;
    type Raw = [__m256i; 2];
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen([a, b]: [__m256i; 2]) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe { [lower(a), upper(a), lower(b), upper(b)] }
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [F32x8; 4]) -> [__m256i; 2] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b, c, d] = canonical(accumulators);
            [to_bf16(a, b), to_bf16(c, d)]
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn lower(words: __m256i) -> F32x8 {
    F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn upper(words: __m256i) -> F32x8 {
    F32x8(_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(!0 << 16))))
}

/// The nearest bf16, in 16-bit arithmetic for both halves together: one more than the upper half of the f32
/// if its lower half is more than a half, or just a half where the upper one is odd. No carry makes a number
/// of the canonical NaN, as its lower half is zero.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn to_bf16(lower: F32x8, upper: F32x8) -> __m256i {
    let (lower, upper) = (_mm256_castps_si256(lower.0), _mm256_castps_si256(upper.0));
    let kept = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(lower), upper);
    let dropped = _mm256_blend_epi16::<0xaa>(lower, _mm256_slli_epi32::<16>(upper));
    let even = _mm256_andnot_si256(kept, _mm256_set1_epi16(1));
    let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(dropped, even));
    _mm256_add_epi16(kept, up)
}

/// f8 E5M2, the upper byte of an f16.
pub(in crate::numeric) struct E5M2Lanes;

impl Lanes for E5M2Lanes {
    const ELEMENTS: usize = 32;
    type Raw = __m256i;
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen(raw: __m256i) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe { from_halves(to_upper_bytes(raw)) }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x8; 4]) -> __m256i {
        type F = minifloat::E5M2;
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b] = to_halves([round::<F>(a), round::<F>(b), round::<F>(c), round::<F>(d)]);
            _mm256_packus_epi16(e5m2_of_half(a), e5m2_of_half(b))
        }
    }
}

/// The upper byte, in the place of the lower one; for any NaN the canonical one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn e5m2_of_half(halves: __m256i) -> __m256i {
    let magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
    let is_nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00));
    _mm256_blendv_epi8(_mm256_srli_epi16::<8>(halves), _mm256_set1_epi16(0x7f), is_nan)
}

/// f8 E4M3. In the places of an f16 it is 256 times too small.
pub(in crate::numeric) struct E4M3Lanes;

impl Lanes for E4M3Lanes {
    const ELEMENTS: usize = 32;
    type Raw = __m256i;
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen(raw: __m256i) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b] = to_upper_bytes(raw);
            let [a, b, c, d] = from_halves([half_of_e4m3(a), half_of_e4m3(b)]);
            let scale = F32x8(_mm256_set1_ps(256.0));
            [a.times(scale), b.times(scale), c.times(scale), d.times(scale)]
        }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x8; 4]) -> __m256i {
        type F = minifloat::E4M3;
        // SAFETY: the caller's duty.
        unsafe {
            let scale = F32x8(_mm256_set1_ps(1.0 / 256.0));
            let [a, b, c, d] = [round::<F>(a), round::<F>(b), round::<F>(c), round::<F>(d)];
            let [a, b] = to_halves([a.times(scale), b.times(scale), c.times(scale), d.times(scale)]);
            _mm256_packus_epi16(e4m3_of_half(a), e4m3_of_half(b))
        }
    }
}

/// From the upper byte.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_of_e4m3(bytes: __m256i) -> __m256i {
    // The shift doubles the sign; the copy is taken out.
    let small = _mm256_and_si256(_mm256_srai_epi16::<1>(bytes), _mm256_set1_epi16(!0x4000));
    // All ones is NaN: the carry makes the exponent all ones.
    let carry = _mm256_add_epi16(small, _mm256_set1_epi16(0x80));
    _mm256_or_si256(small, _mm256_and_si256(carry, _mm256_set1_epi16(0x4000)))
}

/// In the place of the lower byte. What is too large, infinity and NaN included, becomes the canonical NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn e4m3_of_half(halves: __m256i) -> __m256i {
    let nan = _mm256_set1_epi16(0x7f);
    let magnitude = _mm256_srli_epi16::<7>(_mm256_and_si256(halves, _mm256_set1_epi16(0x7fff)));
    let bounded = _mm256_min_epu16(magnitude, nan);
    let sign = _mm256_and_si256(_mm256_srli_epi16::<8>(halves), _mm256_set1_epi16(0x80));
    _mm256_or_si256(bounded, _mm256_andnot_si256(_mm256_cmpeq_epi16(bounded, nan), sign))
}

/// Each byte as the upper one of 16 bits. Their order is the one that packing undoes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn to_upper_bytes(bytes: __m256i) -> [__m256i; 2] {
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi8(zero, bytes), _mm256_unpackhi_epi8(zero, bytes)]
}

/// The nearest number of the format, ties to even, as an f32: adds and takes away a number whose last bit is
/// worth what the format's last bit is worth for such an exponent, so that the adder rounds. What lies beyond
/// the format stays beyond, infinity and NaN stay what they are.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round<F: Format>(values: F32x8) -> F32x8 {
    let exponent = _mm256_and_si256(_mm256_castps_si256(values.0), constant(0x7f80_0000));
    let mut exponent = _mm256_max_epi32(exponent, constant(F::SMALLEST_NORMAL));
    // An exponent too large for an f32 would make NaN, or change nothing: right where NaN is what lies
    // beyond.
    if F::HAS_INFINITY {
        exponent = _mm256_min_epi32(exponent, constant(F::BEYOND_ALL));
    }
    // Half as much again keeps the exponent of the sum for negative numbers as well.
    let rounder = _mm256_add_epi32(exponent, constant((F::DROPPED << 23) + (1 << 22)));
    let rounder = _mm256_castsi256_ps(rounder);
    let rounded = _mm256_sub_ps(_mm256_add_ps(values.0, rounder), rounder);
    // A negative number that rounds to zero is -0.0.
    F32x8(_mm256_or_ps(rounded, _mm256_and_ps(values.0, _mm256_set1_ps(-0.0))))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn constant(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits as i32)
}
