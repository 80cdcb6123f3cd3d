"""The class `_SymmetricMemory` and what chooses backends, as programs written for torch use them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch_ranks import run  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem.torch import _SymmetricMemory  # noqa: E402


def test_the_class_has_the_pad_size_of_later_allocations() -> None:
    before = symm_mem.get_signal_pad_size()
    assert before > 0 and _SymmetricMemory.signal_pad_size == before
    try:
        _SymmetricMemory.signal_pad_size = 1 << 20
        assert symm_mem.get_signal_pad_size() == _SymmetricMemory.signal_pad_size == 1 << 20
        symm_mem.set_signal_pad_size(1 << 16)
        assert _SymmetricMemory.signal_pad_size == 1 << 16
    finally:
        symm_mem.set_signal_pad_size(before)


def test_what_is_asked_of_the_class() -> None:
    x = _SymmetricMemory.empty_strided_p2p((4,), (1,), torch.uint32, torch.device("cpu"), "0")
    assert _SymmetricMemory.is_symm_mem_tensor(x)
    assert not _SymmetricMemory.is_symm_mem_tensor(torch.zeros(4))
    assert _SymmetricMemory.memset32(x, 1, 7, 2) is x
    _SymmetricMemory.stream_write_value32(x, offset=3, val=9)
    assert x.tolist() == [0, 7, 7, 9]
    for wrong, text in (
        (lambda: _SymmetricMemory.memset32(x, -1, 7, 2), "offset must be greater than or equal to 0"),
        (lambda: _SymmetricMemory.memset32(x, 0, 7, 0), "count must be a positive integer"),
        (lambda: _SymmetricMemory.memset32(x, 0, 1 << 32, 1), "val must be in the range of"),
        (lambda: _SymmetricMemory.memset32(x, 3, 7, 2), "exceeded the numel of the input"),
        (lambda: _SymmetricMemory.memset32(x.view(2, 2), 0, 7, 2), "input must be a flat, contiguous uint32 tensor"),
        (lambda: _SymmetricMemory.stream_write_value32(x, -1, 7), "offset must be"),
    ):
        with pytest.raises(RuntimeError, match=text):
            wrong()
    assert _SymmetricMemory.get_backend(torch.device("cpu")) == "SHM"
    assert _SymmetricMemory.has_multicast_support("cpu", 0) is False
    _SymmetricMemory.set_group_info("a group of this test", 0, 1, None)
    with pytest.raises(RuntimeError, match="already"):
        _SymmetricMemory.set_group_info("a group of this test", 0, 1, None)


def test_an_ordinary_tensor_has_no_handle() -> None:
    with pytest.warns(RuntimeWarning, match="not in symmetric memory"):
        assert symm_mem.rendezvous(torch.zeros(4)) is None
    with pytest.warns(RuntimeWarning):
        assert _SymmetricMemory.rendezvous(torch.zeros(4), "0") is None


def named(rank: int) -> None:
    ranks = dist.get_world_size()
    pair = dist.new_group([0, 1])
    x = _SymmetricMemory.empty_strided_p2p((4,), (1,), torch.float32, "cpu", pair.group_name if rank < 2 else None)
    if rank < 2:
        handle = _SymmetricMemory.rendezvous(x)
        assert handle.world_size == 2 and handle.group_name == pair.group_name
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    assert handle.world_size == ranks and handle.group_name == dist.group.WORLD.group_name
    for rank_ in (-1, ranks):
        for wrong in (
            lambda r=rank_: handle.put_signal(r),
            lambda r=rank_: handle.wait_signal(r),
            lambda r=rank_: handle.get_signal_pad(r),
            lambda r=rank_: handle.get_buffer(r, (1,), torch.float32),
            lambda r=rank_: handle.get_remote_tensor(r, (1,), torch.float32),
        ):
            with pytest.raises(RuntimeError, match=r"must be in \[0"):
                wrong()
    last = handle.signal_pad_size // 4 // ranks - 1
    for channel in (-1, last + 1):
        for wrong in (
            lambda c=channel: handle.barrier(channel=c),
            lambda c=channel: handle.put_signal((rank + 1) % ranks, channel=c),
            lambda c=channel: handle.wait_signal((rank - 1) % ranks, channel=c),
        ):
            with pytest.raises(RuntimeError, match="maximum supported channel"):
                wrong()
    handle.barrier(channel=last)
    handle.put_signal((rank + 1) % ranks, channel=last)
    handle.wait_signal((rank - 1) % ranks, channel=last)
    with pytest.raises(RuntimeError, match="exceeds"):
        handle.get_buffer(0, (handle.buffer_size,), torch.float32)
    dist.barrier()
    # A tensor is ordinary on all ranks, and nobody waits.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert symm_mem.rendezvous(torch.zeros(4), dist.group.WORLD) is None


@pytest.mark.parametrize("ranks", [2, 4])
def test_names_ranks_and_channels(ranks: int) -> None:
    run(named, ranks)


def test_the_import_takes_little_time(script: Any) -> None:
    """Anything that torch takes itself. Not measured here, where others use the machine: it loads none of torch's slow parts."""
    done = script(
        """
import sys
import torch.distributed
before = set(sys.modules)
import symmem.torch
slow = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental.symbolic_shapes", "sympy",
        "torch.distributed._symmetric_memory", "torch.distributed._functional_collectives")
print([name for name in slow if name in sys.modules and name not in before])
"""
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr
