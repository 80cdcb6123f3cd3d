"""NCCL communicators from outside, registered for symmetric memory.

    python test_torch_external.py CASE      # what a test runs in a process of its own, on the fake driver and the fake NCCL
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from test_nccl import run_script

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem import nccl  # noqa: E402
from symmem.torch import _external  # noqa: E402

POINTER = 0x1234560


class Comm:
    """What ends a communicator when it goes."""


def registered(**changes: Any) -> symm_mem.ExternalNcclComm:
    return symm_mem.register_external_nccl_comm(**{"group": "0", "comm_ptr": POINTER, "device": "cuda:1", **changes})


def test_it_has_what_it_was_given_and_is_undone_once() -> None:
    handle = registered()
    assert (handle.group_name, handle.comm_ptr, handle.device) == ("0", POINTER, torch.device("cuda:1"))
    assert handle.registered and "registered" in repr(handle)
    with pytest.raises(RuntimeError, match="has a communicator for cuda:1 already"):
        registered(comm_ptr=POINTER + 16)
    other = registered(device=0)
    handle.unregister()
    handle.unregister()
    assert not handle.registered
    again = registered()
    # The first one has nothing to do with it any more.
    handle.unregister()
    with pytest.raises(RuntimeError, match="already"):
        registered()
    again.unregister()
    other.unregister()


class Taker:
    """A group that is given communicators."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def _adopt_nccl(self, address: int, ordinal: int, keep: Any) -> None:
        self.seen.append(f"adopted {keep}")

    def _disown_nccl(self, address: int, ordinal: int) -> None:
        self.seen.append("disowned")


def test_it_ends_with_its_process_group_and_not_with_the_name() -> None:
    for kept in (False, True):
        held: list[Any] = []
        for turn in range(2):
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            try:
                world = dist.group.WORLD
                assert world is not None
                if kept:
                    held.append(world)
                if turn == 0:
                    handle = registered(group=world, comm="first")
                group: Any = Taker()
                _external._attach_all(world, group)
                assert group.seen == ([] if turn else ["adopted first"]), (kept, group.seen)
                assert handle.registered == (turn == 0)
                if turn:
                    again = registered(group=world, comm="second")
                    _external._attach_all(world, group)
                    assert group.seen == ["adopted second"]
                    again.unregister()
            finally:
                del world
                dist.destroy_process_group()
                gc.collect()


def test_it_holds_the_object_until_it_is_undone() -> None:
    comm = Comm()
    seen = weakref.ref(comm)
    handle = registered(comm=comm)
    assert handle.comm is comm
    del comm
    gc.collect()
    assert seen() is not None
    handle.unregister()
    gc.collect()
    assert seen() is None


def test_a_block_undoes_it() -> None:
    comm = Comm()
    with registered(comm=comm) as handle:
        assert handle.registered
    assert not handle.registered and handle.comm is None
    with pytest.raises(KeyError), registered() as failed:
        raise KeyError
    assert not failed.registered
    registered().unregister()


def test_what_cannot_be_one_is_refused() -> None:
    for null in (0, None):
        with pytest.raises(RuntimeError, match="null pointer"):
            registered(comm_ptr=null)
    with pytest.raises(RuntimeError, match="not on cpu"):
        registered(device="cpu")
    registered().unregister()


def test_a_process_group_takes_it_when_it_is_used(tmp_path: Any) -> None:
    """On the CPU nothing comes of it; the group of a process group has it from the first use on."""
    dist.init_process_group("symmem", store=dist.HashStore(), rank=0, world_size=1)
    try:
        comm = Comm()
        seen = weakref.ref(comm)
        handle = registered(group=dist.group.WORLD, comm=comm)
        assert handle.group_name == dist.group.WORLD.group_name
        del comm
        symm_mem.rendezvous(symm_mem.empty(4, device="cpu"), dist.group.WORLD)
        # Also where the group is known already.
        late = registered(group=dist.group.WORLD, device="cuda:2")
        for each in (handle, late):
            assert each._group is not None
            each.unregister()
        gc.collect()
        assert seen() is None
    finally:
        dist.destroy_process_group()


# ------------------------------------------------------------------------------------- in processes with the fakes


def ranks(world: int, work: Callable[[symmem.Group, int], None]) -> None:
    """`work` on threads that are ranks, each with a group of its own."""
    store = symmem.HashStore()
    failed: list[BaseException] = []

    def rank_of(rank: int) -> None:
        try:
            with symmem.Context() as context:
                context.set_backend("NCCL")
                group = symmem.Group(store, rank, world, "outside", timeout=30)
                work(group, rank)
                group.close()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def library() -> Any:
    return ctypes.CDLL(os.environ["SYMMEM_NCCL_LIBRARY"])


def communicator(uid: bytes, world: int, rank: int) -> int:
    """Collective. One that symmem knows nothing of, as another library would make it."""
    cuda = ctypes.CDLL("libcuda.so")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    found = ctypes.c_void_p()
    arguments = (ctypes.byref(found), world, Id.from_buffer_copy(uid), rank)
    make = library().ncclCommInitRank
    make.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
    assert make(*arguments) == 0
    assert found.value
    return found.value


def made() -> list[str]:
    """The calls of NCCL since the last time that make a communicator."""
    log = library().fakenccl_log
    log.restype = ctypes.c_char_p
    return [call for call in log().decode().splitlines() if call.startswith("ncclCommInit")]


def used() -> None:
    """The group's memory meets by the registered communicator, and none is made beside it."""
    world = 2
    uid = nccl.unique_id()
    seen: list[Any] = []
    counts: list[int] = []

    def work(group: symmem.Group, rank: int) -> None:
        raw = communicator(uid, world, rank)
        group.barrier()
        if rank == 0:
            made()
        group.barrier()
        comm = Comm()
        seen.append(weakref.ref(comm))
        handle = symm_mem.register_external_nccl_comm(group, raw, rank, comm)
        del comm
        x = symmem.empty(100, device=f"cuda:{rank}")
        memory = symmem.rendezvous(x, group)
        assert memory.world_size == world and memory.device == f"cuda:{rank}"
        # Too late for another one; what works on it keeps it, also when it is no longer registered.
        with pytest.raises(RuntimeError, match="works on cuda"):
            symm_mem.register_external_nccl_comm(group, raw, rank)
        handle.unregister()
        gc.collect()
        assert handle.comm is None and seen[0]() is not None and seen[-1]() is not None
        group.barrier()
        if rank == 0:
            counts.append(len(made()))
        group.barrier()
        memory.close()

    ranks(world, work)
    assert counts == [0], counts


def of_another_device() -> None:
    """A communicator that is not on the device is an error on all ranks, and so is one whose ranks are in another order."""
    world = 2
    uid = nccl.unique_id()

    def work(group: symmem.Group, rank: int) -> None:
        raw = communicator(uid, world, rank)
        # Rank 0 says that its communicator, which is on cuda:0, is on cuda:1.
        device = 1
        handle = symm_mem.register_external_nccl_comm(group, raw, device)
        x = symmem.empty(100, device=f"cuda:{device}")
        with pytest.raises(RuntimeError, match="it is on cuda:0, and was registered for cuda:1"):
            symmem.rendezvous(x, group)
        handle.unregister()
        group.barrier()

    ranks(world, work)


def own_without_one() -> None:
    """After all is undone the group makes its own, as ever."""
    counts: list[int] = []

    def work(group: symmem.Group, rank: int) -> None:
        symm_mem.register_external_nccl_comm(group, POINTER, rank).unregister()
        symmem.rendezvous(symmem.empty(100, device=f"cuda:{rank}"), group).close()
        group.barrier()
        if rank == 0:
            counts.append(len(made()))
        group.barrier()

    ranks(2, work)
    assert counts[0] >= 1, counts


@pytest.mark.parametrize("case", [used, of_another_device, own_without_one], ids=lambda case: str(case.__name__))
def test_on_the_fakes(case: Callable[[], None]) -> None:
    run_script(["test_torch_external.py", case.__name__], 2, SYMMEM_ALLOW_OVERLAPPING_DEVICES="1", SYMMEM_TIMEOUT="30")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
