"""What runs beside the current stream of a GPU, without one: the same code on host memory, where a stream is what this thread does next.

A barrier of the device is a barrier of the host, a copy by a copy engine is a copy. So the bytes and the meetings are those of a GPU; that streams wait
for each other is not shown here.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem.torch import _host_products as host  # noqa: E402
from symmem.torch import _ops as ops  # noqa: E402
from symmem.torch import _overlap as overlap  # noqa: E402
from symmem.torch.operators import collectives, exchange, fused  # noqa: E402


class HostMemory:
    """As `DeviceMemory`."""

    device = 0

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.meetings: list[int] = []

    def order_behind(self, stream: int) -> None:
        """There is one order only."""

    def barrier_raw(self, channel: int, stream: int) -> None:
        self.meetings.append(channel)
        self.raw.barrier(channel)

    def get_ptr(self, rank: int, start: int, to: int, bytes: int, stream: int) -> None:
        ctypes.memmove(to, self.raw.buffer_ptrs[rank] + self.raw.offset + start, bytes)


class HostStream:
    """As a stream of torch's, or an event."""

    cuda_stream = 0

    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record_event(self) -> HostStream:
        return self


def on_host(is_capturing: bool) -> str:
    """Lets `_overlap` work on host memory. The group's name."""
    kept: dict[int, HostMemory] = {}
    overlap.short_way = lambda handle: kept.setdefault(handle.buffer_ptrs[handle.rank], HostMemory(handle.raw))
    overlap.side_stream = lambda device: HostStream()
    overlap.current_stream = lambda index: 0
    overlap._is_capturing = lambda: is_capturing
    torch.cuda.current_stream = lambda device=None: HostStream()
    torch.cuda.stream = lambda stream: torch.no_grad()
    torch.Tensor.record_stream = lambda self, stream: None
    return str(dist.group.WORLD.group_name)


def gathers_and_products(rank: int, ranks: int, is_capturing: bool) -> list[int]:
    name = on_host(False)
    # Rooms are made before a capture.
    overlap.room_of(name, 1 << 16, torch.device("cpu"))
    on_host(is_capturing)
    for turn in range(20):
        shards = [torch.arange(12.0).view(3, 4) + 100 * each + turn for each in range(ranks)]
        whole, Bs = torch.cat(shards), [torch.full((4, 5), 2.0), torch.eye(4)]
        assert torch.equal(overlap.all_gather(shards[rank], name), whole)
        for rows, products in (
            overlap._products_after(shards[rank], Bs, name, True),
            overlap._products_meanwhile(shards[rank], Bs, name),
            overlap._products_after(shards[rank], Bs, name, False),
        ):
            assert torch.equal(rows, whole)
            assert all(torch.equal(product, whole @ B) for product, B in zip(products, Bs, strict=True))
        summed = torch.stack([torch.cat([each] * ranks) for each in shards]).sum(0)
        mine = torch.cat([shards[rank]] * ranks)
        part = slice(3 * rank, 3 * rank + 3)
        assert torch.equal(overlap.reduce_scatter(mine, "sum", name), summed[part])
        assert torch.equal(overlap.product_reduce_scatter(mine, Bs[1], "sum", name), summed[part])
        out = torch.full((ranks, 4), -1.0)
        size = out[0].nbytes
        overlap.fetch_parts(shards[rank], out, [(size * (turn % 3), size, size * at) for at in range(ranks)], 1 << 10, name)
        assert torch.equal(out, torch.stack([each[turn % 3] for each in shards]))
        symmetric = symm_mem.empty(3, 4, device="cpu").copy_(shards[rank])
        assert torch.equal(overlap.all_gather(symmetric, name), whole)
    return overlap.room_of(name, 1, torch.device("cpu")).memory.meetings


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("is_capturing", [False, True])
def test_rooms_are_used_in_turns(ranks: int, is_capturing: bool) -> None:
    said = run(gathers_and_products, ranks, ranks, is_capturing)
    assert all(each == said[0] for each in said), "ranks are at the same half in every meeting"
    # Of seven uses a turn six meet here, and in graphs before they write as well; the reduction meets by itself.
    assert len(said[0]) == 20 * (12 if is_capturing else 6)


def gradients(rank: int) -> None:
    name = on_host(False)
    x = torch.ones(2, 3, requires_grad=True)
    assert not overlap.all_gather(x, name).requires_grad
    rows, products = overlap.all_gather_products(x, [torch.ones(3, 2, requires_grad=True)], name, True)
    assert not rows.requires_grad and not products[0].requires_grad


def test_nothing_of_it_has_a_gradient() -> None:
    run(gradients, 1)


def out_of_step(rank: int) -> str:
    name = on_host(False)
    room = overlap.room_of(name, 1 << 10, torch.device("cpu"))
    overlap.all_gather(torch.ones(2), name)
    if rank == 1:
        # As if an exception came between the half and the meeting.
        room.half()
    try:
        overlap.all_gather(torch.ones(2), name)
    except symmem.Error as error:
        return type(error).__name__
    return "met"


def test_ranks_that_are_not_at_the_same_half_are_told() -> None:
    assert run(out_of_step, 2) == ["Mismatch", "Mismatch"]


def unlike(rank: int) -> list[str]:
    """Ranks that do not want the same of a gather, and at the end rank 0's room would have to grow."""
    name = on_host(False)
    shard, B = torch.ones(2, 3) + rank, torch.ones(3, 2)
    overlap.room_of(name, 1 << 10, torch.device("cpu"))

    def outcome_of(work: Callable[[], object]) -> str:
        try:
            work()
        except symmem.Error as error:
            return f"{type(error).__name__} in {error.op}"
        return "done"

    said = [
        outcome_of(lambda: overlap.all_gather_products(shard, [B], name, rank == 0)),
        outcome_of(lambda: overlap.all_gather_products(shard, [B] if rank == 0 else [], name, rank == 1)),
        outcome_of(lambda: overlap.all_gather_products(shard, [], name, rank == 1)),
    ]
    # Which products a rank makes is its own affair.
    overlap.all_gather_products(shard, [B] if rank == 0 else [], name, False)
    assert torch.equal(overlap.all_gather(shard, name), torch.tensor([1.0, 2.0]).repeat_interleave(6).view(4, 3))
    return [*said, outcome_of(lambda: overlap.all_gather(torch.ones((1 << 19) + 1 if rank == 0 else 2), name))]


def test_ranks_that_want_different_things_of_a_gather_are_told() -> None:
    # In a barrier, which is a kernel on a GPU: not in a rendezvous, of which a rank with a larger room would know nothing.
    assert run(unlike, 2) == [["Mismatch in barrier"] * 4] * 2


def grown(rank: int) -> list[int]:
    name = on_host(False)
    room = overlap.room_of(name, 1 << 10, torch.device("cpu"))
    large = torch.full(((1 << 19) + 1,), float(rank))
    for turn in range(3):
        assert overlap.all_gather(torch.ones(2), name).tolist() == [1.0] * 4
    meetings = room.memory.meetings
    if rank == 1:
        with pytest.raises(symmem.Invalid, match="on purpose"):
            raise overlap.refused("on purpose", name, large.nbytes, torch.device("cpu"))
    else:
        with pytest.raises(symmem.RankFailed, match="on purpose"):
            overlap.all_gather(large, name)
    assert overlap.all_gather(large, name)[-1] == 1
    assert overlap.room_of(name, 1, torch.device("cpu")) is not room
    return list(meetings)


def test_a_room_that_is_outgrown_is_left_together() -> None:
    assert run(grown, 2) == [[1, 0, 1, 1, 1]] * 2


def refused_in_a_capture(rank: int) -> None:
    name = on_host(True)
    overlap.resolve(name)
    started = time.monotonic()
    with pytest.raises(symmem.Invalid, match="a workspace of|on purpose"):
        if rank == 1:
            raise overlap.refused("on purpose", name, 1 << 10, torch.device("cpu"))
        overlap.all_gather(torch.ones(2), name)
    assert time.monotonic() - started < 10
    # So long nobody leaves, which would be an end of the wait too.
    dist.barrier()


def test_nobody_waits_for_a_room_that_a_capture_cannot_have() -> None:
    run(refused_in_a_capture, 2)


def no_memory(*_args: Any, **_kwargs: Any) -> Any:
    raise torch.OutOfMemoryError("no memory is left, on purpose")


#: What operators of this package allocate with. `mm` takes memory of its own.
ALLOCATORS = ((torch.Tensor, "new_empty"), (torch.Tensor, "contiguous"), (torch, "empty_like"), (torch, "mm"), (torch, "matmul"))


def outcome_of(work: Callable[[], object], fails_in: str) -> str:
    """What becomes of `work` where there is no memory for what is allocated by one of `ALLOCATORS`; with an empty name there is."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in ALLOCATORS if name == fails_in]
    for owner, name, _ in kept:
        setattr(owner, name, no_memory)
    try:
        work()
    except (torch.OutOfMemoryError, symmem.Error) as error:
        assert "no memory is left, on purpose" in str(error), error
        return type(error).__name__
    finally:
        for owner, name, usual in kept:
            setattr(owner, name, usual)
    return "done"


def out_of_memory(rank: int, ranks: int) -> list[tuple[str, str]]:
    name = on_host(False)
    group = overlap.resolve(name)
    shard, mine = torch.ones(3, 4), torch.ones(3 * ranks, 4)
    across, B = torch.ones(4, 3).t(), torch.ones(4, 5)
    symmetric = symm_mem.empty(3, 4, device="cpu").fill_(1)
    flat = symm_mem.empty(12, device="cpu").fill_(1)
    splits, out = torch.full((ranks,), 1, dtype=torch.int64), torch.zeros(8, 4)
    offsets = torch.zeros(2, ranks, dtype=torch.int64)
    came = torch.full((ranks, 4), -1.0)
    works: dict[str, tuple[Callable[[], object], list[str]]] = {
        "all_gather": (lambda: overlap.all_gather(shard, name), ["new_empty"]),
        "all_gather of columns": (lambda: overlap.all_gather(across, name), ["new_empty", "contiguous"]),
        "all_gather of symmetric": (lambda: overlap.all_gather(symmetric, name), ["new_empty"]),
        "reduce_scatter": (lambda: overlap.reduce_scatter(mine, "sum", name), ["new_empty"]),
        "products after, rows": (lambda: overlap._products_after(shard, [B], name, True), ["new_empty"]),
        "products after": (lambda: overlap._products_after(shard, [B], name, False), ["new_empty"]),
        "products after, symmetric": (lambda: overlap._products_after(symmetric, [B], name, False), ["new_empty"]),
        "products meanwhile": (lambda: overlap._products_meanwhile(shard, [B], name), ["new_empty"]),
        "gathered": (lambda: fused._overlapped(across, [B], 0, name, False), ["contiguous", "new_empty"]),
        "scattered": (lambda: fused._product_scattered(mine, B, "sum", 0, name), ["new_empty", "contiguous", "mm"]),
        "gather, host": (lambda: fused._gathered(across, 0, name), ["new_empty", "contiguous"]),
        "scatter, host": (lambda: fused._scattered(mine, "sum", 0, name), ["new_empty", "contiguous"]),
        "product, host": (lambda: fused.fused_matmul_reduce_scatter(mine.double(), B.double(), "sum", 0, name), ["matmul"]),
        "gather, fused": (lambda: host.all_gather_products(across, [B], 0, name, True), ["new_empty", "contiguous"]),
        "scatter, fused": (lambda: host.product_reduce_scatter(mine, B, "sum", 0, name), ["new_empty", "contiguous"]),
        "low all_gather": (lambda: ops._low_contention_all_gather(across, name), ["new_empty", "contiguous"]),
        "low reduce_scatter": (lambda: ops._low_contention_reduce_scatter(mine, "sum", name), ["new_empty", "contiguous"]),
        "one_shot": (lambda: ops.one_shot_all_reduce(flat, "sum", name), ["empty_like"]),
        "one_shot_copy": (lambda: ops.one_shot_all_reduce_copy(flat, torch.ones(12), "sum", name), ["empty_like"]),
        "multimem": (lambda: ops.multimem_one_shot_all_reduce(flat, "sum", name), ["empty_like"]),
        "tile": (lambda: collectives.tile_reduce(shard, torch.zeros(3, 4), 1, name), ["contiguous", "empty_like"]),
        "exchange": (lambda: exchange._receive("x", mine[:ranks], [1] * ranks, [1] * ranks, 8, name), ["new_empty", "contiguous"]),
        "all_to_all_vdev": (lambda: exchange.all_to_all_vdev(mine, out, splits, offsets, name), ["new_empty"]),
        "nccl_all_to_all": (lambda: exchange.nccl_all_to_all_nd(mine, torch.zeros(3, 4 * ranks), 0, 1, name), ["contiguous", "empty_like"]),
        "nccl_reduce_scatter": (
            lambda: exchange.nccl_reduce_scatter_offset(mine, [came[:3] if ranks == 1 else torch.zeros(3, 4)], name, 0),
            ["contiguous"],
        ),
    }
    said: list[tuple[str, str]] = []
    # The first one of all finds no room yet.
    for _ in range(2):
        for what, (work, allocators) in works.items():
            for allocator in allocators:
                said.append((f"{what}: {allocator}", outcome_of(work, allocator if rank == 1 else "")))
            said.append((what, outcome_of(work, "")))
    group.barrier()
    return said


def test_a_rank_without_memory_for_a_result_tells_the_others() -> None:
    theirs, its = run(out_of_memory, 2, 2)
    assert all(outcome == ("RankFailed" if ":" in what else "done") for what, outcome in theirs), theirs
    assert all(outcome == ("OutOfMemoryError" if ":" in what else "done") for what, outcome in its), its
