//! Registers of integers, and of truth values.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable, cast};

use super::Bytes;
use crate::numeric::lanes::{Lanes, Vector};
use crate::numeric::number::{Bits, Number, reciprocal};

/// Defines a register of integers from intrinsics or the functions below.
macro_rules! register {
    ($($name:ident: $add:ident $mul:ident $min:ident $max:ident $share:ident;)*) => {
        $(
            #[derive(Clone, Copy)]
            #[repr(transparent)]
            pub(in crate::numeric) struct $name(__m512i);

            // SAFETY: 64 bytes of which any are valid, without padding.
            unsafe impl Zeroable for $name {}
            // SAFETY: as above.
            unsafe impl Pod for $name {}

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
    I8x64: _mm512_add_epi8 mul_epi8 _mm512_min_epi8 _mm512_max_epi8 share_epi8;
    U8x64: _mm512_add_epi8 mul_epi8 _mm512_min_epu8 _mm512_max_epu8 share_epu8;
    I16x32: _mm512_add_epi16 _mm512_mullo_epi16 _mm512_min_epi16 _mm512_max_epi16 share_epi16;
    U16x32: _mm512_add_epi16 _mm512_mullo_epi16 _mm512_min_epu16 _mm512_max_epu16 share_epu16;
    I32x16: _mm512_add_epi32 _mm512_mullo_epi32 _mm512_min_epi32 _mm512_max_epi32 share_epi32;
    U32x16: _mm512_add_epi32 _mm512_mullo_epi32 _mm512_min_epu32 _mm512_max_epu32 share_epu32;
    I64x8: _mm512_add_epi64 _mm512_mullo_epi64 _mm512_min_epi64 _mm512_max_epi64 share_epi64;
    U64x8: _mm512_add_epi64 _mm512_mullo_epi64 _mm512_min_epu64 _mm512_max_epu64 share_epu64;
}

/// Lower bytes of products, by 16-bit products of the even and of the odd bytes.
///
/// # Safety
/// The processor must have AVX-512. So for all below.
#[inline(always)]
unsafe fn mul_epi8(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let even = _mm512_mullo_epi16(a, b);
        let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
        let even = _mm512_and_si512(even, _mm512_set1_epi16(0xff));
        _mm512_or_si512(_mm512_slli_epi16::<8>(odd), even)
    }
}

/// By magnitudes, as quotients are rounded towards zero.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epi8(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let quotients = share_epu8(_mm512_abs_epi8(sums), world);
        _mm512_mask_sub_epi8(quotients, _mm512_movepi8_mask(sums), _mm512_setzero_si512(), quotients)
    }
}

/// By products, see [`reciprocal`].
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epu8(sums: __m512i, world: usize) -> __m512i {
    let Some(reciprocal) = reciprocal(world) else { return sums };
    // SAFETY: the caller's duty.
    unsafe {
        let zero = _mm512_setzero_si512();
        let reciprocal = _mm512_set1_epi16(reciprocal as i16);
        let low = _mm512_mulhi_epu16(_mm512_unpacklo_epi8(sums, zero), reciprocal);
        let high = _mm512_mulhi_epu16(_mm512_unpackhi_epi8(sums, zero), reciprocal);
        _mm512_packus_epi16(low, high)
    }
}

/// In f32, where the truncated quotient is exact, see [`Number::share`] of single numbers.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epi16(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let low = _mm512_srai_epi32::<16>(_mm512_unpacklo_epi16(sums, sums));
        let high = _mm512_srai_epi32::<16>(_mm512_unpackhi_epi16(sums, sums));
        _mm512_packs_epi32(share_as_f32(low, world), share_as_f32(high, world))
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epu16(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let zero = _mm512_setzero_si512();
        let low = _mm512_unpacklo_epi16(sums, zero);
        let high = _mm512_unpackhi_epi16(sums, zero);
        _mm512_packus_epi32(share_as_f32(low, world), share_as_f32(high, world))
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_as_f32(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe { _mm512_cvttps_epi32(_mm512_div_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(world as f32))) }
}

/// In f64, likewise.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epi32(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let world = _mm512_set1_pd(world as f64);
        let low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
        let high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64::<1>(sums));
        let low = _mm512_cvttpd_epi32(_mm512_div_pd(low, world));
        let high = _mm512_cvttpd_epi32(_mm512_div_pd(high, world));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn share_epu32(sums: __m512i, world: usize) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe {
        let world = _mm512_set1_pd(world as f64);
        let low = _mm512_cvtepu32_pd(_mm512_castsi512_si256(sums));
        let high = _mm512_cvtepu32_pd(_mm512_extracti64x4_epi64::<1>(sums));
        let low = _mm512_cvttpd_epu32(_mm512_div_pd(low, world));
        let high = _mm512_cvttpd_epu32(_mm512_div_pd(high, world));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }
}

/// There is no instruction for that, and f64 is too small.
///
/// # Safety
/// None.
#[inline(always)]
unsafe fn share_epi64(sums: __m512i, world: usize) -> __m512i {
    let mut parts: [i64; 8] = cast(Bytes(sums));
    for part in &mut parts {
        *part = part.share(world);
    }
    cast::<_, Bytes>(parts).0
}

/// # Safety
/// None.
#[inline(always)]
unsafe fn share_epu64(sums: __m512i, world: usize) -> __m512i {
    let mut parts: [u64; 8] = cast(Bytes(sums));
    for part in &mut parts {
        *part = part.share(world);
    }
    cast::<_, Bytes>(parts).0
}

impl Bits for U8x64 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: the processor has the instruction set, see the module's head.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
}

/// Truth values: any byte but 0 is true, and 0 or 1 is written.
pub(in crate::numeric) struct Truths;

impl Lanes for Truths {
    const ELEMENTS: usize = 256;
    type Raw = [U8x64; 4];
    type Accumulators = [U8x64; 4];

    #[inline(always)]
    unsafe fn widen(raw: [U8x64; 4]) -> [U8x64; 4] {
        // SAFETY: the caller's duty.
        let one = U8x64(unsafe { _mm512_set1_epi8(1) });
        Vector::zip(raw, [one; 4], U8x64::least)
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [U8x64; 4]) -> [U8x64; 4] {
        accumulators
    }
}
