"""The backend "symmem": every collective gives what Gloo gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402

Tensor = torch.Tensor
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.uint8, torch.int8]
STAND_INS = {torch.bool: torch.uint8, torch.bfloat16: torch.float32, torch.complex64: torch.float32}
SHAPES = [(), (5,), (0,), (3, 4), (1000, 70)]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small whole numbers, different on every rank: every dtype sums and multiplies them without rounding."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def same(ours: Tensor, theirs: Tensor) -> None:
    if ours.dtype != theirs.dtype:
        ours = torch.real(ours).to(theirs.dtype)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def laid_out(tensor: Tensor, gaps: bool) -> Tensor:
    """The same elements, with gaps between them if asked for."""
    if not gaps:
        return tensor
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


def both(operation: Callable[[Any], list[Tensor]], gloo: Any) -> None:
    """The same operation on the default group and on Gloo's.

    Gloo gets plain tensors: it misreads strided ones.
    """
    for ours, theirs in zip(operation(None), operation(gloo), strict=True):
        same(ours, theirs)


def reductions(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    simple = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]
    bitwise = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    for dtype in FLOATS + INTS:
        for op in simple + (bitwise if dtype in INTS else []):
            for shape in SHAPES:
                for gaps in (False, True):

                    def all_reduce(group: Any) -> list[Tensor]:
                        x = laid_out(values(rank, shape, dtype), gaps and group is None)
                        dist.all_reduce(x, op, group)
                        return [x]

                    def reduce(group: Any) -> list[Tensor]:
                        x = laid_out(values(rank, shape, dtype), gaps and group is None)
                        dist.reduce(x, ranks - 1, op, group)
                        return [x] if rank == ranks - 1 else []

                    both(all_reduce, gloo)
                    both(reduce, gloo)


def moves(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]:
        for shape in SHAPES:
            for gaps in (False, True):

                def kind(group: Any) -> torch.dtype:
                    # There are types that Gloo cannot move.
                    return STAND_INS.get(dtype, dtype) if group is gloo else dtype

                def mine(group: Any) -> Tensor:
                    return laid_out(values(rank, shape, dtype).to(kind(group)), gaps and group is None)

                def outs(group: Any) -> list[Tensor]:
                    empty = torch.zeros(shape, dtype=kind(group))
                    return [laid_out(empty.clone(), gaps and group is None) for _ in range(ranks)]

                def broadcast(group: Any) -> list[Tensor]:
                    x = mine(group)
                    dist.broadcast(x, ranks - 1, group)
                    return [x]

                def all_gather(group: Any) -> list[Tensor]:
                    out = outs(group)
                    dist.all_gather(out, mine(group), group)
                    return out

                def gather(group: Any) -> list[Tensor]:
                    out = outs(group) if rank == 0 else None
                    dist.gather(mine(group), out, 0, group)
                    return out or []

                def scatter(group: Any) -> list[Tensor]:
                    parts = (
                        [values(each, shape, dtype).to(kind(group)) for each in range(ranks)]
                        if rank == 0
                        else None
                    )
                    out = outs(group)[0]
                    dist.scatter(out, parts, 0, group)
                    return [out]

                for operation in (broadcast, all_gather, gather, scatter):
                    both(operation, gloo)


def into_tensors(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    for dtype in [torch.float32, torch.bfloat16, torch.int64]:
        for rows, columns in [(1, 1), (4, 3), (0, 3), (512, 129)]:
            x = values(rank, (rows, columns), dtype)
            whole = values(rank, (rows * ranks, columns), dtype)

            gathered = torch.zeros_like(whole)
            dist.all_gather_into_tensor(gathered, x)
            expected = [torch.zeros_like(x) for _ in range(ranks)]
            dist.all_gather(expected, x, gloo)
            same(gathered, torch.cat(expected))

            total = whole.clone()
            dist.all_reduce(total, group=gloo)
            part = torch.zeros_like(x)
            dist.reduce_scatter_tensor(part, whole)
            same(part, total.chunk(ranks)[rank] if rows else part)
            part = laid_out(torch.zeros_like(x), True)
            dist.reduce_scatter(part, list(whole.view(ranks, rows, columns).unbind()))
            same(part.contiguous(), total.view(ranks, rows, columns)[rank])

            # In place: input and output are the same memory.
            gathered = torch.zeros_like(whole)
            own = gathered.view(ranks, rows, columns)[rank]
            own.copy_(x)
            dist.all_gather_into_tensor(gathered, own)
            same(gathered, torch.cat(expected))
            kept = whole.clone().view(ranks, rows, columns)
            dist.reduce_scatter_tensor(kept[rank], kept.view(whole.shape))
            same(kept[rank], total.view(ranks, rows, columns)[rank])

            swapped, theirs = torch.zeros_like(whole), torch.zeros_like(whole)
            dist.all_to_all_single(swapped, whole)
            dist.all_to_all_single(theirs, whole, group=gloo)
            same(swapped, theirs)


def uneven(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    splits = [(rank + to) % 3 for to in range(ranks)]
    received = [(source + rank) % 3 for source in range(ranks)]
    x = values(rank, (sum(splits), 5), torch.float32)

    def single(group: Any) -> list[Tensor]:
        out = torch.zeros((sum(received), 5))
        dist.all_to_all_single(out, x, received, splits, group)
        return [out]

    both(single, gloo)
    parts = list(x.split(splits))
    outs = [torch.zeros((rows, 5)) for rows in received]
    dist.all_to_all(outs, parts)
    same(torch.cat(outs), single(None)[0])


def average(rank: int, _gloo: Any) -> None:
    ranks = dist.get_world_size()
    x = torch.full((9,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    torch.testing.assert_close(x, torch.full((9,), (ranks - 1) / 2))


def coalesced(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    xs = [torch.full((4,), float(rank + each)) for each in range(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for each, x in enumerate(xs):
        same(x, torch.full((4,), float(sum(range(ranks)) + each * ranks)))
    outs = [torch.zeros(ranks * 3) for _ in range(3)]
    with dist._coalescing_manager(device=torch.device("cpu")):
        for each, out in enumerate(outs):
            dist.group.WORLD._allgather_base(out, torch.full((3,), float(rank * 10 + each)))
    for each, out in enumerate(outs):
        same(out.view(ranks, 3)[:, 0], torch.arange(ranks) * 10.0 + each)


def objects(rank: int, _gloo: Any) -> None:
    ranks = dist.get_world_size()
    mine = {"rank": rank, "words": ["symmetric"] * rank}
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, mine)
    assert [each["rank"] for each in every] == list(range(ranks))
    told = [mine, "x"] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, 1)
    assert told == [{"rank": 1, "words": ["symmetric"]}, "x"]
    gathered: list[Any] | None = [None] * ranks if rank == 0 else None
    dist.gather_object(rank**2, gathered, 0)
    assert gathered is None or gathered == [each**2 for each in range(ranks)]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"to {each}" for each in range(ranks)] if rank == 0 else None, 0)
    assert got == [f"to {rank}"]
    if rank == 0:
        dist.send_object_list([mine], 1)
    if rank == 1:
        dist.recv_object_list(got, 0)
        assert got[0]["rank"] == 0


def subgroups(rank: int, gloo: Any) -> None:
    ranks = dist.get_world_size()
    low = dist.new_group([0, 1])
    high = dist.new_group([ranks - 1, 0])
    for group, members in ((low, [0, 1]), (high, [0, ranks - 1])):
        if rank not in members:
            continue
        assert dist.get_backend(group) == "symmem"
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(members)
        dist.broadcast(x, members[1], group=group)
    if rank in (0, 1):
        dist.destroy_process_group(low)
    dist.barrier()


def single_rank(rank: int) -> None:
    x = torch.ones(3)
    dist.all_reduce(x)
    out = torch.zeros(3)
    dist.all_gather_into_tensor(out, x)
    dist.reduce_scatter_tensor(out, x)
    dist.all_to_all_single(out, x)
    dist.barrier()
    work = dist.isend(x, 0)
    dist.irecv(out, 0).wait()
    work.wait()
    assert out.tolist() == [1, 1, 1]


def complex_numbers(rank: int) -> None:
    for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX):
        with pytest.raises(symmem.Invalid):
            dist.reduce(torch.tensor([1 + 1j]), 0, op)
        with pytest.raises(symmem.Invalid):
            dist.reduce_scatter_tensor(torch.zeros(1, dtype=torch.complex64), torch.ones(2) * 1j, op)
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    dist.group.WORLD.allreduce([x]).wait()  # torch's own functions refuse it
    assert x.tolist() == [2 - 4j, 6 + 2j]
    y = torch.tensor([1 + 2j + rank]).conj()
    dist.group.WORLD.broadcast([y]).wait()
    assert y.tolist() == [1 - 2j]
    z = torch.tensor([1j + 1j * rank]).conj().imag
    dist.broadcast(z, 1)
    assert z.tolist() == [-2]


def test_complex_numbers_are_right_or_refused() -> None:
    run(complex_numbers, 2)


def _beside_gloo(rank: int, names: tuple[str, ...]) -> None:
    gloo = dist.new_group(backend="gloo")
    for name in names:
        globals()[name](rank, gloo)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "names",
    [("reductions",), ("moves",), ("into_tensors", "uneven", "average", "coalesced", "objects", "subgroups")],
)
def test_collectives_match_gloo(ranks: int, names: tuple[str, ...]) -> None:
    run(_beside_gloo, ranks, names)


def test_a_single_rank_is_a_group() -> None:
    run(single_rank, 1)
