"""The short way to a reduction on a GPU: addresses in, one call, the kernel is on the current stream.

`_ops` comes here for CUDA tensors. Eager code pays for every call and every look-up, so there are few: what
does not change between two operations on the same memory is remembered with the tensor's storage, and goes
with it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

import symmem
from symmem._symmem import DeviceMemory, _device_memory
from symmem.torch._groups import GroupLike
from symmem.torch._memory import current_stream, find
from symmem.typing import Op

_REMEMBERED = "_symmem_devices"
_KNOWN = "_symmem_known"
_DTYPES: dict[torch.dtype, int] = {
    getattr(torch, name): code for code, name in enumerate(DeviceMemory.DTYPES) if hasattr(torch, name)
}
_OPS: dict[str, int] = {name: code for code, name in enumerate(DeviceMemory.OPS)}
BY_SIZE = DeviceMemory.ALGORITHMS.index("auto")
"""The algorithm is chosen by size."""
BY_MULTICAST = DeviceMemory.ALGORITHMS.index("try_multimem")
"""Multicast where all ranks have it, else by size."""


class Seen:
    """A tensor that was seen to fit, as long as it is what it was then."""

    __slots__ = ("_tensor", "_address", "_count")

    def __init__(self) -> None:
        self._tensor: weakref.ref[Tensor] | None = None

    def __contains__(self, tensor: Tensor) -> bool:
        last = self._tensor
        if last is None or last() is not tensor:
            return False
        return tensor.data_ptr() == self._address and tensor.numel() == self._count

    def remember(self, tensor: Tensor) -> None:
        """It fits."""
        self._tensor = weakref.ref(tensor)
        self._address = tensor.data_ptr()
        self._count = tensor.numel()


class Known:
    """What an operation on a tensor needs, worked out once, and the other tensors it was last checked with."""

    __slots__ = ("memory", "address", "count", "dtype", "op", "device", "outputs", "sources", "parts")

    def __init__(self, memory: DeviceMemory, tensor: Tensor, op: Op) -> None:
        dtype, code = _DTYPES.get(tensor.dtype), _OPS.get(op)
        if dtype is None or code is None:
            raise symmem.Invalid(
                f"all_reduce: there is no {op!r} of {tensor.dtype} on devices; {', '.join(_OPS)}"
            )
        self.memory = memory
        self.address = tensor.data_ptr()
        self.count = tensor.numel()
        self.dtype = dtype
        self.op = code
        self.device = tensor.get_device()
        self.outputs = Seen()
        self.sources = Seen()
        self.parts = Seen()

    def reduce(self, source: int, out: int, count: int, how: int = BY_SIZE) -> None:
        """Puts the reduction on the current stream: from and to these addresses, 0 being the tensor's own."""
        self.memory.all_reduce_ptr(
            self.address, source, out, count, self.dtype, self.op, how, current_stream(self.device)
        )


    def scatter(self, out: int, part: int) -> None:
        """Puts the reduction of this rank's part on the current stream, to this address."""
        self.memory.reduce_scatter_ptr(
            self.address, self.count, out, part, self.dtype, self.op, current_stream(self.device)
        )


def known(tensor: Tensor, op: Op, group: GroupLike) -> Known | None:
    """What is known of a CUDA tensor; None where `learn` must be asked."""
    all_known: dict[tuple[GroupLike, str], Known] | None = getattr(tensor, _KNOWN, None)
    if all_known is None:
        return None
    found = all_known.get((group, op))
    # A tensor can be made to show other memory.
    if found is None or found.address != tensor.data_ptr() or found.count != tensor.numel():
        return None
    return found


def learn(tensor: Tensor, op: Op, group: GroupLike) -> Known:
    """Works out what an operation on a contiguous symmetric tensor needs; collective when its memory is new to the group."""
    found = Known(_find(tensor, group), tensor, op)
    all_known: Any = getattr(tensor, _KNOWN, None)
    if all_known is None:
        all_known = {}
        setattr(tensor, _KNOWN, all_known)
    all_known[(group, op)] = found
    return found


def reduce(
    tensor: Tensor,
    op: Op,
    group: GroupLike,
    found: Known,
    source: int,
    out: int,
    count: int,
    how: int = BY_SIZE,
) -> None:
    """`found.reduce`, also where the process group was destroyed meanwhile and there is a new one of its name."""
    try:
        found.reduce(source, out, count, how)
    except symmem.Closed:
        _forget(tensor, group)
        learn(tensor, op, group).reduce(source, out, count, how)


def scatter(tensor: Tensor, op: Op, group: GroupLike, found: Known, out: Tensor) -> None:
    """`found.scatter`, as `reduce`."""
    try:
        found.scatter(out.data_ptr(), out.numel())
    except symmem.Closed:
        _forget(tensor, group)
        learn(tensor, op, group).scatter(out.data_ptr(), out.numel())


def _find(tensor: Tensor, group: GroupLike) -> DeviceMemory:
    """The memory that the tensor is in, on the group; collective when it comes for the first time."""
    storage: Any = tensor.untyped_storage()
    remembered: dict[tuple[GroupLike, int], DeviceMemory] | None = getattr(storage, _REMEMBERED, None)
    if remembered is None:
        remembered = {}
        setattr(storage, _REMEMBERED, remembered)
    # By address: the storage of a pool's tensor can be resized, and is then somewhere else.
    key = (group, storage.data_ptr())
    memory = remembered.get(key)
    if memory is None:
        memory = remembered[key] = _device_memory(find(tensor, group))
    return memory


def _forget(tensor: Tensor, group: GroupLike) -> None:
    storage = tensor.untyped_storage()
    remembered: dict[tuple[GroupLike, int], DeviceMemory] = getattr(storage, _REMEMBERED)
    remembered.pop((group, storage.data_ptr()), None)
