"""Symmetric memory as torch tensors: allocation, rendezvous, handles, and what can be asked about them.

The names, arguments and properties are those of `torch.distributed._symmetric_memory`. Handles are remembered
with the tensor's storage, so finding one again is cheap, local, and never finds that of freed memory.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

import symmem
from symmem._symmem import _device_memory, _prefer_backend
from symmem.torch._groups import GroupLike, resolve

_REMEMBERED = "_symmem_handles"
_GROUP = "_symmem_group"
# Not there in builds of torch without CUDA, which have no CUDA tensors either.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)


def empty(*size: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """A zeroed tensor in symmetric memory; all ranks make the same one, then `rendezvous` it.

    >>> import symmem.torch as symm_mem
    >>> symm_mem.empty(2, 3).shape
    torch.Size([2, 3])
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], Sequence) else size
    return _allocate(shape, dtype or torch.get_default_dtype(), device or torch.get_default_device(), None)


def empty_strided_p2p(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    group_name: str | None = None,
    alloc_id: int | None = None,
) -> Tensor:
    """`empty` with strides; with `alloc_id` the same memory every time, which is never freed.

    `group_name` is the group that a later `rendezvous` without one is on. There need not be such a group yet.
    """
    flat = _allocate((math.prod(size),), dtype, device, alloc_id)
    if group_name is not None:
        setattr(flat.untyped_storage(), _GROUP, group_name)
    return torch.as_strided(flat, tuple(size), tuple(stride))


def _allocate(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, alloc_id: int | None
) -> Tensor:
    where = torch.device(device)
    heed_environment(where)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    array = symmem.empty(tuple(shape), dtype=dtype, device=str(where), alloc_id=alloc_id)
    tensor: Tensor = array.torch()
    return tensor


def rendezvous(tensor: Tensor, group: GroupLike = None) -> SymmetricMemory:
    """Collective. The handle through which every rank of `group` reaches every rank's `tensor`.

    `tensor` is any contiguous view of memory from `empty`; `group` a `symmem.Group`, a process group or its
    name, or None: the group that the memory was allocated for, else the default one.

    For a tensor that is not in symmetric memory it is None, as in torch, with a warning. The type does not say so, because programs use what
    they get without asking.
    """
    if not symmem.is_symm_mem_tensor(tensor):
        text = "rendezvous: the tensor is not in symmetric memory, so there is no handle. Hint: allocate it with symmem.torch.empty()"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return cast(SymmetricMemory, None)
    if group is None:
        group = getattr(tensor.untyped_storage(), _GROUP, None)
    return SymmetricMemory(find(tensor, group))


def find(tensor: Tensor, group: GroupLike) -> symmem.SymmetricMemory:
    """The handle of a tensor, remembered; else made, which is collective for new memory.

    Operations come here every time: few calls, and nothing that copies.
    """
    storage = tensor.untyped_storage()
    remembered: dict[Any, symmem.SymmetricMemory] | None = getattr(storage, _REMEMBERED, None)
    # By address: the storage of a pool's tensor can be resized, and is then somewhere else.
    key = (group, tensor.data_ptr(), tensor.shape, tensor.dtype)
    if remembered is not None:
        handle = remembered.get(key)
        if handle is not None and not handle.group.closed:
            return handle
    handle = _open(tensor, group)
    if remembered is None:
        remembered = {}
        setattr(storage, _REMEMBERED, remembered)
    remembered[key] = handle
    return handle


def _open(tensor: Tensor, group: GroupLike) -> symmem.SymmetricMemory:
    if not symmem.is_symm_mem_tensor(tensor):
        text = "the tensor must be allocated with symmem.torch.empty() or empty_strided_p2p()"
        resolve(group)._refuse(text, tensor)
        raise symmem.Invalid(text)
    return symmem.rendezvous(tensor, resolve(group))


class _OfClass(type):
    """What can be asked of the class itself, as of torch's."""

    @property
    def signal_pad_size(cls) -> int:
        """Bytes of the signal pads of later allocations."""
        return get_signal_pad_size()

    @signal_pad_size.setter
    def signal_pad_size(cls, size: int) -> None:
        set_signal_pad_size(size)


class SymmetricMemory(metaclass=_OfClass):
    """The memory of all ranks: what torch calls `_SymmetricMemory`. Made by `rendezvous`.

    `raw` is symmem's own handle, with more methods: collectives, `put`, `get`, `close`.
    """

    __slots__ = ("_device", "raw")

    def __init__(self, raw: symmem.SymmetricMemory) -> None:
        self.raw = raw
        # On GPUs, the short way that takes addresses and streams as numbers.
        self._device = None if raw.device == "cpu" else _device_memory(raw)

    def __repr__(self) -> str:
        return f"<symmem.torch.SymmetricMemory on {self.device}: rank {self.rank} of {self.world_size}>"

    @staticmethod
    def rendezvous(tensor: Tensor, group_name: GroupLike = None) -> SymmetricMemory:
        """The function `rendezvous`, where torch has it too."""
        return rendezvous(tensor, group_name)

    @staticmethod
    def empty_strided_p2p(*args: Any, **kwargs: Any) -> Tensor:
        """The function `empty_strided_p2p`, where torch has it too."""
        return empty_strided_p2p(*args, **kwargs)

    @staticmethod
    def has_multicast_support(device_type: Any, device_idx: int = 0) -> bool:
        """The function `has_multicast_support`, where torch has it too."""
        return has_multicast_support(device_type, device_idx)

    @staticmethod
    def set_backend(name: str) -> None:
        """The function `set_backend`, where torch has it too."""
        set_backend(name)

    @staticmethod
    def get_backend(device: torch.device | str) -> str | None:
        """The function `get_backend`, where torch has it too."""
        return get_backend(device)

    @staticmethod
    def get_mempool_allocator(device: torch.device | str) -> Any:
        """The function `get_mempool_allocator`, where torch has it too."""
        # It imports this module.
        from symmem.torch import _pool

        return _pool.get_mempool_allocator(device)

    @staticmethod
    def is_symm_mem_tensor(tensor: Tensor) -> bool:
        """The function `is_symm_mem_tensor`, where torch has it too."""
        return is_symm_mem_tensor(tensor)

    @staticmethod
    def memset32(input: Tensor, offset: int, val: int, count: int = 1) -> Tensor:
        """The function `memset32_`, where torch has it too."""
        _operations().memset32_(input, offset, val, count)
        return input

    @staticmethod
    def stream_write_value32(input: Tensor, offset: int, val: int) -> Tensor:
        """The function `stream_write_value32_`, where torch has it too."""
        _operations().stream_write_value32_(input, offset, val)
        return input

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: Any) -> None:
        """Checks that a name is told once, as torch does; groups are found by torch's registry, so nothing else is done with it."""
        if group_name in _group_infos:
            raise symmem.Invalid(f"set_group_info: group info of {group_name!r} has been set already")
        _group_infos[group_name] = (rank, world_size, store)

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self.raw.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.raw.world_size

    @property
    def group_name(self) -> str:
        """The name of the group, as torch has it."""
        return self.raw.group_name.removeprefix("torch/")

    @property
    def device(self) -> torch.device:
        """Where the memory is."""
        return torch.device(self.raw.device)

    @property
    def buffer_ptrs(self) -> list[int]:
        """Every rank's allocation, as addresses in this process."""
        return list(self.raw.buffer_ptrs)

    @property
    def buffer_ptrs_dev(self) -> int:
        """The address of an array of `buffer_ptrs`, for kernels."""
        return self.raw.buffer_ptrs_dev

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """Every rank's signal pad, as addresses in this process."""
        return list(self.raw.signal_pad_ptrs)

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """The address of an array of `signal_pad_ptrs`, for kernels."""
        return self.raw.signal_pad_ptrs_dev

    @property
    def buffer_size(self) -> int:
        """Bytes of the allocation."""
        return self.raw.buffer_size

    @property
    def signal_pad_size(self) -> int:
        """Bytes of a signal pad."""
        return self.raw.signal_pad_size

    @property
    def offset(self) -> int:
        """Where the tensor starts in its allocation, in bytes."""
        return self.raw.offset

    @property
    def multicast_ptr(self) -> int:
        """The address that reaches all ranks at once; 0 where there is none."""
        return self.raw.multicast_ptr

    def get_buffer(
        self,
        rank: int,
        sizes: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        storage_offset: int | None = None,
    ) -> Tensor:
        """A tensor in the memory of `rank`: like this rank's own, or, with `sizes`,

        from element `storage_offset` of the allocation on, as torch counts (0 by default).
        """
        shape = None if sizes is None else tuple(sizes)
        self._check("get_buffer", rank)
        tensor: Tensor = self.raw.get_buffer(rank, shape, dtype, storage_offset).torch()
        return tensor

    def get_remote_tensor(
        self, peer: int, sizes: Sequence[int] | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor in the memory of `peer`, from where its tensor starts; like this rank's by default."""
        shape = None if sizes is None else tuple(sizes)
        self._check("get_remote_tensor", peer)
        tensor: Tensor = self.raw.get_remote_tensor(peer, shape, dtype).torch()
        return tensor

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> Tensor:
        """The signal pad of `rank`: all of it unless `sizes` says less, as uint32 unless `dtype` differs."""
        self._check("get_signal_pad", rank)
        pad = self.raw.get_signal_pad(rank, tuple(sizes), dtype or torch.uint32, storage_offset)
        tensor: Tensor = pad.torch()
        return tensor

    def _check(self, name: str, rank: int, channel: int = 0) -> None:
        """What no rank and no channel can be is said in torch's words, which programs look for."""
        if not 0 <= rank < self.raw.world_size:
            raise symmem.RankOutOfRange(f"{name}: rank {rank} must be in [0, {self.raw.world_size})")
        channels = self.raw.signal_pad_size // 4 // self.raw.world_size
        if not 0 <= channel < channels:
            raise symmem.ChannelOutOfRange(
                f"{name}: the maximum supported channel is {channels - 1}, for a signal pad of "
                f"{self.raw.signal_pad_size} bytes and {self.raw.world_size} ranks, not {channel}. "
                "Hint: set_signal_pad_size, before the memory is allocated"
            )

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Collective. Returns once every rank is here (on GPUs: the current stream waits)."""
        self._check("barrier", 0, channel)
        if self._device is None or timeout_ms:
            self.raw.barrier(channel, timeout_ms)
        else:
            self._device.barrier_raw(channel, current_stream(self._device.device))

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Raises this rank's signal on `channel` at `dst_rank`."""
        self._check("put_signal", dst_rank, channel)
        self.raw.put_signal(dst_rank, channel, timeout_ms)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Waits for the signal of `src_rank` on `channel`, and consumes it."""
        self._check("wait_signal", src_rank, channel)
        self.raw.wait_signal(src_rank, channel, timeout_ms)


_group_infos: dict[str, tuple[int, int, Any]] = {}


def _operations() -> Any:
    """The operations, which import this module."""
    from symmem.torch import _ops

    return _ops


def is_symm_mem_tensor(tensor: Tensor) -> bool:
    """Whether the tensor is in symmetric memory of this rank."""
    return symmem.is_symm_mem_tensor(tensor)


def set_signal_pad_size(size: int) -> None:
    """How large the signal pads of later allocations are, in bytes."""
    symmem.set_signal_pad_size(size)


def get_signal_pad_size() -> int:
    """How large the signal pads of later allocations are, in bytes."""
    return symmem.get_signal_pad_size()


def heed_environment(device: torch.device) -> None:
    """Does what `TORCH_SYMMMEM` says, unless the program chose already. A name that is none is an error."""
    asked = os.environ.get("TORCH_SYMMMEM", "")
    # For memory of the CPU there is nothing to choose, and symmem has no NVSHMEM for any other.
    if asked and not (asked.upper() == "NVSHMEM" and device.type != "cuda"):
        _prefer_backend(asked, device.type == "cuda")


def set_backend(name: str) -> None:
    """Chooses where symmetric memory comes from, before any was made: "CUDA" or "NCCL" on GPUs; the CPU has "SHM" only.

    A name that is none of these is an error that lists them; so is another one after memory was made on a GPU. To set the same again is
    fine.
    """
    symmem.set_backend(name)


def get_backend(device: torch.device | str) -> str | None:
    """Where symmetric memory of a device comes from: "SHM" for the CPU, "CUDA" or "NCCL" for GPUs; None for others."""
    where = torch.device(device)
    heed_environment(where)
    return symmem.get_backend(str(where))


def has_multicast_support(device_type: Any, device_idx: int = 0) -> bool:
    """Whether a device can reach the memory of all ranks at once;

    `device_type` by torch's enum or by name.
    """
    name = device_type if isinstance(device_type, str) else str(device_type).rpartition(".")[2]
    return symmem.has_multicast_support(name.lower(), device_idx)


def is_nvshmem_available() -> bool:
    """No: there is no such backend yet."""
    return False


def get_symm_mem_workspace(
    group: GroupLike, min_size: int, device: torch.device | str | None = None
) -> SymmetricMemory:
    """Collective. The group's workspace of at least `min_size` bytes on `device`; it grows when asked for more, but not during graph capture.

    By default on the current GPU where the program uses one, as torch's, else on the CPU.
    """
    if device is None:
        has_gpu: Callable[[], bool] = torch.cuda.is_initialized
        device = torch.device("cuda", torch.cuda.current_device()) if has_gpu() else "cpu"
    return SymmetricMemory(symmem.get_symm_mem_workspace(resolve(group), min_size, device))


def get_remote_tensors(x: Tensor, group: GroupLike = None) -> tuple[Tensor, ...]:
    """Every rank's `x`, in rank order. Collective for new memory; ValueError if `x` is not symmetric."""
    handle = SymmetricMemory(find(x, group))
    return tuple(handle.get_remote_tensor(peer, x.shape, x.dtype) for peer in range(handle.world_size))
