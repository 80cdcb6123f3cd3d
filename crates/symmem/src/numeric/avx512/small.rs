//! Lanes of the floats that accumulate in f32: f16 by its conversions, bf16 in pairs, f8 by way of f16.

use std::arch::x86_64::*;

use super::Bytes;
use super::float::F32x16;
use crate::numeric::lanes::Lanes;
use crate::numeric::minifloat::{self, Format};
use crate::numeric::number::Number;

/// f16.
pub(in crate::numeric) struct Halves;

impl Lanes for Halves {
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
///
/// # Safety
/// The processor must have AVX-512. So for all below.
#[inline(always)]
unsafe fn from_halves([a, b]: [__m512i; 2]) -> [F32x16; 4] {
    // SAFETY: the caller's duty.
    unsafe {
        [
            F32x16(_mm512_cvtph_ps(_mm512_castsi512_si256(a))),
            F32x16(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(a))),
            F32x16(_mm512_cvtph_ps(_mm512_castsi512_si256(b))),
            F32x16(_mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(b))),
        ]
    }
}

/// Rounds and keeps subnormals as IEEE 754 says. A NaN keeps its sign and the upper bits of its payload, so the canonical one
/// becomes the canonical one.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn to_halves([a, b, c, d]: [F32x16; 4]) -> [__m512i; 2] {
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    // SAFETY: the caller's duty.
    unsafe {
        let a = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(a.0));
        let c = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(c.0));
        [
            _mm512_inserti64x4::<1>(a, _mm512_cvtps_ph::<NEAREST>(b.0)),
            _mm512_inserti64x4::<1>(c, _mm512_cvtps_ph::<NEAREST>(d.0)),
        ]
    }
}

/// Canonical NaN, by a branch, as there hardly ever is a NaN. Where conversions keep the processor busy that is faster.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn canonical([a, b, c, d]: [F32x16; 4]) -> [F32x16; 4] {
    // SAFETY: the caller's duty.
    unsafe {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a.0, b.0) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(c.0, d.0);
        if nan == 0 {
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
            [Bytes(to_brains(a, b)), Bytes(to_brains(c, d))]
        }
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn lower(words: __m512i) -> F32x16 {
    // SAFETY: the caller's duty.
    F32x16(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) })
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn upper(words: __m512i) -> F32x16 {
    // SAFETY: the caller's duty.
    F32x16(unsafe { _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(!0 << 16))) })
}

/// The nearest bf16, in 16-bit arithmetic for both halves together: one more than the upper half of the f32 if its lower
/// half is more than a half, or just a half where the upper one is odd. No carry makes a number of the canonical NaN, as its
/// lower half is zero.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn to_brains(lower: F32x16, upper: F32x16) -> __m512i {
    const ODD: u32 = 0xaaaa_aaaa;
    // SAFETY: the caller's duty.
    unsafe {
        let (lower, upper) = (_mm512_castps_si512(lower.0), _mm512_castps_si512(upper.0));
        let kept = _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(lower), upper);
        let dropped = _mm512_mask_blend_epi16(ODD, lower, _mm512_slli_epi32::<16>(upper));
        let even = _mm512_andnot_si512(kept, _mm512_set1_epi16(1));
        let up = _mm512_srli_epi16::<15>(_mm512_subs_epu16(dropped, even));
        _mm512_add_epi16(kept, up)
    }
}

/// f8 E5M2, the upper byte of an f16.
pub(in crate::numeric) struct E5M2;

impl Lanes for E5M2 {
    const ELEMENTS: usize = 64;
    type Raw = Bytes;
    type Accumulators = [F32x16; 4];

    #[inline(always)]
    unsafe fn widen(raw: Bytes) -> [F32x16; 4] {
        // SAFETY: the caller's duty.
        unsafe { from_halves(to_upper_bytes(raw.0)) }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x16; 4]) -> Bytes {
        type F = minifloat::E5M2;
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b] = to_halves([round::<F>(a), round::<F>(b), round::<F>(c), round::<F>(d)]);
            Bytes(_mm512_packus_epi16(e5m2_of_half(a), e5m2_of_half(b)))
        }
    }
}

/// The upper byte, in the place of the lower one; for any NaN the canonical one.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn e5m2_of_half(halves: __m512i) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let magnitude = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
        let is_nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7c00));
        _mm512_mask_blend_epi16(is_nan, _mm512_srli_epi16::<8>(halves), _mm512_set1_epi16(0x7f))
    }
}

/// f8 E4M3. In the places of an f16 it is 256 times too small.
pub(in crate::numeric) struct E4M3;

impl Lanes for E4M3 {
    const ELEMENTS: usize = 64;
    type Raw = Bytes;
    type Accumulators = [F32x16; 4];

    #[inline(always)]
    unsafe fn widen(raw: Bytes) -> [F32x16; 4] {
        // SAFETY: the caller's duty.
        unsafe {
            let [a, b] = to_upper_bytes(raw.0);
            let [a, b, c, d] = from_halves([half_of_e4m3(a), half_of_e4m3(b)]);
            let scale = F32x16(_mm512_set1_ps(256.0));
            [a.times(scale), b.times(scale), c.times(scale), d.times(scale)]
        }
    }

    #[inline(always)]
    unsafe fn narrow([a, b, c, d]: [F32x16; 4]) -> Bytes {
        type F = minifloat::E4M3;
        // SAFETY: the caller's duty.
        unsafe {
            let scale = F32x16(_mm512_set1_ps(1.0 / 256.0));
            let [a, b, c, d] = [round::<F>(a), round::<F>(b), round::<F>(c), round::<F>(d)];
            let [a, b] = to_halves([a.times(scale), b.times(scale), c.times(scale), d.times(scale)]);
            Bytes(_mm512_packus_epi16(e4m3_of_half(a), e4m3_of_half(b)))
        }
    }
}

/// From the upper byte.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn half_of_e4m3(bytes: __m512i) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        // The shift doubles the sign; the copy is taken out.
        let small = _mm512_and_si512(_mm512_srai_epi16::<1>(bytes), _mm512_set1_epi16(!0x4000));
        // All ones is NaN: the carry makes the exponent all ones.
        let carry = _mm512_add_epi16(small, _mm512_set1_epi16(0x80));
        _mm512_or_si512(small, _mm512_and_si512(carry, _mm512_set1_epi16(0x4000)))
    }
}

/// In the place of the lower byte. What is too large, infinity and NaN included, becomes the canonical NaN.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn e4m3_of_half(halves: __m512i) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let nan = _mm512_set1_epi16(0x7f);
        let magnitude = _mm512_srli_epi16::<7>(_mm512_and_si512(halves, _mm512_set1_epi16(0x7fff)));
        let bounded = _mm512_min_epu16(magnitude, nan);
        let sign = _mm512_and_si512(_mm512_srli_epi16::<8>(halves), _mm512_set1_epi16(0x80));
        let is_number = _mm512_cmpneq_epi16_mask(bounded, nan);
        _mm512_or_si512(bounded, _mm512_maskz_mov_epi16(is_number, sign))
    }
}

/// Each byte as the upper one of 16 bits. Their order is the one that packing undoes.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn to_upper_bytes(bytes: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's duty.
    unsafe {
        let zero = _mm512_setzero_si512();
        [_mm512_unpacklo_epi8(zero, bytes), _mm512_unpackhi_epi8(zero, bytes)]
    }
}

/// The nearest number of the format, ties to even, as an f32: adds and takes away a number whose last bit is worth what the
/// format's last bit is worth for such an exponent, so that the adder rounds. What lies beyond the format stays beyond,
/// infinity and NaN stay what they are.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn round<F: Format>(values: F32x16) -> F32x16 {
    // SAFETY: the caller's duty.
    unsafe {
        let exponent = _mm512_and_si512(_mm512_castps_si512(values.0), constant(0x7f80_0000));
        let mut exponent = _mm512_max_epi32(exponent, constant(F::SMALLEST_NORMAL));
        // An exponent too large for an f32 would make NaN, or change nothing: right where NaN is what lies beyond.
        if F::HAS_INFINITY {
            exponent = _mm512_min_epi32(exponent, constant(F::BEYOND_ALL));
        }
        // Half as much again keeps the exponent of the sum for negative numbers as well.
        let rounder = _mm512_add_epi32(exponent, constant((F::DROPPED << 23) + (1 << 22)));
        let rounder = _mm512_castsi512_ps(rounder);
        let rounded = _mm512_sub_ps(_mm512_add_ps(values.0, rounder), rounder);
        // A negative number that rounds to zero is -0.0.
        F32x16(_mm512_or_ps(rounded, _mm512_and_ps(values.0, _mm512_set1_ps(-0.0))))
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn constant(bits: u32) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe { _mm512_set1_epi32(bits as i32) }
}
