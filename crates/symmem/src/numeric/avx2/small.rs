//! Lanes of the floats that accumulate in f32: f16 by F16C, bf16 in pairs, f8 by way of f16.

use std::arch::x86_64::*;

use super::float::F32x8;
use crate::numeric::lanes::Lanes;
use crate::numeric::minifloat::{self, Format};
use crate::numeric::number::Number;

/// # Safety
/// The processor must have F16C. Rounds and keeps subnormals as IEEE 754 says.
#[inline(always)]
unsafe fn widen(halves: __m128i) -> F32x8 {
    // SAFETY: the caller's duty.
    F32x8(unsafe { _mm256_cvtph_ps(halves) })
}

/// f16.
pub(in crate::numeric) struct Halves;

impl Lanes for Halves {
    const ELEMENTS: usize = 32;
    type Raw = [__m128i; 4];
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen([a, b, c, d]: [__m128i; 4]) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe { [widen(a), widen(b), widen(c), widen(d)] }
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [F32x8; 4]) -> [__m128i; 4] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b, c, d] = canonical(accumulators);
            [to_halves(a), to_halves(b), to_halves(c), to_halves(d)]
        }
    }
}

/// # Safety
/// As for [`widen`]. The instruction keeps sign and payload of a NaN, so the canonical one becomes the canonical one.
#[inline(always)]
unsafe fn to_halves(values: F32x8) -> __m128i {
    // SAFETY: the caller's duty.
    unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values.0) }
}

/// Canonical NaN, by a branch, as there hardly ever is a NaN. Where conversions keep the processor busy that is faster.
///
/// # Safety
/// The processor must have AVX.
#[inline(always)]
unsafe fn canonical([a, b, c, d]: [F32x8; 4]) -> [F32x8; 4] {
    // SAFETY: the caller's duty.
    unsafe {
        let nan =
            _mm256_or_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(a.0, b.0), _mm256_cmp_ps::<_CMP_UNORD_Q>(c.0, d.0));
        if _mm256_movemask_ps(nan) == 0 {
            [a, b, c, d]
        } else {
            std::hint::cold_path();
            [a.canonical(), b.canonical(), c.canonical(), d.canonical()]
        }
    }
}

/// bf16, taken as pairs in a word: both halves become an f32 by a shift or a mask, with no shuffle, and go back the same
/// way. Accumulators are those of the lower and of the upper halves in turn.
pub(in crate::numeric) struct Brains;

impl Lanes for Brains {
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
            [to_brains(a, b), to_brains(c, d)]
        }
    }
}

/// # Safety
/// The processor must have AVX2. So for all below.
#[inline(always)]
unsafe fn lower(words: __m256i) -> F32x8 {
    // SAFETY: the caller's duty.
    F32x8(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)) })
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn upper(words: __m256i) -> F32x8 {
    // SAFETY: the caller's duty.
    F32x8(unsafe { _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(!0 << 16))) })
}

/// The nearest bf16, in 16-bit arithmetic for both halves together: one more than the upper half of the f32 if its lower
/// half is more than a half, or just a half where the upper one is odd. No carry makes a number of the canonical NaN, as its
/// lower half is zero.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn to_brains(lower: F32x8, upper: F32x8) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe {
        let (lower, upper) = (_mm256_castps_si256(lower.0), _mm256_castps_si256(upper.0));
        let kept = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(lower), upper);
        let dropped = _mm256_blend_epi16::<0xaa>(lower, _mm256_slli_epi32::<16>(upper));
        let even = _mm256_andnot_si256(kept, _mm256_set1_epi16(1));
        let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(dropped, even));
        _mm256_add_epi16(kept, up)
    }
}

/// f8 E5M2.
pub(in crate::numeric) struct E5M2;

impl Lanes for E5M2 {
    const ELEMENTS: usize = 32;
    type Raw = [__m128i; 2];
    type Accumulators = [F32x8; 4];

    /// It is the upper byte of an f16.
    #[inline(always)]
    unsafe fn widen([a, b]: [__m128i; 2]) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe {
            let a = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(a));
            let b = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(b));
            widen_all(a, b)
        }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x8; 4]) -> [__m128i; 2] {
        type F = minifloat::E5M2;
        // SAFETY: the caller's duty.
        unsafe { pack(narrow::<F>(a), narrow::<F>(b), narrow::<F>(c), narrow::<F>(d)) }
    }
}

/// f8 E4M3.
pub(in crate::numeric) struct E4M3;

impl Lanes for E4M3 {
    const ELEMENTS: usize = 32;
    type Raw = [__m128i; 2];
    type Accumulators = [F32x8; 4];

    #[inline(always)]
    unsafe fn widen([a, b]: [__m128i; 2]) -> [F32x8; 4] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b, c, d] = widen_all(as_halves(a), as_halves(b));
            let scale = F32x8(_mm256_set1_ps(256.0));
            [a.times(scale), b.times(scale), c.times(scale), d.times(scale)]
        }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x8; 4]) -> [__m128i; 2] {
        type F = minifloat::E4M3;
        // SAFETY: the caller's duty.
        unsafe { pack(narrow::<F>(a), narrow::<F>(b), narrow::<F>(c), narrow::<F>(d)) }
    }
}

/// E4M3 in the places of an f16, which is 256 times too small, but for NaN.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn as_halves(bytes: __m128i) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe {
        let words = _mm256_cvtepu8_epi16(bytes);
        let ones = _mm256_set1_epi16(0x7f);
        let magnitude = _mm256_and_si256(words, ones);
        let sign = _mm256_slli_epi16::<8>(_mm256_xor_si256(words, magnitude));
        let nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, ones), _mm256_set1_epi16(0x7e00));
        _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16::<7>(magnitude))
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn widen_all(a: __m256i, b: __m256i) -> [F32x8; 4] {
    // SAFETY: the caller's duty.
    unsafe {
        [
            widen(_mm256_castsi256_si128(a)),
            widen(_mm256_extracti128_si256::<1>(a)),
            widen(_mm256_castsi256_si128(b)),
            widen(_mm256_extracti128_si256::<1>(b)),
        ]
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn constant(bits: u32) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe { _mm256_set1_epi32(bits as i32) }
}

/// [`minifloat::narrow`] for eight, one in each word.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn narrow<F: Format>(values: F32x8) -> __m256i {
    // SAFETY: the caller's duty.
    unsafe {
        let bits = _mm256_castps_si256(values.0);
        let magnitude = _mm256_and_si256(bits, constant(0x7fff_ffff));
        let rounder = constant(F::ROUNDER);
        let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(rounder));
        let subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), rounder);
        let dropped = constant(F::DROPPED);
        let odd = _mm256_and_si256(_mm256_srlv_epi32(magnitude, dropped), constant(1));
        let adjusted = _mm256_add_epi32(_mm256_add_epi32(magnitude, constant(F::ADJUST)), odd);
        let normal = _mm256_srlv_epi32(adjusted, dropped);
        let is_subnormal = _mm256_cmpgt_epi32(constant(F::SMALLEST_NORMAL), magnitude);
        let mut bounded = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
        if F::HAS_INFINITY {
            bounded = _mm256_min_epu32(bounded, constant(F::BEYOND));
        }
        let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), constant(0x80));
        let is_nan = _mm256_cmpgt_epi32(magnitude, constant(F::LAST));
        _mm256_blendv_epi8(_mm256_or_si256(bounded, sign), constant(F::NAN), is_nan)
    }
}

/// The lowest byte of every word, in order.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn pack(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m128i; 2] {
    // SAFETY: the caller's duty.
    unsafe {
        let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
        // Each packing works within halves of the register: put the words back in order.
        let ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        [_mm256_castsi256_si128(ordered), _mm256_extracti128_si256::<1>(ordered)]
    }
}
