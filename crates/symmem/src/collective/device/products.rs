//! Products of matrices, and the collective before or after them, as one operation.

use std::ops::Range;

use crate::cuda::capture::check_no_capture;
use crate::cuda::{Buffer, Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::ops::{FusedWay, MatrixPlace, ProductToScatter, RowsToMultiply};
use crate::engine::cuda::plan::dtype_index_of;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// A matrix in device memory, row after row: all of a slice, or some columns of a wider one. What
/// [`MatrixView`](crate::MatrixView) is on the host.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMatrix<'a, T: Element> {
    /// From the first element on.
    data: DeviceSlice<'a, T>,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, T: Element> DeviceMatrix<'a, T> {
    /// The elements of `data` as `rows` rows of `columns`, which must be as many.
    ///
    /// ```no_run
    /// # use symmem::cuda::{Buffer, DeviceMatrix};
    /// # use symmem::{Result, bf16};
    /// # fn part(weights: &Buffer<bf16>) -> Result<()> {
    /// let all = DeviceMatrix::new(weights, 4096, 1024)?;
    /// let half = all.part(512..1024)?; // 4096 x 512
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(data: impl Into<DeviceSlice<'a, T>>, rows: usize, columns: usize) -> Result<Self> {
        let data = data.into();
        if rows.checked_mul(columns) != Some(data.len()) {
            let problem = format!("{rows} x {columns} elements, but the slice has {}", data.len());
            return Err(Error::invalid("matrix", problem));
        }
        Ok(Self { data, rows, columns, stride: columns })
    }

    /// `rows` rows of `columns` elements of `data`, each row `stride` elements after the one before.
    pub fn strided(
        data: impl Into<DeviceSlice<'a, T>>,
        rows: usize,
        columns: usize,
        stride: usize,
    ) -> Result<Self> {
        let data = data.into();
        let last = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(columns));
        if stride < columns || last.is_none_or(|last| last > data.len()) {
            let problem = format!("{rows} x {columns} elements, rows {stride} apart, in {}", data.len());
            return Err(Error::invalid("matrix", problem));
        }
        Ok(Self { data, rows, columns, stride })
    }

    /// These columns of it.
    pub fn part(&self, columns: Range<usize>) -> Result<Self> {
        if columns.start > columns.end || columns.end > self.columns {
            let problem = format!("{columns:?} of {} columns", self.columns);
            return Err(Error::invalid("matrix", problem));
        }
        let data = self.data.slice(columns.start.min(self.data.len())..)?;
        Ok(Self { data, columns: columns.len(), ..*self })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Its device.
    fn device(&self) -> &'a Device {
        self.data.device()
    }

    fn place(&self) -> MatrixPlace<'a> {
        MatrixPlace { at: self.data.place(), columns: self.columns, stride: self.stride }
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. The memory is this rank's rows of a matrix, with as many columns
    /// as the `weights` have rows; each of `outs` becomes the product of everybody's rows, in rank order, and
    /// one of the weights. The weights are this rank's own. For `bf16`, `f16` and `f32`; sums are made in
    /// `f32` (never in TF32) and rounded once.
    ///
    /// cuBLASLt multiplies, which is found at run time ([`Error::NoLibrary`] where it is not). A workspace of
    /// 32 MiB, and room for the rows of all ranks, are made when they are first needed, and stay with the
    /// lane of the engine. That and the choice of an algorithm cannot be in a capture: call it once before,
    /// or [`prepare_all_gather_matmul`](SymmetricMemory::prepare_all_gather_matmul).
    ///
    /// ```no_run
    /// # use symmem::cuda::{Buffer, DeviceMatrix, Stream, SymmetricMemory};
    /// # use symmem::{Result, bf16};
    /// # fn layer(rows: &SymmetricMemory<bf16>, weights: &Buffer<bf16>, out: &mut Buffer<bf16>,
    /// #     stream: &Stream) -> Result<()> {
    /// let weights = DeviceMatrix::new(weights, 4096, 1024)?;
    /// rows.all_gather_matmul(&[weights], &mut [out.as_slice_mut()], stream)
    /// # }
    /// ```
    pub fn all_gather_matmul(
        &self,
        weights: &[DeviceMatrix<'_, T>],
        outs: &mut [DeviceSliceMut<'_, T>],
        stream: &Stream,
    ) -> Result<()> {
        self.all_gather_matmul_by(FusedWay::ByShape, weights, outs, None, stream)
    }

    /// [`SymmetricMemory::all_gather_matmul`] that gives the rows of all ranks as well, in `gathered`.
    pub fn all_gather_matmul_and_rows<'a>(
        &self,
        weights: &[DeviceMatrix<'_, T>],
        outs: &mut [DeviceSliceMut<'_, T>],
        gathered: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.all_gather_matmul_by(FusedWay::ByShape, weights, outs, Some(gathered.into()), stream)
    }

    /// The same in a certain way, which all ranks must choose alike, as whether the rows are wanted. Fused,
    /// the product of this rank's rows is made while the rows of the others come, and then theirs, one after
    /// the other; unfused, all rows are gathered first. The bits may differ in the last place, since the
    /// library may add up products of other shapes in another order.
    pub fn all_gather_matmul_by(
        &self,
        way: FusedWay,
        weights: &[DeviceMatrix<'_, T>],
        outs: &mut [DeviceSliceMut<'_, T>],
        gathered: Option<DeviceSliceMut<'_, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.told(Op::AllGatherMatmul, stream, || {
            let work = self.rows_to_multiply(way, weights, outs, gathered.as_ref())?;
            self.region().all_gather_matmul(&work, stream)
        })
    }

    /// Collective, in the order of `stream`. `out` becomes this rank's rows of the reduction (`Sum` or `Avg`)
    /// of everybody's product `a @ b`: the rows are divided among the ranks. For `bf16`, `f16` and `f32`;
    /// products are made in `f32` and rounded, and their reduction is made in `f32`, in rank order, and
    /// rounded.
    ///
    /// The memory is the workspace, of at least as many elements as the product has; it may be used again and
    /// again, and its content is of no meaning afterwards. What it needs besides, and captures, are as for
    /// [`SymmetricMemory::all_gather_matmul`].
    ///
    /// ```no_run
    /// # use symmem::cuda::{Buffer, DeviceMatrix, Stream, SymmetricMemory};
    /// # use symmem::{ReduceOp, Result, bf16};
    /// # fn layer(workspace: &SymmetricMemory<bf16>, a: &Buffer<bf16>, b: &Buffer<bf16>,
    /// #     out: &mut Buffer<bf16>, stream: &Stream) -> Result<()> {
    /// let (a, b) = (DeviceMatrix::new(a, 1024, 2048)?, DeviceMatrix::new(b, 2048, 4096)?);
    /// workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, out, stream)
    /// # }
    /// ```
    pub fn matmul_reduce_scatter<'a>(
        &self,
        op: ReduceOp,
        a: DeviceMatrix<'_, T>,
        b: DeviceMatrix<'_, T>,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.matmul_reduce_scatter_by(FusedWay::ByShape, op, (a, b), out, stream)
    }

    /// [`SymmetricMemory::matmul_reduce_scatter`] of `a` and `b` in a certain way, which all ranks must
    /// choose alike. Fused, half of everybody's rows are made and reduced while the other half is made;
    /// unfused, all are made first. The bits may differ in the last place, as those of
    /// [`all_gather_matmul_by`](SymmetricMemory::all_gather_matmul_by).
    pub fn matmul_reduce_scatter_by<'a>(
        &self,
        way: FusedWay,
        op: ReduceOp,
        (a, b): (DeviceMatrix<'_, T>, DeviceMatrix<'_, T>),
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let out = out.into();
        self.told(Op::MatmulReduceScatter, stream, || {
            let work = self.product_to_scatter(way, op, (&a, &b), &out)?;
            self.region().matmul_reduce_scatter(&work, stream)
        })
    }

    /// Local, and waits for the device: makes what [`SymmetricMemory::all_gather_matmul`] with such weights
    /// needs, in every way, and multiplies once, so that nothing is left to load. `stream` is of the engine's
    /// device, and is not captured.
    ///
    /// Ranks of one process that share a device do this first, and meet on the host
    /// ([`Group::barrier`](crate::Group::barrier)): to load a kernel may wait for all that runs on the
    /// device, and that for this rank.
    pub fn prepare_all_gather_matmul(&self, weights: &[DeviceMatrix<'_, T>], stream: &Stream) -> Result<()> {
        self.check_preparing(Op::AllGatherMatmul)?;
        let rows = self.rows_of(Op::AllGatherMatmul, weights)? * self.world_size();
        let make = |one: &DeviceMatrix<'_, T>| Buffer::new(self.device(), rows * one.columns);
        let mut outs = weights.iter().map(make).collect::<Result<Vec<Buffer<T>>>>()?;
        let outs: Vec<_> = outs.iter_mut().map(Buffer::as_slice_mut).collect();
        for way in [FusedWay::Unfused, FusedWay::Fused] {
            let work = self.rows_to_multiply(way, weights, &outs, None)?;
            self.region().prepare_all_gather_matmul(&work, stream)?;
        }
        stream.synchronize()
    }

    /// [`prepare_all_gather_matmul`](SymmetricMemory::prepare_all_gather_matmul), for
    /// [`SymmetricMemory::matmul_reduce_scatter`]. The memory's content is lost: no rank may be at an
    /// operation on it.
    pub fn prepare_matmul_reduce_scatter(
        &self,
        a: DeviceMatrix<'_, T>,
        b: DeviceMatrix<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_preparing(Op::MatmulReduceScatter)?;
        let mut out = Buffer::new(self.device(), a.rows / self.world_size() * b.columns)?;
        for way in [FusedWay::Unfused, FusedWay::Fused] {
            let out = out.as_slice_mut();
            let work = self.product_to_scatter(way, ReduceOp::Sum, (&a, &b), &out)?;
            self.region().prepare_matmul_reduce_scatter(&work, stream)?;
        }
        stream.synchronize()
    }

    /// An error on closed memory, and in a capture, which waits for nothing.
    fn check_preparing(&self, op: Op) -> Result<()> {
        self.check_open(op.name())?;
        check_no_capture(op.name())
    }

    /// Local, in the order of the lane: `out` becomes `a @ b`, as the operations beside it make products. For
    /// the bench.
    #[doc(hidden)]
    #[cfg(feature = "bench-support")]
    pub fn product_alone<'a>(
        &self,
        a: DeviceMatrix<'_, T>,
        b: DeviceMatrix<'_, T>,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::MatmulReduceScatter;
        let out = out.into();
        check(OP, a.columns == b.rows, || format!("{} columns times {} rows", a.columns, b.rows))?;
        let work = ProductToScatter {
            way: FusedWay::Unfused,
            dtype: T::DTYPE,
            reduce: ReduceOp::Sum,
            rows: a.rows,
            left: a.place(),
            right: b.place(),
            out: self.output(OP, &out, a.rows * b.columns)?,
        };
        self.region().multiply_alone(&work, stream)
    }

    /// How many rows this memory is, which the `weights` can be multiplied with.
    fn rows_of(&self, op: Op, weights: &[DeviceMatrix<'_, T>]) -> Result<usize> {
        let inner = weights.first().map_or(0, DeviceMatrix::rows);
        check(op, !weights.is_empty() && weights.iter().all(|one| one.rows == inner), || {
            let rows: Vec<_> = weights.iter().map(DeviceMatrix::rows).collect();
            format!("weights of {rows:?} rows: there must be some, and they must have as many")
        })?;
        check(op, self.len().is_multiple_of(inner), || {
            format!("the memory's {} elements are no rows of {inner}, which the weights ask for", self.len())
        })?;
        Ok(self.len().checked_div(inner).unwrap_or(0))
    }

    /// What the engine is to do, once everything is checked.
    fn rows_to_multiply<'a>(
        &self,
        way: FusedWay,
        weights: &[DeviceMatrix<'a, T>],
        outs: &[DeviceSliceMut<'a, T>],
        gathered: Option<&DeviceSliceMut<'a, T>>,
    ) -> Result<RowsToMultiply<'a>> {
        const OP: Op = Op::AllGatherMatmul;
        dtype_index_of(T::DTYPE)?;
        let (rows, world) = (self.rows_of(OP, weights)?, self.world_size());
        let inner = weights.first().map_or(0, DeviceMatrix::rows);
        check(OP, weights.len() == outs.len(), || {
            format!("{} weights, but {} outputs", weights.len(), outs.len())
        })?;
        let mut pairs = Vec::with_capacity(weights.len());
        for (one, out) in weights.iter().zip(outs.iter()) {
            self.engine().check_memory("weights", one.device())?;
            let room = rows.checked_mul(world).and_then(|rows| rows.checked_mul(one.columns));
            let room = room.ok_or_else(|| Error::invalid(OP.name(), "the products are too large"))?;
            pairs.push((one.place(), self.output(OP, out, room)?));
        }
        let gathered = gathered.map(|gathered| self.output(OP, gathered, self.len() * world)).transpose()?;
        Ok(RowsToMultiply { way, dtype: T::DTYPE, rows, inner, weights: pairs, gathered })
    }

    /// The same for a product that is scattered.
    fn product_to_scatter<'a>(
        &self,
        way: FusedWay,
        reduce: ReduceOp,
        (a, b): (&DeviceMatrix<'a, T>, &DeviceMatrix<'a, T>),
        out: &DeviceSliceMut<'a, T>,
    ) -> Result<ProductToScatter<'a>> {
        const OP: Op = Op::MatmulReduceScatter;
        dtype_index_of(T::DTYPE)?;
        check(OP, matches!(reduce, ReduceOp::Sum | ReduceOp::Avg), || {
            format!("{reduce} of products: there are sum and avg")
        })?;
        let (world, [m, k], n) = (self.world_size(), [a.rows, a.columns], b.columns);
        check(OP, k == b.rows, || format!("{m} x {k} elements times {} x {n}", b.rows))?;
        check(OP, m.is_multiple_of(world), || {
            format!("the {m} rows of a product of {m} x {n} cannot be divided among {world} ranks")
        })?;
        check(OP, m.checked_mul(n).is_some_and(|whole| whole <= self.len()), || {
            format!("a workspace of {} elements for a product of {m} x {n}", self.len())
        })?;
        for (what, matrix) in [("a", a), ("b", b)] {
            self.engine().check_memory(what, matrix.device())?;
            check(OP, !self.overlaps(&matrix.data), || {
                format!("{what} overlaps the symmetric memory, which the product is made in")
            })?;
        }
        Ok(ProductToScatter {
            way,
            dtype: T::DTYPE,
            reduce,
            rows: m,
            left: a.place(),
            right: b.place(),
            out: self.output(OP, out, m / world * n)?,
        })
    }
}

/// An error that says `problem` of `op`, unless what it is given fits.
fn check(op: Op, fits: bool, problem: impl FnOnce() -> String) -> Result<()> {
    if fits { Ok(()) } else { Err(Error::invalid(op.name(), problem())) }
}
