"""torch's memory pools over symmetric memory: what a program makes in such a pool is symmetric.

torch cuts tensors from segments that a C function of the extension module gives it. `rendezvous` finds the segment that a tensor is in.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

import symmem
from symmem import _symmem
from symmem.torch._memory import heed_environment

_pools: dict[int, Any] = {}
# One for all devices; torch asks for memory by device.
_allocators: list[Any] = []
# What torch's own pool has: no tensors of others where memory is short, and a segment for each tensor, which has the segment's signal pad to itself.
_OPTIONS = {"use_on_oom": False, "no_split": True}


def get_mempool_allocator(device: torch.device | str) -> Any:
    """The allocator that gives torch's memory pools symmetric memory of a GPU: for `torch.cuda.MemPool`."""
    where = torch.device(device)
    if where.type != "cuda":
        raise symmem.Invalid(f"get_mempool_allocator: there is no memory pool for device type {where.type}; there is one for cuda")
    heed_environment(where)
    if not _allocators:
        # What CUDAPluggableAllocator does with the functions of a file; builds of torch without CUDA have no such thing.
        make: Any = getattr(torch._C, "_cuda_customAllocator", None)
        if make is None:
            raise symmem.Invalid("get_mempool_allocator: this torch was built without CUDA")
        _allocators.append(make(*_symmem._mempool_functions()))
    return _allocators[0]


def get_mem_pool(device: torch.device | str) -> Any:
    """The memory pool of a GPU whose tensors are symmetric, made when it is first asked for.

    All ranks make the same tensors in it, in the same order:

        with torch.cuda.use_mem_pool(symm_mem.get_mem_pool("cuda:0")):
            x = torch.arange(1024, device="cuda:0")
        y = symm_mem.one_shot_all_reduce(x, "sum", group_name)
    """
    allocator = get_mempool_allocator(device)
    index = torch.device(device).index
    number = torch.cuda.current_device() if index is None else index
    if number not in _pools:
        known = inspect.signature(torch.cuda.MemPool).parameters
        options = {name: value for name, value in _OPTIONS.items() if name in known}
        with torch.cuda.device(number):
            _pools[number] = torch.cuda.MemPool(allocator, **options)
    return _pools[number]
