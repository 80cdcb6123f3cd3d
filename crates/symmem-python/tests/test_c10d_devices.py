"""The backend "symmem" and tensors that are not on the CPU: one error on every method, or the backend beside it.

The tensors are torch's fake ones, which say that they are on a GPU and have no memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_ranks import run  # noqa: E402

from symmem.torch.c10d import SymmemProcessGroup  # noqa: E402

# How each method that takes tensors is called, with `x` a tensor of 4 elements and one rank.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "allreduce": lambda group, x: group.allreduce([x], c10d.AllreduceOptions()),
    "allreduce_coalesced": lambda group, x: group.allreduce_coalesced([x, x]),
    "reduce": lambda group, x: group.reduce([x], c10d.ReduceOptions()),
    "broadcast": lambda group, x: group.broadcast([x], c10d.BroadcastOptions()),
    "allgather": lambda group, x: group.allgather([[x]], [x]),
    "allgather_coalesced": lambda group, x: group.allgather_coalesced([[x]], [x]),
    "_allgather_base": lambda group, x: group._allgather_base(x, x),
    "allgather_into_tensor_coalesced": lambda group, x: group.allgather_into_tensor_coalesced([x, x], [x, x]),
    "reduce_scatter": lambda group, x: group.reduce_scatter([x], [[x]]),
    "_reduce_scatter_base": lambda group, x: group._reduce_scatter_base(x, x),
    "reduce_scatter_tensor_coalesced": lambda group, x: group.reduce_scatter_tensor_coalesced([x, x], [x, x]),
    "gather": lambda group, x: group.gather([[x]], [x]),
    "scatter": lambda group, x: group.scatter([x], [[x]]),
    "alltoall": lambda group, x: group.alltoall([x], [x]),
    "alltoall_base": lambda group, x: group.alltoall_base(x, x, [], []),
    "send": lambda group, x: group.send([x], 0, 0),
    "recv": lambda group, x: group.recv([x], 0, 0),
    "recv_anysource": lambda group, x: group.recv_anysource([x], 0),
}
# The names that newer versions of torch call, and one method that they have besides.
NEWER: dict[str, Callable[[Any, Any], Any]] = {
    "all_gather_single": lambda group, x: group.all_gather_single(x, x),
    "all_gather_single_coalesced": lambda group, x: group.all_gather_single_coalesced([x, x], [x, x]),
    "reduce_scatter_single": lambda group, x: group.reduce_scatter_single(x, x),
    "reduce_scatter_single_coalesced": lambda group, x: group.reduce_scatter_single_coalesced([x, x], [x, x]),
    "all_to_all_single": lambda group, x: group.all_to_all_single(x, x, [], []),
    "gather_single": lambda group, x: group.gather_single(x, x),
    "gather_into_tensor": lambda group, x: group.gather_into_tensor(x, x),
}
# Those whose words have tensors, and which take none.
NONE_TAKEN = {"allocate_tensor", "allreduce_sparse", "supports_tensor_alloc", "_register_on_completion_hook", "new_window"}
# Where c10d's backends have no such method for Python: what is called for each pair instead.
FOR_EACH = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
# The forms that programs call.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "all_reduce, started": lambda x: dist.all_reduce(x, async_op=True),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "reduce": lambda x: dist.reduce(x, 0),
    "all_gather": lambda x: dist.all_gather([x], x),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x, x),
    "reduce_scatter": lambda x: dist.reduce_scatter(x, [x]),
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x, x),
    "gather": lambda x: dist.gather(x, [x]),
    "scatter": lambda x: dist.scatter(x, [x]),
    "all_to_all": lambda x: dist.all_to_all([x], [x]),
    "all_to_all_single": lambda x: dist.all_to_all_single(x, x),
    "batch_isend_irecv": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0)]),
}
ERROR = r'moves CPU tensors, and this one is on cuda.*"cpu:symmem,cuda:nccl"'


def on_a_gpu() -> Any:
    with FakeTensorMode():
        return torch.empty(4, device="cuda")


def test_every_method_that_takes_tensors_has_a_row() -> None:
    methods = {
        name for kind in (c10d.Backend, c10d.ProcessGroup) for name in dir(kind) if "ensor" in (getattr(kind, name).__doc__ or "")
    }
    assert methods - NONE_TAKEN - set(NEWER) == set(CALLS)
    # All of them are ours, none is torch's, which would look for a backend that is not there.
    assert [name for name in {**CALLS, **NEWER} if name not in vars(SymmemProcessGroup)] == []


def refused(rank: int) -> None:
    group: Any = dist.group.WORLD
    x = on_a_gpu()
    assert x.device.type == "cuda" and not x.is_cpu
    for name, call in {**CALLS, **NEWER}.items():
        with pytest.raises(RuntimeError, match=ERROR):
            call(group, x)
            raise AssertionError(f"{name} was not refused")
    # Newer versions of torch ask what the GPU can do, and here is none.
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    for program, run_it in PROGRAMS.items():
        with pytest.raises(RuntimeError, match=ERROR):
            run_it(x)
            raise AssertionError(f"{program} was not refused")
    # Nothing of it is left behind.
    y = torch.ones(4)
    dist.all_reduce(y)
    assert y.tolist() == [1] * 4
    for name, call in {**CALLS, **NEWER}.items():
        if name not in ("send", "recv", "recv_anysource"):
            call(group, y).wait()


def test_every_method_says_which_backend_is_missing() -> None:
    run(refused, 1)


def mixed(rank: int) -> None:
    group: Any = dist.group.WORLD
    x, y = on_a_gpu(), torch.ones(4)
    for pair in ((x, y), (y, x)):
        for call in (
            lambda a, b: group.allgather([[a]], [b]),
            lambda a, b: group._allgather_base(a, b),
            lambda a, b: group._reduce_scatter_base(output=a, input=b),
            lambda a, b: group.alltoall_base(a, b, [], []),
            lambda a, b: group.allreduce([a, b]),
            lambda a, b: group.scatter([a], [[b]]),
        ):
            with pytest.raises(RuntimeError, match="one tensor is on cuda, and another one on the CPU"):
                call(*pair)


def test_one_operation_is_on_one_device() -> None:
    run(mixed, 1)


class Beside:
    """What c10d's backends have for Python, which notes how it is called."""

    def __init__(self, coalesces: bool) -> None:
        self.supports_coalescing = coalesces
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        # Its works are itself.
        assert name == "wait" or hasattr(c10d.Backend, name), f"Backend has no {name}"

        def note(*args: Any, **kwargs: Any) -> Any:
            self.called.append(name)
            return self

        return note


def beside(rank: int) -> None:
    group: Any = dist.group.WORLD
    x = on_a_gpu()
    for coalesces in (True, False):
        for name, call in CALLS.items():
            backend = group._companions._backends["cuda"] = Beside(coalesces)
            assert call(group, x) is backend
            expected = [name]
            if name in FOR_EACH:
                each = [FOR_EACH[name]]
                expected = ["_start_coalescing", *each, *each, "_end_coalescing"] if coalesces else [*each, *each, "wait"]
            assert backend.called == expected, (backend.called, expected)
    backend = group._companions._backends["cuda"] = Beside(True)
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as works:
        dist.all_gather_into_tensor(x, x)
    works.wait()
    assert backend.called == ["_start_coalescing", "_allgather_base", "_end_coalescing", "wait"], backend.called
    group._companions._backends.clear()


def test_the_backend_beside_is_called_by_names_that_it_has() -> None:
    run(beside, 1, backend="cpu:symmem,cuda:nccl")


def at_once(rank: int) -> None:
    """Threads whose tensors are the first ones of a device make the backend for it once: all ranks do it together."""
    group: Any = dist.group.WORLD
    together = threading.Barrier(4)

    def first() -> Any:
        together.wait(10)
        return group._companions.of(group, "cuda")

    with ThreadPoolExecutor(4) as threads:
        made = [each.result(20) for each in [threads.submit(first) for _ in range(4)]]
    assert all(each is made[0] for each in made)
    x = torch.ones(3)
    made[0].allreduce([x]).wait()
    assert x.tolist() == [2] * 3


def test_threads_make_the_backend_beside_once() -> None:
    run(at_once, 2, backend="cpu:symmem,cuda:gloo", seconds=40)
