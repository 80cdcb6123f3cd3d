//! How a unit of consecutive elements becomes accumulators and back: one type per element type.
//!
//! Portable lanes have units as small as can be, mostly one element, and the compiler makes vector code of the loops over
//! them; those of an instruction set fill its registers.

use bytemuck::Pod;

/// A fixed number of accumulators.
pub(super) trait Vector: Copy {
    type Item: Copy;

    fn zip(self, other: Self, f: impl Fn(Self::Item, Self::Item) -> Self::Item) -> Self;

    fn map(self, f: impl Fn(Self::Item) -> Self::Item) -> Self;
}

impl<T: Copy> Vector for [T; 1] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0])]
    }

    #[inline(always)]
    fn map(self, f: impl Fn(T) -> T) -> Self {
        [f(self[0])]
    }
}

impl<T: Copy> Vector for [T; 2] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0]), f(self[1], other[1])]
    }

    #[inline(always)]
    fn map(self, f: impl Fn(T) -> T) -> Self {
        [f(self[0]), f(self[1])]
    }
}

impl<T: Copy> Vector for [T; 4] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0]), f(self[1], other[1]), f(self[2], other[2]), f(self[3], other[3])]
    }

    #[inline(always)]
    fn map(self, f: impl Fn(T) -> T) -> Self {
        [f(self[0]), f(self[1]), f(self[2]), f(self[3])]
    }
}

/// A unit of elements of one type: their bytes in memory, and their accumulators.
pub(super) trait Lanes {
    /// How many elements.
    const ELEMENTS: usize;
    /// Their bytes.
    type Raw: Pod;
    type Accumulators: Vector;

    /// Exact.
    ///
    /// # Safety
    /// The processor must have the instruction set that these lanes are made for.
    unsafe fn widen(raw: Self::Raw) -> Self::Accumulators;

    /// Rounds once, to nearest and ties to even; every NaN becomes the canonical one.
    ///
    /// # Safety
    /// As for [`Lanes::widen`].
    unsafe fn narrow(accumulators: Self::Accumulators) -> Self::Raw;
}

/// The accumulator type of some lanes.
pub(super) type Item<L> = <<L as Lanes>::Accumulators as Vector>::Item;
