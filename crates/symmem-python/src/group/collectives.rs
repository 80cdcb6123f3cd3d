//! The collectives of `Group`: a row for each. They work on symmetric memory of the group, and on any other.

use pyo3::prelude::*;
use symmem::erased::Call;

use super::Group;
use crate::collectives::{
    Counts, Maybe, counted, counts_of, methods, op_name, reduce_op, reduce_to, root_of,
};
use crate::pending::Pending;

methods! {
    impl Group as group, (x: &Bound<'_, PyAny>), (timeout_ms: u64 = 0), (x, timeout_ms);

    /// Collective. The reduction of everybody's `x` by `op` ("sum", "avg", "min", "max", "prod", "and", "or",
    /// "xor"), with the same bits on every rank: in place, or into `out`. Returns where it is.
    ///
    ///     group.all_reduce(x)
    all_reduce, all_reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::AllReduce), out);

    /// Collective. The reduction of everybody's `x`, at `root`, into `out` (a new array by default). None
    /// elsewhere.
    reduce, reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", root: isize = 0, out: Maybe<'_, '_> = None)
        => (reduce_to(op, root), out);

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives the reduction of the
    /// parts for this rank.
    reduce_scatter, reduce_scatter_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::ReduceScatter), out);

    /// Collective. Everybody's `x` along the first dimension, in rank order.
    all_gather, all_gather_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllGather), out);

    /// Collective. Everybody's `x` becomes that of `root`, in place. Returns `x`.
    broadcast, broadcast_start(root: isize = 0) => (root_of(root).map(Call::Broadcast), None);

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives, in rank order, the
    /// parts for this rank.
    all_to_all, all_to_all_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllToAll), out);

    /// Collective. At `root` everybody's `x` along the first dimension, in rank order; None elsewhere.
    gather, gather_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Gather), out);

    /// Collective. The `x` of `root` is one part per rank along the first dimension; gives this rank's part.
    /// Where `x` is not symmetric, ranks other than the root pass None and `out`.
    scatter, scatter_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Scatter), out);

    /// Collective. The reduction by `op` of the `x` of the ranks up to this one, its own included, into `out`
    /// (a new array by default). There is no "avg".
    scan, scan_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::Scan), out);

    /// Collective. The reduction by `op` of the `x` of the ranks before this one, into `out` (a new array by
    /// default); on rank 0 the value that changes no other: 0 of "sum", "or" and "xor", 1 of "prod", all bits
    /// of "and", the highest of "min", the lowest of "max". There is no "avg".
    exclusive_scan, exclusive_scan_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::ExclusiveScan), out);

    /// Collective. The first `counts[rank]` rows of everybody's `x`, which has as many where it is not
    /// symmetric, in rank order; all ranks give the same counts. Rows are along the first dimension.
    all_gather_v, all_gather_v_start(#[pyo3(from_py_with = counts_of)] counts: Counts, out: Maybe<'_, '_> = None)
        => (counted(&counts, |rows| Ok(Call::AllGatherV(rows))), out);

    /// Collective. At `root` the first `counts[rank]` rows of everybody's `x`, which has as many where it is
    /// not symmetric, in rank order; None elsewhere. All ranks give the same counts.
    gather_v, gather_v_start(
        #[pyo3(from_py_with = counts_of)] counts: Counts, root: isize = 0, out: Maybe<'_, '_> = None
    ) => (counted(&counts, |rows| Ok(Call::GatherV(root_of(root)?, rows))), out);

    /// Collective. The `x` of `root` is, in rank order, `counts[rank]` rows for each rank; gives this rank's.
    /// All ranks give the same counts. Where `x` is not symmetric, ranks other than the root pass None and
    /// `out`.
    scatter_v, scatter_v_start(
        #[pyo3(from_py_with = counts_of)] counts: Counts, root: isize = 0, out: Maybe<'_, '_> = None
    ) => (counted(&counts, |rows| Ok(Call::ScatterV(root_of(root)?, rows))), out);
}
