//! The reduce operations as types, so that each kernel is compiled for its own.

use super::number::{Bits, Number};

/// How accumulators of type `T` become one: folded in rank order, then finished once.
pub(super) trait Fold<T> {
    /// Whether it is worth loops of its own for the usual numbers of ranks: they make the library larger.
    const COMMON: bool = false;

    fn fold(accumulator: T, next: T) -> T;

    #[inline(always)]
    fn finish(accumulator: T, _world: usize) -> T {
        accumulator
    }
}

pub(super) struct Sum;
pub(super) struct Avg;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Prod;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

impl<T: Number> Fold<T> for Sum {
    const COMMON: bool = true;

    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.plus(next)
    }
}

impl<T: Number> Fold<T> for Avg {
    const COMMON: bool = true;

    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.plus(next)
    }

    #[inline(always)]
    fn finish(accumulator: T, world: usize) -> T {
        accumulator.share(world)
    }
}

impl<T: Number> Fold<T> for Min {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.least(next)
    }
}

impl<T: Number> Fold<T> for Max {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.greatest(next)
    }
}

impl<T: Number> Fold<T> for Prod {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.times(next)
    }
}

impl<T: Bits> Fold<T> for And {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.and(next)
    }
}

impl<T: Bits> Fold<T> for Or {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.or(next)
    }
}

impl<T: Bits> Fold<T> for Xor {
    #[inline(always)]
    fn fold(accumulator: T, next: T) -> T {
        accumulator.xor(next)
    }
}
