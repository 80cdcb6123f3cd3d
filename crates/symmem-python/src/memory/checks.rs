//! What the methods of `SymmetricMemory` check and make.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use symmem::{DType, Error};

use super::{Call, SymmetricMemory};
use crate::array::{self, Keep};
use crate::collectives::reduce_op;
use crate::dtype;
use crate::error::{invalid, raise};
use crate::operand::Operand;

impl SymmetricMemory {
    /// This rank's elements. As long as the array lives, and others of the allocation did when it was made, it is symmetric.
    pub(crate) fn own_array(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let span = self.span();
        let view = self.handle().view(self.membership().rank(), span.offset, span.bytes());
        let (address, keep) = view.map_err(raise)?;
        array::make(py, address, Arc::new((keep, self.block())), &span.shape, span.dtype, self.place())
    }

    /// Whether `operand` can be copied from or to elements of this memory.
    pub(crate) fn check_operand(&self, what: &str, operand: &Operand<'_>) -> PyResult<()> {
        if operand.dtype != self.span().dtype {
            let (theirs, ours) = (dtype::name(operand.dtype), dtype::name(self.span().dtype));
            return Err(invalid(
                what,
                format!("its elements are {theirs}, but those of the memory are {ours}"),
            ));
        }
        if operand.device != self.place() {
            return Err(invalid(
                what,
                format!("it is on {}, but the memory is on {}", operand.device, self.place()),
            ));
        }
        Ok(())
    }

    /// Whether `operand` is exactly this rank's elements.
    pub(crate) fn is_own(&self, operand: &Operand<'_>) -> bool {
        let own = self.handle().buffer_ptrs()[self.membership().rank()] + self.span().offset;
        (operand.address, operand.len) == (own, self.span().len)
    }

    /// That an output shares no bytes with this rank's elements, which peers read meanwhile.
    pub(crate) fn check_apart(&self, operand: &Operand<'_>) -> PyResult<()> {
        let own = self.handle().buffer_ptrs()[self.membership().rank()] + self.span().offset;
        if operand.address < own + self.span().bytes() && own < operand.address + operand.bytes() {
            return Err(invalid("out", "it overlaps the memory that the operation reads"));
        }
        Ok(())
    }

    /// An array of what the handle gave.
    pub(super) fn array(
        &self,
        py: Python<'_>,
        view: symmem::Result<(usize, Keep)>,
        sizes: &[usize],
        dtype: DType,
    ) -> PyResult<Py<PyAny>> {
        let (address, keep) = view.map_err(raise)?;
        array::make(py, address, keep, sizes, dtype, self.place())
    }

    /// `rank`, if it is one of the group.
    pub(super) fn rank_of(&self, op: &'static str, rank: isize) -> PyResult<usize> {
        let world = self.membership().size();
        match usize::try_from(rank) {
            Ok(rank) if rank < world => Ok(rank),
            Ok(rank) => Err(raise(Error::RankOutOfRange { op, rank, world })),
            Err(_) => Err(PyIndexError::new_err(format!("{op}: rank {rank} must be in [0, {world})"))),
        }
    }

    /// What `reduce_scatter` is asked to do.
    pub(super) fn reduce_scatter_call(&self, op: &str, split_last_dim: bool) -> PyResult<Call> {
        let op = reduce_op(op)?;
        let columns = self.span().shape.last().copied().unwrap_or(1);
        // Of one dimension the last is the first.
        let by_columns = split_last_dim && self.span().shape.len() > 1;
        Ok(if by_columns { Call::ReduceScatterColumns(op, columns) } else { Call::ReduceScatter(op) })
    }
}
