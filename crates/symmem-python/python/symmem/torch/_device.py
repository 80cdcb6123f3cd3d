"""The short way to a reduction on a GPU: addresses in, one call, the kernel is on the current stream.

`_ops` comes here for CUDA tensors. Eager code pays for every call and every look-up, so there are few: what
does not change between two operations on the same memory is remembered with the tensor's storage, and goes
with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import symmem
from symmem._symmem import DeviceMemory, _device_memory
from symmem.torch._groups import GroupLike
from symmem.torch._memory import current_stream, find

_REMEMBERED = "_symmem_devices"
_DTYPES: dict[torch.dtype, int] = {
    getattr(torch, name): code for code, name in enumerate(DeviceMemory.DTYPES) if hasattr(torch, name)
}
_OPS: dict[str, int] = {name: code for code, name in enumerate(DeviceMemory.OPS)}
_BY_SIZE = DeviceMemory.ALGORITHMS.index("auto")


def all_reduce(
    symmetric: Tensor, op: str, group: GroupLike, source: Tensor | None, out: Tensor | None
) -> None:
    """Reduces `source` (by default `symmetric`, else through it) into `out` (by default in place)."""
    dtype, code = _DTYPES.get(symmetric.dtype), _OPS.get(op)
    if dtype is None or code is None:
        raise symmem.Invalid(
            f"all_reduce: there is no {op!r} of {symmetric.dtype} on devices; {', '.join(_OPS)}"
        )
    memory = _find(symmetric, group)
    start = 0 if source is None else source.data_ptr()
    end = 0 if out is None else out.data_ptr()
    count = symmetric.numel() if source is None else source.numel()
    stream = current_stream(symmetric.get_device())
    try:
        memory.all_reduce_ptr(symmetric.data_ptr(), start, end, count, dtype, code, _BY_SIZE, stream)
    except symmem.Closed:
        # The process group was destroyed, and there is a new one of that name.
        _forget(symmetric, group)
        memory = _find(symmetric, group)
        memory.all_reduce_ptr(symmetric.data_ptr(), start, end, count, dtype, code, _BY_SIZE, stream)


def _find(tensor: Tensor, group: GroupLike) -> DeviceMemory:
    """The memory that the tensor is in, on the group; collective when it comes for the first time."""
    storage: Any = tensor.untyped_storage()
    remembered: dict[GroupLike, DeviceMemory] | None = getattr(storage, _REMEMBERED, None)
    if remembered is None:
        remembered = {}
        setattr(storage, _REMEMBERED, remembered)
    memory = remembered.get(group)
    if memory is None:
        memory = remembered[group] = _device_memory(find(tensor, group))
    return memory


def _forget(tensor: Tensor, group: GroupLike) -> None:
    remembered: dict[GroupLike, DeviceMemory] = getattr(tensor.untyped_storage(), _REMEMBERED)
    remembered.pop(group, None)
