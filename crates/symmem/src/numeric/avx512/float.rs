//! Registers of f32 and f64.

#![allow(unsafe_code, reason = "SIMD instructions")]

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};

use crate::numeric::number::Number;

/// Defines a register of floats from the intrinsics for them.
macro_rules! register {
    ($name:ident($register:ty) of $float:ty: $add:ident $mul:ident $div:ident $min:ident $max:ident $and:ident $or:ident
        $cmp:ident $blend:ident $set:ident) => {
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(in crate::numeric) struct $name(pub(super) $register);

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

            /// The instruction gives its second operand if one is NaN or both are zero. Or-ing both orders
            /// gives -0.0 of two different zeros, and some NaN: the exponent is all ones and the mantissa not
            /// zero.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $or($min(self.0, other.0), $min(other.0, self.0)) })
            }

            /// And-ing both orders gives +0.0 of two different zeros, but may lose a NaN.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe {
                    let greatest = $and($max(self.0, other.0), $max(other.0, self.0));
                    $blend($cmp::<_CMP_UNORD_Q>(self.0, other.0), greatest, $set(<$float>::NAN))
                })
            }

            #[inline(always)]
            fn share(self, world: usize) -> Self {
                // SAFETY: as above.
                Self(unsafe { $div(self.0, $set(world as $float)) })
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                // SAFETY: as above.
                Self(unsafe { $blend($cmp::<_CMP_UNORD_Q>(self.0, self.0), self.0, $set(<$float>::NAN)) })
            }
        }
    };
}

register!(F32x16(__m512) of f32: _mm512_add_ps _mm512_mul_ps _mm512_div_ps _mm512_min_ps _mm512_max_ps _mm512_and_ps
    _mm512_or_ps _mm512_cmp_ps_mask _mm512_mask_blend_ps _mm512_set1_ps);
register!(F64x8(__m512d) of f64: _mm512_add_pd _mm512_mul_pd _mm512_div_pd _mm512_min_pd _mm512_max_pd _mm512_and_pd
    _mm512_or_pd _mm512_cmp_pd_mask _mm512_mask_blend_pd _mm512_set1_pd);
