//! Products of matrices: `A @ B` where either may lie in a peer's memory, added up in f32.
//!
//! Used by the fused collectives. Written here and not taken from a crate, because these products read f32,
//! bf16 and f16 where they lie, any number of times with the same packed `B`, and give an element the same
//! bits whatever rows and columns are multiplied together: rows that are multiplied as they come equal those
//! of one product.
//!
//! An element of the result is the sum over k in order, in blocks of [`DEPTH`]: within a block by fused
//! multiply-adds from zero (AVX-512, AVX2, NEON; multiply, then add, where a processor has none), and the
//! blocks added up in order. It is rounded to its type once, at the end.
//!
//! `B` is packed once into [`Panels`] as wide as a [`tile`]; rows of `A` are copied, as f32, into a block
//! that stays in the second-level cache, once for each [`COLUMNS`] of the result. The copies are opaque, so a
//! peer that writes what is read, because it has left the call with an error, does no harm.

#![allow(unsafe_code, reason = "kernels over raw elements")]

pub(super) mod convert;
mod tile;

use std::ops::Range;

use self::convert::{narrow, widen};
use self::tile::{A_STRIDE, SUMS_STRIDE, TileKernel};
use super::environment::Environment;
use super::{DType, Isa};
use crate::{Error, Result};

/// Steps along k in a block: what a tile needs of both sides stays in the first-level cache.
const DEPTH: usize = 384;
/// Rows in a block, a multiple of every tile's.
const ROWS: usize = 192;
/// Columns in a block, a multiple of every tile's: the sums of a block stay in the second-level cache.
const COLUMNS: usize = 256;

/// f32 that begin with a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "used through pointers")] [f32; 16]);

/// Zeroed memory for `len` f32.
fn lines(len: usize) -> Vec<Line> {
    vec![Line([0.0; 16]); len.div_ceil(16)]
}

/// An error unless products of `dtype` can be made, for a call of `op`.
pub(crate) fn check(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        _ => Err(Error::invalid(op, format!("matrices of {dtype}: only f32, bf16 and f16 are multiplied"))),
    }
}

/// A matrix in memory, row after row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMatrix {
    pub(crate) dtype: DType,
    /// The first element.
    pub(crate) at: *mut u8,
    /// Elements from the beginning of a row to that of the next.
    pub(crate) stride: usize,
}

// SAFETY: an address; who uses it has the duties of the functions below.
unsafe impl Send for RawMatrix {}
// SAFETY: as above.
unsafe impl Sync for RawMatrix {}

impl RawMatrix {
    /// The matrix from this row and column on.
    pub(crate) fn skip(self, row: usize, column: usize) -> Self {
        let at = self.at.wrapping_add((row * self.stride + column) * self.dtype.size());
        Self { at, ..self }
    }
}

/// The right side of products: `k` rows of `n` columns, packed as f32.
pub(crate) struct Panels {
    kernel: TileKernel,
    k: usize,
    n: usize,
    /// For each block of k, for each panel of as many columns as a tile has: its rows, one after the other.
    lines: Vec<Line>,
}

impl Panels {
    /// Packs `k` rows of `n` columns of `matrix`.
    ///
    /// # Safety
    /// They must be valid for reading.
    pub(crate) unsafe fn pack(matrix: RawMatrix, k: usize, n: usize) -> Self {
        // SAFETY: the caller's duty.
        unsafe { Self::pack_for(TileKernel::for_isa(Isa::best()), matrix, k, n) }
    }

    /// # Safety
    /// As for [`Panels::pack`], and the processor has the kernel's instruction set.
    unsafe fn pack_for(kernel: TileKernel, matrix: RawMatrix, k: usize, n: usize) -> Self {
        let _environment = Environment::enter();
        let width = kernel.columns;
        let mut panels = Self { kernel, k, n, lines: lines(k * n.next_multiple_of(width)) };
        let all = panels.lines.as_mut_ptr().cast::<f32>();
        // A matrix without columns may say that it has any number of rows.
        for block in blocks(if n == 0 { 0 } else { k }) {
            for (panel, column) in (0..n).step_by(width).enumerate() {
                let columns = width.min(n - column);
                let mut to = all.wrapping_add(panels.start(&block, panel));
                for row in block.clone() {
                    // SAFETY: within the matrix, by the caller's duty, and within the panel, whose columns
                    // beyond the matrix stay zero.
                    unsafe {
                        widen(matrix.dtype, matrix.skip(row, column).at, columns, to);
                        to = to.add(width);
                    }
                }
            }
        }
        panels
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.k
    }

    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// Where the rows `block` of a panel begin.
    fn start(&self, block: &Range<usize>, panel: usize) -> usize {
        let width = self.kernel.columns;
        block.start * self.n.next_multiple_of(width) + panel * width * block.len()
    }
}

/// The blocks of `k`.
fn blocks(k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(DEPTH).map(move |start| start..(start + DEPTH).min(k))
}

/// `out` becomes the sum of the products of `parts`, in order: each is a matrix of `rows` rows, and what it
/// is multiplied with. All have the columns of the first; without one, nothing is written.
///
/// # Safety
/// The rows of the parts must be valid for reading; those of `out` must be valid for writing, be nobody
/// else's, and overlap none of the parts.
pub(crate) unsafe fn multiply(parts: &[(RawMatrix, &Panels)], rows: usize, out: RawMatrix) {
    let Some((_, first)) = parts.first() else { return };
    let (kernel, n) = (first.kernel, first.n);
    if n == 0 || rows == 0 {
        return;
    }
    debug_assert!(parts.iter().all(|(_, panels)| panels.n == n));
    let _environment = Environment::enter();
    let height = ROWS.min(rows.next_multiple_of(kernel.rows));
    let (mut left, mut sums) = (lines(height * A_STRIDE), lines(height * SUMS_STRIDE));
    let (left, sums): (*mut f32, *mut f32) = (left.as_mut_ptr().cast(), sums.as_mut_ptr().cast());
    for start in (0..rows).step_by(height) {
        for column in (0..n).step_by(COLUMNS) {
            let (rows, columns) = (height.min(rows - start), COLUMNS.min(n - column));
            let block = ProductBlock { kernel, rows, column, columns, left, sums };
            // SAFETY: the scratch has room for a block, which is within the parts' products and the output.
            unsafe {
                block.add_up(parts, start);
                for row in 0..rows {
                    let to = out.skip(start + row, column).at;
                    narrow(sums.add(row * SUMS_STRIDE), columns, out.dtype, to);
                }
            }
        }
    }
}

/// The first row of `to` becomes `from`, each number rounded once.
///
/// # Safety
/// The row must be valid for writing as many elements, and be nobody else's.
pub(crate) unsafe fn narrow_row(from: &[f32], to: RawMatrix) {
    // SAFETY: the caller's duty.
    unsafe { narrow(from.as_ptr(), from.len(), to.dtype, to.at) };
}

/// A part of a product while it is made.
struct ProductBlock {
    kernel: TileKernel,
    rows: usize,
    /// The first column, and how many.
    column: usize,
    columns: usize,
    /// Rows of the left side, [`DEPTH`] columns of them, [`A_STRIDE`] apart.
    left: *mut f32,
    /// Rows of the result, [`SUMS_STRIDE`] apart; there is room for whole tiles.
    sums: *mut f32,
}

impl ProductBlock {
    /// # Safety
    /// `left` and `sums` have room; the rest as for [`multiply`], of this block's rows from `start` on.
    unsafe fn add_up(&self, parts: &[(RawMatrix, &Panels)], start: usize) {
        let mut add = false;
        for (matrix, panels) in parts {
            for depth in blocks(panels.k) {
                // SAFETY: rows of the part, which have `k` columns, and there is room for as many as a block
                // has.
                unsafe {
                    for row in 0..self.rows {
                        let from = matrix.skip(start + row, depth.start).at;
                        widen(matrix.dtype, from, depth.len(), self.left.add(row * A_STRIDE));
                    }
                    self.tiles(panels, &depth, add);
                }
                add = true;
            }
        }
        if !add {
            // SAFETY: there is room.
            unsafe { self.sums.write_bytes(0, self.rows * SUMS_STRIDE) };
        }
    }

    /// # Safety
    /// As for [`ProductBlock::add_up`]; `left` holds the columns `depth`.
    unsafe fn tiles(&self, panels: &Panels, depth: &Range<usize>, add: bool) {
        let (tall, width) = (self.kernel.rows, self.kernel.columns);
        for column in (0..self.columns).step_by(width) {
            let right = panels.start(depth, (self.column + column) / width);
            let right = panels.lines.as_ptr().cast::<f32>().wrapping_add(right);
            for row in (0..self.rows).step_by(tall) {
                // SAFETY: there is room for whole tiles. What rows and columns beyond the matrices have is
                // never given back.
                unsafe {
                    let sums = self.sums.add(row * SUMS_STRIDE + column);
                    let left = self.left.add(row * A_STRIDE);
                    (self.kernel.run)(depth.len(), left, right, sums, add);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::{Element, bf16, f16};

    fn raw<T: Element>(data: &[T], stride: usize) -> RawMatrix {
        RawMatrix { dtype: T::DTYPE, at: data.as_ptr().cast_mut().cast(), stride }
    }

    /// The product of `m` rows by the best kernel of `isa`, in pieces of `piece` rows.
    fn product<T: Element>(isa: Isa, a: &[T], b: &[T], [m, n, k]: [usize; 3], piece: usize) -> Vec<T> {
        let mut out = vec![T::zeroed(); m * n];
        let at = RawMatrix { dtype: T::DTYPE, at: out.as_mut_ptr().cast(), stride: n };
        // SAFETY: all have room for their shapes; the instruction set was found available.
        unsafe {
            let panels = Panels::pack_for(TileKernel::for_isa(isa), raw(b, n), k, n);
            for row in (0..m).step_by(piece) {
                multiply(&[(raw(a, k).skip(row, 0), &panels)], piece.min(m - row), at.skip(row, 0));
            }
        }
        out
    }

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(step).collect()
    }

    const SHAPES: [[usize; 3]; 9] = [
        [1, 1, 1],
        [13, 33, 257],
        [100, 64, 300],
        [97, 31, 5],
        [5, 7, 600],
        [12, 32, 256],
        [3, 4, 0],
        [0, 4, 3],
        [4, 0, 3],
    ];

    #[test]
    fn products_are_right_whatever_the_instruction_set() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for shape @ [m, n, k] in SHAPES {
                let (a, b) = (noise(m * k, 1), noise(k * n, 2));
                let out = product(isa, &a, &b, shape, usize::MAX);
                for (index, value) in out.iter().enumerate() {
                    let (row, column) = (index / n, index % n);
                    let term = |at: usize| f64::from(a[row * k + at]) * f64::from(b[at * n + column]);
                    let right: f64 = (0..k).map(term).sum();
                    let bound: f64 = (0..k).map(|at| term(at).abs()).sum::<f64>() * 1e-6;
                    assert!((f64::from(*value) - right).abs() <= bound, "{isa:?} {shape:?} {index}");
                }
            }
        }
    }

    #[test]
    fn small_floats_are_those_of_f32_rounded_once() {
        fn check<T: Element>(from: fn(f32) -> T, to: fn(T) -> f32) {
            for shape @ [m, n, k] in SHAPES {
                let (a, b) = (noise(m * k, 3), noise(k * n, 4));
                let (a, b): (Vec<T>, Vec<T>) =
                    (a.into_iter().map(from).collect(), b.into_iter().map(from).collect());
                let wide = |from: &[T]| from.iter().map(|value| to(*value)).collect::<Vec<_>>();
                let expected = product(Isa::best(), &wide(&a), &wide(&b), shape, usize::MAX);
                let expected: Vec<T> = expected.into_iter().map(from).collect();
                let out = product(Isa::best(), &a, &b, shape, usize::MAX);
                assert_eq!(bytemuck::cast_slice::<T, u16>(&out), bytemuck::cast_slice::<T, u16>(&expected));
            }
        }
        check(bf16::from_f32, bf16::to_f32);
        check(f16::from_f32, f16::to_f32);
    }

    #[test]
    fn rows_have_the_same_bits_in_any_piece() {
        let shape @ [m, n, k] = [211, 47, 700];
        let (a, b) = (noise(m * k, 5), noise(k * n, 6));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let whole = product(isa, &a, &b, shape, usize::MAX);
            for piece in [1, 7, 12, 100] {
                assert_eq!(product(isa, &a, &b, shape, piece), whole, "{isa:?} {piece}");
            }
        }
    }

    #[test]
    fn instruction_sets_with_fused_products_agree() {
        let shape @ [m, n, k] = [50, 70, 600];
        let (a, b) = (noise(m * k, 7), noise(k * n, 8));
        let fused = [Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available());
        let all: Vec<Vec<f32>> = fused.map(|isa| product(isa, &a, &b, shape, usize::MAX)).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn parts_are_added_up_in_order() {
        let [m, n, k] = [30, 20, 2 * DEPTH];
        let (a, b) = (noise(m * k, 9), noise(k * n, 10));
        let whole = product(Isa::best(), &a, &b, [m, n, k], usize::MAX);
        let mut out = vec![0.0f32; m * n];
        // SAFETY: all have room for their shapes.
        unsafe {
            let halves = [0, DEPTH].map(|row| Panels::pack(raw(&b, n).skip(row, 0), DEPTH, n));
            let parts = [(raw(&a, k), &halves[0]), (raw(&a, k).skip(0, DEPTH), &halves[1])];
            multiply(&parts, m, RawMatrix { dtype: DType::F32, at: out.as_mut_ptr().cast(), stride: n });
        }
        assert_eq!(out, whole);
    }
}
