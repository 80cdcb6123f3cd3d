"""Every collective as a function. Without `group` they run on `symmem.current_group()`.

The methods of `symmem.Group` say what each one does; `op` is one of "sum", "avg", "min", "max", "prod", "and", "or",
"xor", and `timeout_ms=0` means the group's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from symmem._groups import current_group
from symmem._symmem import Envelope, Group, NonMember, Pending
from symmem.typing import Kind, Op, Operand, Same

__all__ = [
    "all_gather",
    "all_gather_columns_matmul",
    "all_gather_matmul",
    "all_gather_object",
    "all_gather_v",
    "all_reduce",
    "all_reduce_object",
    "all_reduce_rms_norm",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "broadcast",
    "broadcast_object",
    "exclusive_scan",
    "gather",
    "gather_object",
    "gather_v",
    "iprobe",
    "irecv",
    "isend",
    "matmul_reduce_scatter",
    "matmul_reduce_scatter_columns",
    "probe",
    "recv",
    "recv_object",
    "reduce",
    "reduce_object",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatter_object",
    "scatter_v",
    "send",
    "send_object",
    "sendrecv",
    "sendrecv_object",
    "split",
    "subgroup",
]


def _of(group: Group | None) -> Group:
    return current_group() if group is None else group


def barrier(group: Group | None = None, *, timeout_ms: int = 0) -> None:
    """Collective. Returns when every rank has come here."""
    _of(group).barrier(timeout_ms)


@overload
def all_reduce(
    x: Same, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Same: ...
@overload
def all_reduce(x: Operand, op: Op, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def all_reduce(x: Operand, op: Op = "sum", group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same: ...
def all_reduce(x: Any, op: Op = "sum", group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. Reduces everybody's `x` with `op`; every rank gets the result. See `Group.all_reduce`."""
    return _of(group).all_reduce(x, op, out, timeout_ms=timeout_ms)


@overload
def reduce(
    x: Kind, op: Op = "sum", root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind | None: ...
@overload
def reduce(
    x: Operand, op: Op = "sum", root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Any: ...
@overload
def reduce(x: Operand, op: Op, root: int, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same | None: ...
@overload
def reduce(
    x: Operand, op: Op = "sum", root: int = 0, group: Group | None = None, *, out: Same, timeout_ms: int = 0
) -> Same | None: ...
def reduce(
    x: Any, op: Op = "sum", root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. Reduces everybody's `x` with `op`; `root` gets the result, the others None."""
    return _of(group).reduce(x, op, root, out, timeout_ms=timeout_ms)


@overload
def reduce_scatter(
    x: Kind, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind: ...
@overload
def reduce_scatter(
    x: Operand, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Any: ...
@overload
def reduce_scatter(x: Operand, op: Op, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def reduce_scatter(
    x: Operand, op: Op = "sum", group: Group | None = None, *, out: Same, timeout_ms: int = 0
) -> Same: ...
def reduce_scatter(
    x: Any, op: Op = "sum", group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. Reduces everybody's `x` with `op`; rank r gets the r-th part of the result."""
    return _of(group).reduce_scatter(x, op, out, timeout_ms=timeout_ms)


@overload
def scan(x: Kind, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Kind: ...
@overload
def scan(x: Operand, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def scan(x: Operand, op: Op, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def scan(x: Operand, op: Op = "sum", group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same: ...
def scan(x: Any, op: Op = "sum", group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. Reduces the `x` of the ranks up to this one with `op`, its own included."""
    return _of(group).scan(x, op, out, timeout_ms=timeout_ms)


@overload
def exclusive_scan(x: Kind, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Kind: ...
@overload
def exclusive_scan(x: Operand, op: Op = "sum", group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def exclusive_scan(x: Operand, op: Op, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def exclusive_scan(x: Operand, op: Op = "sum", group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same: ...
def exclusive_scan(x: Any, op: Op = "sum", group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. Reduces the `x` of the ranks before this one with `op`; rank 0 gets the value that changes no other."""
    return _of(group).exclusive_scan(x, op, out, timeout_ms=timeout_ms)


@overload
def all_gather(x: Kind, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Kind: ...
@overload
def all_gather(x: Operand, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def all_gather(x: Operand, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def all_gather(x: Operand, group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same: ...
def all_gather(x: Any, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. Every rank gets everybody's `x`, in rank order."""
    return _of(group).all_gather(x, out, timeout_ms=timeout_ms)


@overload
def all_gather_v(
    x: Kind, counts: Sequence[int], group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind: ...
@overload
def all_gather_v(
    x: Operand, counts: Sequence[int], group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Any: ...
@overload
def all_gather_v(x: Operand, counts: Sequence[int], group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def all_gather_v(
    x: Operand, counts: Sequence[int], group: Group | None = None, *, out: Same, timeout_ms: int = 0
) -> Same: ...
def all_gather_v(
    x: Any, counts: Sequence[int], group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. Every rank gets everybody's `x`, in rank order; that of rank r has `counts[r]` rows."""
    return _of(group).all_gather_v(x, counts, out, timeout_ms=timeout_ms)


@overload
def gather_v(
    x: Kind, counts: Sequence[int], root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind | None: ...
@overload
def gather_v(
    x: Operand, counts: Sequence[int], root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any: ...
def gather_v(
    x: Any, counts: Sequence[int], root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. `root` gets everybody's `x` in rank order, the others None; that of rank r has `counts[r]` rows."""
    return _of(group).gather_v(x, counts, root, out, timeout_ms=timeout_ms)


@overload
def scatter_v(
    x: Kind, counts: Sequence[int], root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind: ...
@overload
def scatter_v(
    x: Operand | None,
    counts: Sequence[int],
    root: int = 0,
    group: Group | None = None,
    out: Any = None,
    *,
    timeout_ms: int = 0,
) -> Any: ...
def scatter_v(
    x: Any, counts: Sequence[int], root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. The next `counts[r]` rows of the `x` of `root` go to rank r; elsewhere `x` is None and `out` takes them."""
    return _of(group).scatter_v(x, counts, root, out, timeout_ms=timeout_ms)


def broadcast(x: Same, root: int = 0, group: Group | None = None, *, timeout_ms: int = 0) -> Same:
    """Collective. Every rank's `x` becomes that of `root`, in place."""
    return _of(group).broadcast(x, root, timeout_ms=timeout_ms)


@overload
def all_to_all(x: Kind, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Kind: ...
@overload
def all_to_all(x: Operand, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def all_to_all(x: Operand, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def all_to_all(x: Operand, group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same: ...
def all_to_all(x: Any, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. The r-th part of `x` goes to rank r; part s of the result came from rank s."""
    return _of(group).all_to_all(x, out, timeout_ms=timeout_ms)


def all_to_all_v(
    x: Operand,
    sends: Sequence[int],
    out: Same,
    receives: Sequence[int],
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Same:
    """Collective. The next `sends[r]` rows of `x` go to rank r; `out` takes `receives[s]` rows of each rank s."""
    return _of(group).all_to_all_v(x, sends, out, receives, timeout_ms=timeout_ms)


@overload
def gather(
    x: Kind, root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0
) -> Kind | None: ...
@overload
def gather(x: Operand, root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def gather(x: Operand, root: int, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same | None: ...
@overload
def gather(x: Operand, root: int = 0, group: Group | None = None, *, out: Same, timeout_ms: int = 0) -> Same | None: ...
def gather(x: Any, root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. `root` gets everybody's `x` in rank order, the others None."""
    return _of(group).gather(x, root, out, timeout_ms=timeout_ms)


@overload
def scatter(x: Kind, root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Kind: ...
@overload
def scatter(x: Operand, root: int = 0, group: Group | None = None, out: None = None, *, timeout_ms: int = 0) -> Any: ...
@overload
def scatter(x: Operand | None, root: int, group: Group | None, out: Same, *, timeout_ms: int = 0) -> Same: ...
@overload
def scatter(
    x: Operand | None, root: int = 0, group: Group | None = None, *, out: Same, timeout_ms: int = 0
) -> Same: ...
def scatter(x: Any, root: int = 0, group: Group | None = None, out: Any = None, *, timeout_ms: int = 0) -> Any:
    """Collective. Rank r gets the r-th part of the `x` of `root`; elsewhere `x` is None and `out` says what is expected."""
    return _of(group).scatter(x, root, out, timeout_ms=timeout_ms)


def send(x: Any, dst: int, tag: int = 0, group: Group | None = None, *, timeout_ms: int = 0) -> None:
    """Sends `x` to rank `dst`, which must `recv` it with the same tag."""
    _of(group).send(x, dst, tag, timeout_ms=timeout_ms)


def recv(
    x: Any = None,
    src: int | None = None,
    tag: int | None = 0,
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Any:
    """Receives into `x` what rank `src` sends with the same tag, and returns it; without `x` a new array of what came."""
    return _of(group).recv(x, src, tag, timeout_ms=timeout_ms)


def isend(x: Any, dst: int, tag: int = 0, group: Group | None = None) -> Pending:
    """Starts a `send`."""
    return _of(group).isend(x, dst, tag)


def irecv(x: Any, src: int | None = None, tag: int | None = 0, group: Group | None = None) -> Pending:
    """Starts a `recv` into `x`."""
    return _of(group).irecv(x, src, tag)


def sendrecv(
    x: Any,
    dst: int,
    out: Any = None,
    src: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = 0,
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Any:
    """Sends `x` to rank `dst` and receives from rank `src` at once, into `out` or a new array; returns that."""
    return _of(group).sendrecv(x, dst, out, src, sendtag, recvtag, timeout_ms=timeout_ms)


def send_object(value: Any, dst: int, tag: int = 0, group: Group | None = None, *, timeout_ms: int = 0) -> None:
    """Sends a picklable `value` to rank `dst`, which must `recv_object` it with the same tag."""
    _of(group).send_object(value, dst, tag, timeout_ms=timeout_ms)


def recv_object(
    src: int | None = None, tag: int | None = 0, group: Group | None = None, *, timeout_ms: int = 0
) -> Any:
    """The object that rank `src`, or anybody, sends with the same tag."""
    return _of(group).recv_object(src, tag, timeout_ms=timeout_ms)


def sendrecv_object(
    value: Any,
    dst: int,
    src: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = 0,
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Any:
    """Sends a picklable `value` to rank `dst` and receives one from rank `src`, or anybody, at once."""
    return _of(group).sendrecv_object(value, dst, src, sendtag, recvtag, timeout_ms=timeout_ms)


def probe(
    src: int | None = None, tag: int | None = None, group: Group | None = None, *, timeout_ms: int = 0
) -> Envelope:
    """Waits for a message, by default from anybody and with any tag, and says what it is; it stays there."""
    return _of(group).probe(src, tag, timeout_ms=timeout_ms)


def iprobe(src: int | None = None, tag: int | None = None, group: Group | None = None) -> Envelope | None:
    """`probe` without waiting: None if there is no message."""
    return _of(group).iprobe(src, tag)


def all_gather_object(value: Any, group: Group | None = None, *, timeout_ms: int = 0) -> list[Any]:
    """Collective. Everybody's picklable `value`, in rank order."""
    return _of(group).all_gather_object(value, timeout_ms=timeout_ms)


def broadcast_object(value: Any, root: int = 0, group: Group | None = None, *, timeout_ms: int = 0) -> Any:
    """Collective. The picklable `value` of `root`."""
    return _of(group).broadcast_object(value, root, timeout_ms=timeout_ms)


def gather_object(
    value: Any, root: int = 0, group: Group | None = None, *, timeout_ms: int = 0
) -> list[Any] | None:
    """Collective. `root` gets everybody's picklable `value` in rank order, the others None."""
    return _of(group).gather_object(value, root, timeout_ms=timeout_ms)


def scatter_object(
    values: Iterable[Any] | None, root: int = 0, group: Group | None = None, *, timeout_ms: int = 0
) -> Any:
    """Collective. Rank r gets the r-th of the picklable `values` of `root`; what the others pass is ignored."""
    return _of(group).scatter_object(values, root, timeout_ms=timeout_ms)


def reduce_object(
    value: Any,
    op: Callable[[Any, Any], Any] | None = None,
    root: int = 0,
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Any:
    """Collective. `root` gets everybody's `value` reduced by the function `op` in rank order (None adds), the others None."""
    return _of(group).reduce_object(value, op, root, timeout_ms=timeout_ms)


def all_reduce_object(
    value: Any,
    op: Callable[[Any, Any], Any] | None = None,
    group: Group | None = None,
    *,
    timeout_ms: int = 0,
) -> Any:
    """Collective. Everybody's `value` reduced by the function `op` in rank order (None adds)."""
    return _of(group).all_reduce_object(value, op, timeout_ms=timeout_ms)


def subgroup(ranks: Iterable[int], name: str = "", group: Group | None = None) -> Group | NonMember:
    """Collective among `ranks`. A group of those; on a rank that is not among them a `NonMember`, which is falsy."""
    return _of(group).subgroup(ranks, name)


def split(
    color: int | None, key: int = 0, group: Group | None = None, *, timeout_ms: int = 0
) -> Group | NonMember:
    """Collective. One group per `color`, in the order of `key`; a `NonMember` for a rank that passes None."""
    return _of(group).split(color, key, timeout_ms=timeout_ms)


def all_gather_matmul(
    x: Operand,
    weights: Operand | Sequence[Operand],
    group: Group | None = None,
    out: Operand | Sequence[Operand] | None = None,
    rows: Operand | None = None,
    *,
    fused: bool = True,
    timeout_ms: int = 0,
) -> Any:
    """Collective. The product of everybody's rows, in rank order, and `weights`: a matrix or a list of them. See `Group.all_gather_matmul`."""
    return _of(group).all_gather_matmul(x, weights, out, rows, fused=fused, timeout_ms=timeout_ms)


def all_gather_columns_matmul(
    x: Operand,
    weights: Operand | Sequence[Operand],
    group: Group | None = None,
    out: Operand | Sequence[Operand] | None = None,
    *,
    fused: bool = True,
    timeout_ms: int = 0,
) -> Any:
    """Collective. The product of everybody's columns, side by side in rank order, and `weights`: a matrix or a list of them."""
    return _of(group).all_gather_columns_matmul(x, weights, out, fused=fused, timeout_ms=timeout_ms)


def matmul_reduce_scatter(
    a: Operand,
    b: Operand,
    op: Op = "sum",
    group: Group | None = None,
    out: Operand | None = None,
    *,
    fused: bool = True,
    timeout_ms: int = 0,
) -> Any:
    """Collective. This rank's rows of the reduction by `op`, "sum" or "avg", of everybody's `a @ b`."""
    return _of(group).matmul_reduce_scatter(a, b, op, out, fused=fused, timeout_ms=timeout_ms)


def matmul_reduce_scatter_columns(
    a: Operand,
    b: Operand,
    op: Op = "sum",
    group: Group | None = None,
    out: Operand | None = None,
    *,
    fused: bool = True,
    timeout_ms: int = 0,
) -> Any:
    """Collective. This rank's columns of the reduction by `op`, "sum" or "avg", of everybody's `a @ b`."""
    return _of(group).matmul_reduce_scatter_columns(a, b, op, out, fused=fused, timeout_ms=timeout_ms)


def all_reduce_rms_norm(
    x: Operand,
    residual: Operand | None,
    weight: Operand | None,
    epsilon: float = 1e-6,
    group: Group | None = None,
    out: Operand | None = None,
    *,
    op: Op = "sum",
    scale: Operand | None = None,
    scales: Operand | None = None,
    fused: bool = True,
    timeout_ms: int = 0,
) -> Any:
    """Collective. Adds the sum of everybody's `x` to `residual`, in place, and gives the RMSNorm of its rows, times `weight`.

    On devices without a residual or a weight too, of averages, and written as fp8: see `SymmetricMemory.all_reduce_rms_norm`.
    """
    return _of(group).all_reduce_rms_norm(
        x, residual, weight, epsilon, out, op=op, scale=scale, scales=scales, fused=fused, timeout_ms=timeout_ms
    )
