//! The collectives of `SymmetricMemory`: a row for each.

use pyo3::prelude::*;
use symmem::erased::Call;

use super::SymmetricMemory;
use crate::collectives::{
    Counts, Maybe, counted, counts_of, methods, op_name, reduce_op, reduce_to, root_of,
};
use crate::pending::Pending;

methods! {
    impl SymmetricMemory as memory, (), (timeout_ms: u64 = 0, stream: Maybe<'_, '_> = None), (None, timeout_ms, stream);

    /// Collective. The reduction of everybody's elements by `op` ("sum", "avg", "min", "max", "prod", "and",
    /// "or", "xor"), with the same bits on every rank: in place, or into `out`. Returns where it is.
    ///
    ///     mem.all_reduce("max")
    all_reduce, all_reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::AllReduce), out);

    /// Collective. The reduction of everybody's elements, at `root`, into `out` (a new array by default).
    /// None elsewhere.
    reduce, reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", root: isize = 0, out: Maybe<'_, '_> = None)
        => (reduce_to(op, root), out);

    /// Collective. The elements are one part per rank along the first dimension, or the last one with
    /// `split_last_dim`; gives the reduction of everybody's part for this rank.
    reduce_scatter, reduce_scatter_start(
        #[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None, split_last_dim: bool = false
    ) => (memory.reduce_scatter_call(op, split_last_dim), out);

    /// Collective. Everybody's elements along the first dimension, in rank order.
    all_gather, all_gather_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllGather), out);

    /// Collective. Everybody's elements become those of `root`, in place.
    broadcast, broadcast_start(root: isize = 0) => (root_of(root).map(Call::Broadcast), None);

    /// Collective. The elements are one part per rank along the first dimension; gives, in rank order, the
    /// parts for this rank.
    all_to_all, all_to_all_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllToAll), out);

    /// Collective. At `root` everybody's elements along the first dimension, in rank order; None elsewhere.
    gather, gather_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Gather), out);

    /// Collective. The elements of `root` are one part per rank along the first dimension; gives this rank's
    /// part.
    scatter, scatter_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Scatter), out);

    /// Collective. The reduction by `op` of the elements of the ranks up to this one, its own included, into
    /// `out` (a new array by default). There is no "avg".
    scan, scan_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::Scan), out);

    /// Collective. The reduction by `op` of the elements of the ranks before this one, into `out` (a new
    /// array by default); on rank 0 the value that changes no other: 0 of "sum", "or" and "xor", 1 of "prod",
    /// all bits of "and", the highest of "min", the lowest of "max". There is no "avg".
    exclusive_scan, exclusive_scan_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::ExclusiveScan), out);

    /// Collective. The first `counts[rank]` rows of everybody's elements, in rank order; all ranks give the
    /// same counts. Rows are along the first dimension.
    all_gather_v, all_gather_v_start(#[pyo3(from_py_with = counts_of)] counts: Counts, out: Maybe<'_, '_> = None)
        => (counted(&counts, |rows| Ok(Call::AllGatherV(rows))), out);

    /// Collective. At `root` the first `counts[rank]` rows of everybody's elements, in rank order; None
    /// elsewhere. All ranks give the same counts.
    gather_v, gather_v_start(
        #[pyo3(from_py_with = counts_of)] counts: Counts, root: isize = 0, out: Maybe<'_, '_> = None
    ) => (counted(&counts, |rows| Ok(Call::GatherV(root_of(root)?, rows))), out);

    /// Collective. The array of `root` is, in rank order, `counts[rank]` rows for each rank; gives this
    /// rank's. All ranks give the same counts.
    scatter_v, scatter_v_start(
        #[pyo3(from_py_with = counts_of)] counts: Counts, root: isize = 0, out: Maybe<'_, '_> = None
    ) => (counted(&counts, |rows| Ok(Call::ScatterV(root_of(root)?, rows))), out);
}
