"""What runs beside the current stream of a GPU, without one: the same code on host memory, where a stream is what this thread does next.

A barrier of the device is a barrier of the host, a copy by a copy engine is a copy. So the bytes and the meetings are those of a GPU; that streams wait
for each other is not shown here.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem.torch import _overlap as overlap  # noqa: E402


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
