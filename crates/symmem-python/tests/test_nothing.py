"""`rendezvous(None)`: ranks that bring nothing, so that one array is everybody's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symmem

#: The rank that brings the array; all others bring nothing.
OWNER = 1
#: Elements of float64: 64 MB.
LARGE = 8 << 20
#: Seconds. Nobody waits for anybody in a refusal.
AT_ONCE = 5.0

#: A call of every collective of `SymmetricMemory`.
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda mem: mem.all_gather(),
    "all_gather_start": lambda mem: mem.all_gather_start().wait(),
    "all_gather_v": lambda mem: mem.all_gather_v([4, 4, 4]),
    "all_gather_v_start": lambda mem: mem.all_gather_v_start([4, 4, 4]).wait(),
    "all_gather_columns_matmul": lambda mem: mem.all_gather_columns_matmul(np.ones((36, 2), dtype="int32")),
    "all_gather_matmul": lambda mem: mem.all_gather_matmul(np.ones((12, 2), dtype="int32")),
    "all_reduce": lambda mem: mem.all_reduce(),
    "all_reduce_start": lambda mem: mem.all_reduce_start().wait(),
    "all_reduce_rms_norm": lambda mem: mem.all_reduce_rms_norm(np.ones(12, dtype="int32"), np.ones(12, dtype="int32")),
    "all_to_all": lambda mem: mem.all_to_all(),
    "all_to_all_start": lambda mem: mem.all_to_all_start().wait(),
    "all_to_all_v": lambda mem: mem.all_to_all_v([4, 4, 4], np.zeros(12, dtype="int32")),
    "broadcast": lambda mem: mem.broadcast(OWNER),
    "broadcast_start": lambda mem: mem.broadcast_start(OWNER).wait(),
    "exclusive_scan": lambda mem: mem.exclusive_scan(),
    "exclusive_scan_start": lambda mem: mem.exclusive_scan_start().wait(),
    "gather": lambda mem: mem.gather(),
    "gather_start": lambda mem: mem.gather_start().wait(),
    "gather_v": lambda mem: mem.gather_v([4, 4, 4]),
    "gather_v_start": lambda mem: mem.gather_v_start([4, 4, 4]).wait(),
    "scatter_v": lambda mem: mem.scatter_v([4, 4, 4]),
    "scatter_v_start": lambda mem: mem.scatter_v_start([4, 4, 4]).wait(),
    "matmul_reduce_scatter": lambda mem: mem.matmul_reduce_scatter(np.ones((3, 2)), np.ones((2, 3))),
    "matmul_reduce_scatter_columns": lambda mem: mem.matmul_reduce_scatter_columns(np.ones((3, 2)), np.ones((2, 3))),
    "reduce": lambda mem: mem.reduce(),
    "reduce_start": lambda mem: mem.reduce_start().wait(),
    "reduce_scatter": lambda mem: mem.reduce_scatter(),
    "reduce_scatter_start": lambda mem: mem.reduce_scatter_start().wait(),
    "scan": lambda mem: mem.scan(),
    "scan_start": lambda mem: mem.scan_start().wait(),
    "scatter": lambda mem: mem.scatter(),
    "scatter_start": lambda mem: mem.scatter_start().wait(),
}
#: Everything else that it has.
OTHERS = {
    "barrier", "buffer_ptrs", "buffer_ptrs_dev", "buffer_size", "close", "closed", "device", "dtype", "get", "get_buffer",
    "get_remote_tensor", "get_signal_pad", "group", "group_name", "local", "multicast_ptr", "offset", "peer", "put", "put_signal",
    "rank", "ranks_without_memory", "shape", "signal_pad_ptrs", "signal_pad_ptrs_dev", "signal_pad_size", "try_put_signal",
    "try_wait_signal", "wait_signal", "world_size",
}  # fmt: skip


def meet(group: symmem.Group, *shape: int, dtype: str = "int32") -> tuple[Any, symmem.SymmetricMemory]:
    """The owner's array, or None, and the handle."""
    x = symmem.empty(*shape, dtype=dtype) if group.rank == OWNER else None
    return x, symmem.rendezvous(x, group)


def test_every_method_is_a_collective_or_not() -> None:
    public = {name for name in dir(symmem.SymmetricMemory) if not name.startswith("_")}
    assert set(COLLECTIVES) | OTHERS == public
    assert not set(COLLECTIVES) & OTHERS


def refuse_all(group: symmem.Group) -> list[str]:
    x, mem = meet(group, 12)
    if x is not None:
        x[:] = np.arange(12)
    said = []
    for name, call in COLLECTIVES.items():
        started = time.monotonic()
        with pytest.raises(symmem.NothingBrought) as caught:
            call(mem)
        assert time.monotonic() - started < AT_ONCE, name
        assert caught.value.ranks == [0, 2] and str(caught.value).startswith(name.removesuffix("_start")), name
        said.append(str(caught.value))
    if x is not None:
        assert x.tolist() == list(range(12))
    # They are still in step, and the group's own collectives take the array as they take any.
    total = symmem.all_reduce(np.arange(12, dtype="int32") if x is None else x, group=group)
    assert np.asarray(total).tolist() == [3 * i for i in range(12)]
    mem.close()
    return said


def test_every_collective_is_refused_on_all_ranks_with_the_same_words(run: Any) -> None:
    said = run(refuse_all, 3)
    assert len(said[0]) == len(COLLECTIVES) and said[0] == said[1] == said[2]


def what_works(group: symmem.Group) -> None:
    x, mem = meet(group, 3, 4)
    if x is not None:
        x[:] = np.arange(12).reshape(3, 4)
    assert (mem.shape, mem.dtype, mem.ranks_without_memory) == ((3, 4), np.dtype("int32"), [0, 2])
    assert [address != 0 for address in mem.buffer_ptrs] == [False, True, False]
    mem.barrier()
    theirs = mem.get_buffer(OWNER, mem.shape, mem.dtype)
    assert theirs.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert mem.get_remote_tensor(OWNER, (12,), "int32")[11] == 11
    mem.barrier()
    theirs[group.rank] = -group.rank
    mem.put(OWNER, np.array([100 + group.rank], dtype="int32"), 4 * group.rank)
    mem.barrier()
    got = mem.get(OWNER, 0, np.zeros(12, dtype="int32"))
    assert got.reshape(3, 4)[:, 0].tolist() == [100, 101, 102] and got.reshape(3, 4)[:, 1].tolist() == [0, -1, -2]
    for rank in (0, 2):
        for call in (
            lambda: mem.get_buffer(rank, (1,), "int32"),
            lambda: mem.get_remote_tensor(rank, (1,), "int32"),
            lambda: mem.put(rank, np.zeros(1, dtype="int32")),
            lambda: mem.get(rank, 0, np.zeros(1, dtype="int32")),
        ):
            with pytest.raises(symmem.NothingBrought, match=rf"ranks \[{rank}\] brought no memory"):
                call()
    if x is None:
        with pytest.raises(symmem.NothingBrought):
            mem.local()
    else:
        assert mem.local().data_ptr() == x.data_ptr()
    mem.put_signal(group.next)
    mem.wait_signal(group.prev)
    mem.barrier()
    assert mem.try_put_signal(group.next) and not mem.try_put_signal(group.next)
    mem.barrier()
    assert mem.try_wait_signal(group.prev)
    mem.close()
    assert mem.closed
    # The views stay, and the array can be brought again.
    assert theirs[2, 1] == -2
    symmem.rendezvous(x, group).close()


def test_views_signals_and_copies_work(run: Any) -> None:
    run(what_works, 3)


def large(group: symmem.Group) -> tuple[float, dict[str, int]]:
    x, mem = meet(group, LARGE, dtype="float64")
    if x is not None:
        x[:] = 1
    mem.barrier()
    total = float(mem.get_buffer(OWNER, mem.shape, mem.dtype).numpy().sum())
    # Memory files that this rank maps, by inode.
    files: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := re.match(r"(\w+)-(\w+) \S+ \S+ \S+ (\d+) +/memfd:symmem", line):
            start, end, inode = found.groups()
            files[inode] = files.get(inode, 0) + int(end, 16) - int(start, 16)
    mem.barrier()
    mem.close()
    return total, files


def test_the_ranks_have_one_array_between_them(processes: Any) -> None:
    found = processes(large, 4)
    assert [total for total, _ in found] == [LARGE] * 4
    files: dict[str, int] = {}
    for _, theirs in found:
        files.update(theirs)
    assert sorted(files.values())[-1] == 8 * LARGE
    # The rest are pads and control segments.
    assert sum(sorted(files.values())[:-1]) < 8 * LARGE / 4, files


def disagree(group: symmem.Group) -> None:
    with pytest.raises(symmem.Mismatch, match="nothing"):
        symmem.rendezvous(symmem.empty(4 << (20 * group.rank)) if group.rank < 2 else None, group)
    with pytest.raises(symmem.Invalid, match="no rank brings memory"):
        symmem.rendezvous(None, group)
    with pytest.raises(symmem.Error, match="not in symmetric memory"):
        symmem.rendezvous(np.zeros(3) if group.rank == 0 else None, group)
    group.barrier()


def test_sizes_that_differ_stay_an_error(run: Any) -> None:
    run(disagree, 3)
