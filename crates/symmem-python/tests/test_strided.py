"""Strided arrays and complex numbers in every collective: the same results, in the caller's own array, and nothing beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem

RANKS = 2
N = 4
#: What the elements between those of a strided array are.
GAP = -1

Call = Callable[[Any, Any, Any], Any]
#: Every collective that takes an array, as `call(on, x, out)`, with how many elements `out` has; 0: it works in place.
CALLS: dict[str, tuple[int, Call]] = {
    "all_reduce": (N, lambda on, x, out: on.all_reduce(x, "sum", out)),
    "all_reduce_start": (N, lambda on, x, out: on.all_reduce_start(x, "sum", out).wait()),
    "reduce": (N, lambda on, x, out: on.reduce(x, "sum", 0, out if on.rank == 0 else None)),
    "reduce_start": (N, lambda on, x, out: on.reduce_start(x, "sum", 0, out if on.rank == 0 else None).wait()),
    "reduce_scatter": (N // RANKS, lambda on, x, out: on.reduce_scatter(x, "sum", out)),
    "reduce_scatter_start": (N // RANKS, lambda on, x, out: on.reduce_scatter_start(x, "sum", out).wait()),
    "scan": (N, lambda on, x, out: on.scan(x, "sum", out)),
    "scan_start": (N, lambda on, x, out: on.scan_start(x, "sum", out).wait()),
    "exclusive_scan": (N, lambda on, x, out: on.exclusive_scan(x, "sum", out)),
    "exclusive_scan_start": (N, lambda on, x, out: on.exclusive_scan_start(x, "sum", out).wait()),
    "all_gather": (N * RANKS, lambda on, x, out: on.all_gather(x, out)),
    "all_gather_start": (N * RANKS, lambda on, x, out: on.all_gather_start(x, out).wait()),
    "all_gather_v": (N * RANKS, lambda on, x, out: on.all_gather_v(x, [N] * RANKS, out)),
    "all_gather_v_start": (N * RANKS, lambda on, x, out: on.all_gather_v_start(x, [N] * RANKS, out).wait()),
    "gather_v": (N * RANKS, lambda on, x, out: on.gather_v(x, [N] * RANKS, 0, out if on.rank == 0 else None)),
    "gather_v_start": (
        N * RANKS,
        lambda on, x, out: on.gather_v_start(x, [N] * RANKS, 0, out if on.rank == 0 else None).wait(),
    ),
    "scatter_v": (N // RANKS, lambda on, x, out: on.scatter_v(x, [N // RANKS] * RANKS, 0, out)),
    "scatter_v_start": (N // RANKS, lambda on, x, out: on.scatter_v_start(x, [N // RANKS] * RANKS, 0, out).wait()),
    "broadcast": (0, lambda on, x, out: on.broadcast(x, 1)),
    "broadcast_start": (0, lambda on, x, out: on.broadcast_start(x, 1).wait()),
    "all_to_all": (N, lambda on, x, out: on.all_to_all(x, out)),
    "all_to_all_start": (N, lambda on, x, out: on.all_to_all_start(x, out).wait()),
    "gather": (N * RANKS, lambda on, x, out: on.gather(x, 0, out if on.rank == 0 else None)),
    "scatter": (N // RANKS, lambda on, x, out: on.scatter(x, 0, out)),
    "all_to_all_v": (N, lambda on, x, out: on.all_to_all_v(x, [1, 3], out, [1 + 2 * on.rank] * 2)),
}
#: They have no started form.
WITHOUT = {"gather_start", "scatter_start"}
#: Those of matrices, which test_fused.py tries.
WITHOUT |= {"all_gather_matmul", "all_gather_columns_matmul", "all_reduce_rms_norm"}
#: Those that work in place where there is no `out`.
IN_PLACE = {"all_reduce", "all_reduce_start", "broadcast", "broadcast_start"}
#: Those that need an `out`.
OUT_ONLY = {"all_to_all_v", "scatter", "scatter_v", "scatter_v_start"}


def collectives() -> set[str]:
    """What group and handle both have and a group does with an array."""
    both = {name for name in dir(symmem.Group) if hasattr(symmem.SymmetricMemory, name) and not name.startswith("_")}
    return {name for name in both if "x" in parameters(getattr(symmem.Group, name))}


def parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters) if callable(method) else []


def test_every_collective_is_here() -> None:
    assert collectives() - WITHOUT == set(CALLS)
    assert len(CALLS) == 25


def values(rank: int, dtype: str) -> np.ndarray[Any, Any]:
    x = np.arange(N).astype(dtype) + rank
    return x + x * 1j if np.dtype(dtype).kind == "c" else x


def spread(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same elements, every other one of a larger array."""
    whole = np.full(2 * len(x), GAP, dtype=x.dtype)
    whole[::2] = x
    return whole[::2]


def gaps(x: np.ndarray[Any, Any]) -> bool:
    """Whether what lies between the elements is untouched."""
    return bool((np.asarray(x.base)[1::2] == GAP).all())


def received(name: str, size: int, rank: int) -> int:
    # Of the uneven exchange, rank 0 gets one row of each and rank 1 three.
    return 2 + 4 * rank if name == "all_to_all_v" else size


def strided_is_dense(group: symmem.Group, name: str, dtype: str) -> None:
    size, call = CALLS[name]
    size = received(name, size, group.rank)

    def run(shape: Callable[[Any], Any], with_out: bool) -> Any:
        x, out = shape(values(group.rank, dtype)), shape(np.zeros(size, dtype)) if with_out else None
        result = call(group, x, out)
        assert all(array is None or array.base is None or gaps(array) for array in (x, out))
        if with_out or name in IN_PLACE:
            assert result is None or result is (out if with_out else x)
        assert result is None or result.dtype == x.dtype
        if name not in IN_PLACE or with_out:
            assert (x == values(group.rank, dtype)).all()
        return None if result is None else result.tolist()

    forms = [False] if size == 0 else [True] if name in OUT_ONLY else [True, False]
    for with_out in forms:
        dense, strided = run(lambda x: x, with_out), run(spread, with_out)
        assert dense == strided, (name, dtype, dense, strided)
        # What is strided on one rank need not be on another.
        mixed = run(spread if group.rank else (lambda x: x), with_out)
        assert dense == mixed


@pytest.mark.parametrize("name", sorted(CALLS))
def test_strided_arrays_are_as_dense_ones(threads: Any, name: str) -> None:
    for dtype in ("float32", "int64", "complex64", "complex128"):
        threads(strided_is_dense, RANKS, name, dtype)


def test_strided_arrays_of_processes(processes: Any) -> None:
    processes(strided_is_dense, RANKS, "all_reduce", "float64")


def strided_outputs(group: symmem.Group) -> None:
    x = symmem.empty(N)
    x[:] = values(group.rank, "float32")
    mem = symmem.rendezvous(x, group)
    for name, (size, _) in CALLS.items():
        if size == 0 or name == "all_to_all_v":
            continue
        dense, out = np.zeros(size, "float32"), spread(np.zeros(size, "float32"))
        counts = {"counts": [min(size, N)] * RANKS} if "_v" in name else {}
        for target in (dense, out):
            done = getattr(mem, name)(out=target, **counts)
            done = done.wait() if name.endswith("_start") else done
            assert done is target or done is None
        assert (dense == out).all() and gaps(out), name
    rows, out = np.zeros(N, "float32"), spread(np.zeros(N, "float32"))
    assert mem.all_to_all_v([2, 2], rows) == mem.all_to_all_v([2, 2], out)
    assert (rows == out).all() and gaps(out)
    # A peer may be reading its own memory.
    theirs = mem.get_buffer(group.next, (N,), "float32").numpy()
    for part in (theirs[::2], theirs[1::2]):
        with pytest.raises(symmem.Error, match="memory of rank"):
            mem.reduce_scatter(out=part)


def test_handles_write_strided_outputs(threads: Any) -> None:
    threads(strided_outputs, RANKS)


def shapes(group: symmem.Group) -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert group.all_reduce(x.T).tolist() == (2 * np.arange(12.0).reshape(3, 4)).T.tolist()
    assert x[2, 3] == 22, "the result is in the caller's array"
    backwards = np.arange(3.0)
    group.all_reduce(backwards[::-1])
    assert backwards.tolist() == [0, 2, 4]
    unaligned = np.frombuffer(bytearray(33), "float64", offset=1)
    unaligned[:] = 1
    assert group.all_reduce(unaligned).tolist() == [2] * 4
    fields = np.zeros(3, dtype=[("a", "f4"), ("b", "f4")])
    fields["b"] = group.rank
    group.broadcast(fields["b"], 1)
    assert fields["b"].tolist() == [1] * 3 and fields["a"].tolist() == [0] * 3
    z = np.array(1 + 2j)
    assert group.all_reduce(z, "avg") is z and z == 1 + 2j
    assert group.all_gather(np.array([[1j], [2]])).shape == (4, 1)


def test_shapes(threads: Any) -> None:
    threads(shapes, RANKS)


def complex_is_refused(group: symmem.Group) -> None:
    z = np.ones(4, "complex64")
    for op in ("min", "max", "prod", "and", "or", "xor"):
        for call in (group.all_reduce, group.reduce, group.reduce_scatter, group.scan):
            with pytest.raises(symmem.Invalid, match="complex numbers"):
                call(z, op)
    with pytest.raises(TypeError, match="no elements of"):
        symmem.empty(2, dtype="complex64")
    x = symmem.empty(4)
    mem = symmem.rendezvous(x, group)
    for out in (np.zeros(2, "complex64"), np.zeros(4, "complex64")):
        with pytest.raises(symmem.Invalid, match="complex64"):
            mem.all_reduce(out=out)
        with pytest.raises(TypeError, match="complex64"):
            mem.get(0, 0, out)
        with pytest.raises(symmem.Invalid, match="complex64, those of the input float32"):
            group.all_reduce(np.ones(len(out), "float32"), out=out)
    with pytest.raises(TypeError, match="complex64"):
        symmem.rendezvous(x.numpy().view("complex64"), group)


def test_complex_numbers_are_refused_elsewhere(threads: Any) -> None:
    threads(complex_is_refused, 1)


def torchs(group: symmem.Group) -> None:
    torch = pytest.importorskip("torch")
    t = torch.ones(3, 4).T.requires_grad_()
    assert group.all_reduce(t) is t and (t == 2).all()
    conjugated = torch.full((3,), 1 + 1j).conj()
    group.all_reduce(conjugated)
    assert (conjugated == 2 - 2j).all()
    out = torch.zeros(2, 6, dtype=torch.complex64)[:, ::3]
    group.all_gather(torch.full((1, 2), group.rank + 1j), out)
    assert out.tolist() == [[1j, 1j], [1 + 1j, 1 + 1j]]
    assert group.all_gather(torch.ones(2, dtype=torch.complex128)).dtype is torch.complex128


def test_tensors(threads: Any) -> None:
    pytest.importorskip("torch")
    threads(torchs, RANKS)


@pytest.mark.parametrize("given", [[1.0, 2.0], (1, 2), 3.0, 4])
def test_numbers_are_told_to_become_arrays(threads: Any, given: Any) -> None:
    def main(group: symmem.Group) -> None:
        for name in ("all_reduce", "all_gather", "broadcast", "reduce"):
            with pytest.raises(TypeError, match=r"not \w+. Hint: pass numpy.asarray\(x\)"):
                getattr(group, name)(given)

    threads(main, 1)


class Jaxs:
    """What symmem sees of an array of jax: DLPack's capsule of memory that may not be written."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x.copy()
        self.x.flags.writeable = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def test_a_read_only_array_is_told_of_out(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        symmetric = np.asarray(symmem.empty(4))
        symmem.rendezvous(symmetric, group)
        symmetric.flags.writeable = False
        for x in (Jaxs(np.ones(4)), symmetric):
            for call in (group.all_reduce, group.all_reduce_start):
                with pytest.raises(symmem.Invalid, match="read-only.*Hint: pass out="):
                    call(x)
            with pytest.raises(symmem.Invalid, match=r"read-only.*Hint: pass a writable copy, numpy.array\(x\)"):
                group.broadcast(x)
        out = np.zeros(4)
        assert group.all_reduce(Jaxs(np.ones(4)), "sum", out).tolist() == [1] * 4

    threads(main, 1)
