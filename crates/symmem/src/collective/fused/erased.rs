//! Fused operations on bytes: for callers that learn the type of elements when they run.
//!
//! The Python bindings call these, beside [`erased::Call`](crate::erased::Call). What they do is what the
//! methods without `_as` do, with the same checks. The types are those that products are made of; any other
//! is told to all ranks.

use super::{MatrixView, check};
use crate::Result;
use crate::collective::erased::{elements, elements_mut};
use crate::memory::SymmetricMemory;
use crate::numeric::{DType, Element, ReduceOp, bf16, f16};
use crate::operation::{Algorithm, Op};

/// A matrix in private memory, row after row, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct BytesMatrix<'a> {
    /// Its elements.
    pub bytes: &'a [u8],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

impl<'a> BytesMatrix<'a> {
    fn view<T: Element>(self) -> Result<MatrixView<'a, T>> {
        MatrixView::new(elements(self.bytes)?, self.rows, self.columns)
    }
}

/// What of a matrix is divided among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Its rows.
    Rows,
    /// Its columns.
    Columns,
}

impl Side {
    /// The operation that gathers such parts, and multiplies.
    fn gather(self) -> Op {
        match self {
            Self::Rows => Op::AllGatherMatmul,
            Self::Columns => Op::AllGatherColumnsMatmul,
        }
    }

    /// The operation that multiplies, and scatters such parts.
    fn scatter(self) -> Op {
        match self {
            Self::Rows => Op::MatmulReduceScatter,
            Self::Columns => Op::MatmulReduceScatterColumns,
        }
    }

    /// What callers call to gather such parts and to multiply.
    pub fn gather_name(self) -> &'static str {
        self.gather().name()
    }

    /// What callers call to multiply and to scatter such parts.
    pub fn scatter_name(self) -> &'static str {
        self.scatter().name()
    }
}

/// Runs `$body` with `$T` standing for the type of `$dtype`; one that is not multiplied is told to all.
macro_rules! with_factors {
    ($memory:expr, $op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            DType::F16 => {
                type $T = f16;
                $body
            }
            other => $memory.parts.told($op, check($op, false, || format!("it is not there for {other}"))),
        }
    };
}

/// The way of a fused operation, whatever the group's configuration prefers for collectives.
fn way(fused: bool) -> Algorithm {
    if fused { Algorithm::Pipelined } else { Algorithm::Direct }
}

impl SymmetricMemory<u8> {
    /// The same memory, whose fused operations are of an array of `shape`: of the memory's own elements, or
    /// of the product that is scattered. Ranks compare it, or without one just rows and columns.
    #[doc(hidden)]
    pub fn of_shape(&self, shape: Option<&[usize]>) -> Self {
        self.on_group(self.group().of_shape(shape))
    }

    /// [`all_gather_matmul`](SymmetricMemory::all_gather_matmul), with `gathered`
    /// [`all_gather_matmul_and_rows`](SymmetricMemory::all_gather_matmul_and_rows), or of columns
    /// [`all_gather_columns_matmul`](SymmetricMemory::all_gather_columns_matmul), which gathers nothing.
    #[doc(hidden)]
    pub fn all_gather_matmul_as(
        &self,
        (dtype, side, fused): (DType, Side, bool),
        weights: &[BytesMatrix<'_>],
        outs: Vec<&mut [u8]>,
        gathered: Option<&mut [u8]>,
    ) -> Result<()> {
        let op = side.gather();
        with_factors!(self, op, dtype, T => {
            let made = move || {
                let weights: Vec<_> = weights.iter().map(|one| one.view::<T>()).collect::<Result<_>>()?;
                let outs: Vec<_> = outs.into_iter().map(elements_mut::<T>).collect::<Result<_>>()?;
                Ok((weights, outs, gathered.map(elements_mut::<T>).transpose()?))
            };
            let (weights, mut outs, gathered) = self.parts.told(op, made())?;
            let memory = self.parts.told(op, self.cast::<T>())?.using(way(fused));
            match (side, gathered) {
                (Side::Columns, _) => memory.all_gather_columns_matmul(&weights, &mut outs),
                (Side::Rows, None) => memory.all_gather_matmul(&weights, &mut outs),
                (Side::Rows, Some(rows)) => memory.all_gather_matmul_and_rows(&weights, &mut outs, rows),
            }
        })
    }

    /// [`matmul_reduce_scatter`](SymmetricMemory::matmul_reduce_scatter), or
    /// [`matmul_reduce_scatter_columns`](SymmetricMemory::matmul_reduce_scatter_columns), of matrices of
    /// `dtype`, with this memory as the workspace.
    #[doc(hidden)]
    pub fn matmul_reduce_scatter_as(
        &self,
        (dtype, side, fused): (DType, Side, bool),
        reduce: ReduceOp,
        (a, b): (BytesMatrix<'_>, BytesMatrix<'_>),
        out: &mut [u8],
    ) -> Result<()> {
        let op = side.scatter();
        with_factors!(self, op, dtype, T => {
            let made = a.view::<T>().and_then(|a| Ok((a, b.view::<T>()?, elements_mut::<T>(out)?)));
            let (a, b, out) = self.parts.told(op, made)?;
            let group = self.group().in_rows([a.rows(), b.columns()]);
            let mut workspace = self.parts.told(op, self.cast::<f32>())?.using(way(fused));
            workspace.multiply_and_scatter(&group, op, reduce, (a, b), out)
        })
    }

    /// [`all_reduce_rms_norm`](SymmetricMemory::all_reduce_rms_norm) of elements of `dtype`.
    #[doc(hidden)]
    pub fn all_reduce_rms_norm_as(
        &self,
        dtype: DType,
        residual: &mut [u8],
        (weight, epsilon): (&[u8], f32),
        out: &mut [u8],
    ) -> Result<()> {
        const OP: Op = Op::AllReduceRmsNorm;
        with_factors!(self, OP, dtype, T => {
            let made = elements::<T>(weight)
                .and_then(|weight| Ok((elements_mut::<T>(residual)?, weight, elements_mut::<T>(out)?)));
            let (residual, weight, out) = self.parts.told(OP, made)?;
            self.parts.told(OP, self.cast::<T>())?.all_reduce_rms_norm(residual, weight, epsilon, out)
        })
    }
}
