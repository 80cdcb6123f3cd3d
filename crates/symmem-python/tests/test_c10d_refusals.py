"""The backend "symmem": what is wrong on one rank alone is told to the others, which raise at once instead of waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
from test_c10d_devices import CALLS, NEWER  # noqa: E402

#: Not of all ranks.
MESSAGES = {"send", "recv", "recv_anysource"}
#: Far more than a telling takes, far less than the group's timeout.
SECONDS = 10


def sparse() -> Any:
    return torch.ones(4).to_sparse()


def of(count: int) -> Any:
    return torch.ones(count)


Call = Callable[[Any], Any]

#: Of two ranks: what rank 0 calls, which is wrong, and rank 1.
ROWS: dict[str, tuple[Call, Call]] = {
    "allreduce": (
        lambda group: group.allreduce([sparse()], c10d.AllreduceOptions()),
        lambda group: group.allreduce([of(4)], c10d.AllreduceOptions()),
    ),
    "allreduce_coalesced": (
        lambda group: group.allreduce_coalesced([sparse(), of(4)]),
        lambda group: group.allreduce_coalesced([of(4), of(4)]),
    ),
    "reduce": (lambda group: group.reduce([sparse()]), lambda group: group.reduce([of(4)])),
    "broadcast": (lambda group: group.broadcast([sparse()]), lambda group: group.broadcast([of(4)])),
    "allgather": (
        lambda group: group.allgather([[of(4)]], [of(4)]),
        lambda group: group.allgather([[of(4), of(4)]], [of(4)]),
    ),
    "allgather_coalesced": (
        lambda group: group.allgather_coalesced([[of(4)], [of(4), of(4)]], [of(4)]),
        lambda group: group.allgather_coalesced([[of(4)], [of(4)]], [of(4)]),
    ),
    "_allgather_base": (
        lambda group: group._allgather_base(of(4), of(4)),
        lambda group: group._allgather_base(of(8), of(4)),
    ),
    "allgather_into_tensor_coalesced": (
        lambda group: group.allgather_into_tensor_coalesced([of(8)], [of(4), of(4)]),
        lambda group: group.allgather_into_tensor_coalesced([of(8)], [of(4)]),
    ),
    "reduce_scatter": (
        lambda group: group.reduce_scatter([of(4)], [[of(4)]]),
        lambda group: group.reduce_scatter([of(4)], [[of(4), of(4)]]),
    ),
    "_reduce_scatter_base": (
        lambda group: group._reduce_scatter_base(of(4), of(4)),
        lambda group: group._reduce_scatter_base(of(4), of(8)),
    ),
    "reduce_scatter_tensor_coalesced": (
        lambda group: group.reduce_scatter_tensor_coalesced([of(4)], []),
        lambda group: group.reduce_scatter_tensor_coalesced([of(4)], [of(8)]),
    ),
    "gather": (
        lambda group: group.gather([[of(4)]], [of(4)]),
        lambda group: group.gather([], [of(4)]),
    ),
    "gather_single": (
        lambda group: group.gather_single(of(7), of(4)),
        lambda group: group.gather_single(of(0), of(4)),
    ),
    "scatter": (
        lambda group: group.scatter([of(4)], [[of(4)]]),
        lambda group: group.scatter([of(4)], []),
    ),
    "alltoall": (
        lambda group: group.alltoall([of(4)], [of(4)]),
        lambda group: group.alltoall([of(4), of(4)], [of(4), of(4)]),
    ),
    "alltoall_base": (
        lambda group: group.alltoall_base(of(3), of(3), [], []),
        lambda group: group.alltoall_base(of(4), of(4), [], []),
    ),
    "alltoall_base with splits": (
        lambda group: group.alltoall_base(of(4), of(4), [2, 2], [1, 1]),
        lambda group: group.alltoall_base(of(4), of(4), [2, 2], [2, 2]),
    ),
    "a dtype of complex numbers that has no order": (
        lambda group: group.allreduce([of(4) * 1j], maximum()),
        lambda group: group.allreduce([of(4)], maximum()),
    ),
    "all_gather_into_tensor, at once": (
        lambda _: dist.all_gather_into_tensor(of(4), of(4)),
        lambda _: dist.all_gather_into_tensor(of(8), of(4)),
    ),
}


def maximum() -> Any:
    options = c10d.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def test_every_collective_has_a_row() -> None:
    kind = symmem.torch.c10d.SymmemProcessGroup
    # Names for one method are one.
    methods = {getattr(kind, name).__name__ for name in set(CALLS) | set(NEWER) if name not in MESSAGES}
    assert methods == {name for name in ROWS if " " not in name}


def refused(rank: int) -> None:
    group: Any = dist.group.WORLD
    for name, calls in ROWS.items():
        started = time.monotonic()
        with pytest.raises((symmem.Error, ValueError)) as raised:
            work = calls[rank](group)
            if work is not None:
                work.wait()
            raise AssertionError(f"{name} went well")
        assert time.monotonic() - started < SECONDS, name
        if rank == 1:
            assert isinstance(raised.value, symmem.RankFailed), f"{name}: {raised.value!r}"
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [2] * 3, name


def test_what_is_wrong_on_one_rank_is_told_to_the_others() -> None:
    run(refused, 2)


def failed(rank: int) -> None:
    """An operation that began and failed is not told a second time: the next one is right."""
    group: Any = dist.group.WORLD
    options = c10d.AllreduceCoalescedOptions()
    options.asyncOp = False
    with pytest.raises(symmem.Mismatch):
        if rank == 0:
            group.allreduce_coalesced([of(4)], options)
        else:
            group.allreduce([of(5)], options)
    for _ in range(3):
        x = of(3)
        dist.all_reduce(x)
        assert x.tolist() == [2] * 3


def test_what_failed_for_all_is_not_told_again() -> None:
    run(failed, 2)


def gathered(rank: int) -> None:
    group: Any = dist.group.WORLD
    ranks = dist.get_world_size()
    for root in range(ranks):
        options = c10d.GatherOptions()
        options.rootRank = root
        # Any shape will do, and strides.
        for shape in [(ranks * 6,), (3, ranks * 2), (2, 3 * ranks)]:
            whole = torch.full(shape, -1.0).t() if len(shape) > 1 else torch.full(shape, -1.0)
            out = whole if rank == root else torch.full((5,), -1.0)
            group.gather_single(out, torch.arange(6.0) + 10 * rank, options).wait()
            expected = [float(10 * each + at) for each in range(ranks) for at in range(6)]
            assert out.reshape(-1).tolist() == (expected if rank == root else [-1.0] * 5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gather_single_fills_the_root_and_nobody_else(ranks: int) -> None:
    run(gathered, ranks)


def known(rank: int) -> None:
    group: Any = dist.group.WORLD
    assert [device.type for device in group._device_types] == ["cpu"]
    assert dist.distributed_c10d._get_pg_default_device(group).type == "cpu"
    other: Any = symmem.torch.c10d.SymmemProcessGroup(
        dist.PrefixStore("other", group.get_group_store()), rank, 2, group_timeout(), "other"
    )
    assert [device.type for device in other._device_types] == ["cpu"]
    other.shutdown()


def group_timeout() -> Any:
    return dist.distributed_c10d.default_pg_timeout


def test_a_group_is_on_the_cpu_whoever_made_it() -> None:
    run(known, 2)
