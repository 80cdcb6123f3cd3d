//! All-gather and then products.
//!
//! A rank announces its memory and multiplies it, and then what each other rank has, as soon as that rank has
//! come: rows are read where they lie, and nothing is gathered. Of columns every rank needs all: their
//! products are added up in rank order, once all have come.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::{MatrixView, check, multiply, pack, rows_of};
use crate::Result;
use crate::collective::CollectiveCall;
use crate::collective::low_contention::ReadRange;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::numeric::product::{self, Panels, RawMatrix};
use crate::operation::{Algorithm, Op};
use crate::sys::copy;

impl<T: Element> SymmetricMemory<T> {
    /// Collective. The memory is this rank's rows of a matrix, with as many columns as the `weights` have
    /// rows; each of `outs` becomes the product of everybody's rows, in rank order, and one of the weights.
    /// The weights are this rank's own. For `f32`, `bf16` and `f16`; sums are made in `f32` and rounded once.
    ///
    /// The product begins with this rank's rows and goes on with those of each other rank as soon as it has
    /// come, read where they lie. [`using`](SymmetricMemory::using) [`Algorithm::Direct`] all rows are
    /// gathered first; the bits are the same. When it fails, also with
    /// [`Error::Mismatch`](crate::Error::Mismatch), `outs` may be partly written.
    ///
    /// ```
    /// use symmem::MatrixView;
    /// symmem::spawn(2, |group| {
    ///     let mut rows = group.alloc::<f32>(2)?.rendezvous(&group)?; // one row of two
    ///     rows.fill(group.rank() as f32 + 1.0)?;
    ///     let weights = MatrixView::new(&[1.0, 10.0, 100.0, 2.0, 20.0, 200.0], 2, 3)?;
    ///     let mut out = [0.0; 6];
    ///     rows.all_gather_matmul(&[weights], &mut [&mut out])?;
    ///     assert_eq!(out, [3.0, 30.0, 300.0, 6.0, 60.0, 600.0]);
    ///     rows.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_matmul(&self, weights: &[MatrixView<'_, T>], outs: &mut [&mut [T]]) -> Result<()> {
        self.gather_rows_and_multiply(weights, outs, None)
    }

    /// Collective. [`SymmetricMemory::all_gather_matmul`] that gives the rows of all ranks as well, in
    /// `gathered`.
    ///
    /// ```
    /// use symmem::MatrixView;
    /// symmem::spawn(2, |group| {
    ///     let mut rows = group.alloc::<f32>(2)?.rendezvous(&group)?;
    ///     rows.fill(group.rank() as f32)?;
    ///     let (mut out, mut all) = ([0.0; 2], [0.0; 4]);
    ///     rows.all_gather_matmul_and_rows(&[MatrixView::new(&[1.0, 1.0], 2, 1)?], &mut [&mut out], &mut all)?;
    ///     assert_eq!((out, all), ([0.0, 2.0], [0.0, 0.0, 1.0, 1.0]));
    ///     rows.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_matmul_and_rows(
        &self,
        weights: &[MatrixView<'_, T>],
        outs: &mut [&mut [T]],
        gathered: &mut [T],
    ) -> Result<()> {
        self.gather_rows_and_multiply(weights, outs, Some(gathered))
    }

    fn gather_rows_and_multiply(
        &self,
        weights: &[MatrixView<'_, T>],
        outs: &mut [&mut [T]],
        gathered: Option<&mut [T]>,
    ) -> Result<()> {
        const OP: Op = Op::AllGatherMatmul;
        let (world, len) = (self.world_size(), self.len());
        let shape = self.shape_of(OP, weights, 1).and_then(|[rows, k]| {
            check_outputs(OP, weights, outs, rows * world)?;
            let fits = gathered.as_ref().is_none_or(|gathered| gathered.len() == len * world);
            let shapes = || format!("{world} ranks have {rows} x {k} elements each, not the output for them");
            check(OP, fits, shapes).map(|()| [rows, k])
        });
        let (shape @ [rows, k], way) =
            self.parts.told(OP, shape.and_then(|shape| Ok((shape, self.way()?))))?;
        let unfused = way == Algorithm::Direct;
        let mut own = Vec::new();
        let mut gathered: Option<&mut [T]> = gathered;
        if unfused && gathered.is_none() {
            own.resize(len * world, T::zeroed());
            gathered = Some(&mut own);
        }
        let mut panels: Option<Vec<Panels>> = None;
        let visit = |(): &mut (), rank: usize, from: *const u8| {
            if let Some(gathered) = &mut gathered {
                // SAFETY: `from` has `len` elements, and there is room for those of every rank.
                unsafe { copy_part(from, &mut gathered[rank * len..][..len]) };
            }
            if unfused {
                return;
            }
            let panels = panels.get_or_insert_with(|| weights.iter().map(pack).collect());
            let part = RawMatrix { dtype: T::DTYPE, at: from.cast_mut(), stride: k };
            for (panels, out) in panels.iter().zip(&mut *outs) {
                let out = rows_of(out, panels.columns()).skip(rank * rows, 0);
                // SAFETY: `from` has `rows` rows of `k`; the output has room for those of all ranks.
                unsafe { multiply(self.threads(), &[(part, panels)], rows, out) };
            }
        };
        self.visit_all(OP, shape, way, &mut (), visit, |()| {})?;
        if let Some(gathered) = gathered.filter(|_| unfused) {
            for (weights, out) in weights.iter().zip(outs) {
                let (all, panels) = (rows_of(gathered, k), pack(weights));
                let out = rows_of(out, weights.columns());
                // SAFETY: all rows of all ranks, and room for their products.
                unsafe { multiply(self.threads(), &[(all, &panels)], rows * world, out) };
            }
        }
        Ok(())
    }

    /// Collective. The memory is this rank's columns of a matrix, row after row, and the `weights` have as
    /// many rows as all ranks have columns; each of `outs` becomes the product of everybody's columns, in
    /// rank order, and one of the weights. For `f32`, `bf16` and `f16`; sums are made in `f32`, those of the
    /// ranks' columns added up in rank order, and rounded once.
    ///
    /// Everybody's columns are read where they lie, once all ranks have come;
    /// [`using`](SymmetricMemory::using) [`Algorithm::Direct`] they are gathered first, and the bits are the
    /// same.
    ///
    /// ```
    /// use symmem::MatrixView;
    /// symmem::spawn(2, |group| {
    ///     let mut column = group.alloc::<f32>(3)?.rendezvous(&group)?; // one column of three
    ///     column.fill(group.rank() as f32 + 1.0)?;
    ///     let mut out = [0.0; 3];
    ///     column.all_gather_columns_matmul(&[MatrixView::new(&[1.0, 10.0], 2, 1)?], &mut [&mut out])?;
    ///     assert_eq!(out, [21.0; 3]);
    ///     column.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_columns_matmul(
        &self,
        weights: &[MatrixView<'_, T>],
        outs: &mut [&mut [T]],
    ) -> Result<()> {
        const OP: Op = Op::AllGatherColumnsMatmul;
        let (world, len) = (self.world_size(), self.len());
        let shape = self.shape_of(OP, weights, world);
        let shape = shape.and_then(|shape| check_outputs(OP, weights, outs, shape[0]).map(|()| shape));
        let (shape @ [rows, k], way) =
            self.parts.told(OP, shape.and_then(|shape| Ok((shape, self.way()?))))?;
        let mut copies = vec![T::zeroed(); if way == Algorithm::Direct { len * world } else { 0 }];
        let mut places = vec![rows_of::<T>(&mut [], k); world];
        let mut work = |places: &[RawMatrix]| {
            for (weights, out) in weights.iter().zip(&mut *outs) {
                // SAFETY: as many rows of the weights as the rank has columns.
                let panels =
                    |rank| unsafe { Panels::pack(weights.raw().skip(rank * k, 0), k, weights.columns()) };
                let panels: Vec<_> = (0..world).map(panels).collect();
                let parts: Vec<_> = places.iter().copied().zip(&panels).collect();
                // SAFETY: `rows` rows of each rank, and room for their product.
                unsafe { multiply(self.threads(), &parts, rows, rows_of(out, weights.columns())) };
            }
        };
        let visit = |places: &mut Vec<RawMatrix>, rank: usize, from: *const u8| {
            places[rank].at = from.cast_mut();
            if way == Algorithm::Direct {
                let copy = &mut copies[rank * len..][..len];
                places[rank].at = copy.as_mut_ptr().cast();
                // SAFETY: `from` has `len` elements.
                unsafe { copy_part(from, copy) };
            }
        };
        self.visit_all(OP, shape, way, &mut places, visit, |places| {
            if way == Algorithm::Pipelined {
                work(places);
            }
        })?;
        if way == Algorithm::Direct {
            work(&places);
        }
        Ok(())
    }

    /// Announces this rank's memory, calls `visit` with where every rank's is as soon as it has come,
    /// `agreed` once all have and before anybody goes on, and meets again.
    fn visit_all<S>(
        &self,
        op: Op,
        shape: [usize; 2],
        way: Algorithm,
        state: &mut S,
        mut visit: impl FnMut(&mut S, usize, *const u8),
        agreed: impl FnOnce(&mut S),
    ) -> Result<()> {
        let group = self.group().in_rows(shape);
        let call = CollectiveCall { shape: group.shape, ..self.call(op, 0, None) };
        let signature = call.signature(way, self.parts.number());
        tracing::trace!(op = op.name(), algorithm = %way, bytes = call.bytes, "collective");
        self.parts.operate_as(&group, op, |running| {
            let wanted = Ok(ReadRange { start: 0, len: self.len() });
            let _borrow = self.visit(running, signature, wanted, |rank, from| visit(state, rank, from))?;
            agreed(state);
            self.sealed_by_meeting(running.meet(signature)).map(drop)
        })
    }

    /// The rows and columns of this rank's memory, of whose columns those of `parts` ranks make up the rows
    /// of the weights.
    fn shape_of(&self, op: Op, weights: &[MatrixView<'_, T>], parts: usize) -> Result<[usize; 2]> {
        product::check(op.name(), T::DTYPE)?;
        let all = weights.first().map_or(0, MatrixView::rows);
        check(op, !weights.is_empty() && weights.iter().all(|one| one.rows() == all), || {
            let rows: Vec<_> = weights.iter().map(MatrixView::rows).collect();
            format!("weights of {rows:?} rows: there must be some, and they must have as many")
        })?;
        check(op, all.is_multiple_of(parts), || {
            format!("weights of {all} rows cannot be divided among {parts} ranks")
        })?;
        let k = all / parts;
        check(op, self.len().is_multiple_of(k), || {
            format!("the memory's {} elements are no rows of {k}, which the weights ask for", self.len())
        })?;
        Ok([self.len().checked_div(k).unwrap_or(0), k])
    }
}

/// An error unless each of `outs` has room for `rows` rows of one of the weights' columns.
fn check_outputs<T: Element>(
    op: Op,
    weights: &[MatrixView<'_, T>],
    outs: &[&mut [T]],
    rows: usize,
) -> Result<()> {
    check(op, weights.len() == outs.len(), || {
        format!("{} weights, but {} outputs", weights.len(), outs.len())
    })?;
    for (index, (weights, out)) in weights.iter().zip(outs).enumerate() {
        let columns = weights.columns();
        check(op, rows.checked_mul(columns) == Some(out.len()), || {
            format!("output {index} has {} elements, but {rows} x {columns} are needed", out.len())
        })?;
    }
    Ok(())
}

/// Copies what a rank has.
///
/// # Safety
/// `from` must be valid for reading as many elements.
unsafe fn copy_part<T: Element>(from: *const u8, to: &mut [T]) {
    // SAFETY: the caller's duty.
    unsafe { copy::read(from, to.as_mut_ptr().cast(), size_of_val(to)) };
}
