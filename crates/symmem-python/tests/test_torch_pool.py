"""torch's memory pools over symmetric memory, as far as torch lets one go without a GPU; `gpu/test_fake_device.py` has the segments."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed._symmetric_memory as theirs  # noqa: E402

import symmem.torch as symm_mem  # noqa: E402
from symmem.torch import _pool  # noqa: E402

with_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="this torch has no CUDA")


@with_cuda
def test_torch_takes_the_allocator() -> None:
    allocator = symm_mem.get_mempool_allocator("cuda")
    assert type(allocator).__name__ == "_CUDAPluggableAllocator"
    assert symm_mem.get_mempool_allocator(torch.device("cuda", 1)) is allocator
    assert symm_mem.SymmetricMemory.get_mempool_allocator(torch.device("cuda")) is allocator


@pytest.mark.parametrize("ask", [symm_mem.get_mempool_allocator, symm_mem.get_mem_pool])
def test_other_devices_have_none(ask: Any) -> None:
    with pytest.raises(RuntimeError, match="no memory pool for device type cpu"):
        ask("cpu")


def test_a_torch_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_allocators", [])
    monkeypatch.delattr(torch._C, "_cuda_customAllocator", raising=False)
    with pytest.raises(RuntimeError, match="built without CUDA"):
        symm_mem.get_mempool_allocator("cuda")


@with_cuda
def test_a_pool_per_device_with_the_options_of_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, dict[str, Any]]] = []

    class Pool:
        def __init__(self, allocator: Any, use_on_oom: bool = False, no_split: bool = False) -> None:
            made.append((allocator, {"use_on_oom": use_on_oom, "no_split": no_split}))

    class Older:
        def __init__(self, allocator: Any = None) -> None:
            made.append((allocator, {}))

    monkeypatch.setattr(_pool, "_pools", {})
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda number: contextlib.nullcontext())
    first = symm_mem.get_mem_pool("cuda:0")
    assert symm_mem.get_mem_pool(torch.device("cuda", 0)) is first
    current = symm_mem.get_mem_pool("cuda")
    assert current is symm_mem.get_mem_pool("cuda:1") and current is not first
    assert made == [(symm_mem.get_mempool_allocator("cuda"), {"use_on_oom": False, "no_split": True})] * 2
    monkeypatch.setattr(torch.cuda, "MemPool", Older)
    symm_mem.get_mem_pool("cuda:2")
    assert made[-1] == (symm_mem.get_mempool_allocator("cuda"), {})


def test_install_puts_it_under_torchs_names() -> None:
    symm_mem.install()
    try:
        for name in ("get_mem_pool", "get_mempool_allocator"):
            if hasattr(theirs, name):
                assert getattr(theirs, name) is getattr(symm_mem, name)
    finally:
        symm_mem.uninstall()
