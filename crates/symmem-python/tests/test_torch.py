"""`symmem.torch`: symmetric memory as tensors, under the names and with the arguments of torch's module."""

from __future__ import annotations

import doctest
import gc
import importlib
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402


def written_for_torch(rank: int) -> None:
    """What a program for `torch.distributed._symmetric_memory` does; only the import differs."""
    group = dist.group.WORLD
    ranks = dist.get_world_size()
    t = symm_mem.empty(128, 64, dtype=torch.bfloat16, device="cpu")
    assert t.shape == (128, 64) and t.dtype == torch.bfloat16 and symm_mem.is_symm_mem_tensor(t)
    hdl = symm_mem.rendezvous(t, group.group_name)
    assert (hdl.rank, hdl.world_size, hdl.offset) == (rank, ranks, 0)
    assert hdl.buffer_size >= t.numel() * 2 and hdl.signal_pad_size == symm_mem.get_signal_pad_size()
    assert len(hdl.buffer_ptrs) == len(hdl.signal_pad_ptrs) == ranks
    assert hdl.buffer_ptrs[rank] == t.data_ptr() and hdl.multicast_ptr == 0
    assert hdl.device == torch.device("cpu")

    t.fill_(rank)
    hdl.barrier(channel=0)
    for peer in range(ranks):
        assert (hdl.get_buffer(peer, t.shape, t.dtype) == peer).all()
        for like in (hdl.get_buffer(peer), hdl.get_remote_tensor(peer)):
            assert like.shape == t.shape and like.dtype == t.dtype and (like == peer).all()
        assert (hdl.get_buffer(peer, (8,), t.dtype, storage_offset=128 * 64 - 8) == peer).all()
    hdl.barrier(channel=1)

    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    hdl.get_buffer(after, t.shape, t.dtype).fill_(10 + rank)
    hdl.put_signal(dst_rank=after, channel=0)
    hdl.wait_signal(src_rank=before, channel=0)
    assert (t == 10 + before).all()
    pad = hdl.get_signal_pad(rank)
    assert pad.dtype == torch.uint32 and pad.numel() == hdl.signal_pad_size // 4
    assert hdl.get_signal_pad(rank, (2, 2), dtype=torch.int64).shape == (2, 2)
    with pytest.raises((IndexError, RuntimeError)):
        hdl.get_buffer(ranks, t.shape, t.dtype)
    with pytest.raises((IndexError, RuntimeError)):
        hdl.get_buffer(0, (128 * 64 + 1_000_000,), t.dtype)
    hdl.barrier()


def one_shot(rank: int) -> None:
    name = dist.group.WORLD.group_name
    ranks = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for numel in (1, 7, 4096, 100_000):
            x = symm_mem.empty(numel, dtype=dtype)
            total = torch.full((numel,), ranks * (ranks + 1) // 2, dtype=dtype)

            def fill(x: torch.Tensor = x) -> None:
                dist.barrier()
                x.fill_(rank + 1)
                dist.barrier()

            fill()
            assert torch.equal(symm_mem.one_shot_all_reduce(x, "sum", name), total)
            assert (x == rank + 1).all()
            out = torch.zeros_like(x)
            assert symm_mem.one_shot_all_reduce_out(x, "sum", name, out) is out and torch.equal(out, total)
            assert torch.equal(
                symm_mem.multimem_one_shot_all_reduce(x, "max", name), torch.full_like(total, ranks)
            )
            assert torch.equal(symm_mem.two_shot_all_reduce_out(x, "sum", name, torch.zeros_like(x)), total)
            local = torch.full((numel,), 2 * (rank + 1), dtype=dtype)
            assert torch.equal(symm_mem.one_shot_all_reduce_copy(x, local, "sum", name), 2 * total)
            for in_place in (symm_mem.two_shot_all_reduce_, symm_mem.multimem_all_reduce_):
                fill()
                assert in_place(x, "sum", name) is x and torch.equal(x, total)
            fill()
            out = torch.zeros_like(x)
            symm_mem.multimem_one_shot_reduce_out(x, "sum", ranks - 1, name, out)
            assert torch.equal(out, total if rank == ranks - 1 else torch.zeros_like(out))


def views(rank: int) -> None:
    group = dist.group.WORLD
    ranks = dist.get_world_size()
    whole = symm_mem.empty(64)
    whole.copy_(torch.arange(64.0) + 100 * rank)
    part = whole[16:24]
    assert symm_mem.is_symm_mem_tensor(part)
    dist.barrier()
    assert torch.equal(
        symm_mem.one_shot_all_reduce(part, "sum", group),
        torch.arange(16.0, 24) * ranks + 100 * sum(range(ranks)),
    )
    hdl = symm_mem.rendezvous(part, group)
    assert hdl.offset == 64
    every = symm_mem.get_remote_tensors(part, group)
    assert [each[0].item() for each in every] == [16 + 100 * peer for peer in range(ranks)]
    got = symm_mem.get(torch.zeros(3), hdl, (rank + 1) % ranks, offset=2)
    assert got.tolist() == [18 + 100 * ((rank + 1) % ranks) + each for each in range(3)]
    for wrong in (
        lambda: symm_mem.get(torch.zeros(3), hdl, 0, offset=-1),
        lambda: symm_mem.get(torch.zeros(3), hdl, ranks),
        lambda: symm_mem.get(torch.zeros(2_000_000), hdl, 0),
        lambda: symm_mem.get(torch.zeros(4, 2)[:, 0], hdl, 0),
        lambda: symm_mem.get_remote_tensors(torch.zeros(3), group),
        lambda: symm_mem.one_shot_all_reduce(whole.view(8, 8).t(), "sum", group),
    ):
        with pytest.raises(ValueError):
            wrong()
    dist.barrier()
    symm_mem.put_signal(torch.full((2,), -1.0 - rank), hdl, (rank + 1) % ranks)
    symm_mem.wait_signal(hdl, (rank - 1) % ranks)
    assert part[:3].tolist() == [-1.0 - (rank - 1) % ranks] * 2 + [18 + 100 * rank]
    dist.barrier()


def scattered_and_gathered(rank: int) -> None:
    name = dist.group.WORLD.group_name
    ranks = dist.get_world_size()
    flat = symm_mem.empty(ranks * 8)
    flat.copy_(torch.arange(ranks * 8.0))
    dist.barrier()
    out = torch.zeros(8)
    symm_mem.reduce_scatter_out(flat, name, False, out)
    assert torch.equal(out, torch.arange(8.0 * rank, 8.0 * rank + 8) * ranks)
    table = symm_mem.empty(3, ranks * 4)
    table.copy_(torch.arange(12.0 * ranks).view(3, -1))
    dist.barrier()
    out = torch.zeros(3, 4)
    symm_mem.reduce_scatter_out(table, name, True, out)
    assert torch.equal(out, table[:, 4 * rank : 4 * rank + 4] * ranks)
    with pytest.raises(ValueError, match="divisible"):
        odd = symm_mem.empty(ranks * 4 + 1)
        symm_mem.reduce_scatter_out(odd, name, False, torch.zeros(4))
    gathered = symm_mem.empty(ranks * 2, 5, dtype=torch.int32)
    symm_mem.multimem_all_gather_out(torch.full((2, 5), rank, dtype=torch.int32), name, gathered)
    assert gathered[:, 0].tolist() == [each // 2 for each in range(2 * ranks)]
    x = torch.full((2, 3), float(rank))
    assert symm_mem._low_contention_all_gather(x, name)[:, 0].tolist() == [
        each // 2 for each in range(2 * ranks)
    ]
    part = symm_mem._low_contention_reduce_scatter(torch.ones(2 * ranks, 3), "avg", name)
    assert torch.equal(part, torch.ones(2, 3))
    with pytest.raises(ValueError, match="sum or avg"):
        symm_mem._low_contention_reduce_scatter(x, "max", name)


def groups(rank: int) -> None:
    ranks = dist.get_world_size()
    pair = dist.new_group([0, 1])
    gloo = dist.new_group(backend="gloo")
    x = symm_mem.empty(4)
    x.fill_(rank)
    dist.barrier()
    ours = symmem.Group.from_torch(gloo)
    for group in (dist.group.WORLD, gloo, gloo.group_name, ours, None):
        assert (symm_mem.one_shot_all_reduce(x, "sum", group) == sum(range(ranks))).all()
    if rank < 2:
        assert symm_mem.rendezvous(x, pair).world_size == 2
        assert (symm_mem.one_shot_all_reduce(x, "sum", pair) == 1).all()
    with pytest.raises(TypeError):
        symm_mem.rendezvous(x, 7)  # type: ignore[arg-type]
    assert symm_mem.is_symm_mem_enabled_for_group(gloo.group_name)
    assert not symm_mem.is_symm_mem_enabled_for_group("no such group")
    workspace = symm_mem.get_symm_mem_workspace(gloo.group_name, 4096)
    assert workspace.buffer_size >= 4096
    assert workspace.get_buffer(rank, (1024,), torch.float32).shape == (1024,)
    dist.barrier()
    # An asynchronous collective of the process group is no obstacle to operations on symmetric memory.
    work = dist.all_reduce(torch.ones(1), async_op=True)
    symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD)
    work.wait()


def group_ends_with_process_group(rank: int, path: str) -> None:
    x = symm_mem.empty(4)
    x.fill_(1)
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    name = dist.group.WORLD.group_name
    assert symm_mem.one_shot_all_reduce(x, "sum", name)[0] == 2
    dist.destroy_process_group()
    with pytest.raises(symmem.Closed):
        handle.barrier()
    assert x[0] == 1
    dist.init_process_group("symmem", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    assert dist.group.WORLD.group_name == name
    assert symm_mem.one_shot_all_reduce(x, "sum", name)[0] == 2


def lifetimes(rank: int) -> None:
    class Witness:
        pass

    x = symm_mem.empty(1000)
    x.fill_(rank)
    hdl = symm_mem.rendezvous(x, dist.group.WORLD)
    dist.barrier()
    theirs = hdl.get_buffer(1 - rank, (1000,), torch.float32)
    x.untyped_storage().witness = witness = Witness()
    alive = weakref.ref(witness)
    del witness, hdl
    gc.collect()
    assert (theirs == 1 - rank).all() and alive() is not None
    del x
    gc.collect()
    assert alive() is None, "the remembered handles keep the tensor"
    dist.barrier()
    assert (theirs == 1 - rank).all()


def alone() -> None:
    t = symm_mem.empty((2, 3), dtype=torch.int32)
    assert t.shape == (2, 3) and (t == 0).all()
    assert symm_mem.empty(2).dtype == torch.get_default_dtype()
    s = symm_mem.empty_strided_p2p((4, 2), (2, 1), torch.float32, torch.device("cpu"))
    assert (
        s.stride() == (2, 1)
        and symm_mem.is_symm_mem_tensor(s)
        and not symm_mem.is_symm_mem_tensor(torch.ones(1))
    )
    assert symm_mem.get_backend("cpu") == "SHM"
    assert not symm_mem.has_multicast_support("cpu", 0)
    assert symm_mem.is_nvshmem_available() is False
    words = torch.zeros(8, dtype=torch.uint32)
    assert symm_mem.memset32_(words, 1, 7, 3) is words
    symm_mem.stream_write_value32_(words, 6, 4294967295)
    assert words.tolist() == [0, 7, 7, 7, 0, 0, 4294967295, 0]
    for wrong in (
        lambda: symm_mem.memset32_(words, 6, 1, 3),
        lambda: symm_mem.memset32_(words, 0, 1, 0),
        lambda: symm_mem.memset32_(words, 0, -1, 1),
        lambda: symm_mem.memset32_(words.view(2, 4), 0, 1, 1),
        lambda: symm_mem.stream_write_value32_(words, 8, 1),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(RuntimeError, match="contiguous"):
        symm_mem.memcpy_to_multicast_(t, t.t(), 0, "0")
    with pytest.warns(FutureWarning):
        symm_mem.enable_symm_mem_for_group("0")


def persistent(rank: int) -> None:
    first = symm_mem.empty_strided_p2p((16,), (1,), torch.float32, "cpu", alloc_id=42)
    first.fill_(rank + 5)
    address = first.data_ptr()
    del first
    gc.collect()
    second = symm_mem.empty_strided_p2p((16,), (1,), torch.float32, "cpu", alloc_id=42)
    assert second.data_ptr() == address and (second == rank + 5).all()
    dist.barrier()
    assert (symm_mem.one_shot_all_reduce(second, "sum", None) == 11).all()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("function", [written_for_torch, one_shot, views, scattered_and_gathered, groups])
def test_operations(function: Any, ranks: int) -> None:
    run(function, ranks)


def test_operations_work_on_a_gloo_world() -> None:
    run(one_shot, 2, backend="gloo")


def test_a_group_ends_with_its_process_group(tmp_path: Any) -> None:
    run(group_ends_with_process_group, 2, str(tmp_path / "store"))


def test_handles_live_as_long_as_their_memory() -> None:
    run(lifetimes, 2)


def resolved_at_once(rank: int) -> None:
    """Threads that are the first to use a process group make its symmem group once."""
    from symmem.torch._groups import resolve

    for _ in range(3):
        group, together = dist.new_group([0, 1]), threading.Barrier(4)

        def first(group: Any = group, together: threading.Barrier = together) -> symmem.Group:
            together.wait(10)
            return resolve(group)

        started = time.monotonic()
        with ThreadPoolExecutor(4) as threads:
            made = [each.result(20) for each in [threads.submit(first) for _ in range(4)]]
        assert all(each is made[0] for each in made) and not made[0].closed
        assert time.monotonic() - started < 10


def test_threads_make_a_group_once() -> None:
    run(resolved_at_once, 2)


def test_persistent_memory_comes_back() -> None:
    run(persistent, 2)


def test_what_needs_no_group() -> None:
    alone()


def test_docstrings() -> None:
    failed, tried = doctest.testmod(importlib.import_module("symmem.torch._memory"))
    assert tried > 0 and failed == 0


class Recorder:
    """Stands for the memory of a device, and notes what it is told to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.closed = False

    def all_reduce_ptr(self, *args: int) -> None:
        if self.closed:
            raise symmem.Closed("gone")
        self.calls.append(args)

    reduce_scatter_ptr = all_reduce_ptr


def test_eager_operations_on_devices_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which addresses go to a device, and that memory is found again, and once more when its group ended."""
    from symmem.torch import _device

    made: list[Recorder] = []
    monkeypatch.setattr(_device, "find", lambda tensor, group: None)
    monkeypatch.setattr(_device, "_device_memory", lambda handle: made.append(Recorder()) or made[-1])
    monkeypatch.setattr(_device, "current_stream", lambda device: 77)
    memory = torch.zeros(64)
    part, private, out = memory[16:32], torch.zeros(16), torch.zeros(16)
    code, total = _device._DTYPES[torch.float32], _device._OPS["sum"]
    assert _device.known(part, "sum", "0") is None
    known = _device.learn(part, "sum", "0")
    assert _device.known(part, "sum", "0") is known
    for source, to in [(0, out.data_ptr()), (private.data_ptr(), out.data_ptr()), (0, 0)]:
        _device.reduce(part, "sum", "0", known, source, to, 16)
    at = memory.data_ptr() + 64
    same = (16, code, total, _device.BY_SIZE, 77)
    expected = [
        (at, 0, out.data_ptr(), *same),
        (at, private.data_ptr(), out.data_ptr(), *same),
        (at, 0, 0, *same),
    ]
    assert [each.calls for each in made] == [expected]
    made[0].closed = True
    _device.reduce(part, "sum", "0", known, 0, 0, 16)
    assert len(made) == 2 and made[1].calls == expected[2:]
    again = _device.learn(part, "sum", "0")
    _device.reduce(part, "sum", "0", again, 0, 0, 16, _device.BY_MULTICAST)
    assert made[1].calls[1:] == [(at, 0, 0, 16, code, total, _device.BY_MULTICAST, 77)]
    # A rank's part, with the same look-up: also where the group ended.
    _device.scatter(part, "sum", "0", again, out[:8])
    made[1].closed = True
    _device.scatter(part, "sum", "0", again, out[:8])
    scattered = (at, 16, out.data_ptr(), 8, code, total, 77)
    assert made[1].calls[-1] == scattered and len(made) == 3 and made[2].calls == [scattered]
    with pytest.raises(symmem.Invalid):
        _device.learn(part, "median", "0")


def test_a_tensor_that_changed_is_looked_at_again() -> None:
    from symmem.torch import _device

    seen = _device.Seen()
    tensor, other = torch.zeros(16), torch.zeros(16)
    assert tensor not in seen
    seen.remember(tensor)
    assert tensor in seen and other not in seen
    tensor.data = torch.zeros(16)
    assert tensor not in seen
    seen.remember(tensor)
    tensor.resize_(8)
    assert tensor not in seen
