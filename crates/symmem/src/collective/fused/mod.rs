//! Products and norms that are made while a collective runs: all_gather and then a product, a product and
//! then reduce_scatter, all_reduce and then RMSNorm.
//!
//! Called by users through the handle. *Fused*, a product reads a peer's rows where they lie, or makes what
//! peers wait for first; *unfused*, all is gathered and then multiplied, or multiplied and then reduced. Both
//! have the same bits, since a product gives an element the same bits whatever is multiplied together with it
//! (`numeric::product`), and sums of ranks are made in rank order. The fused way is taken unless
//! [`SymmetricMemory::using`] asks for [`Algorithm::Direct`].
//!
//! What ranks must agree on (the operation, shapes, element type, the way) is their signature, as that of any
//! collective. What a rank computes before it has heard all others changes no symmetric memory but the
//! workspace that is its own.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

mod all_gather;
mod erased;
mod matrix;
mod norm;
mod reduce_scatter;

pub use self::erased::{BytesMatrix, Side};
pub use self::matrix::MatrixView;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::numeric::product::{self, Panels, RawMatrix};
use crate::operation::{Algorithm, Op};
use crate::sync::team::RankThreads;
use crate::{Error, Result};

/// Multiplications that take about as long as reading or writing a byte.
const MULTIPLICATIONS_PER_BYTE: usize = 8;

impl<T: Element> SymmetricMemory<T> {
    fn threads(&self) -> &RankThreads {
        &self.group().inner.threads
    }

    /// The way of a fused operation: [`Algorithm::Pipelined`], or [`Algorithm::Direct`] for the unfused one.
    fn way(&self) -> Result<Algorithm> {
        match self.forced() {
            None => Ok(Algorithm::Pipelined),
            Some(way @ (Algorithm::Pipelined | Algorithm::Direct)) => Ok(way),
            Some(other) => {
                let ways = "pipelined (fused) and direct (unfused)";
                Err(Error::invalid(
                    "algorithm",
                    format!("{other} cannot carry a fused product, which has {ways}"),
                ))
            }
        }
    }
}

/// Packs the right side of products.
fn pack<T: Element>(matrix: &MatrixView<'_, T>) -> Panels {
    // SAFETY: a matrix has all elements of its rows, and is borrowed.
    unsafe { Panels::pack(matrix.raw(), matrix.rows(), matrix.columns()) }
}

/// [`product::multiply`] by the threads of the rank, each of which takes some of the rows.
///
/// # Safety
/// As for [`product::multiply`].
unsafe fn multiply(threads: &RankThreads, parts: &[(RawMatrix, &Panels)], rows: usize, out: RawMatrix) {
    let factors = parts.iter().map(|(_, panels)| panels.rows() * panels.columns());
    let work = rows.saturating_mul(factors.sum()) / MULTIPLICATIONS_PER_BYTE;
    threads.share(work, |part, parts_of_rows| {
        let edge = |part: usize| rows * part / parts_of_rows;
        let (start, end) = (edge(part), edge(part + 1));
        let parts: Vec<_> = parts.iter().map(|(matrix, panels)| (matrix.skip(start, 0), *panels)).collect();
        // SAFETY: the caller's duty; the rows are one thread's each.
        unsafe { product::multiply(&parts, end - start, out.skip(start, 0)) };
    });
}

/// `out` as a matrix of `columns` columns.
fn rows_of<T: Element>(out: &mut [T], columns: usize) -> RawMatrix {
    RawMatrix { dtype: T::DTYPE, at: out.as_mut_ptr().cast(), stride: columns }
}

/// An error that says `problem` of `op`, unless what it is given fits.
fn check(op: Op, fits: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if fits { Ok(()) } else { Err(Error::invalid(op.name(), problem())) }
}
