"""Fused products and norms of the numpy interface: against float64, fused and unfused, on symmetric and on private memory."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import symmem

#: Of an element type: numpy's, and how much one rounding may change a number, relatively.
TYPES: dict[str, tuple[Any, float]] = {
    "float32": (np.float32, 1e-6),
    "bfloat16": (ml_dtypes.bfloat16, 2**-8),
    "float16": (np.float16, 2**-11),
}
#: A rank's rows, and the columns of each weight.
GATHERS: list[tuple[tuple[int, ...], list[int]]] = [
    ((5, 7), [3, 1, 40]),
    ((1, 1), [1]),
    ((33, 400), [17]),
    ((2, 3, 24), [5]),
    ((3, 4), [0, 2]),
]
#: Rows of the product for each rank, what is added up, columns for each rank.
SCATTERS = [(5, 7, 11), (1, 1, 1), (40, 100, 35), (2, 0, 3)]


def noise(shape: tuple[int, ...], seed: int, dtype: str) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(TYPES[dtype][0])


def wide(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def near(found: Any, a: Any, b: Any, dtype: str, share: float = 1.0) -> None:
    """`found` is `a @ b * share` as float64 has it, but for one rounding and the sums' in float32."""
    a, b = wide(a), wide(b)
    right, most = a @ b * share, np.abs(a) @ np.abs(b) * share
    assert found.shape == right.shape and str(found.dtype) == dtype
    assert (np.abs(wide(found) - right) <= most * 1e-6 + np.abs(right) * TYPES[dtype][1] + 6e-8).all()


def same_bits(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def symmetric(group: symmem.Group, values: Any, dtype: str) -> symmem.SymmetricMemory:
    x = symmem.empty(*values.shape, dtype=dtype)
    np.asarray(x)[...] = values
    return symmem.rendezvous(x, group)


def gather_rows(group: symmem.Group, dtype: str) -> None:
    for shape, columns in GATHERS:
        parts = [noise(shape, rank, dtype) for rank in range(group.size)]
        mine, whole = parts[group.rank], np.concatenate(parts)
        mem = symmetric(group, mine, dtype)
        # The weights of a rank are its own.
        weights = [noise((shape[-1], n), 100 * n + group.rank, dtype) for n in columns]
        rows = np.empty_like(whole)
        found = mem.all_gather_matmul(weights, rows=rows)
        assert isinstance(found, list)
        same_bits(rows, whole)
        for out, weight in zip(found, weights, strict=True):
            near(out, whole, weight, dtype)
        outs = [np.empty_like(out) for out in found]
        ways: list[Any] = [
            mem.all_gather_matmul(weights, fused=False),
            mem.all_gather_matmul(tuple(weights), outs, fused=False),
            group.all_gather_matmul(mem.local(), weights),
            group.all_gather_matmul(mine, weights, rows=rows),
            symmem.all_gather_matmul(mine, weights, group, fused=False),
            [mem.all_gather_matmul(weight) for weight in weights],
            # Strided on all sides.
            group.all_gather_matmul(np.repeat(mine, 2, axis=-1)[..., ::2], [np.asfortranarray(weight) for weight in weights]),
        ]
        for way in ways:
            for one, other in zip(way, found, strict=True):
                same_bits(one, other)
        assert all(one is other for one, other in zip(mem.all_gather_matmul(weights, outs), outs, strict=True))
        strided = np.zeros((*found[0].shape, 2), found[0].dtype)[..., 0]
        same_bits(np.ascontiguousarray(mem.all_gather_matmul(weights[0], strided)), found[0])
        mem.close()


def gather_columns(group: symmem.Group, dtype: str) -> None:
    for shape, columns in GATHERS:
        parts = [noise(shape, rank, dtype) for rank in range(group.size)]
        mine, whole = parts[group.rank], np.concatenate(parts, axis=-1)
        mem = symmetric(group, mine, dtype)
        weights = [noise((whole.shape[-1], n), n, dtype) for n in columns]
        found = mem.all_gather_columns_matmul(weights)
        for out, weight in zip(found, weights, strict=True):
            near(out, whole, weight, dtype)
        ways: list[Any] = [
            mem.all_gather_columns_matmul(weights, fused=False),
            group.all_gather_columns_matmul(mine, weights),
            [symmem.all_gather_columns_matmul(mine, weight, group) for weight in weights],
        ]
        for way in ways:
            for one, other in zip(way, found, strict=True):
                same_bits(one, other)
        mem.close()


def scatter(group: symmem.Group, dtype: str) -> None:
    world = group.size
    workspace = symmetric(group, np.zeros(world * world * 40 * 35), "float32")
    for rows, depth, columns in SCATTERS:
        for lead in ((rows * world,), (rows * world, 2)):
            sides = [
                (noise((*lead, depth), rank, dtype), noise((depth, columns * world), 10 + rank, dtype)) for rank in range(world)
            ]
            a, b = sides[group.rank]
            whole_a, whole_b = np.concatenate([a for a, _ in sides], -1), np.concatenate([b for _, b in sides])
            my_rows, my_columns = (slice(group.rank * side, (group.rank + 1) * side) for side in (rows, columns))
            for op, share in (("sum", 1.0), ("avg", 1 / world)):
                found = group.matmul_reduce_scatter(a, b, op)  # type: ignore[arg-type]
                near(found, whole_a[my_rows], whole_b, dtype, share)
                same_bits(symmem.matmul_reduce_scatter(a, b, op, group, fused=False), found)  # type: ignore[arg-type]
                out = np.empty_like(found)
                if len(lead) == 1:
                    assert workspace.matmul_reduce_scatter(a, b, op, out) is out  # type: ignore[arg-type]
                    same_bits(out, found)
                found = group.matmul_reduce_scatter_columns(a, np.asfortranarray(b), op)  # type: ignore[arg-type]
                near(found, whole_a, whole_b[:, my_columns], dtype, share)
                same_bits(symmem.matmul_reduce_scatter_columns(a, b, op, group, fused=False), found)  # type: ignore[arg-type]
                if len(lead) == 1:
                    same_bits(workspace.matmul_reduce_scatter_columns(a, b, op), found)  # type: ignore[arg-type]
    workspace.close()


def norm(group: symmem.Group, dtype: str) -> None:
    rounding = TYPES[dtype][1]
    for shape in [(1, 1), (3, 17), (2, 4, 64), (70, 1030)]:
        mine = noise(shape, group.rank, dtype)
        mem = symmetric(group, mine, dtype)
        before, weight = noise(shape, 50, dtype), noise(shape[-1:], 51, dtype)
        residual = before.copy()
        out = mem.all_reduce_rms_norm(residual, weight, 1e-5)
        summed = group.all_reduce(mine.copy())
        same_bits(residual, (summed.astype("float32") + before.astype("float32")).astype(TYPES[dtype][0]))
        right = wide(residual) / np.sqrt((wide(residual) ** 2).mean(-1, keepdims=True) + 1e-5) * wide(weight)
        assert (np.abs(wide(out) - right) <= np.abs(right) * (rounding + 1e-6) + 6e-8).all()
        assert all(theirs == out.tobytes() for theirs in group.all_gather_object(out.tobytes()))
        again = before.copy()
        same_bits(symmem.all_reduce_rms_norm(mine, again, weight, 1e-5, group), out)
        same_bits(again, residual)
        same_bits(np.asarray(mem.local()), mine)
        mem.close()


def everything(group: symmem.Group, dtype: str) -> None:
    gather_rows(group, dtype)
    gather_columns(group, dtype)
    scatter(group, dtype)
    norm(group, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_and_norms_are_right_fused_and_unfused(run: Any, dtype: str) -> None:
    run(everything, 2, dtype)


def test_any_number_of_ranks(threads: Any) -> None:
    for ranks in (1, 3):
        threads(everything, ranks, "float32")


def tensors(group: symmem.Group) -> None:
    import torch

    x, weight = torch.full((3, 4), group.rank + 1.0, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.bfloat16).t()
    out = group.all_gather_matmul(x, weight)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16 and out[:, 0].tolist() == [4.0] * 3 + [8.0] * 3
    part = group.matmul_reduce_scatter(x[:2], weight, "avg")
    assert isinstance(part, torch.Tensor) and part.tolist() == [[6.0, 6.0]]
    shared = symmem.empty(3, 4, dtype=torch.bfloat16).torch().copy_(x)
    residual = torch.zeros(3, 4, dtype=torch.bfloat16)
    normed = symmem.rendezvous(shared, group).all_reduce_rms_norm(residual, torch.ones(4, dtype=torch.bfloat16))
    assert isinstance(normed, torch.Tensor) and (normed == 1).all() and (residual == 3).all()


def test_tensors_come_back(run: Any) -> None:
    pytest.importorskip("torch")
    run(tensors, 2)


def disagree(group: symmem.Group) -> None:
    odd = group.rank == 1
    square, wider = np.ones((4, 4), "float32"), np.ones((2, 8), "float32")
    calls: list[tuple[Any, str]] = [
        (lambda: group.all_gather_matmul(wider if odd else square, np.ones((8 if odd else 4, 1), "float32")), r"\(4, 4\) x float32"),
        (lambda: group.all_gather_matmul(square, square, fused=odd), "all_gather_matmul"),
        (lambda: group.matmul_reduce_scatter(square, square, "avg" if odd else "sum"), "rank 0: sum, .*; rank 1: avg"),
        (lambda: group.matmul_reduce_scatter(square[:2] if odd else square, square), r"rank 1: sum, \(2, 4\)|\(2, 4\) x float32"),
        (lambda: group.all_reduce_rms_norm(wider if odd else square, np.ones_like(wider if odd else square), np.ones(8 if odd else 4, "float32")), "float32"),
        (lambda: group.all_gather_matmul(square, square) if odd else group.all_gather_columns_matmul(square, np.ones((8, 1), "float32")), "operation"),
    ]
    for call, words in calls:
        with pytest.raises(symmem.Mismatch, match=words):
            call()
    # One of them has to make a workspace, and the other not: no rank waits, and they go on.
    with pytest.raises(symmem.Error):
        group.all_gather_matmul(np.ones((1 << 10 if odd else 1, 1 << 10), "float32"), np.ones((1 << 10, 1), "float32"))
    assert group.all_gather_matmul(square, square).shape == (8, 4)
    assert group.all_reduce(np.ones(1)).tolist() == [2.0]


def test_ranks_that_disagree_are_told_and_go_on(run: Any) -> None:
    run(disagree, 2)


def kept(group: symmem.Group) -> None:
    """A workspace grows, and every use ends before the next one writes it."""
    for step, rows in enumerate([1, 300, 2, 1000, 3]):
        for turn in range(5):
            x = np.full((rows, 1000), group.rank + step + turn, "float32")
            out = symmem.all_gather_matmul(x, np.ones((1000, 1), "float32"), group)
            assert out[:, 0].tolist() == [1000.0 * (step + turn)] * rows + [1000.0 * (1 + step + turn)] * rows
    with group.within(60):
        assert group.all_gather_matmul(x, np.ones((1000, 1), "float32")).shape == (6, 1)
    group.close()
    with pytest.raises(symmem.Closed):
        group.all_gather_matmul(x, np.ones((1000, 1), "float32"))


def beside(group: symmem.Group) -> None:
    """What one thread put into the group's workspace no other one writes until it was multiplied."""
    rows, depth, turns = 64, 1 << 13, 150
    start, right, busy, wrong = threading.Barrier(2), [], [], []

    def work(value: float) -> None:
        x, weights = np.full((rows, depth), value, "float32"), np.full((depth, 1), 1 / depth, "float32")
        calls = [
            lambda: group.all_gather_matmul(x, weights),
            lambda: group.all_gather_columns_matmul(x, weights),
            lambda: group.all_reduce_rms_norm(x, np.zeros_like(x), x[0].copy())[:, :1] / x[0, 0],
        ]
        start.wait()
        for turn in range(turns):
            which = turn % len(calls)
            try:
                found = calls[which]()
            except symmem.Busy as error:
                busy.append((error.op, error.rank, error.group))
                continue
            except symmem.Error as error:
                wrong.append(repr(error))
                continue
            # A norm of numbers that are all alike has ones.
            expected = 1.0 if which == 2 else value
            (right if np.allclose(found, expected, rtol=1e-3) else wrong).append((which, found[0, 0], value))

    both = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not wrong, wrong[:3]
    assert len(right) + len(busy) == 2 * turns and right
    names = {"all_gather_matmul", "all_gather_columns_matmul", "all_reduce_rms_norm"}
    assert {op for op, _, _ in busy} <= names and {(rank, name) for _, rank, name in busy} <= {(group.rank, group.name)}
    # It is given back, also by what failed.
    with pytest.raises(symmem.Invalid):
        group.all_gather_matmul(np.ones((2, 3), "float32"), np.ones((5, 1), "float32"))
    assert group.all_gather_matmul(np.ones((2, 3), "float32"), np.ones((3, 1), "float32")).tolist() == [[3.0]] * 2 * group.size


def test_a_second_thread_is_busy_and_spoils_no_product(threads: Any) -> None:
    threads(beside, 1)


def nothing(group: symmem.Group) -> None:
    """Matrices without rows or columns have products like others; rows without elements nobody can count."""
    one, none = np.ones((4, 3), "float32"), np.ones((0, 4), "float32")
    assert group.all_gather_matmul(none, one).shape == group.all_gather_columns_matmul(none, np.ones((8, 3), "float32")).shape == (0, 3)
    assert group.matmul_reduce_scatter(none, one).shape == (0, 3)
    assert group.matmul_reduce_scatter(one[:, :0], one[:0]).tolist() == [[0.0] * 3] * 2
    assert group.all_reduce_rms_norm(none, none.copy(), one[:, 0].copy()).shape == (0, 4)
    with pytest.raises(symmem.Error, match="have no columns"):
        group.all_gather_matmul(one[:, :0], one[:0])
    group.barrier()


def test_matrices_of_nothing(run: Any) -> None:
    run(nothing, 2)


def test_the_workspace_of_a_group_grows_and_is_used_again(run: Any) -> None:
    run(kept, 2)
