"""The fused operators on CPU tensors: fused and unfused ways give what float64 has, with torch's shapes, strides and types."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem.torch import _host_products as host  # noqa: E402
from symmem.torch.operators import fused  # noqa: E402

#: How much one rounding may change a number, relatively.
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def choose(*types: torch.dtype) -> None:
    """From now on the ranks of this process want products of these types fused, whatever processor this is."""
    host._agreed.clear()
    host.wanted = lambda: frozenset(types)


def calls_of(group: symmem.Group) -> list[str]:
    """Names of the fused calls that are made from now on, in order."""
    made: list[str] = []
    usual = host.resolve

    class Noted:
        def __init__(self, group: symmem.Group) -> None:
            self.group = group

        def __getattr__(self, name: str) -> Any:
            if "matmul" in name:
                made.append(name)
            return getattr(self.group, name)

    host.resolve = lambda name: Noted(usual(name))  # type: ignore[assignment, return-value]
    return made


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1).to(dtype)


def near(found: torch.Tensor, right: torch.Tensor, most: torch.Tensor, dtype: torch.dtype, roundings: int) -> None:
    assert found.shape == right.shape and found.dtype == dtype and found.is_contiguous()
    assert found.stride() == torch.empty(found.shape).stride()
    bound = most * (1e-6 + (roundings - 1) * ROUNDING[dtype]) + right.abs() * ROUNDING[dtype] + 6e-8
    assert ((found.double() - right).abs() <= bound).all(), (found, right)


def gathered(rank: int, shape: tuple[int, ...], dim: int, dtype: torch.dtype, roundings: int) -> None:
    name, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    shards = [noise(shape, each, dtype) for each in range(ranks)]
    whole = torch.cat(shards, dim)
    Bs = [noise((whole.shape[-1], n), 10 * n, dtype) for n in (5, 1)]
    Bs.append(noise((3, whole.shape[-1]), 7, dtype).t())
    # Also strided, and in symmetric memory.
    symmetric = symm_mem.empty(*shape, dtype=dtype).copy_(shards[rank])
    for A in (shards[rank], shards[rank].movedim(dim, 0).contiguous().movedim(0, dim), symmetric):
        for return_A in (False, True):
            found, products = torch.ops.symmem.fused_all_gather_matmul(A, Bs, dim, name, return_A=return_A)
            assert (found is not None) == return_A and len(products) == len(Bs)
            if found is not None:
                assert torch.equal(found, whole) and found.stride() == whole.stride()
            for product, B in zip(products, Bs, strict=True):
                right, most = whole.double() @ B.double(), whole.double().abs() @ B.double().abs()
                near(product, right, most, dtype, 1)


def scattered(rank: int, shape: tuple[int, ...], dim: int, dtype: torch.dtype, roundings: int) -> None:
    name, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    sides = [(noise(shape, each, dtype), noise((shape[-1], 6 * ranks), 10 + each, dtype)) for each in range(ranks)]
    A, B = sides[rank]
    for op, share in (("sum", 1.0), ("avg", 1 / ranks)):
        for given in (A, A.movedim(dim, 0).contiguous().movedim(0, dim)):
            found = torch.ops.symmem.fused_matmul_reduce_scatter(given, B.t().contiguous().t(), op, dim, name)
            right = sum(a.double() @ b.double() for a, b in sides) * share
            most = sum(a.double().abs() @ b.double().abs() for a, b in sides) * share
            right, most = (each.chunk(ranks, dim)[rank] for each in (right, most))
            near(found, right, most, dtype, roundings)


def both(rank: int) -> list[str]:
    ranks = dist.get_world_size()
    made = calls_of(host.resolve(dist.group.WORLD.group_name))
    for fused in (True, False):
        choose(*(host.TYPES if fused else ()))
        made.clear()
        for dtype in host.TYPES:
            # Unfused, each rank's product is rounded, and then their sum.
            roundings = 1 if fused else 3
            for shape, dim in [((3, 8), 0), ((3, 8), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((1, 1, 1), 1), ((40, 130), 0)]:
                gathered(rank, shape, dim, dtype, roundings)
            for shape, dim in [((3, 8), 0), ((3, 8), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((40, 130), 0)]:
                sides = list(shape)
                if dim < len(shape) - 1:
                    sides[dim] *= ranks
                scattered(rank, tuple(sides), dim, dtype, roundings)
        assert bool(made) == fused
        if fused:
            names = set(made)
    return sorted(names)


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_ways_give_the_products(ranks: int) -> None:
    names = ["all_gather_columns_matmul", "all_gather_matmul", "matmul_reduce_scatter", "matmul_reduce_scatter_columns"]
    assert run(both, ranks) == [names] * ranks


def scaled_gather(rank: int, fused: bool) -> None:
    name, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    for shape, dim in [((3, 8), 0), ((2, 3, 8), 0), ((2, 3, 8), 1), ((1, 4), 0), ((2, 6), 1)]:
        shards = [noise(shape, each, torch.float32) for each in range(ranks)]
        rows = [noise((*shape[:-1], 1), 50 + each, torch.float32) + 2 for each in range(ranks)]
        whole, scales = torch.cat(shards, dim), torch.cat(rows, dim)
        Bs = [noise((whole.shape[-1], n), n, torch.float32) for n in (5, 2, 3)]
        B_scales = [torch.tensor(3.0), noise((1, 2), 1, torch.float32), torch.tensor([[0.5]])]
        biases = [None, noise((2,), 2, torch.float32), noise((3,), 3, torch.float32)]
        results = [torch.tensor(2.0), None, torch.tensor(0.25)]
        types = [torch.float32, torch.bfloat16, None]
        modes = {"tensor": (torch.tensor(0.5), torch.tensor(0.5))}
        if dim < len(shape) - 1:
            modes |= {"rows": (rows[rank], scales), "all rows": (scales, scales)}
        for given, scale in modes.values():
            found, products = torch.ops.symmem.fused_all_gather_scaled_matmul(
                shards[rank], Bs, given, B_scales, dim, name, biases, results, types, [False] * 3
            )
            assert torch.equal(found, whole) and len(products) == 3
            for product, B, B_scale, bias, result, dtype in zip(products, Bs, B_scales, biases, results, types, strict=True):
                a, b = whole.double() * scale, B.double() * B_scale
                right, most = a @ b, a.abs() @ b.abs()
                if bias is not None:
                    right, most = right + bias, most + bias.abs()
                if result is not None:
                    right, most = right * result, most * result
                near(product, right, most, dtype or torch.float32, 1)


def scaled_scatter(rank: int, fused: bool) -> None:
    name, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    for lead, output, dim in [((4 * ranks,), None, 0), ((2, 2 * ranks), None, 1), ((4 * ranks,), [2, 2 * ranks, 6], 1), ((3,), None, 1)]:
        shape = (*lead, 7)
        sides = [(noise(shape, each, torch.float32), noise((7, 6), 10 + each, torch.float32)) for each in range(ranks)]
        rows, columns = noise((*lead, 1), 3, torch.float32) + 2, noise((1, 6), 4, torch.float32)
        for scale, bias, result in [(torch.tensor(2.0), None, None), (rows, None, torch.tensor(0.5)), (rows, noise((6,), 5, torch.float32), None)]:
            if bias is not None and dim == len(output or [*lead, 6]) - 1 and 6 % ranks:
                continue
            A, B = sides[rank]
            found = torch.ops.symmem.fused_scaled_matmul_reduce_scatter(
                A, B, scale, columns, "avg", dim, 0, name, output, bias, result, torch.bfloat16
            )
            right = sum(a.double() * scale @ (b.double() * columns) + (0 if bias is None else bias) for a, b in sides) / ranks
            most = sum(a.double().abs() * scale @ (b.double() * columns).abs() + (0 if bias is None else bias.abs()) for a, b in sides) / ranks
            if result is not None:
                right, most = right * result, most * result
            right, most = (each.view(output or right.shape).chunk(ranks, dim)[rank] for each in (right, most))
            near(found, right, most, torch.bfloat16, 1 if fused else 3)


def scaled(rank: int) -> list[str]:
    made = calls_of(host.resolve(dist.group.WORLD.group_name))
    for fused in (True, False):
        choose(*(host.TYPES if fused else ()))
        made.clear()
        scaled_gather(rank, fused)
        scaled_scatter(rank, fused)
        assert bool(made) == fused
        if fused:
            names = set(made)
    return sorted(names)


@pytest.mark.parametrize("ranks", [2, 3])
def test_scales_biases_and_types_are_heeded_both_ways(ranks: int) -> None:
    assert run(scaled, ranks) == [["all_gather_matmul", "matmul_reduce_scatter", "matmul_reduce_scatter_columns"]] * ranks


def own_biases(rank: int) -> None:
    """Row-parallel layers: each rank's bias and scale are its own, so it may have one or not, and is never asked for the others' sake."""
    name, one = dist.group.WORLD.group_name, torch.tensor(1.0)
    sides = [(noise((8, 7), each, torch.float32), noise((7, 6), 10 + each, torch.float32)) for each in range(2)]
    A, B = sides[rank]
    # Of rank 0: what it adds, and by what it multiplies. Rank 1 has neither, or both.
    numbers = [(noise((6,), 5, torch.float32), None), (None, torch.tensor(0.5)), (None, noise((1, 6), 6, torch.float32)), (torch.ones(1), torch.ones(6) * 3)]
    made = calls_of(host.resolve(name))
    for fused in (True, False):
        choose(*(host.TYPES if fused else ()))
        for bias, scale in numbers:
            for theirs in ((None, None), (noise((1, 6), 7, torch.float32), torch.tensor(2.0))):
                for dim in (0, 1):
                    mine = [(bias, scale), theirs][rank]
                    found = torch.ops.symmem.fused_scaled_matmul_reduce_scatter(A, B, one, one, "sum", dim, 0, name, None, *mine, torch.float32)
                    right, most = torch.zeros(8, 6).double(), torch.zeros(8, 6).double()
                    for (a, b), (added, times) in zip(sides, [(bias, scale), theirs], strict=True):
                        added, times = (torch.tensor(float(default)) if each is None else each for each, default in ((added, 0), (times, 1)))
                        right += (a.double() @ b.double() + added) * times
                        most += (a.double().abs() @ b.double().abs() + added.abs()) * times.abs()
                    near(found, right.chunk(2, dim)[rank], most.chunk(2, dim)[rank], torch.float32, 1)
        assert bool(made) == fused
        made.clear()


def test_a_bias_of_one_rank_only_is_added_both_ways() -> None:
    run(own_biases, 2)


def left_alone(rank: int) -> None:
    """What symmem does not multiply goes as before."""
    name = dist.group.WORLD.group_name
    made = calls_of(host.resolve(name))
    choose(*host.TYPES)
    for dtype in (torch.float64, torch.int32):
        A, B = torch.full((2, 3), rank + 1, dtype=dtype), torch.ones(3, 4, dtype=dtype)
        whole, [product] = torch.ops.symmem.fused_all_gather_matmul(A, [B], 0, name)
        assert whole[:, 0].tolist() == [1, 1, 2, 2] and product[:, 0].tolist() == [3, 3, 6, 6]
        assert torch.ops.symmem.fused_matmul_reduce_scatter(A, B, "sum", 0, name).tolist() == [[9] * 4]
    for rows, depth in ((0, 3), (2, 0)):
        whole, [product] = torch.ops.symmem.fused_all_gather_matmul(torch.ones(rows, depth), [torch.ones(depth, 4)], 0, name)
        assert whole.shape == (2 * rows, depth) and product.shape == (2 * rows, 4) and not product.any()
        part = torch.ops.symmem.fused_matmul_reduce_scatter(torch.ones(rows, depth), torch.ones(depth, 4), "avg", 0, name)
        assert part.shape == (rows // 2, 4) and not part.any()
    assert torch.ops.symmem.fused_all_gather_matmul(torch.ones(2, 3), [], 0, name)[1] == []
    # Here all columns are wanted.
    torch.ops.symmem.fused_all_gather_matmul(torch.ones(2, 3), [torch.ones(6, 2)], 1, name)
    assert not made


def test_what_is_not_multiplied_goes_as_before() -> None:
    run(left_alone, 2)


def refused(rank: int) -> None:
    """A wrong argument of one rank is an error of all, at once, and they go on."""
    name = dist.group.WORLD.group_name
    choose(*host.TYPES)
    A, B, wrong = torch.ones(4, 3), torch.ones(3, 2), rank == 1
    scatter, gather = torch.ops.symmem.fused_matmul_reduce_scatter, torch.ops.symmem.fused_all_gather_matmul

    def scale_of(scale: torch.Tensor, biases: Any = (None,), by: Any = torch.ops.symmem) -> Any:
        one = torch.tensor(1.0)
        return by.fused_all_gather_scaled_matmul(
            A, [B], scale, [one], 0, name, list(biases), [None], [None], [False]
        )

    def scaled(dim: int, other: int = 0, B: torch.Tensor = B, shape: list[int] | None = None, bias: Any = None) -> Any:
        one = torch.tensor(1.0)
        return torch.ops.symmem.fused_scaled_matmul_reduce_scatter(A, B, one, one, "sum", dim, other, name, shape, bias)

    calls: list[tuple[Any, str]] = [
        (lambda: gather(A, [torch.ones(5, 2) if wrong else B], 0, name), r"cannot be multiplied \(4x3 and 5x2\)"),
        (lambda: gather(A, [B.double() if wrong else B], 0, name), "same dtype"),
        (lambda: gather(A, [torch.ones(3, 2) if wrong else torch.ones(6, 2)], 1, name, return_A=False), r"\(4x6 and 3x2\)"),
        (lambda: scatter(A, torch.ones(5, 2) if wrong else B, "sum", 0, name), "cannot be multiplied"),
        (lambda: scatter(A, B, "max" if wrong else "sum", 0, name), "reduce_op must be sum or avg, not max"),
        (lambda: scatter(A[: 4 - wrong], B, "sum", 0, name), "a side of 3 must be divisible by the 2 ranks"),
        (lambda: gather(A, [B], 2 if wrong else 0, name), "Invalid gather_dim: 2 of 2"),
        (lambda: scatter(A, B, "sum", 2 if wrong else 0, name), "Invalid scatter_dim: 2 of 2"),
        (lambda: scale_of(torch.ones(3 if wrong else 8, 1)), "Invalid scale shape"),
        # Not by the dispatcher, which has a kernel of its own for what is on no device.
        (lambda: scale_of(torch.ones(4, 1, device="meta" if wrong else "cpu"), by=fused), "Invalid scale: it is on meta"),
        (lambda: scale_of(torch.ones(4, 1), [None] * (1 + wrong)), "must be that of the lists"),
        (lambda: scatter(A, torch.ones(3, 2 + wrong), "sum", 1, name), "a side of 3 must be divisible by the 2 ranks"),
        (lambda: scaled(-1 if wrong else 1), "Invalid orig_scatter_dim: -1 of 2"),
        (lambda: scaled(2 if wrong else 1), "Invalid orig_scatter_dim: 2 of 2"),
        (lambda: scaled(2, shape=[4, 2] if wrong else [2, 2, 2]), "Invalid orig_scatter_dim: 2 of 2"),
        (lambda: scaled(1, -1 if wrong else 1), "Invalid scatter_dim_after_maybe_reshape: -1 of 2"),
        (lambda: scaled(1, B=torch.ones(3) if wrong else B), "B must be a matrix"),
        (lambda: scaled(0, shape=[3, 2] if wrong else [4, 2]), "invalid for input of size 12"),
        (lambda: scaled(0, bias=torch.ones(4, 1) if wrong else torch.ones(2)), r"Invalid shape \[4, 1\] of a bias"),
    ]
    for call, words in calls:
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()
        assert gather(A, [B], 0, name)[1][0].shape == (8, 2)
    # Nobody knows what is meant, so it is no product along the rows.
    with pytest.raises(ValueError, match="Invalid orig_scatter_dim: -1 of 2"):
        scaled(-1)
    # Unfused too, whatever the others' scales are: those of rows are gathered, others are not.
    choose()
    with pytest.raises((RuntimeError, ValueError), match="Invalid orig_scatter_dim: -1 of 2"):
        scaled(-1 if wrong else 1)
    with pytest.raises(RuntimeError, match="invalid for input of size 8"):
        scaled(0, shape=[3, 2] if wrong else [4, 2])
    for right in (4, 8):
        with pytest.raises((RuntimeError, ValueError), match="Invalid scale shape"):
            scale_of(torch.ones(3 if wrong else right, 1))
        assert gather(A, [B], 0, name)[1][0].shape == (8, 2)
    choose(*host.TYPES)
    with pytest.raises(RuntimeError, match="disagree"):
        gather(torch.ones(4 + wrong, 3), [B], 0, name)
    # Rank 1 would not fuse them, so nobody does.
    choose(*([] if wrong else host.TYPES))
    made = calls_of(host.resolve(name))
    assert gather(A, [B], 0, name)[1][0].shape == (8, 2) and not made


def test_a_wrong_argument_is_told_and_ranks_choose_alike() -> None:
    run(refused, 2)


def unlike(rank: int) -> list[str]:
    """Ranks of which one wants everybody's rows, or no product: the same outcome on all ranks, at once, and no wrong value."""
    name, said = dist.group.WORLD.group_name, []
    for types in (host.TYPES, ()):
        for dim in (0, 1):
            shards = [torch.full((2, 4), 1.0), torch.full((2, 4), 2.0)]
            whole = torch.cat(shards, dim)
            B = noise((whole.shape[1], 3), 1, torch.float32)
            for Bs, return_A in (([B], rank == 0), ([B] * rank, False), ([B] * rank, rank == 1)):
                choose(*types)
                try:
                    rows, products = torch.ops.symmem.fused_all_gather_matmul(shards[rank], Bs, dim, name, return_A=return_A)
                    assert (rows is not None) == return_A and len(products) == len(Bs)
                    assert rows is None or torch.equal(rows, whole)
                    assert all(torch.allclose(product, whole @ B) for product in products)
                    said.append("done")
                except symmem.Error as error:
                    said.append(type(error).__name__)
    return said


def unlike_scales(rank: int) -> list[str]:
    """A scale for each row on some ranks, one of the tensor or one for everybody's rows on others: all hear of it."""
    name, said = dist.group.WORLD.group_name, []
    A, B, one = torch.ones(4, 3), torch.ones(3, 2), torch.tensor(1.0)
    scales = {"tensor": torch.tensor(2.0), "rows": torch.full((4, 1), 2.0), "all": torch.full((8, 1), 2.0)}
    for types in (host.TYPES, ()):
        for theirs, its in (("rows", "tensor"), ("tensor", "rows"), ("rows", "all"), ("all", "tensor"), ("all", "all")):
            choose(*types)
            try:
                scale = scales[its if rank else theirs]
                args = (A, [B], scale, [one], 0, name, [None], [None], [None], [False])
                _, (product,) = torch.ops.symmem.fused_all_gather_scaled_matmul(*args)
                assert (product == 6).all()
                said.append("done")
            except RuntimeError as error:
                assert "disagree" in str(error), error
                said.append("told")
    return said


def test_ranks_with_scales_of_different_kinds_hear_of_it() -> None:
    assert run(unlike_scales, 2, seconds=40) == [(["told"] * 4 + ["done"]) * 2] * 2


def test_ranks_that_want_different_things_hear_the_same() -> None:
    started = time.monotonic()
    theirs, its = run(unlike, 2)
    assert theirs == its and set(its) == {"done", "Mismatch"}
    assert time.monotonic() - started < 20


def forgotten(rank: int) -> None:
    name = dist.group.WORLD.group_name
    for _ in range(3):
        part = dist.new_group([0, 1])
        torch.ops.symmem.fused_matmul_reduce_scatter(torch.ones(2, 3), torch.ones(3, 4), "sum", 0, part.group_name)
        assert len(host._agreed) == 1
        dist.destroy_process_group(part)
        del part
        gc.collect()
        assert not host._agreed
    torch.ops.symmem.fused_matmul_reduce_scatter(torch.ones(2, 3), torch.ones(3, 4), "sum", 0, name)
    assert len(host._agreed) == 1


def test_what_a_group_agreed_on_goes_with_it() -> None:
    run(forgotten, 2)


def threads(rank: int) -> None:
    assert torch.get_num_threads() == 1
    assert torch.float32 in host.wanted()
    torch.set_num_threads(2)
    assert not host.wanted()


def test_more_threads_than_symmems_are_left_the_product() -> None:
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("measured on x86-64 only")
    run(threads, 1)
