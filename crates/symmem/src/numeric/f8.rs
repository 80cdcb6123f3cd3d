//! The 8-bit floats, as elements: plain bytes with exact conversions.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::minifloat::{E4M3, E5M2, narrow, widen};

/// An 8-bit float of 4 exponent and 3 mantissa bits: OCP E4M3, PyTorch's `float8_e4m3fn`. It has no infinity.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// An 8-bit float of 5 exponent and 2 mantissa bits: OCP E5M2, PyTorch's `float8_e5m2`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

impl F8E4M3 {
    /// The largest number: 448.
    pub const MAX: Self = Self(0x7e);
    /// The NaN that this crate writes.
    pub const NAN: Self = Self(0x7f);

    /// The nearest to `value`, ties to even. Beyond 464, where the next number would be nearer than
    /// [`Self::MAX`], and for infinities and NaN: [`Self::NAN`].
    pub fn from_f32(value: f32) -> Self {
        Self(narrow::<E4M3>(value))
    }

    /// The same value.
    pub fn to_f32(self) -> f32 {
        widen::<E4M3>(self.0.into())
    }

    /// From its bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl F8E5M2 {
    /// The largest finite number: 57344.
    pub const MAX: Self = Self(0x7b);
    /// Infinity.
    pub const INFINITY: Self = Self(0x7c);
    /// The NaN that this crate writes.
    pub const NAN: Self = Self(0x7f);

    /// The nearest to `value`, ties to even. From 61440 on: infinity. Every NaN becomes [`Self::NAN`].
    pub fn from_f32(value: f32) -> Self {
        Self(narrow::<E5M2>(value))
    }

    /// The same value.
    pub fn to_f32(self) -> f32 {
        widen::<E5M2>(self.0.into())
    }

    /// From its bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

/// Compares as numbers: NaN is equal to nothing, -0.0 is equal to +0.0.
impl PartialEq for F8E4M3 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

/// Compares as numbers: NaN is equal to nothing, -0.0 is equal to +0.0.
impl PartialEq for F8E5M2 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl fmt::Debug for F8E4M3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

impl fmt::Debug for F8E5M2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f8_values() {
        assert_eq!(F8E4M3::MAX.to_f32(), 448.0);
        assert_eq!(F8E5M2::MAX.to_f32(), 57344.0);
        assert_eq!(F8E5M2::INFINITY.to_f32(), f32::INFINITY);
        assert_eq!(F8E4M3::from_f32(-1.5).to_f32(), -1.5);
        assert_eq!(F8E4M3::from_f32(0.1), F8E4M3::from_f32(0.101_562_5));
        assert!(F8E4M3::NAN != F8E4M3::NAN && F8E5M2::NAN.to_f32().is_nan());
    }
}
