"""The c10d backend "symmem": `torch.distributed` on CPU tensors over shared memory.

`import symmem.torch` registers it:

    import torch.distributed as dist
    import symmem.torch

    dist.init_process_group("symmem")        # or "cpu:symmem,cuda:nccl"
"""

from __future__ import annotations

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from symmem.torch.c10d.process_group import SymmemProcessGroup

__all__ = ["SymmemProcessGroup", "register"]


def _create(options: _DistributedBackendOptions, _backend_options: object) -> SymmemProcessGroup:
    return SymmemProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id
    )


def register() -> None:
    """Makes torch know the backend. Harmless when it already does."""
    if "SYMMEM" not in dist.Backend._plugins:
        dist.Backend.register_backend("symmem", _create, extended_api=True, devices=["cpu"])
