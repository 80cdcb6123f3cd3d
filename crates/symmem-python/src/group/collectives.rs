//! The collectives of `Group`: a row for each. They work on symmetric memory of the group, and on any other.

use pyo3::prelude::*;
use symmem::erased::Call;

use super::Group;
use crate::collectives::{Maybe, methods, op_name, reduce_op, reduce_to, root_of};
use crate::pending::Pending;

methods! {
    impl Group as group, (x: &Bound<'_, PyAny>), (timeout_ms: u64 = 0), (x, timeout_ms);

    /// Collective. The reduction of everybody's `x` by `op` ("sum", "avg", "min", "max", "prod", "and", "or", "xor"), with the
    /// same bits on every rank: in place, or into `out`. Returns where it is.
    ///
    ///     group.all_reduce(x)
    all_reduce, all_reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::AllReduce), out);

    /// Collective. The reduction of everybody's `x`, at `root`, into `out` (a new array by default). None elsewhere.
    reduce, reduce_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", root: isize = 0, out: Maybe<'_, '_> = None)
        => (reduce_to(op, root), out);

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives the reduction of the parts for this rank.
    reduce_scatter, reduce_scatter_start(#[pyo3(from_py_with = op_name)] op: &str = "sum", out: Maybe<'_, '_> = None)
        => (reduce_op(op).map(Call::ReduceScatter), out);

    /// Collective. Everybody's `x` along the first dimension, in rank order.
    all_gather, all_gather_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllGather), out);

    /// Collective. Everybody's `x` becomes that of `root`, in place. Returns `x`.
    broadcast, broadcast_start(root: isize = 0) => (root_of(root).map(Call::Broadcast), None);

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives, in rank order, the parts for this rank.
    all_to_all, all_to_all_start(out: Maybe<'_, '_> = None) => (Ok(Call::AllToAll), out);

    /// Collective. At `root` everybody's `x` along the first dimension, in rank order; None elsewhere.
    gather, gather_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Gather), out);

    /// Collective. The `x` of `root` is one part per rank along the first dimension; gives this rank's part. Where `x` is not
    /// symmetric, ranks other than the root pass None and `out`.
    scatter, scatter_start(root: isize = 0, out: Maybe<'_, '_> = None) => (root_of(root).map(Call::Scatter), out);
}
