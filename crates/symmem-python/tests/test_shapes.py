"""Shapes are part of what ranks agree on, in every collective of the numpy interface; torch's compares numbers of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem

Call = Callable[[Any, Any], Any]

#: Every collective of a group on an array, called with arrays of other shapes of as many elements.
GROUP_CALLS: dict[str, Call] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "all_reduce_start": lambda group, x: group.all_reduce_start(x).wait(),
    "reduce": lambda group, x: group.reduce(x),
    "reduce_start": lambda group, x: group.reduce_start(x).wait(),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "reduce_scatter_start": lambda group, x: group.reduce_scatter_start(x).wait(),
    "scan": lambda group, x: group.scan(x),
    "scan_start": lambda group, x: group.scan_start(x).wait(),
    "exclusive_scan": lambda group, x: group.exclusive_scan(x),
    "exclusive_scan_start": lambda group, x: group.exclusive_scan_start(x).wait(),
    "all_gather": lambda group, x: group.all_gather(x),
    "all_gather_start": lambda group, x: group.all_gather_start(x).wait(),
    "broadcast": lambda group, x: group.broadcast(x),
    "broadcast_start": lambda group, x: group.broadcast_start(x).wait(),
    "all_to_all": lambda group, x: group.all_to_all(x),
    "all_to_all_start": lambda group, x: group.all_to_all_start(x).wait(),
    "gather": lambda group, x: group.gather(x),
    "scatter": lambda group, x: group.scatter(np.concatenate([x, x]), 0, np.empty_like(x)),
}
#: Those that ranks call with arrays that differ, or with none, or that are another's with other names.
GROUP_OTHERS = {"all_to_all_v", "all_gather_object", "broadcast_object", "barrier", "barrier_start", "clone", "local"}
GROUP_OTHERS |= {"all_gather_v", "all_gather_v_start", "gather_v", "gather_v_start", "scatter_v", "scatter_v_start"}
#: These have shapes of matrices: rows of as many columns, which are 6 everywhere. Of a group, or of symmetric memory.
FUSED: dict[str, tuple[Call, Call]] = {
    "all_gather_matmul": (
        lambda group, x: group.all_gather_matmul(x, ones(6, 2)),
        lambda mem, x: mem.all_gather_matmul(ones(6, 2)),
    ),
    "all_gather_columns_matmul": (
        lambda group, x: group.all_gather_columns_matmul(x, ones(12, 2)),
        lambda mem, x: mem.all_gather_columns_matmul(ones(12, 2)),
    ),
    "matmul_reduce_scatter": (
        lambda group, x: group.matmul_reduce_scatter(x, ones(6, 6)),
        lambda mem, x: mem.matmul_reduce_scatter(x, ones(6, 6)),
    ),
    "matmul_reduce_scatter_columns": (
        lambda group, x: group.matmul_reduce_scatter_columns(x, ones(6, 6)),
        lambda mem, x: mem.matmul_reduce_scatter_columns(x, ones(6, 6)),
    ),
    "all_reduce_rms_norm": (
        lambda group, x: group.all_reduce_rms_norm(x, np.zeros_like(x), ones(6)),
        lambda mem, x: mem.all_reduce_rms_norm(np.zeros_like(x), ones(6)),
    ),
}
GROUP_OTHERS |= set(FUSED) | {"atomics", "from_env", "from_torch", "isend", "irecv", "_refuse"}
#: Refused on all ranks: they have no started form.
NOT_STARTED = {"gather_start", "scatter_start"}
GROUP_OTHERS |= {"subgroup", "survivors", "split", "gather_object", "scatter_object", "reduce_object", "all_reduce_object"}

MEMORY_CALLS: dict[str, Call] = {
    "all_reduce": lambda mem, out: mem.all_reduce(),
    "all_reduce_start": lambda mem, out: mem.all_reduce_start().wait(),
    "reduce": lambda mem, out: mem.reduce(),
    "reduce_start": lambda mem, out: mem.reduce_start().wait(),
    "reduce_scatter": lambda mem, out: mem.reduce_scatter(),
    "reduce_scatter_start": lambda mem, out: mem.reduce_scatter_start().wait(),
    "scan": lambda mem, out: mem.scan(),
    "scan_start": lambda mem, out: mem.scan_start().wait(),
    "exclusive_scan": lambda mem, out: mem.exclusive_scan(),
    "exclusive_scan_start": lambda mem, out: mem.exclusive_scan_start().wait(),
    "all_gather": lambda mem, out: mem.all_gather(),
    "all_gather_start": lambda mem, out: mem.all_gather_start().wait(),
    "broadcast": lambda mem, out: mem.broadcast(),
    "broadcast_start": lambda mem, out: mem.broadcast_start().wait(),
    "all_to_all": lambda mem, out: mem.all_to_all(),
    "all_to_all_start": lambda mem, out: mem.all_to_all_start().wait(),
    "gather": lambda mem, out: mem.gather(),
    "scatter": lambda mem, out: mem.scatter(),
    "all_to_all_v": lambda mem, out: mem.all_to_all_v([1, 1], out),
}
MEMORY_OTHERS = {"barrier", "close", "all_gather_v", "all_gather_v_start", "gather_v", "gather_v_start"}
MEMORY_OTHERS |= set(FUSED) | {"scatter_v", "scatter_v_start"}

SHAPES = [(4, 6), (8, 3)]
MISMATCH = r"rank 0: \(4, 6\) x float64; rank 1: \(8, 3\) x float64"


#: Of as many rows of 6.
ROWS = [(4, 6), (2, 2, 6)]


def ones(*shape: int) -> Any:
    return np.ones(shape, "float32")


def collectives_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if (getattr(kind, name).__doc__ or "").startswith(("Collective", "Starts"))}


def test_every_collective_has_a_row() -> None:
    assert collectives_of(symmem.Group) - GROUP_OTHERS - NOT_STARTED == set(GROUP_CALLS)
    assert collectives_of(symmem.SymmetricMemory) - MEMORY_OTHERS - NOT_STARTED == set(MEMORY_CALLS)


def private(group: symmem.Group, name: str) -> None:
    before = np.arange(24.0)
    x = before.reshape(SHAPES[group.rank]).copy()
    # A scatter has a part for each rank.
    seen = r"rank 0: \(8, 6\) x float64; rank 1: \(16, 3\) x" if name == "scatter" else MISMATCH
    with pytest.raises(symmem.Mismatch, match=seen) as caught:
        GROUP_CALLS[name](group, x)
    assert x.reshape(-1).tolist() == before.tolist()
    assert caught.value.op == name.removesuffix("_start")
    # Asked for, it goes by the number of elements; and they are still in step.
    GROUP_CALLS[name](group.any_shape(), x)
    assert group.all_reduce(np.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", GROUP_CALLS)
def test_private_arrays_of_other_shapes_are_a_mismatch(threads: Any, name: str) -> None:
    threads(private, 2, name)


def symmetric(group: symmem.Group, name: str) -> None:
    x = symmem.empty(*SHAPES[group.rank], dtype="float64")
    x[:] = group.rank + 1
    mem = symmem.rendezvous(x, group)
    mem.barrier()
    with pytest.raises(symmem.Mismatch, match=MISMATCH):
        MEMORY_CALLS[name](mem, np.empty((8, 6)))
        # What is small and goes one way may tell who gives in its next operation.
        assert name.removesuffix("_start") in ("reduce", "broadcast") and group.rank == ("reduce" in name)
        mem.barrier()
    mem.barrier()
    assert x.numpy().min() == x.numpy().max() == group.rank + 1
    loose = symmem.rendezvous(x, group.any_shape())
    if name != "all_to_all_v":  # whose rows must be as long
        MEMORY_CALLS[name](loose, None)
    mem.barrier()


@pytest.mark.parametrize("name", MEMORY_CALLS)
def test_symmetric_arrays_of_other_shapes_are_a_mismatch(threads: Any, name: str) -> None:
    threads(symmetric, 2, name)


def fused(group: symmem.Group, name: str) -> None:
    of_group, of_memory = FUSED[name]
    x = symmem.empty(*ROWS[group.rank], dtype="float32")
    x[:] = 1.0
    loose_group = group.any_shape()
    mem, private = symmem.rendezvous(x, group), np.array(x)
    # As a workspace it may have any shape of its own.
    calls = {"private": lambda: of_group(group, private), "symmetric": lambda: of_group(group, x), "handle": lambda: of_memory(mem, private)}
    for kind, call in calls.items():
        with pytest.raises(symmem.Mismatch, match=r"rank 0: .*\(4, 6\) x float32; rank 1: .*\(2, 2, 6\) x float32") as caught:
            call()
            raise AssertionError(f"{kind} went well")
        assert caught.value.op == name
    # What is in a workspace means nothing.
    assert "scatter" in name or (np.asarray(x) == 1).all()
    # Asked for, it goes by rows and columns; and they are still in step.
    loose = symmem.rendezvous(x, loose_group)
    found = [of_group(loose_group, private), of_memory(loose, private)]
    assert found[0].shape == found[1].shape and np.array_equal(*found) and np.all(found[0] > 0.5)
    # Other shapes of as many elements are none of as many rows.
    other = ones(*[(4, 6), (8, 3)][group.rank])
    with pytest.raises(symmem.Error):
        of_group(loose_group, other)
    mem.barrier()


@pytest.mark.parametrize("name", FUSED)
def test_fused_operations_compare_the_shape_of_rows_too(threads: Any, name: str) -> None:
    threads(fused, 2, name)


def own_row(group: symmem.Group) -> None:
    """One row is another shape than a row in a matrix, whatever the workspace looks like that some rank has made."""
    for _ in range(2):
        with pytest.raises(symmem.Mismatch, match=r"rank 0: .*6 x float32; rank 1: .*\(1, 6\) x float32"):
            group.all_reduce_rms_norm(ones(*[(6,), (1, 6)][group.rank]), ones(*[(6,), (1, 6)][group.rank]), ones(6))
        mine = group if group.rank else group.any_shape()
        mine.any_shape().all_reduce_rms_norm(ones(*[(6,), (1, 6)][group.rank]), ones(*[(6,), (1, 6)][group.rank]), ones(6))


def test_a_row_is_no_matrix(threads: Any) -> None:
    threads(own_row, 2)


def counted(group: symmem.Group) -> None:
    with pytest.raises(symmem.Mismatch, match="rank 0: 4 x float64; rank 1: 5 x float64"):
        group.all_reduce(np.ones(4 + group.rank))
    with pytest.raises(symmem.Mismatch, match=r"rank 0: \(\) x int32; rank 1: 1 x int32"):
        group.all_reduce(np.ones((1,) * group.rank, dtype="int32"))
    with pytest.raises(symmem.Mismatch, match=r"rank 0: \(3, 2\) x float32; rank 1: 6 x float32"):
        group.all_reduce(np.ones(3, dtype="complex64") if group.rank == 0 else np.ones(6, dtype="float32"))
    with pytest.raises(symmem.Mismatch, match="rank 0: sum, 3 x float32; rank 1: max, 3 x float32"):
        group.all_reduce(np.ones(3, dtype="float32"), ["sum", "max"][group.rank])
    with pytest.raises(symmem.Mismatch, match="rank 0: 3 x float32; rank 1: 3 x int32"):
        group.all_reduce(np.ones(3, dtype=["float32", "int32"][group.rank]))
    with pytest.raises(symmem.Mismatch, match="rank 0: 3 x float64, root 0; rank 1: 3 x float64, root 1"):
        group.broadcast(np.ones(3), group.rank)
    with pytest.raises(symmem.Mismatch, match=r"the operation: rank 0: .*all_reduce.*; rank 1: .*barrier") as caught:
        group.barrier() if group.rank else group.all_reduce(np.ones(3))
    for word in ("push", "pipelined", "memory 0", "f64", "0.0ns"):
        assert word not in str(caught.value)


def test_a_mismatch_shows_arrays(run: Any) -> None:
    run(counted, 2)


def test_torch_compares_numbers_of_elements(threads: Any) -> None:
    torch = pytest.importorskip("torch")
    import symmem.torch as symm_mem

    def main(group: symmem.Group) -> None:
        x = symm_mem.empty(24).view(SHAPES[group.rank]).fill_(1.0)
        symm_mem.rendezvous(x, group)
        symm_mem.two_shot_all_reduce_(x, "sum", group)
        assert torch.equal(x, torch.full(SHAPES[group.rank], 2.0))

    threads(main, 2)
