//! Conversions between f32 and the small binary floats, by integer arithmetic without a branch.
//!
//! Used by the f8 types and by every kernel that has no instruction for it; written so that a loop over them
//! becomes vector code. Widening is exact. Narrowing rounds to nearest, ties to even, keeps subnormals, and
//! every NaN becomes the format's canonical one.

use bytemuck::Pod;

/// The layout of a binary float of one sign bit, `EXPONENT` and `MANTISSA` bits.
pub(super) trait Format {
    const EXPONENT: u32;
    const MANTISSA: u32;
    /// Whether the largest exponent means infinity and NaN, as in IEEE 754. If not, only all ones is a NaN.
    const HAS_INFINITY: bool;
    /// The canonical NaN.
    const NAN: u32;
    /// The unsigned integer of its size.
    type Bits: Pod + Into<u32>;

    /// The lower bits.
    fn truncate(bits: u32) -> Self::Bits;

    /// Where the sign bit is.
    const SIGN_AT: u32 = Self::EXPONENT + Self::MANTISSA;
    const BIAS: i32 = (1 << (Self::EXPONENT - 1)) - 1;
    /// Bits that the mantissa of an f32 has more.
    const DROPPED: u32 = 23 - Self::MANTISSA;
    /// The smallest normal number, as the bits of an f32.
    const SMALLEST_NORMAL: u32 = power(1 - Self::BIAS);
    /// A power of two beyond all numbers of the format and what rounds to them, as the bits of an f32.
    #[cfg(target_arch = "x86_64")]
    const BEYOND_ALL: u32 = power(Self::BIAS + 2);
    /// The f32 whose last bit is worth the smallest subnormal: adding it makes the adder round to subnormals.
    const ROUNDER: u32 = power(1 - Self::BIAS + Self::DROPPED as i32);
    /// Added to the bits of an f32, with one more if the unit is odd: corrects the exponent, and half a unit
    /// up.
    const ADJUST: u32 = ((1 << (Self::DROPPED - 1)) - 1u32).wrapping_sub(power(-Self::BIAS));
    /// Infinity, or what comes after the largest number.
    const BEYOND: u32 =
        if Self::HAS_INFINITY { ((1 << Self::EXPONENT) - 1) << Self::MANTISSA } else { Self::NAN };
    /// The largest magnitude of an f32 that rounds to a number or infinity; beyond it lies NaN. Without an
    /// infinity, that is the middle between the largest number and what would be the next.
    const LAST: u32 = if Self::HAS_INFINITY {
        INFINITY
    } else {
        power(Self::BIAS + 1) + (((1 << Self::MANTISSA) - 2) << Self::DROPPED) + (1 << (Self::DROPPED - 1))
    };
}

/// IEEE 754 binary16.
pub(super) struct Binary16;

impl Format for Binary16 {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 10;
    const HAS_INFINITY: bool = true;
    const NAN: u32 = 0x7e00;
    type Bits = u16;

    #[inline(always)]
    fn truncate(bits: u32) -> u16 {
        bits as u16
    }
}

/// OCP E4M3 ("fn": finite and NaN, no infinity).
pub(super) struct E4M3;

impl Format for E4M3 {
    const EXPONENT: u32 = 4;
    const MANTISSA: u32 = 3;
    const HAS_INFINITY: bool = false;
    const NAN: u32 = 0x7f;
    type Bits = u8;

    #[inline(always)]
    fn truncate(bits: u32) -> u8 {
        bits as u8
    }
}

/// OCP E5M2.
pub(super) struct E5M2;

impl Format for E5M2 {
    const EXPONENT: u32 = 5;
    const MANTISSA: u32 = 2;
    const HAS_INFINITY: bool = true;
    const NAN: u32 = 0x7f;
    type Bits = u8;

    #[inline(always)]
    fn truncate(bits: u32) -> u8 {
        bits as u8
    }
}

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;

/// The bits of 2^exponent as f32.
const fn power(exponent: i32) -> u32 {
    ((127 + exponent) as u32) << 23
}

/// The value of the `bits` of a small float.
#[inline(always)]
pub(super) fn widen<F: Format>(bits: u32) -> f32 {
    let magnitude = bits & ((1 << F::SIGN_AT) - 1);
    let sign = (bits >> F::SIGN_AT) << 31;
    let normal = (magnitude << F::DROPPED) + power(-F::BIAS);
    // A subnormal has no hidden bit: give it one and subtract its value. No f32 subnormal occurs on the way.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(F::SMALLEST_NORMAL);
    let finite = if magnitude >> F::MANTISSA == 0 { subnormal.to_bits() } else { normal };
    let value = if F::HAS_INFINITY {
        if magnitude >= F::BEYOND { normal | INFINITY } else { finite }
    } else if magnitude == F::NAN {
        f32::NAN.to_bits()
    } else {
        finite
    };
    f32::from_bits(value | sign)
}

/// The bits of the small float nearest to `value`.
#[inline(always)]
pub(super) fn narrow<F: Format>(value: f32) -> F::Bits {
    let sign = value.to_bits() & SIGN;
    let magnitude = value.to_bits() ^ sign;
    let subnormal =
        (f32::from_bits(magnitude) + f32::from_bits(F::ROUNDER)).to_bits().wrapping_sub(F::ROUNDER);
    // A carry into the exponent is right, too.
    let odd = (magnitude >> F::DROPPED) & 1;
    let normal = magnitude.wrapping_add(F::ADJUST).wrapping_add(odd) >> F::DROPPED;
    let rounded = if magnitude < F::SMALLEST_NORMAL { subnormal } else { normal };
    let bounded = if F::HAS_INFINITY { rounded.min(F::BEYOND) } else { rounded };
    let signed = bounded | sign >> (31 - F::SIGN_AT);
    F::truncate(if magnitude > F::LAST { F::NAN } else { signed })
}

/// The bits of the bf16 nearest to `value`, in the upper half of the word; the lower half is rubbish.
#[inline(always)]
pub(super) fn narrow_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    if value.is_nan() { f32::NAN.to_bits() } else { rounded }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::numeric::testing::{Random, special_f32};

    /// The value of a small float by the definition of the format.
    fn define<F: Format>(bits: u32) -> f64 {
        let exponent = (bits >> F::MANTISSA) & ((1 << F::EXPONENT) - 1);
        let mantissa = bits & ((1 << F::MANTISSA) - 1);
        let fraction = f64::from(mantissa) / f64::from(1 << F::MANTISSA);
        let sign = if bits >> (F::EXPONENT + F::MANTISSA) == 1 { -1.0 } else { 1.0 };
        let bias = F::BIAS;
        if F::HAS_INFINITY && exponent == (1 << F::EXPONENT) - 1 {
            return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if !F::HAS_INFINITY && bits & 0x7f == 0x7f {
            return f64::NAN;
        }
        sign * if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent as i32 - bias)
        }
    }

    /// The nearest small float, found by looking at all of them: the one before and the one after, and the
    /// even of two that are equally near. What would come after the largest number counts as infinity, or as
    /// NaN without one.
    fn search<F: Format>(value: f32) -> u32 {
        if value.is_nan() {
            return F::NAN;
        }
        let sign = if value.is_sign_negative() { 1 << (F::EXPONENT + F::MANTISSA) } else { 0 };
        let magnitude = f64::from(value.abs());
        let beyond = if F::HAS_INFINITY { ((1 << F::EXPONENT) - 1) << F::MANTISSA } else { (1 << 7) - 1 };
        let next = 2.0 * define::<F>(beyond - 1) - define::<F>(beyond - 2);
        let size = |bits: u32| if bits == beyond { next } else { define::<F>(bits) };
        let below = (0..=beyond).rev().find(|&bits| size(bits) <= magnitude).unwrap();
        let nearest = if below == beyond {
            beyond
        } else {
            let (down, up) = (magnitude - size(below), size(below + 1) - magnitude);
            if down < up || (down == up && below % 2 == 0) { below } else { below + 1 }
        };
        if nearest == beyond && !F::HAS_INFINITY { F::NAN } else { nearest | sign }
    }

    fn round_trips<F: Format>() {
        for bits in 0..1u32 << (1 + F::EXPONENT + F::MANTISSA) {
            let value = widen::<F>(bits);
            let defined = define::<F>(bits);
            assert_eq!(value.is_nan(), defined.is_nan(), "{bits:#x}");
            if value.is_nan() {
                assert_eq!(narrow::<F>(value).into(), F::NAN);
            } else {
                assert_eq!(f64::from(value).to_bits(), defined.to_bits(), "{bits:#x}");
                assert_eq!(narrow::<F>(value).into(), bits);
            }
        }
    }

    #[test]
    fn every_small_float_survives_the_way_to_f32_and_back() {
        round_trips::<Binary16>();
        round_trips::<E4M3>();
        round_trips::<E5M2>();
        for bits in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(bits) << 16);
            let expected = if value.is_nan() { 0x7fc0 } else { bits };
            assert_eq!(narrow_to_bf16(value) >> 16, u32::from(expected));
        }
    }

    /// Every f8 and every middle between two of them, with their f32 neighbours.
    fn edges<F: Format>() -> impl Iterator<Item = f32> {
        let bits = (0..1u32 << (1 + F::EXPONENT + F::MANTISSA)).filter(|&bits| !define::<F>(bits).is_nan());
        bits.flat_map(|bits| {
            let value = widen::<F>(bits);
            let after = widen::<F>(bits + 1);
            let middle = (f64::from(value) + f64::from(after)) as f32 / 2.0;
            [value, middle].into_iter().flat_map(|v| [v, v.next_up(), v.next_down()])
        })
    }

    #[test]
    fn narrowing_to_f8_finds_the_nearest() {
        let mut random = Random::new(1);
        let middles = edges::<E4M3>().chain(edges::<E5M2>());
        let small = std::iter::repeat_with(|| {
            let bits = random.next_u64();
            f32::from_bits((bits as u32 & 0x87ff_ffff) | ((bits >> 40) as u32 % 16 + 104) << 23)
        });
        for value in middles.chain(special_f32()).chain(small.take(20_000)) {
            assert_eq!(u32::from(narrow::<E4M3>(value)), search::<E4M3>(value), "{value:e}");
            assert_eq!(u32::from(narrow::<E5M2>(value)), search::<E5M2>(value), "{value:e}");
        }
    }

    #[test]
    fn the_ends_of_the_f8_ranges_are_as_in_pytorch() {
        let e4m3 = [(448.0, 0x7e), (464.0, 0x7e), (464.1, 0x7f), (480.0, 0x7f), (f32::INFINITY, 0x7f)];
        for (value, bits) in e4m3 {
            assert_eq!(narrow::<E4M3>(value), bits, "{value}");
        }
        assert_eq!(narrow::<E4M3>(-464.0), 0xfe);
        assert_eq!(narrow::<E4M3>(-1e9), 0x7f, "the canonical NaN has no sign");
        let e5m2 = [(57344.0, 0x7b), (61439.0, 0x7b), (61440.0, 0x7c), (1e9, 0x7c), (f32::INFINITY, 0x7c)];
        for (value, bits) in e5m2 {
            assert_eq!(narrow::<E5M2>(value), bits, "{value}");
        }
        assert_eq!(narrow::<E5M2>(-1e9), 0xfc);
    }

    #[test]
    fn narrowing_to_f16_and_bf16_agrees_with_half() {
        let mut random = Random::new(2);
        let mut values: Vec<f32> = special_f32().chain(edges::<Binary16>()).collect();
        values.extend(std::iter::repeat_with(|| f32::from_bits(random.next_u64() as u32)).take(100_000));
        let mut around = Random::new(3);
        values.extend(
            std::iter::repeat_with(|| {
                let bits = around.next_u64();
                f32::from_bits((bits as u32 & 0x87ff_ffff) | ((bits >> 40) as u32 % 48 + 98) << 23)
            })
            .take(100_000),
        );
        // Middles between two bf16, and their neighbours.
        values.extend((0..=u16::MAX).step_by(7).flat_map(|bits| {
            [0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(u32::from(bits) << 16 | low))
        }));
        for value in values {
            if value.is_nan() {
                assert_eq!(narrow::<Binary16>(value), 0x7e00);
                assert_eq!(narrow_to_bf16(value) >> 16, 0x7fc0);
            } else {
                assert_eq!(narrow::<Binary16>(value), f16::from_f32(value).to_bits(), "{value:e}");
                let expected = bf16::from_f32(value).to_bits();
                assert_eq!(narrow_to_bf16(value) >> 16, u32::from(expected), "{value:e}");
            }
        }
    }
}
