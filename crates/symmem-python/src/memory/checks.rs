//! What the methods of `SymmetricMemory` check and make.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use symmem::erased::Call;
use symmem::{DType, Error};

use super::class::bytes_of;
use super::{SymmetricMemory, Terms};
use crate::array::{self, Keep};
use crate::collectives::{AskedCollective, Maybe, Plan, check_start, name_of, reduce_op};
use crate::dtype;
use crate::error::{invalid, raise, raise_as};
use crate::group::given;
use crate::operand::{Operand, Place};
use crate::pending::Pending;

impl SymmetricMemory {
    /// This rank's elements. As long as the array lives, and others of the allocation did when it was made,
    /// it is symmetric.
    pub(crate) fn own_array(&self, py: Python<'_>, op: &'static str) -> PyResult<Py<PyAny>> {
        let span = self.span();
        let view = self.handle().view(self.membership().rank(), span.offset, span.bytes());
        let (address, keep) = view.map_err(|error| raise_as(op, error))?;
        array::make(py, address, Arc::new((keep, self.block())), &span.shape, span.dtype, self.place())
    }

    /// This rank's elements for who runs a collective on them, which looks whether the memory is open: as
    /// [`Self::own_array`], with the allocation alone to keep them, where it lives and is on the host.
    pub(crate) fn result_array(&self, py: Python<'_>, op: &'static str) -> PyResult<Py<PyAny>> {
        match self.block() {
            Some(block) if self.place() == Place::Cpu => {
                let span = self.span();
                array::make(py, block.address() + span.offset, block, &span.shape, span.dtype, Place::Cpu)
            }
            _ => self.own_array(py, op),
        }
    }

    /// From Python's arguments: 0 ms is what a block of `within` says, else the group's default. A timeout
    /// given to a device stays with it, so a block says nothing there.
    #[inline]
    pub(crate) fn terms<'a, 'py>(
        &self,
        py: Python<'py>,
        timeout_ms: u64,
        stream: Maybe<'a, 'py>,
    ) -> Terms<'a, 'py> {
        let bound = || self.membership().bound().filter(|_| self.place() == Place::Cpu);
        Terms { py, timeout: given(timeout_ms).or_else(bound), stream }
    }

    /// Whether `operand` can be copied from or to elements of this memory.
    pub(crate) fn check_operand(&self, what: &str, operand: &Operand<'_>) -> PyResult<()> {
        let (theirs, ours) = (operand.type_name(), dtype::name(self.span().dtype));
        if theirs != ours {
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
        let own = self.handle().facts().buffers[self.membership().rank()] + self.span().offset;
        (operand.address, operand.len) == (own, self.span().len)
    }

    /// That an output shares no bytes with this rank's elements, which peers read meanwhile, nor with memory
    /// of a peer, who may read it too, or write it. A copy is put back when this rank's own elements are no
    /// longer read; and all of what it is a copy of is in one allocation.
    pub(crate) fn check_apart(&self, operand: &Operand<'_>) -> PyResult<()> {
        self.check_apart_from("out", operand)
    }

    /// [`SymmetricMemory::check_apart`] of an argument that is called `what`.
    pub(crate) fn check_apart_from(&self, what: &str, operand: &Operand<'_>) -> PyResult<()> {
        let (first, bytes, is_copy) = (operand.first_address(), operand.bytes(), operand.is_copy());
        let bytes = if is_copy { 1 } else { bytes };
        let overlaps =
            |start: usize, count: usize| first < start.saturating_add(count) && start < first + bytes;
        let (me, span) = (self.membership().rank(), self.span());
        let facts = self.handle().facts();
        for (rank, base) in facts.buffers.iter().copied().enumerate() {
            if rank == me && !is_copy && overlaps(base + span.offset, span.bytes()) {
                return Err(invalid(what, "it overlaps the memory that the operation reads"));
            }
            // What is out of reach has no address.
            if rank != me && base != 0 && overlaps(base, facts.buffer_size) {
                let problem = format!("it is memory of rank {rank}. Hint: pass memory of this rank's own");
                return Err(invalid(what, problem));
            }
        }
        Ok(())
    }

    /// That every rank brought memory, for the collective `op`. All ranks know, so nobody waits for anybody.
    #[inline]
    pub(crate) fn check_whole(&self, op: &'static str) -> PyResult<()> {
        match self.handle().ranks_without_memory() {
            [] => Ok(()),
            ranks => Err(raise(Error::NothingBrought { op, ranks: ranks.to_vec() })),
        }
    }

    /// What this rank brings to a collective; what is wrong with it is told to the others.
    #[inline]
    pub(crate) fn told<R>(&self, terms: Terms<'_, '_>, brought: PyResult<R>) -> PyResult<R> {
        brought.map_err(|error| self.handle().refuse(error, terms))
    }

    /// Runs a collective; `x` is what a call in place returns, by default the memory's own array.
    pub(crate) fn run<'py>(
        &self,
        py: Python<'py>,
        (call, out): AskedCollective<'_, 'py>,
        x: Maybe<'_, 'py>,
        timeout_ms: u64,
        stream: Maybe<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        let terms = self.terms(py, timeout_ms, stream);
        self.check_whole(name_of(&call))?;
        let plan = self.told(terms, call.and_then(|call| Plan::new(py, self, call, out, x)))?;
        self.handle().run(&plan, terms)?;
        plan.out.as_ref().map_or(Ok(()), Operand::land)?;
        Ok(plan.result)
    }

    /// Starts one.
    pub(crate) fn start<'py>(
        &self,
        py: Python<'py>,
        (call, out): AskedCollective<'_, 'py>,
        x: Maybe<'_, 'py>,
        timeout_ms: u64,
        stream: Maybe<'_, 'py>,
    ) -> PyResult<Pending> {
        let terms = self.terms(py, timeout_ms, stream);
        self.check_whole(name_of(&call))?;
        match call.and_then(check_start).and_then(|call| Plan::new(py, self, call, out, x)) {
            Ok(plan) => self.handle().start(plan, terms),
            Err(error) if self.place() == Place::Cpu => {
                let timeout_ms = terms.timeout.map_or(0, |timeout| timeout.as_millis() as u64);
                Err(self.membership().refuse_started(py, timeout_ms, error))
            }
            Err(error) => Err(error),
        }
    }

    /// An array of elements of rank `rank`, for the call `op`: of the handle's shape and type unless told
    /// otherwise, from element `start` of the allocation on, or else from where that rank's elements of the
    /// handle start.
    pub(super) fn view(
        &self,
        py: Python<'_>,
        op: &'static str,
        rank: isize,
        sizes: Option<Vec<usize>>,
        dtype: Maybe<'_, '_>,
        start: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        let (rank, span) = (self.rank_of(op, rank)?, self.span());
        let dtype = dtype.map_or(Ok(span.dtype), dtype::parse)?;
        if sizes.is_none() && dtype.size() != span.dtype.size() {
            let (asked, own) = (dtype::name(dtype), dtype::name(span.dtype));
            let problem =
                format!("elements of {asked} are not as long as the handle's of {own}. Hint: pass sizes=");
            return Err(invalid(op, problem));
        }
        let sizes = sizes.unwrap_or_else(|| span.shape.clone());
        let start =
            start.map_or_else(|| self.handle().start_of(rank), |start| start.saturating_mul(dtype.size()));
        self.array(py, op, self.handle().view(rank, start, bytes_of(&sizes, dtype)), &sizes, dtype)
    }

    /// An array of what the handle gave for the call `op`.
    pub(super) fn array(
        &self,
        py: Python<'_>,
        op: &'static str,
        view: symmem::Result<(usize, Keep)>,
        sizes: &[usize],
        dtype: DType,
    ) -> PyResult<Py<PyAny>> {
        let (address, keep) = view.map_err(|error| raise_as(op, error))?;
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
    pub(super) fn reduce_scatter_call(&self, op: &str, split_last_dim: bool) -> PyResult<Call<'_>> {
        let op = reduce_op(op)?;
        let columns = self.span().shape.last().copied().unwrap_or(1);
        // Of one dimension the last is the first.
        let by_columns = split_last_dim && self.span().shape.len() > 1;
        Ok(if by_columns { Call::ReduceScatterColumns(op, columns) } else { Call::ReduceScatter(op) })
    }
}
