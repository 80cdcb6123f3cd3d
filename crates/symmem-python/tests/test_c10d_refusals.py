"""The backend "symmem": what is wrong on one rank alone is told to the others, which raise at once instead of waiting for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
from symmem.torch.c10d.operations import before as run_before  # noqa: E402
from test_c10d_devices import CALLS, NEWER, on_a_gpu  # noqa: E402

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
    "allgather of what is no tensor": (
        lambda group: group.allgather([[None, of(4)]], [of(4)]),
        lambda group: group.allgather([[of(4), of(4)]], [of(4)]),
    ),
    "allgather of what is no tensor, at once": (
        lambda group: group.allgather([[None, of(4)]], [of(4)], at_once(c10d.AllgatherOptions())),
        lambda group: group.allgather([[of(4), of(4)]], [of(4)], at_once(c10d.AllgatherOptions())),
    ),
    "allreduce of what is no tensor": (
        lambda group: group.allreduce([None], c10d.AllreduceOptions()),
        lambda group: group.allreduce([of(4)], c10d.AllreduceOptions()),
    ),
    "allreduce by what is no operation": (
        lambda group: group.allreduce([of(4)], SimpleNamespace(reduceOp="sum", timeout=timedelta(seconds=1))),
        lambda group: group.allreduce([of(4)], c10d.AllreduceOptions()),
    ),
    "broadcast without options": (
        lambda group: group.broadcast([of(4)], SimpleNamespace(rootRank=0)),
        lambda group: group.broadcast([of(4)]),
    ),
    "broadcast from a negative rank, at once": (
        lambda group: group.broadcast([of(4)], at_once(from_rank(-1))),
        lambda group: group.broadcast([of(4)], at_once(from_rank(0))),
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


def at_once(options: Any) -> Any:
    options.asyncOp = False
    return options


def from_rank(root: int) -> Any:
    options = c10d.BroadcastOptions()
    options.rootRank = root
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
        with pytest.raises((symmem.Error, ValueError, AttributeError, IndexError)) as raised:
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


def elsewhere(rank: int) -> None:
    """Tensors of a device for which there is no backend, or of two: the others are on the CPU, and hear of it."""
    group: Any = dist.group.WORLD
    methods = {name: call for name, call in {**CALLS, **NEWER}.items() if name not in MESSAGES}
    rows = {getattr(type(group), name).__name__: name for name in methods}
    wrong: dict[str, Call] = {}
    for row, name in rows.items():
        for kind, x in (("on no device", torch.ones(4, device="meta")), ("on a GPU", on_a_gpu())):
            wrong[f"{row} {kind}"] = functools.partial(methods[name], x=x)
    wrong["allgather of two devices"] = lambda group: group.allgather([[of(4), on_a_gpu()]], [of(4)])
    wrong["allgather_into_tensor_coalesced of two devices"] = lambda group: group.allgather_into_tensor_coalesced([on_a_gpu()], [of(4)])
    wrong["allreduce_coalesced of two devices"] = lambda group: group.allreduce_coalesced([of(4), on_a_gpu()])
    for name, call in wrong.items():
        started = time.monotonic()
        with pytest.raises(symmem.Error) as raised:
            work = call(group) if rank == 0 else ROWS[name.partition(" ")[0]][1](group)
            work.wait()
            raise AssertionError(f"{name} went well")
        assert time.monotonic() - started < SECONDS, name
        assert ("cuda" in str(raised.value) or "meta" in str(raised.value)), f"{name}: {raised.value}"
        assert isinstance(raised.value, symmem.RankFailed if rank else symmem.Invalid), f"{name}: {raised.value!r}"
        x = of(3)
        dist.all_reduce(x)
        assert x.tolist() == [2] * 3, name


def test_tensors_of_a_device_without_a_backend_are_told_to_the_others() -> None:
    run(elsewhere, 2)


def waited(rank: int) -> None:
    """What a callback waits for on the thread that has to run it never begins, and the others are not to wait for it."""
    group: Any = dist.group.WORLD
    dist.barrier()
    if rank == 0:
        raised: list[BaseException] = []

        def wait(_: Any) -> None:
            for call in (lambda: dist.all_reduce(of(1)), lambda: dist.broadcast(of(1), 0)):
                try:
                    call()
                except Exception as error:
                    raised.append(error)

        # At once, in the thread of the worker: nobody waits for the work.
        future = dist.all_reduce(of(1), async_op=True).get_future().then(wait)
        started = time.monotonic()
        while not future.done() and time.monotonic() - started < SECONDS:
            time.sleep(0.01)
        assert [type(error) for error in raised] == [symmem.Busy] * 2
    else:
        time.sleep(0.2)  # or rank 0 would find the first one done
        dist.all_reduce(of(1))
        for call in (lambda: dist.all_reduce(of(1)), lambda: dist.broadcast(of(1), 0)):
            started = time.monotonic()
            with pytest.raises(symmem.RankFailed, match="a callback cannot wait for its own group"):
                call()
            assert time.monotonic() - started < SECONDS
    # One number for each call, told or not.
    assert group.rank() == rank and group._get_sequence_number_for_group() == 4
    x = of(3)
    dist.all_reduce(x)
    assert x.tolist() == [2] * 3


def test_a_callback_that_waits_for_its_group_is_told_to_the_others() -> None:
    run(waited, 2)


class Interleaved(list[Any]):
    """Tensors during whose listing another thread runs an operation of the group. Then they cannot be listed."""

    def __init__(self, group: Any) -> None:
        super().__init__([None])
        self.group = group

    def __iter__(self) -> Any:
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: self.group.barrier().wait()).result(SECONDS)
        raise IndexError("no tensors")


def interleaved(rank: int) -> None:
    """What another thread begins meanwhile is not taken for the operation of a call that is wrong."""
    group: Any = dist.group.WORLD
    started = time.monotonic()
    if rank == 0:
        with pytest.raises(IndexError, match="no tensors"):
            group.broadcast(Interleaved(group))
    else:
        group.barrier().wait()
        with pytest.raises(symmem.RankFailed, match="no tensors"):
            group.broadcast([of(4)]).wait()
    assert time.monotonic() - started < SECONDS
    x = of(3)
    dist.all_reduce(x)
    assert x.tolist() == [2] * 3


def test_what_is_wrong_is_told_whatever_other_threads_begin() -> None:
    run(interleaved, 2, seconds=3 * SECONDS)


class Deaf:
    """A group that cannot be told anything any more."""

    def _refuse(self, *_: Any) -> None:
        raise symmem.Closed("refusal: the group was closed")


def test_the_first_cause_is_raised_whatever_comes_of_telling_it() -> None:
    group: Any = Deaf()
    with pytest.raises(KeyError, match="the cause"), run_before(group):
        raise KeyError("the cause")


def ended(rank: int) -> None:
    """After the end of a group its methods say what was wrong first, also in words that are no UTF-8."""
    group: Any = dist.group.WORLD
    text = "no text: \udc80"
    with pytest.raises(symmem.Error) as raised:
        if rank == 0:
            group.allreduce([of(4)], SimpleNamespace(reduceOp=Unspeakable(text), timeout=timedelta(seconds=1)))
        else:
            dist.all_reduce(of(4))
    assert raised.value.args == (text,) if rank == 0 else isinstance(raised.value, symmem.RankFailed)
    x = symmem.torch.empty(4)
    symmetric = symmem.torch.rendezvous(x, group)
    dist.barrier()
    name = group.group_name
    dist.destroy_process_group()
    with pytest.raises(symmem.Invalid, match="2 outputs for 1 inputs"):
        group.allgather([[of(4)], [of(4)]], [of(4)])
    with pytest.raises(ValueError, match="A must be a matrix"):
        torch.ops.symmem.fused_matmul_reduce_scatter(x, x, "sum", 0, name)
    symmetric.raw.group._refuse(text, x)


class Unspeakable:
    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def value(self) -> int:
        raise symmem.Invalid(self.text)


def test_a_group_that_has_ended_does_not_hide_the_cause() -> None:
    run(ended, 2)


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
