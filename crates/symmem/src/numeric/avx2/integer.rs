//! Registers of integers, and of truth values.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable, cast};

use crate::numeric::lanes::{Lanes, Vector};
use crate::numeric::number::{Bits, Number, reciprocal};

/// Defines a register of integers from intrinsics or the functions below.
macro_rules! register {
    ($($name:ident: $add:ident $mul:ident $min:ident $max:ident $share:ident;)*) => {
        $(
            #[derive(Clone, Copy, Pod, Zeroable)]
            #[repr(transparent)]
            pub(in crate::numeric) struct $name(__m256i);

            impl Number for $name {
                #[inline(always)]
                fn plus(self, other: Self) -> Self {
                    // SAFETY: the processor has the instruction set, see the module's head.
                    Self(unsafe { $add(self.0, other.0) })
                }

                #[inline(always)]
                fn times(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $mul(self.0, other.0) })
                }

                #[inline(always)]
                fn least(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $min(self.0, other.0) })
                }

                #[inline(always)]
                fn greatest(self, other: Self) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $max(self.0, other.0) })
                }

                #[inline(always)]
                fn share(self, world: usize) -> Self {
                    // SAFETY: as above.
                    Self(unsafe { $share(self.0, world) })
                }

                #[inline(always)]
                fn canonical(self) -> Self {
                    self
                }
            }
        )*
    };
}

register! {
    I8x32: _mm256_add_epi8 mul_epi8 _mm256_min_epi8 _mm256_max_epi8 share_epi8;
    U8x32: _mm256_add_epi8 mul_epi8 _mm256_min_epu8 _mm256_max_epu8 share_epu8;
    I16x16: _mm256_add_epi16 _mm256_mullo_epi16 _mm256_min_epi16 _mm256_max_epi16 share_epi16;
    U16x16: _mm256_add_epi16 _mm256_mullo_epi16 _mm256_min_epu16 _mm256_max_epu16 share_epu16;
    I32x8: _mm256_add_epi32 _mm256_mullo_epi32 _mm256_min_epi32 _mm256_max_epi32 share_epi32;
    U32x8: _mm256_add_epi32 _mm256_mullo_epi32 _mm256_min_epu32 _mm256_max_epu32 share_epu32;
    I64x4: _mm256_add_epi64 mul_epi64 min_epi64 max_epi64 share_epi64;
    U64x4: _mm256_add_epi64 mul_epi64 min_epu64 max_epu64 share_epu64;
}

// These have the instruction set by their attribute, and are inlined where the caller has it: as the
// intrinsics are.

/// Lower bytes of products, by 16-bit products of the even and of the odd bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn mul_epi8(a: __m256i, b: __m256i) -> __m256i {
    let even = _mm256_mullo_epi16(a, b);
    let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
    let even = _mm256_and_si256(even, _mm256_set1_epi16(0xff));
    _mm256_or_si256(_mm256_slli_epi16::<8>(odd), even)
}

/// Lower halves of products: low * low + (low * high + high * low << 32).
#[inline]
#[target_feature(enable = "avx2")]
fn mul_epi64(a: __m256i, b: __m256i) -> __m256i {
    let crossed = _mm256_mullo_epi32(a, _mm256_shuffle_epi32::<0b10_11_00_01>(b));
    let high = _mm256_add_epi32(crossed, _mm256_slli_epi64::<32>(crossed));
    let high = _mm256_and_si256(high, _mm256_set1_epi64x(!0 << 32));
    _mm256_add_epi64(_mm256_mul_epu32(a, b), high)
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_epi64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_epi64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b))
}

/// Whether `a` is greater without a sign: with the upper bits flipped, the order is that of signed integers.
#[inline]
#[target_feature(enable = "avx2")]
fn greater_epu64(a: __m256i, b: __m256i) -> __m256i {
    let flip = _mm256_set1_epi64x(i64::MIN);
    _mm256_cmpgt_epi64(_mm256_xor_si256(a, flip), _mm256_xor_si256(b, flip))
}

#[inline]
#[target_feature(enable = "avx2")]
fn min_epu64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, greater_epu64(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_epu64(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(b, a, greater_epu64(a, b))
}

/// By magnitudes, as quotients are rounded towards zero.
#[inline]
#[target_feature(enable = "avx2")]
fn share_epi8(sums: __m256i, world: usize) -> __m256i {
    _mm256_sign_epi8(share_epu8(_mm256_abs_epi8(sums), world), sums)
}

/// By products, see [`reciprocal`].
#[inline]
#[target_feature(enable = "avx2")]
fn share_epu8(sums: __m256i, world: usize) -> __m256i {
    let Some(reciprocal) = reciprocal(world) else { return sums };
    let zero = _mm256_setzero_si256();
    let reciprocal = _mm256_set1_epi16(reciprocal as i16);
    let low = _mm256_mulhi_epu16(_mm256_unpacklo_epi8(sums, zero), reciprocal);
    let high = _mm256_mulhi_epu16(_mm256_unpackhi_epi8(sums, zero), reciprocal);
    _mm256_packus_epi16(low, high)
}

/// In f32, where the truncated quotient is exact, see [`Number::share`] of single numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn share_epi16(sums: __m256i, world: usize) -> __m256i {
    let low = _mm256_srai_epi32::<16>(_mm256_unpacklo_epi16(sums, sums));
    let high = _mm256_srai_epi32::<16>(_mm256_unpackhi_epi16(sums, sums));
    _mm256_packs_epi32(share_as_f32(low, world), share_as_f32(high, world))
}

#[inline]
#[target_feature(enable = "avx2")]
fn share_epu16(sums: __m256i, world: usize) -> __m256i {
    let zero = _mm256_setzero_si256();
    let low = _mm256_unpacklo_epi16(sums, zero);
    let high = _mm256_unpackhi_epi16(sums, zero);
    _mm256_packus_epi32(share_as_f32(low, world), share_as_f32(high, world))
}

#[inline]
#[target_feature(enable = "avx2")]
fn share_as_f32(sums: __m256i, world: usize) -> __m256i {
    _mm256_cvttps_epi32(_mm256_div_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(world as f32)))
}

/// In f64, likewise.
#[inline]
#[target_feature(enable = "avx2")]
fn share_epi32(sums: __m256i, world: usize) -> __m256i {
    let world = _mm256_set1_pd(world as f64);
    let low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(sums));
    let high = _mm256_cvtepi32_pd(_mm256_extracti128_si256::<1>(sums));
    let low = _mm256_cvttpd_epi32(_mm256_div_pd(low, world));
    let high = _mm256_cvttpd_epi32(_mm256_div_pd(high, world));
    _mm256_set_m128i(high, low)
}

/// There are conversions of signed numbers only: they take the numbers less 2^31.
#[inline]
#[target_feature(enable = "avx2")]
fn share_epu32(sums: __m256i, world: usize) -> __m256i {
    let flip = _mm256_set1_epi32(i32::MIN);
    let signed = _mm256_xor_si256(sums, flip);
    let low = share_shifted(_mm256_castsi256_si128(signed), world);
    let high = share_shifted(_mm256_extracti128_si256::<1>(signed), world);
    _mm256_xor_si256(_mm256_set_m128i(high, low), flip)
}

/// Quotients less 2^31 of sums less 2^31.
#[inline]
#[target_feature(enable = "avx2")]
fn share_shifted(sums: __m128i, world: usize) -> __m128i {
    let shift = _mm256_set1_pd(f64::from(1u32 << 31));
    let sums = _mm256_add_pd(_mm256_cvtepi32_pd(sums), shift);
    let quotients = _mm256_floor_pd(_mm256_div_pd(sums, _mm256_set1_pd(world as f64)));
    _mm256_cvttpd_epi32(_mm256_sub_pd(quotients, shift))
}

/// There is no instruction for that, and f64 is too small.
#[inline]
#[target_feature(enable = "avx2")]
fn share_epi64(sums: __m256i, world: usize) -> __m256i {
    let [a, b, c, d]: [i64; 4] = cast(sums);
    cast([a.share(world), b.share(world), c.share(world), d.share(world)])
}

#[inline]
#[target_feature(enable = "avx2")]
fn share_epu64(sums: __m256i, world: usize) -> __m256i {
    let [a, b, c, d]: [u64; 4] = cast(sums);
    cast([a.share(world), b.share(world), c.share(world), d.share(world)])
}

impl Bits for U8x32 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the processor has the instruction set, see the module's head.
        Self(unsafe { _mm256_and_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
}

/// Truth values: any byte but 0 is true, and 0 or 1 is written.
pub(in crate::numeric) struct Truths;

impl Lanes for Truths {
    const ELEMENTS: usize = 128;
    type Raw = [U8x32; 4];
    type Accumulators = [U8x32; 4];

    #[inline(always)]
    unsafe fn widen(raw: [U8x32; 4]) -> [U8x32; 4] {
        // SAFETY: the caller's duty.
        let one = U8x32(unsafe { _mm256_set1_epi8(1) });
        Vector::zip(raw, [one; 4], U8x32::least)
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [U8x32; 4]) -> [U8x32; 4] {
        accumulators
    }
}
