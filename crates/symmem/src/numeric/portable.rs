//! The kernels for any processor: compiled for what every processor of the architecture has (SSE2, NEON).

#![allow(unsafe_code, reason = "kernels over raw elements")]

use std::marker::PhantomData;

use bytemuck::Pod;

use super::fold::Fold;
use super::job::{KernelJob, KernelLoop, Target};
use super::lanes::{Item, Lanes};
use super::loops;
use super::minifloat::{Binary16, E4M3, E5M2, Format, narrow, narrow_to_bf16, widen};
use super::number::Number;

pub(super) struct Portable;

impl Target for Portable {
    type I8 = Plain<i8>;
    type U8 = Plain<u8>;
    type I16 = Plain<i16>;
    type U16 = Plain<u16>;
    type I32 = Plain<i32>;
    type U32 = Plain<u32>;
    type I64 = Plain<i64>;
    type U64 = Plain<u64>;
    type F8E4M3 = Small<E4M3>;
    type F8E5M2 = Small<E5M2>;
    type F16 = Small<Binary16>;
    type BF16 = Pair;
    type F32 = Plain<f32>;
    type F64 = Plain<f64>;
    type Bool = Truth;
}

impl KernelLoop for Portable {
    unsafe fn run<L: Lanes, F: Fold<Item<L>>>(job: &KernelJob<'_>) {
        // SAFETY: the caller's duty.
        unsafe { loops::run::<L, F>(job) }
    }
}

/// An element that accumulates in its own type.
pub(super) struct Plain<T>(PhantomData<T>);

impl<T: Number + Pod> Lanes for Plain<T> {
    const ELEMENTS: usize = 1;
    type Raw = T;
    type Accumulators = [T; 1];

    #[inline(always)]
    unsafe fn widen(raw: T) -> [T; 1] {
        [raw]
    }

    #[inline(always)]
    unsafe fn narrow([accumulator]: [T; 1]) -> T {
        accumulator.canonical()
    }
}

/// A truth value: any byte but 0 is true, and 0 or 1 is written.
pub(super) struct Truth;

impl Lanes for Truth {
    const ELEMENTS: usize = 1;
    type Raw = u8;
    type Accumulators = [u8; 1];

    #[inline(always)]
    unsafe fn widen(raw: u8) -> [u8; 1] {
        [raw.min(1)]
    }

    #[inline(always)]
    unsafe fn narrow([accumulator]: [u8; 1]) -> u8 {
        accumulator
    }
}

/// bf16, taken as pairs in a word: both halves become an f32 by a shift or a mask, with no shuffle, and go
/// back the same way.
pub(super) struct Pair;

impl Lanes for Pair {
    const ELEMENTS: usize = 2;
    type Raw = u32;
    type Accumulators = [f32; 2];

    #[inline(always)]
    unsafe fn widen(raw: u32) -> [f32; 2] {
        [f32::from_bits(raw << 16), f32::from_bits(raw & 0xffff_0000)]
    }

    #[inline(always)]
    unsafe fn narrow([low, high]: [f32; 2]) -> u32 {
        narrow_to_bf16(low) >> 16 | narrow_to_bf16(high) & 0xffff_0000
    }
}

/// A small float by integer arithmetic.
pub(super) struct Small<F>(PhantomData<F>);

impl<F: Format> Lanes for Small<F> {
    const ELEMENTS: usize = 1;
    type Raw = F::Bits;
    type Accumulators = [f32; 1];

    #[inline(always)]
    unsafe fn widen(raw: F::Bits) -> [f32; 1] {
        [widen::<F>(raw.into())]
    }

    #[inline(always)]
    unsafe fn narrow([accumulator]: [f32; 1]) -> F::Bits {
        narrow::<F>(accumulator)
    }
}
