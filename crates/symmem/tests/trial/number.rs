//! The reference: how elements are made up, and how all ranks' elements become one, by the words of
//! `docs/numerics.md`.
//!
//! Written for plainness. Small floats are rounded by searching a list of all their values.

use std::sync::OnceLock;

use symmem::{Bool, DType, Element, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use super::Random;

/// An element type as the trials know it.
pub(crate) trait Number: Element {
    /// Any value, odd ones more often than chance has it.
    fn any(random: &mut Random) -> Self;
    /// The reduction of all ranks' values, in rank order.
    fn reduce(op: ReduceOp, values: &[Self]) -> Self;
}

/// The operations that make sense for `dtype`.
pub(crate) fn operations(dtype: DType) -> &'static [ReduceOp] {
    match dtype {
        DType::Bool => &ReduceOp::ALL[5..],
        _ if dtype.is_float() => &ReduceOp::ALL[..5],
        _ => &ReduceOp::ALL,
    }
}

fn fold<T: Copy>(values: &[T], f: impl Fn(T, T) -> T) -> T {
    values.iter().copied().reduce(f).expect("at least one rank")
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn any(random: &mut Random) -> Self {
                let odd = [0, 1, <$type>::MAX, <$type>::MIN, (0 as $type).wrapping_sub(1)];
                match random.below(8) {
                    0 => odd[random.below(odd.len())],
                    _ => random.next() as $type,
                }
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                match op {
                    ReduceOp::Sum => fold(values, <$type>::wrapping_add),
                    ReduceOp::Avg => fold(values, <$type>::wrapping_add) / values.len() as $type,
                    ReduceOp::Min => fold(values, <$type>::min),
                    ReduceOp::Max => fold(values, <$type>::max),
                    ReduceOp::Prod => fold(values, <$type>::wrapping_mul),
                    ReduceOp::And => fold(values, |a, b| a & b),
                    ReduceOp::Or => fold(values, |a, b| a | b),
                    ReduceOp::Xor => fold(values, |a, b| a ^ b),
                    _ => unreachable!("{op}"),
                }
            }
        })*
    };
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! floats {
    ($($type:ident, $bits:ident, $nan:literal, $odd:expr, $reduce:ident);*) => {
        $(impl Number for $type {
            fn any(random: &mut Random) -> Self {
                let odd: &[$bits] = &$odd;
                match random.below(8) {
                    0 => <$type>::from_bits(odd[random.below(odd.len())]),
                    1 => <$type>::from_bits(random.next() as $bits),
                    // Numbers of about the same size, whose sums round.
                    _ => (random.next() as i32) as $type / 268_435_459.0,
                }
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                $reduce(op, values)
            }
        }

        /// The one NaN comes out where any goes in.
        fn $reduce(op: ReduceOp, values: &[$type]) -> $type {
            let less = |a: $type, b: $type| a < b || a == b && a.is_sign_negative();
            let result = match op {
                _ if values.iter().any(|value| value.is_nan()) => <$type>::NAN,
                ReduceOp::Sum => fold(values, |a, b| a + b),
                ReduceOp::Avg => fold(values, |a, b| a + b) / values.len() as $type,
                ReduceOp::Min => fold(values, |a, b| if less(a, b) { a } else { b }),
                ReduceOp::Max => fold(values, |a, b| if less(a, b) { b } else { a }),
                ReduceOp::Prod => fold(values, |a, b| a * b),
                _ => unreachable!("{op}"),
            };
            if result.is_nan() { <$type>::from_bits($nan) } else { result }
        })*
    };
}

// Quiet and signalling NaNs of both signs with payloads, infinities, zeros, subnormals, the largest number.
floats!(
    f32, u32, 0x7fc0_0000, [
        0x7fc0_1234, 0xffc0_0001, 0x7f80_0001, 0xffbf_ffff, 0x7f80_0000, 0xff80_0000, 0, 1 << 31, 1, 0x807f_ffff,
        0x0040_0000, 0x7f7f_ffff, 0xff7f_ffff
    ], reduce_f32;
    f64, u64, 0x7ff8_0000_0000_0000, [
        0x7ff8_0000_0000_1234, 0xfff8_0000_0000_0001, 0x7ff0_0000_0000_0001, 0xfff7_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000, 0, 1 << 63, 1, 0x800f_ffff_ffff_ffff, 0x0008_0000_0000_0000,
        0x7fef_ffff_ffff_ffff, 0xffef_ffff_ffff_ffff
    ], reduce_f64
);

/// A float of at most 16 bits: sign, exponent, mantissa.
struct Small {
    exponent: u32,
    mantissa: u32,
    /// Whether the largest exponent is for infinity and NaN; else only the very last pattern is NaN.
    infinities: bool,
    /// The magnitudes of the patterns from 0 on, and one more: infinity, or NaN, as if it were a number.
    magnitudes: OnceLock<Vec<f64>>,
}

impl Small {
    const fn new(exponent: u32, mantissa: u32, infinities: bool) -> Self {
        Self { exponent, mantissa, infinities, magnitudes: OnceLock::new() }
    }

    /// The pattern after that of the largest number.
    fn beyond(&self) -> u32 {
        match self.infinities {
            true => ((1 << self.exponent) - 1) << self.mantissa,
            false => (1 << (self.exponent + self.mantissa)) - 1,
        }
    }

    /// The NaN that is written.
    fn nan(&self) -> u32 {
        let quiet = 1 << (self.mantissa - 1);
        match (self.infinities, self.mantissa) {
            // f8e5m2 writes all ones.
            (true, 2) => self.beyond() | 0b11,
            (true, _) => self.beyond() | quiet,
            (false, _) => self.beyond(),
        }
    }

    fn magnitudes(&self) -> &[f64] {
        self.magnitudes.get_or_init(|| {
            let bias = (1 << (self.exponent - 1)) - 1;
            let power = |exponent: u32| 2f64.powi(exponent as i32 - bias - self.mantissa as i32);
            let magnitude = |bits: u32| {
                let (exponent, fraction) = (bits >> self.mantissa, bits & ((1 << self.mantissa) - 1));
                match exponent {
                    0 => f64::from(fraction) * power(1),
                    _ => f64::from(fraction | 1 << self.mantissa) * power(exponent),
                }
            };
            (0..=self.beyond()).map(magnitude).collect()
        })
    }

    fn sign(&self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    fn widen(&self, bits: u32) -> f32 {
        let magnitude = match bits & (self.sign() - 1) {
            bits if bits < self.beyond() => self.magnitudes()[bits as usize] as f32,
            bits if bits == self.beyond() && self.infinities => f32::INFINITY,
            _ => f32::NAN,
        };
        if bits & self.sign() == 0 { magnitude } else { -magnitude }
    }

    /// To nearest, ties to even.
    fn narrow(&self, value: f32) -> u32 {
        if value.is_nan() {
            return self.nan();
        }
        let (all, magnitude) = (self.magnitudes(), f64::from(value.abs()));
        let above = all.partition_point(|one| *one < magnitude).min(all.len() - 1);
        let below = above.saturating_sub(1);
        let (up, down) = (all[above] - magnitude, magnitude - all[below]);
        let nearest = match up.total_cmp(&down) {
            _ if up <= 0.0 => above,
            std::cmp::Ordering::Less => above,
            std::cmp::Ordering::Greater => below,
            std::cmp::Ordering::Equal => above & !1,
        } as u32;
        match nearest == self.beyond() && !self.infinities {
            true => self.nan(),
            false => nearest | if value.is_sign_negative() { self.sign() } else { 0 },
        }
    }
}

macro_rules! small_floats {
    ($($type:ident, $bits:ident, $format:ident = $small:expr);*) => {
        $(static $format: Small = $small;

        impl Number for $type {
            fn any(random: &mut Random) -> Self {
                $type::from_bits(match random.below(3) {
                    0 => random.next() as $bits,
                    _ => $format.narrow((random.next() as i16) as f32 / 4099.0) as $bits,
                })
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                let wide: Vec<f32> = values.iter().map(|value| $format.widen(value.to_bits().into())).collect();
                $type::from_bits($format.narrow(reduce_f32(op, &wide)) as $bits)
            }
        })*
    };
}

small_floats!(
    f16, u16, F16 = Small::new(5, 10, true);
    bf16, u16, BF16 = Small::new(8, 7, true);
    F8E4M3, u8, E4M3 = Small::new(4, 3, false);
    F8E5M2, u8, E5M2 = Small::new(5, 2, true)
);

impl Number for Bool {
    fn any(random: &mut Random) -> Self {
        let byte = [0, 0, 1, random.next() as u8][random.below(4)];
        bytemuck::cast(byte)
    }

    fn reduce(op: ReduceOp, values: &[Self]) -> Self {
        let trues = values.iter().filter(|value| value.get()).count();
        Self::from(match op {
            ReduceOp::And => trues == values.len(),
            ReduceOp::Or => trues > 0,
            ReduceOp::Xor => trues % 2 == 1,
            _ => unreachable!("{op}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference against numbers that anybody can look up.
    #[test]
    fn small_floats_are_what_the_standards_say() {
        assert_eq!(
            (F16.widen(0x3c00), F16.widen(1), F16.narrow(65519.9), F16.narrow(65520.0)),
            (1.0, 2f32.powi(-24), 0x7bff, 0x7c00)
        );
        assert_eq!(
            (BF16.widen(0xc040), BF16.narrow(f32::MAX), BF16.narrow(f32::NAN)),
            (-3.0, 0x7f80, 0x7fc0)
        );
        assert_eq!(
            (E4M3.widen(0x7e), E4M3.narrow(464.0), E4M3.narrow(-464.1), E4M3.narrow(-448.0)),
            (448.0, 0x7e, 0x7f, 0xfe)
        );
        assert_eq!(
            (E5M2.widen(0x7b), E5M2.narrow(61440.0), E5M2.narrow(61439.0), E5M2.narrow(f32::NAN)),
            (57344.0, 0x7c, 0x7b, 0x7f)
        );
        assert_eq!(
            (F16.narrow(-0.0), F16.narrow(2f32.powi(-25)), F16.narrow(1.5 * 2f32.powi(-24))),
            (0x8000, 0, 2)
        );
    }
}
