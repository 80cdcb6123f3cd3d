//! The Python class `SymmetricMemory`: arguments in, arrays out. The work is behind [`Handle`].

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use symmem::DType;

use super::{Handle, Span};
use crate::Any;
use crate::collectives::Maybe;
use crate::dtype;
use crate::error::invalid;
use crate::group::{Group, Membership};
use crate::operand::{Operand, Place};
use crate::registry::AllocatedBlock;

/// Memory that every rank of a group maps. Made by `rendezvous`.
///
/// Views (`get_buffer`, `get_remote_tensor`, `get_signal_pad`, `local`) are plain memory: who reads what a
/// peer writes must synchronise with it, by `barrier` or by `put_signal` and `wait_signal`.
///
///     x = symmem.empty(1024, dtype="float32")
///     mem = symmem.rendezvous(x, group)
///     mem.all_reduce()
///     mem.close()
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct SymmetricMemory {
    handle: Arc<dyn Handle>,
    span: Span,
    membership: Membership,
    /// Whether it was made from a torch tensor, so that new outputs are too.
    torch: bool,
    /// The allocation, if anybody still has an array of it. A handle alone does not keep it in use.
    block: Weak<AllocatedBlock>,
}

impl SymmetricMemory {
    pub(crate) fn new(
        handle: Arc<dyn Handle>,
        span: Span,
        membership: &Membership,
        block: &Arc<AllocatedBlock>,
        torch: bool,
    ) -> Self {
        let (membership, block) = (membership.clone(), Arc::downgrade(block));
        Self { handle, span, membership, torch, block }
    }

    /// Of a rank that brought nothing.
    pub(super) fn without_block(handle: Arc<dyn Handle>, span: Span, membership: &Membership) -> Self {
        Self { handle, span, membership: membership.clone(), torch: false, block: Weak::new() }
    }

    pub(super) fn block(&self) -> Option<Arc<AllocatedBlock>> {
        self.block.upgrade()
    }

    pub(crate) fn handle(&self) -> &dyn Handle {
        &*self.handle
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(crate) fn place(&self) -> Place {
        self.handle.place()
    }

    pub(crate) fn is_torch(&self) -> bool {
        self.torch
    }

    /// That `operand` shares no bytes with the elements of `rank` it is copied from or to, from element
    /// `start` on: such a copy would read what it has just written.
    fn check_disjoint(&self, what: &str, operand: &Operand<'_>, rank: usize, start: usize) -> PyResult<()> {
        let first = self.handle.start_of(rank).saturating_add(start.saturating_mul(operand.dtype.size()));
        let target = self.handle.facts().buffers[rank].saturating_add(first);
        if target.abs_diff(operand.address) < operand.bytes() {
            let problem = format!(
                "it overlaps the elements of rank {rank} that it is copied from or to. Hint: pass a copy"
            );
            return Err(invalid(what, problem));
        }
        Ok(())
    }
}

/// Bytes of `sizes` elements, or more than there can be.
pub(super) fn bytes_of(sizes: &[usize], dtype: DType) -> usize {
    sizes.iter().fold(dtype.size(), |bytes, side| bytes.saturating_mul(*side))
}

#[pymethods]
impl SymmetricMemory {
    /// This rank in the group.
    #[getter]
    fn rank(&self) -> usize {
        self.membership.rank()
    }

    /// Number of ranks.
    #[getter]
    fn world_size(&self) -> usize {
        self.membership.size()
    }

    /// Every rank's allocation, at its address in this process; without the handle's offset. 0 for ranks that
    /// brought nothing.
    #[getter]
    fn buffer_ptrs(&self) -> &[usize] {
        &self.handle.facts().buffers
    }

    /// The address, for kernels on the memory's device, of an array of `buffer_ptrs`.
    #[getter]
    fn buffer_ptrs_dev(&self) -> usize {
        self.handle.facts().buffers_dev
    }

    /// Every rank's signal pad, at its address in this process.
    #[getter]
    fn signal_pad_ptrs(&self) -> &[usize] {
        &self.handle.facts().pads
    }

    /// The address, for kernels on the memory's device, of an array of `signal_pad_ptrs`.
    #[getter]
    fn signal_pad_ptrs_dev(&self) -> usize {
        self.handle.facts().pads_dev
    }

    /// The ranks that brought nothing to the rendezvous. If there are any, collectives raise
    /// `NothingBrought`, on all ranks.
    #[getter]
    fn ranks_without_memory(&self) -> Vec<usize> {
        self.handle.ranks_without_memory().to_vec()
    }

    /// Bytes of each rank's signal pad.
    #[getter]
    fn signal_pad_size(&self) -> usize {
        self.handle.facts().signal_pad_size
    }

    /// Bytes of the whole allocation.
    #[getter]
    fn buffer_size(&self) -> usize {
        self.handle.facts().buffer_size
    }

    /// Bytes from the start of the allocation to this rank's elements.
    #[getter]
    fn offset(&self) -> usize {
        self.span.offset
    }

    /// The address that reaches all ranks at once; 0 if there is none.
    #[getter]
    fn multicast_ptr(&self) -> usize {
        self.handle.facts().multicast
    }

    /// Where the memory is: "cpu" or "cuda:N".
    #[getter]
    fn device(&self) -> String {
        self.place().to_string()
    }

    /// The name of the group.
    #[getter]
    fn group_name(&self) -> &str {
        self.membership.name()
    }

    /// The group.
    #[getter]
    fn group(&self) -> Group {
        Group::of(self.membership.clone())
    }

    /// The element type.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
        dtype::numpy_dtype(py, self.span.dtype)
    }

    /// The shape of each rank's elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.span.shape)
    }

    /// Whether the use of the memory on its group has ended: by `close` of this or another handle of it, or
    /// with the group.
    #[getter]
    fn closed(&self) -> bool {
        !self.handle.is_open()
    }

    /// The elements of rank `rank` that the handle is of: as many as this rank's, of their shape and type,
    /// from where that rank's array starts. `mem[rank]` is the same. Of a handle that was made without
    /// meeting the others (`rendezvous` of an allocation that was rendezvoused before) they are as far into
    /// that rank's allocation as this rank's are into its own.
    ///
    ///     theirs = mem.peer(mem.group.next)
    fn peer(&self, py: Python<'_>, rank: isize) -> PyResult<Py<PyAny>> {
        self.view(py, "peer", rank, None, None, None)
    }

    fn __getitem__(&self, py: Python<'_>, rank: isize) -> PyResult<Py<PyAny>> {
        self.view(py, "peer", rank, None, None, None)
    }

    /// Without `sizes` as `peer`; with them, `sizes` elements of rank `rank`'s allocation, from its element
    /// `storage_offset` on (0 by default): counted from the start of the allocation, whatever the handle's
    /// offset is, as in PyTorch. `dtype` is the handle's by default.
    #[pyo3(signature = (rank, sizes = None, dtype = None, storage_offset = None))]
    fn get_buffer(
        &self,
        py: Python<'_>,
        rank: isize,
        sizes: Option<Vec<usize>>,
        dtype: Maybe<'_, '_>,
        storage_offset: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        let from_start = sizes.is_some().then_some(0);
        self.view(py, "get_buffer", rank, sizes, dtype, storage_offset.or(from_start))
    }

    /// `sizes` elements of rank `peer`, from where `peer(rank)` starts. They have the handle's shape and type
    /// by default.
    #[pyo3(signature = (peer, sizes = None, dtype = None))]
    fn get_remote_tensor(
        &self,
        py: Python<'_>,
        peer: isize,
        sizes: Option<Vec<usize>>,
        dtype: Maybe<'_, '_>,
    ) -> PyResult<Py<PyAny>> {
        self.view(py, "get_remote_tensor", peer, sizes, dtype, None)
    }

    /// `sizes` elements of rank `rank`'s signal pad, from its element `storage_offset` on; by default all of
    /// it, as uint32.
    #[pyo3(signature = (rank, sizes = Vec::new(), dtype = None, storage_offset = 0))]
    fn get_signal_pad(
        &self,
        py: Python<'_>,
        rank: isize,
        sizes: Vec<usize>,
        dtype: Maybe<'_, '_>,
        storage_offset: usize,
    ) -> PyResult<Py<PyAny>> {
        let rank = self.rank_of("get_signal_pad", rank)?;
        let dtype = dtype.map_or(Ok(DType::U32), dtype::parse)?;
        let whole = vec![(self.signal_pad_size() / dtype.size()).saturating_sub(storage_offset)];
        let sizes = if sizes.is_empty() { whole } else { sizes };
        let start = storage_offset.saturating_mul(dtype.size());
        let view = self.handle.pad_view(rank, start, bytes_of(&sizes, dtype));
        self.array(py, "get_signal_pad", view, &sizes, dtype)
    }

    /// This rank's own elements.
    fn local(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.own_array(py, "local")
    }

    /// Collective. Returns once every rank is here (on a device: makes `stream` wait for that); what any rank
    /// wrote before is visible to all after.
    #[pyo3(signature = (channel = 0, timeout_ms = 0, *, stream = None))]
    fn barrier(
        &self,
        py: Python<'_>,
        channel: isize,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<()> {
        // One below 0 is no more a channel than one that is too high.
        let channel = usize::try_from(channel).unwrap_or(usize::MAX);
        self.handle.barrier(channel, self.terms(py, timeout_ms, stream))
    }

    /// Raises this rank's signal on `channel` at `dst_rank`, after waiting until the previous one was
    /// consumed.
    #[pyo3(signature = (dst_rank, channel = 0, timeout_ms = 0, *, stream = None))]
    fn put_signal(
        &self,
        py: Python<'_>,
        dst_rank: isize,
        channel: usize,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<()> {
        let rank = self.rank_of("put_signal", dst_rank)?;
        self.handle.put_signal(rank, channel, self.terms(py, timeout_ms, stream))
    }

    /// Consumes the signal on `channel` from `src_rank`, waiting for it. What that rank wrote before is
    /// visible after.
    #[pyo3(signature = (src_rank, channel = 0, timeout_ms = 0, *, stream = None))]
    fn wait_signal(
        &self,
        py: Python<'_>,
        src_rank: isize,
        channel: usize,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<()> {
        let rank = self.rank_of("wait_signal", src_rank)?;
        self.handle.wait_signal(rank, channel, self.terms(py, timeout_ms, stream))
    }

    /// `put_signal` without waiting: False if the previous signal is still there.
    #[pyo3(signature = (dst_rank, channel = 0))]
    fn try_put_signal(&self, dst_rank: isize, channel: usize) -> PyResult<bool> {
        self.handle.try_put_signal(self.rank_of("try_put_signal", dst_rank)?, channel)
    }

    /// `wait_signal` without waiting: False if there is no signal.
    #[pyo3(signature = (src_rank, channel = 0))]
    fn try_wait_signal(&self, src_rank: isize, channel: usize) -> PyResult<bool> {
        self.handle.try_wait_signal(self.rank_of("try_wait_signal", src_rank)?, channel)
    }

    /// Writes `x` into rank `rank`'s elements, from element `offset` on. The receiver takes no part:
    /// synchronise.
    #[pyo3(signature = (rank, x, offset = 0, *, timeout_ms = 0, stream = None))]
    fn put(
        &self,
        py: Python<'_>,
        rank: isize,
        x: &Any<'_>,
        offset: usize,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<()> {
        let (rank, from) = (self.rank_of("put", rank)?, Operand::input(x)?);
        self.check_operand("x", &from)?;
        self.check_disjoint("x", &from, rank, offset)?;
        self.handle.put(rank, offset, &from, self.terms(py, timeout_ms, stream))
    }

    /// Reads as many of rank `rank`'s elements as `out` has, from element `offset` on, into `out`. Returns
    /// `out`.
    #[pyo3(signature = (rank, offset, out, *, timeout_ms = 0, stream = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        rank: isize,
        offset: usize,
        out: Any<'py>,
        timeout_ms: u64,
        stream: Maybe<'_, 'py>,
    ) -> PyResult<Any<'py>> {
        let (rank, operand) = (self.rank_of("get", rank)?, Operand::output(&out)?);
        self.check_operand("out", &operand)?;
        self.check_disjoint("out", &operand, rank, offset)?;
        self.handle.get(rank, offset, &operand, self.terms(py, timeout_ms, stream))?;
        Ok(out)
    }

    /// Collective. The first `splits[0]` rows (entries of the first dimension) go to rank 0, the next
    /// `splits[1]` to rank 1, and so on; `out` becomes the rows for this rank, in rank order, and may be
    /// longer than they need.
    ///
    /// Returns how many rows came from each rank, and at which row of `out` they start.
    #[pyo3(signature = (splits, out, *, timeout_ms = 0, stream = None))]
    fn all_to_all_v(
        &self,
        py: Python<'_>,
        splits: &Any<'_>,
        out: &Any<'_>,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<(Vec<usize>, Vec<usize>)> {
        let terms = self.terms(py, timeout_ms, stream);
        self.check_whole("all_to_all_v")?;
        let brought = || {
            let out = Operand::any_output(out)?;
            self.check_operand("out", &out)?;
            self.check_apart(&out)?;
            Ok((splits.extract::<Vec<usize>>()?, out))
        };
        let (splits, out) = self.told(terms, brought())?;
        let row = self.span.shape.iter().skip(1).product();
        let received = self.handle.all_to_all_v(row, &splits, &out, terms)?;
        out.land()?;
        Ok((received.splits, received.offsets))
    }

    /// Collective. Ends the use of the memory on this group: later methods raise `Closed`. Arrays and views
    /// stay valid, and the allocation can be rendezvoused again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed() {
            return Ok(());
        }
        let closed = self.handle.close(self.terms(py, 0, None));
        // A device's handle is closed even where its group failed to meet.
        if self.closed() {
            self.membership.forget(self.handle.facts().buffers[self.membership.rank()]);
        }
        closed
    }

    fn __repr__(&self) -> String {
        let (rank, world) = (self.membership.rank(), self.membership.size());
        let (shape, dtype) = (&self.span.shape, dtype::name(self.span.dtype));
        let (place, name) = (self.place(), self.membership.name());
        format!(
            "<symmem.SymmetricMemory {shape:?} {dtype} on {place}: rank {rank} of {world} of group {name:?}>"
        )
    }
}

/// Nanoseconds of one barrier, from a loop of `count` in Rust alone: what `mem.barrier()` is compared with.
#[pyfunction]
fn _barrier_loop(py: Python<'_>, memory: &SymmetricMemory, count: u32) -> PyResult<f64> {
    let host = memory.handle.as_host();
    host.ok_or_else(|| invalid("_barrier_loop", "it is for host memory"))?.barrier_loop(py, count)
}

/// Adds what this module has to the extension module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SymmetricMemory>()?;
    module.add_function(wrap_pyfunction!(_barrier_loop, module)?)
}
