//! How a unit of consecutive elements becomes accumulators and back: one type per element type.
//!
//! Portable lanes have units as small as can be, mostly one element, and the compiler makes vector code of
//! the loops over them; those of an instruction set fill its registers.

#![allow(unsafe_code, reason = "SIMD instructions")]

#[cfg(target_arch = "x86_64")]
use std::marker::PhantomData;

use bytemuck::Pod;

use super::fold::Fold;
#[cfg(target_arch = "x86_64")]
use super::number::Number;

/// A fixed number of accumulators.
pub(super) trait Vector: Copy {
    type Item: Copy;

    fn zip(self, other: Self, f: impl Fn(Self::Item, Self::Item) -> Self::Item) -> Self;

    /// [`Fold::finish`] of each. A closure for that would be compiled without the instruction set.
    fn finish<F: Fold<Self::Item>>(self, world: usize) -> Self;
}

impl<T: Copy> Vector for [T; 1] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0])]
    }

    #[inline(always)]
    fn finish<F: Fold<T>>(self, world: usize) -> Self {
        [F::finish(self[0], world)]
    }
}

impl<T: Copy> Vector for [T; 2] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0]), f(self[1], other[1])]
    }

    #[inline(always)]
    fn finish<F: Fold<T>>(self, world: usize) -> Self {
        [F::finish(self[0], world), F::finish(self[1], world)]
    }
}

impl<T: Copy> Vector for [T; 4] {
    type Item = T;

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        [f(self[0], other[0]), f(self[1], other[1]), f(self[2], other[2]), f(self[3], other[3])]
    }

    #[inline(always)]
    fn finish<F: Fold<T>>(self, world: usize) -> Self {
        let [a, b, c, d] = self;
        [F::finish(a, world), F::finish(b, world), F::finish(c, world), F::finish(d, world)]
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

/// Four registers of `N` elements that accumulate in their own type: enough to keep the processor busy while
/// loads are under way.
#[cfg(target_arch = "x86_64")]
pub(super) struct Four<V, const N: usize>(PhantomData<V>);

#[cfg(target_arch = "x86_64")]
impl<V: Number + Pod, const N: usize> Lanes for Four<V, N> {
    const ELEMENTS: usize = 4 * N;
    type Raw = [V; 4];
    type Accumulators = [V; 4];

    #[inline(always)]
    unsafe fn widen(raw: [V; 4]) -> [V; 4] {
        raw
    }

    #[inline(always)]
    unsafe fn narrow(accumulators: [V; 4]) -> [V; 4] {
        let [a, b, c, d] = accumulators;
        [a.canonical(), b.canonical(), c.canonical(), d.canonical()]
    }
}
