"""The backend "symmem": the short way of plain tensors, and who runs an operation."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch  # noqa: E402, F401
from symmem import _symmem  # noqa: E402
from symmem.torch.c10d import operations  # noqa: E402

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
LENGTHS = [0, 1, 7, 1000, 100_000]
LIMIT = 20.0


def laid_out(tensor: Tensor, plain: bool) -> Tensor:
    """The same elements, side by side or with gaps."""
    if plain:
        return tensor.clone()
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


def given(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(length) % 5 + rank).to(dtype)


def reduced(tensors: list[Tensor]) -> Tensor:
    if tensors[0].dtype == torch.bool:
        return torch.stack(tensors).any(0)
    return torch.stack(tensors).sum(0).to(tensors[0].dtype)


def op_of(dtype: torch.dtype) -> Any:
    return dist.ReduceOp.BOR if dtype == torch.bool else dist.ReduceOp.SUM


def all_reduce(rank: int, ranks: int, length: int, dtype: torch.dtype, plain: bool) -> tuple[Tensor, Tensor]:
    x = laid_out(given(rank, length, dtype), plain)
    dist.all_reduce(x, op_of(dtype))
    return x, reduced([given(each, length, dtype) for each in range(ranks)])


def broadcast(rank: int, ranks: int, length: int, dtype: torch.dtype, plain: bool) -> tuple[Tensor, Tensor]:
    x = laid_out(given(rank, length, dtype), plain)
    dist.broadcast(x, 1)
    return x, given(1, length, dtype)


def all_gather(rank: int, ranks: int, length: int, dtype: torch.dtype, plain: bool) -> tuple[Tensor, Tensor]:
    out = laid_out(torch.zeros(ranks * length, dtype=dtype), plain)
    dist.all_gather_into_tensor(out, laid_out(given(rank, length, dtype), plain))
    return out, torch.cat([given(each, length, dtype) for each in range(ranks)])


def reduce_scatter(rank: int, ranks: int, length: int, dtype: torch.dtype, plain: bool) -> tuple[Tensor, Tensor]:
    out = laid_out(torch.zeros(length, dtype=dtype), plain)
    dist.reduce_scatter_tensor(out, laid_out(given(rank, ranks * length, dtype), plain), op_of(dtype))
    whole = reduced([given(each, ranks * length, dtype) for each in range(ranks)])
    return out, whole[rank * length : (rank + 1) * length]


def all_to_all_even(rank: int, ranks: int, length: int, dtype: torch.dtype, plain: bool) -> tuple[Tensor, Tensor]:
    out = laid_out(torch.zeros(ranks * length, dtype=dtype), plain)
    dist.all_to_all_single(out, laid_out(given(rank, ranks * length, dtype), plain))
    parts = [given(each, ranks * length, dtype)[rank * length : (rank + 1) * length] for each in range(ranks)]
    return out, torch.cat(parts)


CASES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    case.__name__: case for case in (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all_even)
}


def agrees(rank: int, name: str) -> None:
    ranks = dist.get_world_size()
    for dtype, length in itertools.product(DTYPES, LENGTHS):
        # What is plain on one rank need not be on another.
        for plain in itertools.product([True, False], repeat=ranks):
            ours, expected = CASES[name](rank, ranks, length, dtype, plain[rank])
            assert torch.equal(ours, expected), (name, dtype, length, plain)


@pytest.mark.parametrize("name", CASES)
def test_plain_and_other_tensors_meet_in_one_operation(name: str) -> None:
    run(agrees, 2, name)


def test_every_short_way_has_a_case() -> None:
    assert {function.__name__ for function in operations._STRAIGHT} == set(CASES)


class Odd(torch.Tensor):
    """A tensor that may be anything."""


def tells_plain(rank: int) -> None:
    group = dist.group.WORLD._group
    x = torch.ones(8)
    plain = [x, x[2:6], torch.nn.Parameter(x), torch.tensor(3.0), torch.ones(0), x.requires_grad_(False)]
    others = [
        torch.ones(8, 2)[:, 0],
        torch.ones(4, 4).t(),
        torch.eye(3).to_sparse(),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.complex64).imag,
        torch._neg_view(torch.ones(3)),
        x.as_subclass(Odd),
        torch.ones(3, device="meta"),
    ]
    assert [_symmem._tensor_all_reduce(group, each, "sum") for each in plain] == [True] * len(plain)
    assert [_symmem._tensor_all_reduce(group, each, "sum") for each in others] == [False] * len(others)
    # In both ways nothing that is too long or overlaps is written.
    assert not _symmem._tensor_all_gather(group, torch.ones(9), x)
    assert not _symmem._tensor_all_gather(group, torch.ones(16, dtype=torch.int32), x)
    both = torch.ones(16)
    assert not _symmem._tensor_all_gather(group, both, both[:8])
    assert not _symmem._tensor_reduce_scatter(group, torch.ones(8), x, "sum")
    assert not _symmem._tensor_all_to_all(group, torch.ones(8), torch.ones(6))
    with pytest.raises(symmem.Invalid):
        dist.all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(symmem.Invalid):
        dist.all_reduce(torch.eye(3).to_sparse(), async_op=True)


def test_only_plain_tensors_take_the_short_way() -> None:
    run(tells_plain, 2)


def is_done_unasked(rank: int) -> None:
    x, y = torch.ones(4), torch.ones(1 << 20)
    works = [dist.all_reduce(each, async_op=True) for each in (x, y)]
    end = time.monotonic() + LIMIT
    while not (x[0] == 2 and y[-1] == 2):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert all(work.wait() for work in works)


def test_what_nobody_waits_for_is_done_too() -> None:
    run(is_done_unasked, 2)


def keeps_what_it_was_given(rank: int) -> None:
    """A caller may use its list again as soon as an asynchronous call has returned."""
    x = torch.ones(4)
    tensors = [x]
    work = dist.group.WORLD.allreduce(tensors, dist.AllreduceOptions())
    tensors.clear()
    work.wait()
    assert x[0] == 2 and work.result()[0] is x


def test_an_asynchronous_call_keeps_its_tensors() -> None:
    run(keeps_what_it_was_given, 2)


class Companion:
    """A backend for another device, which notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: self.asked.append(name)


def goes_to_the_companion(rank: int) -> None:
    group = dist.group.WORLD
    x = torch.ones(4, device="meta")
    with pytest.raises(symmem.Invalid, match="meta"):
        dist.all_reduce(x)
    companion = group._companions._backends["meta"] = Companion()
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True)
    dist.broadcast(x, 0)
    dist.all_gather_into_tensor(torch.ones(8, device="meta"), x)
    assert companion.asked == ["allreduce", "allreduce", "broadcast", "_allgather_base"]


def test_tensors_of_other_devices_go_to_their_backend() -> None:
    run(goes_to_the_companion, 2)


def many_at_once(rank: int) -> None:
    """Two threads of every rank, on groups of their own, and a third that starts without waiting."""
    groups = [dist.new_group() for _ in range(2)]

    def work(group: Any) -> None:
        pending = []
        for step in range(300):
            x = torch.full((16 if step % 3 else 100_000,), float(rank))
            if step % 2:
                dist.all_reduce(x, group=group)
                assert x[-1] == 1
            else:
                pending.append((dist.all_reduce(x, group=group, async_op=True), x))
        for done, x in reversed(pending):
            done.wait()
            assert x[0] == 1

    threads = [threading.Thread(target=work, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_synchronous_and_asynchronous_operations_keep_their_order() -> None:
    run(many_at_once, 2)


def fails_once_each_way(rank: int) -> None:
    """Errors of an operation that ran on the caller's thread, on the waiter's, and on the worker's."""
    for later in (False, True):
        with pytest.raises(symmem.Mismatch):
            work = dist.all_reduce(torch.ones(3 + rank), async_op=later)
            work.wait()
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    with pytest.raises(RuntimeError, match="Mismatch"):
        work.get_future().wait()
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == 2
    dist.destroy_process_group()
    group = dist.group.WORLD
    assert group is None


def test_errors_reach_whoever_waits() -> None:
    run(fails_once_each_way, 2)


def test_the_bench_verifies_what_it_measures() -> None:
    program = [sys.executable, "-m", "symmem.torch.bench", "--quick", "--json", "-"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert {row["op"] for row in rows} == {"all_reduce", "DDP step", "FSDP2 step"}
    assert all(row["verified"] and row["us"]["p50"] > 0 for row in rows)
