"""symmem for torch: symmetric memory as tensors, and a backend "symmem" for `torch.distributed`.

The names are those of `torch.distributed._symmetric_memory` and of the operations in `torch.ops.symm_mem`, so
code written for them runs with a changed import:

    import symmem.torch as symm_mem

    x = symm_mem.empty(1024, device="cpu")
    hdl = symm_mem.rendezvous(x, dist.group.WORLD)
    y = symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD.group_name)

torch knows the backend without this import: `dist.init_process_group("symmem")`, or "cpu:symmem,cuda:nccl". Where its autoloading of
backends is off (TORCH_DEVICE_BACKEND_AUTOLOAD=0), the import registers it.
"""

from __future__ import annotations

import warnings

from torch._C._distributed_c10d import _resolve_process_group

from symmem.torch import c10d, operators
from symmem.torch._barrier import monitored_barrier
from symmem.torch._external import ExternalNcclComm, register_external_nccl_comm
from symmem.torch._groups import group_name as _group_name
from symmem.torch._install import Installed, install, uninstall
from symmem.torch._memory import (
    SymmetricMemory,
    empty,
    empty_strided_p2p,
    get_backend,
    get_remote_tensors,
    get_signal_pad_size,
    get_symm_mem_workspace,
    has_multicast_support,
    is_nvshmem_available,
    is_symm_mem_tensor,
    rendezvous,
    set_backend,
    set_signal_pad_size,
)
from symmem.torch._ops import (
    _low_contention_all_gather,
    _low_contention_reduce_scatter,
    all_to_all_nd,
    get,
    memcpy_to_multicast_,
    memset32_,
    multimem_all_gather_out,
    multimem_all_reduce_,
    multimem_one_shot_all_reduce,
    multimem_one_shot_all_reduce_out,
    multimem_one_shot_reduce_out,
    one_shot_all_reduce,
    one_shot_all_reduce_copy,
    one_shot_all_reduce_copy_out,
    one_shot_all_reduce_out,
    put_signal,
    reduce_scatter_offset,
    reduce_scatter_out,
    stream_write_value32_,
    two_shot_all_reduce_,
    two_shot_all_reduce_out,
    wait_signal,
)
from symmem.torch._pool import get_mem_pool, get_mempool_allocator

_SymmetricMemory = SymmetricMemory

__all__ = [
    "ExternalNcclComm",
    "Installed",
    "SymmetricMemory",
    "_SymmetricMemory",
    "_low_contention_all_gather",
    "_low_contention_reduce_scatter",
    "all_to_all_nd",
    "empty",
    "empty_strided_p2p",
    "enable_symm_mem_for_group",
    "get",
    "get_backend",
    "get_mem_pool",
    "get_mempool_allocator",
    "get_remote_tensors",
    "get_signal_pad_size",
    "get_symm_mem_workspace",
    "has_multicast_support",
    "install",
    "is_nvshmem_available",
    "is_symm_mem_enabled_for_group",
    "is_symm_mem_tensor",
    "memcpy_to_multicast_",
    "memset32_",
    "monitored_barrier",
    "multimem_all_gather_out",
    "multimem_all_reduce_",
    "multimem_one_shot_all_reduce",
    "multimem_one_shot_all_reduce_out",
    "multimem_one_shot_reduce_out",
    "one_shot_all_reduce",
    "one_shot_all_reduce_copy",
    "one_shot_all_reduce_copy_out",
    "one_shot_all_reduce_out",
    "put_signal",
    "reduce_scatter_offset",
    "reduce_scatter_out",
    "register_external_nccl_comm",
    "rendezvous",
    "set_backend",
    "set_signal_pad_size",
    "stream_write_value32_",
    "two_shot_all_reduce_",
    "two_shot_all_reduce_out",
    "uninstall",
    "wait_signal",
]

c10d.register()
operators.register()


def __dir__() -> list[str]:
    return [*__all__, "c10d", "operators"]


def enable_symm_mem_for_group(group_name: str) -> None:
    """Nothing to do: every process group can be used. Deprecated in torch too."""
    warnings.warn("there is no need to enable symmetric memory for a group", FutureWarning, stacklevel=2)


def is_symm_mem_enabled_for_group(group_name: str) -> bool:
    """Whether there is a process group of that name."""
    try:
        return _resolve_process_group(_group_name(group_name)) is not None
    except RuntimeError:
        return False
