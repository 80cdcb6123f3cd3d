"""Every wrong argument of every collective: on one rank it is an error of all, at once, and the group goes on.

The rank itself raises its own error, the others `RankFailed` with its words. Where a rank need not hear from everybody it
may return before it can know, and its next operation raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem

RANKS = 3
#: The rank whose argument is wrong.
WRONG = 1
N = 12
#: Seconds. Nobody waits for a timeout, which is 30; a machine that is busy with other things takes its time.
AT_ONCE = 5.0

#: Methods that are collective and have nothing in them that can be wrong on one rank and be told: the group's own barriers and
#: copies, the end of a handle, and what finds its members in another way.
WITHOUT_ROWS = {
    "Group": {"barrier", "barrier_start", "clone", "local", "subgroup", "split", "survivors", "from_env", "from_torch"},
    "SymmetricMemory": {"close"},
}
#: Calls on symmetric memory in which a rank need not hear from all.
ONE_WAY = {"broadcast", "broadcast_start", "reduce", "reduce_start"}


class Stage:
    """What calls are made on."""

    def __init__(self, group: symmem.Group) -> None:
        self.group = group
        self.x = np.full(N, group.rank, dtype=np.float32)
        self.array = symmem.empty(N, dtype="float32")
        self.array[:] = self.x
        self.memory = symmem.rendezvous(self.array, group)
        self.rows = symmem.rendezvous(symmem.full((3, 4), 1.0, dtype="float32"), group)

    def peer(self, elements: int) -> Any:
        """Memory of another rank."""
        return self.memory.get_buffer(self.group.next, [elements], "float32")

    def frozen(self) -> Any:
        """Symmetric memory that Python may not write."""
        view = np.asarray(self.array)
        view.flags.writeable = False
        return view


Call = Callable[[Stage, bool], Any]


def out(wrong: bool, elements: int = N, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(elements + wrong, dtype=dtype)


def op(wrong: bool) -> str:
    return "foo" if wrong else "sum"


def root(wrong: bool) -> int:
    return 99 if wrong else 0


def dtype(wrong: bool) -> str:
    return "int16" if wrong else "float32"


def frozen(wrong: bool, elements: int) -> Any:
    """Read-only if it is wrong."""
    array = np.zeros(elements, dtype="float32")
    array.flags.writeable = not wrong
    return array


def matrix(wrong: bool, rows: int, columns: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """With a row too much if it is wrong."""
    return np.ones((rows + wrong, columns), dtype=dtype)


def gathers(call: Callable[..., Any], depth: int, rows: int) -> dict[str, Call]:
    """What can be wrong with a gather that `call` makes, whose weights are `depth` rows of 2 columns, and whose product has `rows`."""
    usual = matrix(False, depth, 2)
    return {
        "weights": lambda on, wrong: call(on, matrix(wrong, depth, 2)),
        "weights' type": lambda on, wrong: call(on, "text" if wrong else usual),
        "weights' dtype": lambda on, wrong: call(on, matrix(False, depth, 2, dtype(wrong))),
        "number of weights": lambda on, wrong: call(on, [] if wrong else [usual]),
        "one of the weights": lambda on, wrong: call(on, [usual, matrix(wrong, depth, 2)]),
        "out": lambda on, wrong: call(on, usual, matrix(wrong, rows, 2)),
        "out's dtype": lambda on, wrong: call(on, usual, matrix(False, rows, 2, dtype(wrong))),
        "out's type": lambda on, wrong: call(on, usual, "text" if wrong else matrix(False, rows, 2)),
        "number of outputs": lambda on, wrong: call(on, [usual, usual], [matrix(False, rows, 2)] * (1 + (not wrong)) if wrong else None),
        "outputs in one place": lambda on, wrong: call(on, [usual, usual], [matrix(False, rows, 2)] * 2 if wrong else None),
        "read-only out": lambda on, wrong: call(on, usual, frozen(wrong, 2 * rows).reshape(rows, 2)),
    }


def scatters(call: Callable[..., Any]) -> dict[str, Call]:
    """What can be wrong with a product and its scatter."""
    a, b = matrix(False, 3, 2), matrix(False, 2, 3)
    return {
        "op": lambda on, wrong: call(on, a, b, op(wrong)),
        "max": lambda on, wrong: call(on, a, b, "max" if wrong else "sum"),
        "a": lambda on, wrong: call(on, matrix(wrong, 3, 2)[:, : 1 + (not wrong)], b),
        "a's type": lambda on, wrong: call(on, "text" if wrong else a, b),
        "a's dtype": lambda on, wrong: call(on, matrix(False, 3, 2, "float64" if wrong else "float32"), b),
        "b": lambda on, wrong: call(on, a, matrix(wrong, 2, 3)),
        "b's dtype": lambda on, wrong: call(on, a, matrix(False, 2, 3, dtype(wrong))),
        "a side that is not divisible": lambda on, wrong: call(on, matrix(wrong, 3, 2), np.ones((2, 3 + wrong), dtype="float32")),
        "out": lambda on, wrong: call(on, a, b, "sum", out(wrong, 3)),
        "out's dtype": lambda on, wrong: call(on, a, b, "sum", out(False, 3, dtype(wrong))),
        "read-only out": lambda on, wrong: call(on, a, b, "sum", frozen(wrong, 3)),
        "out in an input": lambda on, wrong: scattered_into(on, call, wrong),
    }


def scattered_into(on: Stage, call: Callable[..., Any], wrong: bool) -> Any:
    a = matrix(False, 3, 2)
    return call(on, a, matrix(False, 2, 3), "sum", a.reshape(-1)[:3] if wrong else None)


def norms(call: Callable[..., Any]) -> dict[str, Call]:
    """What can be wrong with a norm of 3 rows of 4."""
    weight = np.ones(4, dtype="float32")
    return {
        "residual": lambda on, wrong: call(on, matrix(wrong, 3, 4), weight),
        "residual's dtype": lambda on, wrong: call(on, matrix(False, 3, 4, dtype(wrong)), weight),
        "read-only residual": lambda on, wrong: call(on, frozen(wrong, 12), weight),
        "weight": lambda on, wrong: call(on, matrix(False, 3, 4), np.ones(4 + wrong, dtype="float32")),
        "weight's dtype": lambda on, wrong: call(on, matrix(False, 3, 4), weight.astype(dtype(wrong))),
        "out": lambda on, wrong: call(on, matrix(False, 3, 4), weight, 1e-6, out(wrong)),
        "out in the residual": lambda on, wrong: norm_into(on, call, wrong),
        "no weight on the host": lambda on, wrong: call(on, matrix(False, 3, 4), None if wrong else weight),
        "an average on the host": lambda on, wrong: call(on, matrix(False, 3, 4), weight, op="avg" if wrong else "sum"),
        "fp8 on the host": lambda on, wrong: call(on, matrix(False, 3, 4), weight, scale=weight[:1] if wrong else None),
    }


def norm_into(on: Stage, call: Callable[..., Any], wrong: bool) -> Any:
    residual = matrix(False, 3, 4)
    return call(on, residual, np.ones(4, dtype="float32"), 1e-6, residual if wrong else None)


ONES = np.ones((3, 4), dtype="float32")

PRIVATE: dict[str, dict[str, Call]] = {
    "all_gather_matmul": gathers(lambda on, *given: on.group.all_gather_matmul(ONES, *given), 4, 9)
    | {
        "x": lambda on, wrong: on.group.all_gather_matmul("text" if wrong else ONES, matrix(False, 4, 2)),
        "dtype": lambda on, wrong: on.group.all_gather_matmul(
            ONES.astype("float64") if wrong else ONES, matrix(False, 4, 2, "float64" if wrong else "float32")
        ),
        "dimensions": lambda on, wrong: on.group.all_gather_matmul(ONES[0] if wrong else ONES, matrix(False, 4, 2)),
        "rows": lambda on, wrong: on.group.all_gather_matmul(ONES, matrix(False, 4, 2), rows=out(wrong, 36)),
    },
    "all_gather_columns_matmul": gathers(lambda on, *given: on.group.all_gather_columns_matmul(ONES, *given), 12, 3),
    "matmul_reduce_scatter": scatters(lambda on, *given: on.group.matmul_reduce_scatter(*given)),
    "matmul_reduce_scatter_columns": scatters(lambda on, *given: on.group.matmul_reduce_scatter_columns(*given)),
    "all_reduce_rms_norm": norms(lambda on, *given, **more: on.group.all_reduce_rms_norm(ONES, *given, **more)),
    "atomics": {
        "size": lambda on, wrong: on.group.atomics(-1 if wrong else 4),
        "dtype": lambda on, wrong: on.group.atomics(4, "float32" if wrong else "int64"),
        "too many": lambda on, wrong: on.group.atomics(1 << 62 if wrong else 4),
    },
    "all_reduce": {
        "type": lambda on, wrong: on.group.all_reduce("text" if wrong else on.x),
        "element type": lambda on, wrong: on.group.all_reduce(np.array(["a"]) if wrong else on.x),
        "op": lambda on, wrong: on.group.all_reduce(on.x, op(wrong)),
        "op for floats": lambda on, wrong: on.group.all_reduce(on.x, "xor" if wrong else "sum"),
        "private and read-only": lambda on, wrong: on.group.all_reduce(frozen(wrong, N)),
        "op for complex": lambda on, wrong: on.group.all_reduce(on.x.astype("complex64"), "max" if wrong else "sum"),
        "out": lambda on, wrong: on.group.all_reduce(on.x, out=out(wrong)),
        "out's type": lambda on, wrong: on.group.all_reduce(on.x, out=[0] if wrong else out(False)),
        "out's dtype": lambda on, wrong: on.group.all_reduce(on.x, out=out(False, N, dtype(wrong))),
        "out's place": lambda on, wrong: on.group.all_reduce(on.x[:6], out=on.x[3:9] if wrong else out(False, 6)),
        "read-only": lambda on, wrong: on.group.all_reduce(on.frozen() if wrong else on.array),
        "symmetric op": lambda on, wrong: on.group.all_reduce(on.array, op(wrong)),
    },
    "all_reduce_start": {
        "op": lambda on, wrong: on.group.all_reduce_start(on.x, op(wrong)).wait(),
        "out": lambda on, wrong: on.group.all_reduce_start(on.array, out=out(wrong)).wait(),
        "type": lambda on, wrong: on.group.all_reduce_start("text" if wrong else on.x).wait(),
        "symmetric op": lambda on, wrong: on.group.all_reduce_start(on.array, op(wrong)).wait(),
    },
    "reduce": {
        "op": lambda on, wrong: on.group.reduce(on.x, op(wrong)),
        "root": lambda on, wrong: on.group.reduce(on.x, root=root(wrong)),
        "negative root": lambda on, wrong: on.group.reduce(on.x, root=-1 if wrong else 0),
        "out": lambda on, wrong: on.group.reduce(on.x, root=WRONG, out=out(wrong)),
        "out's dtype": lambda on, wrong: on.group.reduce(on.x, root=WRONG, out=out(False, N, dtype(wrong))),
    },
    "reduce_start": {
        "op": lambda on, wrong: on.group.reduce_start(on.x, op(wrong)).wait(),
        "root": lambda on, wrong: on.group.reduce_start(on.x, root=root(wrong)).wait(),
    },
    "reduce_scatter": {
        "op": lambda on, wrong: on.group.reduce_scatter(on.x, op(wrong)),
        "shape": lambda on, wrong: on.group.reduce_scatter(on.x[: N - wrong]),
        "scalar": lambda on, wrong: on.group.reduce_scatter(np.float32(1) if wrong else on.x),
        "out": lambda on, wrong: on.group.reduce_scatter(on.x, out=out(wrong, N // RANKS)),
    },
    "reduce_scatter_start": {
        "shape": lambda on, wrong: on.group.reduce_scatter_start(on.x[: N - wrong]).wait(),
        "out": lambda on, wrong: on.group.reduce_scatter_start(on.x, out=out(wrong, N // RANKS)).wait(),
    },
    "scan": {
        "op": lambda on, wrong: on.group.scan(on.x, op(wrong)),
        "avg": lambda on, wrong: on.group.scan(on.x, "avg" if wrong else "sum"),
        "op for complex": lambda on, wrong: on.group.scan(on.x.astype("complex64"), "max" if wrong else "sum"),
        "out": lambda on, wrong: on.group.scan(on.x, out=out(wrong)),
    },
    "scan_start": {
        "op": lambda on, wrong: on.group.scan_start(on.x, op(wrong)).wait(),
        "out": lambda on, wrong: on.group.scan_start(on.x, out=out(wrong)).wait(),
    },
    "exclusive_scan": {
        "op": lambda on, wrong: on.group.exclusive_scan(on.x, op(wrong)),
        "avg": lambda on, wrong: on.group.exclusive_scan(on.x, "avg" if wrong else "sum"),
        "op for complex": lambda on, wrong: on.group.exclusive_scan(on.x.astype("complex64"), "max" if wrong else "sum"),
        "out": lambda on, wrong: on.group.exclusive_scan(on.x, out=out(wrong)),
    },
    "exclusive_scan_start": {
        "op": lambda on, wrong: on.group.exclusive_scan_start(on.x, op(wrong)).wait(),
        "out": lambda on, wrong: on.group.exclusive_scan_start(on.x, out=out(wrong)).wait(),
    },
    "all_gather": {
        "type": lambda on, wrong: on.group.all_gather(object() if wrong else on.x),
        "out": lambda on, wrong: on.group.all_gather(on.x, out(wrong, N * RANKS)),
        "read-only out": lambda on, wrong: on.group.all_gather(on.x, frozen(wrong, N * RANKS)),
    },
    "all_gather_v": {
        "counts": lambda on, wrong: on.group.all_gather_v(on.x, [N] * (RANKS - wrong)),
        "counts' type": lambda on, wrong: on.group.all_gather_v(on.x, "abc" if wrong else [N] * RANKS),
        "negative count": lambda on, wrong: on.group.all_gather_v(on.x, [-1] * RANKS if wrong else [N] * RANKS),
        "x": lambda on, wrong: on.group.all_gather_v(on.x[wrong:], [N] * RANKS),
        "scalar": lambda on, wrong: on.group.all_gather_v(np.float32(1) if wrong else on.x, [N] * RANKS),
        "out": lambda on, wrong: on.group.all_gather_v(on.x, [N] * RANKS, out(wrong, N * RANKS)),
    },
    "all_gather_v_start": {
        "counts": lambda on, wrong: on.group.all_gather_v_start(on.x, [N] * (RANKS - wrong)).wait(),
        "out": lambda on, wrong: on.group.all_gather_v_start(on.x, [N] * RANKS, out(wrong, N * RANKS)).wait(),
    },
    "gather_v": {
        "counts": lambda on, wrong: on.group.gather_v(on.x, [N] * (RANKS - wrong)),
        "counts' type": lambda on, wrong: on.group.gather_v(on.x, "abc" if wrong else [N] * RANKS),
        "root": lambda on, wrong: on.group.gather_v(on.x, [N] * RANKS, root(wrong)),
        "negative root": lambda on, wrong: on.group.gather_v(on.x, [N] * RANKS, -1 if wrong else 0),
        "x": lambda on, wrong: on.group.gather_v(on.x[wrong:], [N] * RANKS),
        "out": lambda on, wrong: on.group.gather_v(on.x, [N] * RANKS, WRONG, out(wrong, N * RANKS)),
    },
    "gather_v_start": {
        "counts": lambda on, wrong: on.group.gather_v_start(on.x, [N] * (RANKS - wrong)).wait(),
    },
    "scatter_v": {
        "counts": lambda on, wrong: on.group.scatter_v(on.x, [N // RANKS] * (RANKS - wrong), 0, out(False, N // RANKS)),
        "counts' type": lambda on, wrong: on.group.scatter_v(
            on.x, "abc" if wrong else [N // RANKS] * RANKS, 0, out(False, N // RANKS)
        ),
        "root": lambda on, wrong: on.group.scatter_v(on.x, [N // RANKS] * RANKS, root(wrong), out(False, N // RANKS)),
        "x": lambda on, wrong: on.group.scatter_v(on.x[wrong:], [N // RANKS] * RANKS, WRONG, out(False, N // RANKS)),
        "out": lambda on, wrong: on.group.scatter_v(on.x, [N // RANKS] * RANKS, 0, out(wrong, N // RANKS)),
        "no out": lambda on, wrong: on.group.scatter_v(
            on.x, [N // RANKS] * RANKS, 0, None if wrong else out(False, N // RANKS)
        ),
    },
    "scatter_v_start": {
        "out": lambda on, wrong: on.group.scatter_v_start(on.x, [N // RANKS] * RANKS, 0, out(wrong, N // RANKS)).wait(),
    },
    "all_gather_start": {
        "out": lambda on, wrong: on.group.all_gather_start(on.x, out(wrong, N * RANKS)).wait(),
        "out's dtype": lambda on, wrong: on.group.all_gather_start(on.x, out(False, N * RANKS, dtype(wrong))).wait(),
    },
    "broadcast": {
        "type": lambda on, wrong: on.group.broadcast(None if wrong else on.x),
        "root": lambda on, wrong: on.group.broadcast(on.x, root(wrong)),
        "negative root": lambda on, wrong: on.group.broadcast(on.x, -1 if wrong else 0),
        "read-only": lambda on, wrong: on.group.broadcast(frozen(wrong, N)),
    },
    "broadcast_start": {
        "root": lambda on, wrong: on.group.broadcast_start(on.x, root(wrong)).wait(),
    },
    "all_to_all": {
        "shape": lambda on, wrong: on.group.all_to_all(on.x[: N - wrong]),
        "out": lambda on, wrong: on.group.all_to_all(on.x, out(wrong)),
    },
    "all_to_all_start": {
        "out": lambda on, wrong: on.group.all_to_all_start(on.x, out(wrong)).wait(),
    },
    "gather": {
        "root": lambda on, wrong: on.group.gather(on.x, root(wrong)),
        "out": lambda on, wrong: on.group.gather(on.x, WRONG, out(wrong, N * RANKS)),
    },
    "gather_start": {
        # It has no started form: nobody waits, and everybody says so.
        "form": lambda on, wrong: on.group.gather_start(on.x, 0),
    },
    "scatter": {
        "root": lambda on, wrong: on.group.scatter(on.x, root(wrong), out(False, N // RANKS)),
        "shape": lambda on, wrong: on.group.scatter(on.x[: N - wrong], WRONG, out(False, N // RANKS)),
        "no out": lambda on, wrong: on.group.scatter(None, 0, None) if wrong else scatter(on),
    },
    "scatter_start": {
        "form": lambda on, wrong: on.group.scatter_start(on.x, 0),
    },
    "all_to_all_v": {
        "type": lambda on, wrong: on.group.all_to_all_v("text" if wrong else on.x[:3], [1] * 3, out(False, 3), [1] * 3),
        "splits": lambda on, wrong: on.group.all_to_all_v(on.x[:3], [1] * (3 - wrong), out(False, 3), [1] * 3),
        "splits' type": lambda on, wrong: on.group.all_to_all_v(
            on.x[:3], ["a"] if wrong else [1] * 3, out(False, 3), [1] * 3
        ),
        "negative splits": lambda on, wrong: on.group.all_to_all_v(
            on.x[:3], [-1, 2, 2] if wrong else [1] * 3, out(False, 3), [1] * 3
        ),
        "out": lambda on, wrong: on.group.all_to_all_v(on.x[:3], [1] * 3, out(wrong, 3), [1] * 3),
        "out's dtype": lambda on, wrong: on.group.all_to_all_v(
            on.x[:3], [1] * 3, out(False, 3, dtype(wrong)), [1] * 3
        ),
    },
    "all_gather_object": {
        "pickle": lambda on, wrong: on.group.all_gather_object((lambda: 0) if wrong else 1),
    },
    "broadcast_object": {
        "root": lambda on, wrong: on.group.broadcast_object(1, root(wrong)),
        "negative root": lambda on, wrong: on.group.broadcast_object(1, -1 if wrong else 0),
        "pickle": lambda on, wrong: on.group.broadcast_object((lambda: 0) if wrong else 1, WRONG),
    },
    "gather_object": {
        "root": lambda on, wrong: on.group.gather_object(1, root(wrong)),
        "negative root": lambda on, wrong: on.group.gather_object(1, -1 if wrong else 0),
        "pickle": lambda on, wrong: on.group.gather_object((lambda: 0) if wrong else 1),
    },
    "scatter_object": {
        "root": lambda on, wrong: on.group.scatter_object(range(RANKS), root(wrong)),
        "number": lambda on, wrong: on.group.scatter_object(range(RANKS + wrong), WRONG),
        "type": lambda on, wrong: on.group.scatter_object(1 if wrong else None, WRONG),
        "pickle": lambda on, wrong: on.group.scatter_object([lambda: 0] * RANKS, WRONG),
    },
    "reduce_object": {
        "root": lambda on, wrong: on.group.reduce_object(1, root=root(wrong)),
        "op": lambda on, wrong: on.group.reduce_object(1, "sum" if wrong else None),  # type: ignore[arg-type]
        "pickle": lambda on, wrong: on.group.reduce_object((lambda: 0) if wrong else 1),
    },
    "all_reduce_object": {
        "op": lambda on, wrong: on.group.all_reduce_object(1, "sum" if wrong else max),  # type: ignore[arg-type]
        "pickle": lambda on, wrong: on.group.all_reduce_object((lambda: 0) if wrong else 1),
    },
}


def scatter(on: Stage) -> Any:
    return on.group.scatter(on.x if on.group.rank == 0 else None, 0, out(False, N // RANKS))


def outputs(method: str, elements: int, **options: Any) -> dict[str, Call]:
    """What can be wrong with `out` of a method of `SymmetricMemory`."""

    def call(on: Stage, array: Any) -> Any:
        done = getattr(on.memory, method)(out=array, **options)
        return done.wait() if method.endswith("_start") else done

    return {
        "out": lambda on, wrong: call(on, out(wrong, elements)),
        "out's type": lambda on, wrong: call(on, "text" if wrong else out(False, elements)),
        "out's dtype": lambda on, wrong: call(on, out(False, elements, dtype(wrong))),
        "out's dtype, complex": lambda on, wrong: call(on, out(False, elements, "complex64" if wrong else "float32")),
        "read-only out": lambda on, wrong: call(on, frozen(wrong, elements)),
        "out in the memory": lambda on, wrong: call(on, np.asarray(on.array)[1:5] if wrong else out(False, elements)),
        "out of a peer": lambda on, wrong: call(on, on.peer(N) if wrong else out(False, elements)),
    }


SYMMETRIC: dict[str, dict[str, Call]] = {
    "all_gather_matmul": gathers(lambda on, *given: on.rows.all_gather_matmul(*given), 4, 9)
    | {
        "dimensions": lambda on, wrong: (on.memory if wrong else on.rows).all_gather_matmul(matrix(False, 4, 2)),
        "rows": lambda on, wrong: on.rows.all_gather_matmul(matrix(False, 4, 2), rows=out(wrong, 36)),
        "out of a peer": lambda on, wrong: on.rows.all_gather_matmul(matrix(False, 4, 1), on.rows[on.group.next] if wrong else None),
        "out in the memory": lambda on, wrong: on.rows.all_gather_matmul(
            matrix(False, 4, 1), np.asarray(on.rows.local()).reshape(-1)[:9] if wrong else None
        ),
    },
    "all_gather_columns_matmul": gathers(lambda on, *given: on.rows.all_gather_columns_matmul(*given), 12, 3),
    "matmul_reduce_scatter": scatters(lambda on, *given: on.rows.matmul_reduce_scatter(*given))
    | {
        "workspace": lambda on, wrong: on.rows.matmul_reduce_scatter(matrix(False, 6, 2), np.ones((2, 2 + wrong), dtype="float32")),
        "a in the workspace": lambda on, wrong: on.rows.matmul_reduce_scatter(
            np.asarray(on.rows.local()).reshape(-1)[:6].reshape(3, 2) if wrong else matrix(False, 3, 2), matrix(False, 2, 3)
        ),
    },
    "matmul_reduce_scatter_columns": scatters(lambda on, *given: on.rows.matmul_reduce_scatter_columns(*given)),
    "all_reduce_rms_norm": norms(lambda on, *given, **more: on.rows.all_reduce_rms_norm(*given, **more)),
    "barrier": {
        "channel": lambda on, wrong: on.memory.barrier(10**9 if wrong else 0),
        "negative channel": lambda on, wrong: on.memory.barrier(-1 if wrong else 0),
    },
    "all_reduce": {"op": lambda on, wrong: on.memory.all_reduce(op(wrong))} | outputs("all_reduce", N),
    "all_reduce_start": {"op": lambda on, wrong: on.memory.all_reduce_start(op(wrong)).wait()}
    | outputs("all_reduce_start", N),
    "reduce": {
        "op": lambda on, wrong: on.memory.reduce(op(wrong)),
        "root": lambda on, wrong: on.memory.reduce(root=root(wrong)),
        "negative root": lambda on, wrong: on.memory.reduce(root=-1 if wrong else 0),
    }
    | outputs("reduce", N, root=WRONG),
    "reduce_start": {"root": lambda on, wrong: on.memory.reduce_start(root=root(wrong)).wait()}
    | outputs("reduce_start", N, root=WRONG),
    "reduce_scatter": {"op": lambda on, wrong: on.memory.reduce_scatter(op(wrong))}
    | outputs("reduce_scatter", N // RANKS),
    "reduce_scatter_start": {"op": lambda on, wrong: on.memory.reduce_scatter_start(op(wrong)).wait()}
    | outputs("reduce_scatter_start", N // RANKS),
    "scan": {
        "op": lambda on, wrong: on.memory.scan(op(wrong)),
        "avg": lambda on, wrong: on.memory.scan("avg" if wrong else "sum"),
    }
    | outputs("scan", N),
    "scan_start": {"op": lambda on, wrong: on.memory.scan_start(op(wrong)).wait()} | outputs("scan_start", N),
    "exclusive_scan": {
        "op": lambda on, wrong: on.memory.exclusive_scan(op(wrong)),
        "avg": lambda on, wrong: on.memory.exclusive_scan("avg" if wrong else "sum"),
    }
    | outputs("exclusive_scan", N),
    "exclusive_scan_start": {"op": lambda on, wrong: on.memory.exclusive_scan_start(op(wrong)).wait()} | outputs("exclusive_scan_start", N),
    "all_gather": outputs("all_gather", N * RANKS),
    "all_gather_v": {
        "counts": lambda on, wrong: on.memory.all_gather_v([1] * (RANKS - wrong)),
        "counts' type": lambda on, wrong: on.memory.all_gather_v("abc" if wrong else [1] * RANKS),
        "counts beyond the memory": lambda on, wrong: on.memory.all_gather_v([N + wrong] * RANKS),
    }
    | outputs("all_gather_v", N * RANKS, counts=[N] * RANKS),
    "all_gather_v_start": {"counts": lambda on, wrong: on.memory.all_gather_v_start([1] * (RANKS - wrong)).wait()}
    | outputs("all_gather_v_start", N * RANKS, counts=[N] * RANKS),
    "gather_v": {
        "counts": lambda on, wrong: on.memory.gather_v([1] * (RANKS - wrong)),
        "root": lambda on, wrong: on.memory.gather_v([1] * RANKS, root(wrong)),
    }
    | outputs("gather_v", N * RANKS, counts=[N] * RANKS, root=WRONG),
    "gather_v_start": {"counts": lambda on, wrong: on.memory.gather_v_start([1] * (RANKS - wrong)).wait()}
    | outputs("gather_v_start", N * RANKS, counts=[N] * RANKS, root=WRONG),
    "scatter_v": {
        "counts": lambda on, wrong: on.memory.scatter_v([1] * (RANKS - wrong)),
        "root": lambda on, wrong: on.memory.scatter_v([1] * RANKS, root(wrong)),
        "counts beyond the memory": lambda on, wrong: on.memory.scatter_v([N // RANKS + wrong] * RANKS),
    }
    | outputs("scatter_v", N // RANKS, counts=[N // RANKS] * RANKS),
    "scatter_v_start": {"counts": lambda on, wrong: on.memory.scatter_v_start([1] * (RANKS - wrong)).wait()}
    | outputs("scatter_v_start", N // RANKS, counts=[N // RANKS] * RANKS),
    "all_gather_start": outputs("all_gather_start", N * RANKS),
    "broadcast": {
        "root": lambda on, wrong: on.memory.broadcast(root(wrong)),
        "negative root": lambda on, wrong: on.memory.broadcast(-1 if wrong else 0),
    },
    "broadcast_start": {"root": lambda on, wrong: on.memory.broadcast_start(root(wrong)).wait()},
    "all_to_all": outputs("all_to_all", N),
    "all_to_all_start": outputs("all_to_all_start", N),
    "gather": {"root": lambda on, wrong: on.memory.gather(root(wrong))} | outputs("gather", N * RANKS, root=WRONG),
    "gather_start": {"form": lambda on, wrong: on.memory.gather_start(0)},
    "scatter": {"root": lambda on, wrong: on.memory.scatter(root(wrong))} | outputs("scatter", N // RANKS),
    "scatter_start": {"form": lambda on, wrong: on.memory.scatter_start(0)},
    "all_to_all_v": {
        "splits": lambda on, wrong: on.memory.all_to_all_v([1] * (3 - wrong), out(False, 3)),
        "splits' type": lambda on, wrong: on.memory.all_to_all_v("abc" if wrong else [1] * 3, out(False, 3)),
        "out": lambda on, wrong: on.memory.all_to_all_v([1] * 3, out(False, 2 if wrong else 3)),
        "out's dtype": lambda on, wrong: on.memory.all_to_all_v([1] * 3, out(False, 3, dtype(wrong))),
        "out of a peer": lambda on, wrong: on.memory.all_to_all_v([1] * 3, on.peer(3) if wrong else out(False, 3)),
    },
}

FUNCTIONS: dict[str, dict[str, Call]] = {
    "rendezvous": {
        "private array": lambda on, wrong: symmem.rendezvous(on.x if wrong else symmem.empty(4), on.group),
        "type": lambda on, wrong: symmem.rendezvous("text" if wrong else symmem.empty(4), on.group),
    },
    "get_symm_mem_workspace": {
        "size": lambda on, wrong: symmem.get_symm_mem_workspace(on.group, 1 << 50 if wrong else 4096),
    },
}

FAMILIES: dict[str, dict[str, dict[str, Call]]] = {
    "Group": PRIVATE,
    "SymmetricMemory": SYMMETRIC,
    "functions": FUNCTIONS,
}


def try_row(stage: Stage, name: str, method: str, call: Call) -> str:
    """Makes the call; the words of what it raises on this rank."""
    group, wrong = stage.group, stage.group.rank == WRONG
    start = time.monotonic()
    raised: Exception | None = None
    try:
        call(stage, wrong)
        if method in ONE_WAY and not wrong:
            group.barrier()
    except Exception as exception:
        raised = exception
    elapsed = time.monotonic() - start
    assert raised is not None, f"{name}: nothing was raised on rank {group.rank}"
    assert elapsed < AT_ONCE, f"{name}: {raised!r} after {elapsed:.1f} s on rank {group.rank}"
    assert group.failure is None, f"{name}: {raised!r} {group.failure}"
    if not wrong:
        assert isinstance(raised, symmem.RankFailed) and raised.culprit == WRONG, f"{name}: {raised!r}"
    # What all ranks judge together is `RankFailed` on the wrong rank too.
    return str(raised).partition(f"rank {WRONG} failed: ")[2] if isinstance(raised, symmem.RankFailed) else str(raised)


def go_on(stage: Stage, name: str) -> None:
    stage.array[:] = stage.x[:] = stage.group.rank
    sums = stage.memory.all_reduce("sum", np.zeros(N, dtype="float32"))
    assert (sums == RANKS).all(), f"after {name}: {sums}"
    assert (stage.group.all_reduce(stage.x.copy()) == RANKS).all(), f"after {name}"


def refuse_all(group: symmem.Group, family: str) -> None:
    stage = Stage(group)
    for method, rows in FAMILIES[family].items():
        for argument, call in rows.items():
            name = f"{family}.{method} with a wrong {argument}"
            if argument == "form":
                continue
            words = try_row(stage, name, method, call)
            go_on(stage, name)
            # The others say what the rank itself says.
            all_words = group.all_gather_object(words)
            assert all(theirs == all_words[WRONG] for theirs in all_words), (name, all_words)


def test_a_wrong_argument_of_private_memory_is_told_to_all(run: Any) -> None:
    run(refuse_all, RANKS, "Group")


def test_a_wrong_argument_of_symmetric_memory_is_told_to_all(run: Any) -> None:
    run(refuse_all, RANKS, "SymmetricMemory")


def test_a_wrong_argument_of_a_rendezvous_is_told_to_all(run: Any) -> None:
    run(refuse_all, RANKS, "functions")


def no_started_form(group: symmem.Group) -> None:
    stage = Stage(group)
    for family in (PRIVATE, SYMMETRIC):
        for method, rows in family.items():
            for call in (call for argument, call in rows.items() if argument == "form"):
                try:
                    call(stage, False)
                except symmem.Invalid as raised:
                    assert "no started form" in str(raised), raised
                else:
                    raise AssertionError(f"{method} was started")
    go_on(stage, "forms that are not there")


def test_what_has_no_started_form_says_so_everywhere(threads: Any) -> None:
    threads(no_started_form, RANKS)


def test_every_collective_has_a_row() -> None:
    for family, rows in (("Group", PRIVATE), ("SymmetricMemory", SYMMETRIC)):
        methods = vars(getattr(symmem, family)).items()
        documented = {name: (method.__doc__ or "") for name, method in methods if not name.startswith("__")}
        collective = {name for name, doc in documented.items() if doc.startswith(("Collective", "Starts"))}
        collective -= {"_refuse", "isend", "irecv"}
        assert collective - WITHOUT_ROWS[family] == set(rows), collective ^ set(rows)


def refuse_torch(group: symmem.Group) -> None:
    import torch

    import symmem.torch as symm_mem
    from symmem.torch import _ops as ops

    x = symm_mem.empty(N, dtype=torch.float32)
    x.fill_(1.0)
    symm_mem.rendezvous(x, group)
    usual, part = torch.zeros(N), torch.zeros(N // RANKS)
    outputs = {
        "shape": torch.zeros(N + 1),
        "dtype": torch.zeros(N, dtype=torch.int32),
        "contiguity": torch.zeros(2 * N)[::2],
    }
    calls: dict[str, Callable[[bool], Any]] = {
        "root": lambda wrong: ops.multimem_one_shot_reduce_out(x, "sum", 9 if wrong else WRONG, group, usual),
        "op": lambda wrong: ops.two_shot_all_reduce_(x, "foo" if wrong else "sum", group),
        "sum or avg": lambda wrong: ops._low_contention_reduce_scatter(x, "max" if wrong else "sum", group),
        "part": lambda wrong: ops.reduce_scatter_out(x, group, False, torch.zeros(1) if wrong else part),
        "private": lambda wrong: ops.one_shot_all_reduce(usual if wrong else x, "sum", group),
    }
    for what, out in outputs.items():
        for op in (ops.one_shot_all_reduce_out, ops.two_shot_all_reduce_out, ops.multimem_one_shot_all_reduce_out):
            calls[f"{what} of {op.__name__}"] = lambda wrong, op=op, out=out: op(x, "sum", group, out if wrong else usual)
    stage = Stage(group)
    for what, call in calls.items():
        method = "reduce" if what == "root" else what
        words = try_row(stage, what, method, lambda _, wrong, call=call: call(wrong))
        go_on(stage, what)
        assert len(set(group.all_gather_object(words))) == 1, words


def test_a_wrong_argument_of_a_torch_operation_is_told_to_all(run: Any) -> None:
    pytest.importorskip("torch")
    run(refuse_torch, RANKS)
