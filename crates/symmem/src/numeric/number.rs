//! Arithmetic of one accumulator, as plain selects and adds that a loop over them turns into vector code.

/// What accumulates: f32 for itself and the smaller floats, every other number for itself; or a register of
/// them.
pub(super) trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Divided by the number of ranks.
    fn share(self, world: usize) -> Self;
    /// The one NaN for any NaN.
    fn canonical(self) -> Self;
}

/// Bytes, of which bitwise operations are made up whatever the element type.
pub(super) trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

impl Bits for u8 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
}

/// 2^16 divided by the number of ranks and rounded up: the upper half of its product with a byte is the
/// byte's quotient, as it is too large by less than 255 * 255 / 2^16 / `world`. `None` where there is nothing
/// to divide.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn reciprocal(world: usize) -> Option<u16> {
    match world {
        0 | 1 => None,
        2..=256 => Some((1u32 << 16).div_ceil(world as u32) as u16),
        257.. => Some(0),
    }
}

macro_rules! floats {
    ($($float:ty),*) => {
        $(impl Number for $float {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            /// Where neither is less, the two are equal, or one is NaN. Or-ing the bits then gives the number
            /// itself, -0.0 of two different zeros, and some NaN: the exponent is all ones and the mantissa
            /// not zero.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let neither = <$float>::from_bits(self.to_bits() | other.to_bits());
                let not_less = if other < self { other } else { neither };
                if self < other { self } else { not_less }
            }

            /// As [`Number::least`], but +0.0 of two different zeros: and-ing the bits, which would lose a
            /// NaN.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let equal = <$float>::from_bits(self.to_bits() & other.to_bits());
                let unordered = <$float>::from_bits(self.to_bits() | other.to_bits());
                let neither = if self == other { equal } else { unordered };
                let not_greater = if other > self { other } else { neither };
                if self > other { self } else { not_greater }
            }

            #[inline(always)]
            fn share(self, world: usize) -> Self {
                self / world as $float
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { <$float>::NAN } else { self }
            }
        })*
    };
}

/// `$wide` is where the division happens: floats divide in vectors, and for numerators of 16 bits in f32 and
/// of 32 bits in f64 their truncated quotient is the exact one, since a quotient that is no whole number is
/// further from the next one than the rounding reaches.
macro_rules! integers {
    ($($int:ty => $wide:ty),*) => {
        $(impl Number for $int {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn share(self, world: usize) -> Self {
                (self as $wide / world as $wide) as $int
            }

            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        })*
    };
}

floats!(f32, f64);
integers!(
    i8 => f32, u8 => f32, i16 => f32, u16 => f32, i32 => f64, u32 => f64, i64 => i64, u64 => u64
);
