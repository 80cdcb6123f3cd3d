//! The innermost part of a product: a tile of the result that stays in registers.
//!
//! Used by [`super`]. All kernels add up in the same order, so those with fused multiply-adds have the same
//! bits.

#![allow(unsafe_code, reason = "SIMD instructions")]

use crate::numeric::Isa;

/// From a row of the left side's block to the next, in f32: a line more than its columns, so that the rows of
/// a tile are not all in one set of the cache.
pub(super) const A_STRIDE: usize = super::DEPTH + 16;
/// The same of the sums.
pub(super) const SUMS_STRIDE: usize = super::COLUMNS + 16;

/// Adds up `k` steps of `left`, rows [`A_STRIDE`] apart, by `right`, rows as long as the tile is wide, into
/// the tile at `sums`, rows [`SUMS_STRIDE`] apart: in the place of what is there, or in addition to it.
///
/// # Safety
/// All must be valid for it: `left` and `right` for reading, the tile for both; and the processor has the
/// kernel's instruction set.
type Tile = unsafe fn(k: usize, left: *const f32, right: *const f32, sums: *mut f32, add: bool);

/// A tile's shape, and what adds it up.
#[derive(Clone, Copy)]
pub(super) struct TileKernel {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) run: Tile,
}

impl TileKernel {
    /// The one for `isa`.
    pub(super) fn for_isa(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 => Self { rows: 12, columns: 32, run: x86::avx512 },
            // A processor with AVX2 and F16C but without fused multiply-adds was never made.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if is_x86_feature_detected!("fma") => Self { rows: 6, columns: 16, run: x86::avx2 },
            _ => Self { rows: 4, columns: 8, run: portable },
        }
    }
}

/// # Safety
/// As for [`Tile`].
unsafe fn portable(k: usize, left: *const f32, right: *const f32, sums: *mut f32, add: bool) {
    let mut tile = [[0.0f32; 8]; 4];
    for step in 0..k {
        // SAFETY: the caller's duty.
        let row = unsafe { right.add(step * 8).cast::<[f32; 8]>().read() };
        for (at, sums) in tile.iter_mut().enumerate() {
            // SAFETY: as above.
            let factor = unsafe { left.add(at * A_STRIDE + step).read() };
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum = match cfg!(target_arch = "aarch64") {
                    true => factor.mul_add(value, *sum),
                    false => factor * value + *sum,
                };
            }
        }
    }
    for (at, row) in tile.iter().enumerate() {
        // SAFETY: as above.
        let to = unsafe { &mut *sums.add(at * SUMS_STRIDE).cast::<[f32; 8]>() };
        for (to, sum) in to.iter_mut().zip(row) {
            *to = if add { *to + sum } else { *sum };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{A_STRIDE, SUMS_STRIDE};

    /// Defines the kernel `$name` of `$rows` rows and two registers of `$width` f32 each.
    macro_rules! tile {
        ($name:ident, $feature:literal, $rows:literal x 2 of $width:literal:
            $zero:ident $load:ident $store:ident $set:ident $fused:ident $add:ident) => {
            /// # Safety
            /// As for [`super::Tile`].
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(
                k: usize,
                mut left: *const f32,
                mut right: *const f32,
                sums: *mut f32,
                add: bool,
            ) {
                let mut tile = [[$zero(); 2]; $rows];
                for _ in 0..k {
                    // SAFETY: the caller's duty.
                    unsafe {
                        let row = [$load(right), $load(right.add($width))];
                        for (at, sums) in tile.iter_mut().enumerate() {
                            let factor = $set(*left.add(at * A_STRIDE));
                            sums[0] = $fused(factor, row[0], sums[0]);
                            sums[1] = $fused(factor, row[1], sums[1]);
                        }
                        left = left.add(1);
                        right = right.add(2 * $width);
                    }
                }
                for (at, row) in tile.iter().enumerate() {
                    for (half, sum) in row.iter().enumerate() {
                        // SAFETY: as above.
                        unsafe {
                            let to = sums.add(at * SUMS_STRIDE + half * $width);
                            $store(to, if add { $add($load(to), *sum) } else { *sum });
                        }
                    }
                }
            }
        };
    }

    tile!(avx512, "avx512f", 12 x 2 of 16:
        _mm512_setzero_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps _mm512_add_ps);
    tile!(avx2, "avx2,fma", 6 x 2 of 8:
        _mm256_setzero_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps _mm256_add_ps);
}
