"""The c10d backend "symmem": `torch.distributed` on CPU tensors over shared memory.

torch knows it as soon as it is imported (`_symmem_backend`), or where its autoloading of backends is off, after
`import symmem.torch`:

    import torch.distributed as dist

    dist.init_process_group("symmem")        # or "cpu:symmem,cuda:nccl"
"""

from __future__ import annotations

import torch.distributed as dist

import _symmem_backend
from symmem.torch.c10d.process_group import SymmemProcessGroup

__all__ = ["SymmemProcessGroup", "register"]


def __dir__() -> list[str]:
    return __all__


def register() -> None:
    """Makes torch know the backend. Harmless when it already does."""
    _symmem_backend.register(dist.Backend)
