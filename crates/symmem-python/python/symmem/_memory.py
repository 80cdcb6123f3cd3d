"""Allocating and meeting: the functions of `torch.distributed._symmetric_memory` that may leave the group out."""

from __future__ import annotations

from typing import Any

from symmem import _symmem
from symmem._groups import current_group
from symmem._symmem import Group, SymmetricMemory


def rendezvous(x: Any, group: Group | None = None, *, timeout_ms: int = 0) -> SymmetricMemory:
    """Collective. Meets the other ranks of `group` over `x` and returns the handle on everybody's memory.

    `x` is what `empty` returned or any view into it (numpy, torch, or anything else that shows its memory); each rank
    passes an equally large one of the same dtype. Where they lie in the ranks' allocations may differ.

    A rank may pass None: it brings nothing, and sees what the others bring. The handle then has views, `put`, `get`,
    signals and `barrier`; collectives raise `NothingBrought`, on all ranks.

    >>> import symmem
    >>> def main(group):
    ...     x = symmem.empty(8, dtype="int64")
    ...     x[:] = group.rank
    ...     half = symmem.rendezvous(x[4:], group)
    ...     group.barrier()
    ...     return half.get_remote_tensor(group.next, (4,), "int64").tolist()
    >>> symmem.spawn(main, ranks=2, threads=True)
    [[1, 1, 1, 1], [0, 0, 0, 0]]
    """
    return _symmem.rendezvous(x, current_group() if group is None else group, timeout_ms=timeout_ms)


def get_symm_mem_workspace(group: Group | None, min_size: int, device: Any = None) -> SymmetricMemory:
    """Collective. The group's workspace of at least `min_size` bytes on `device` ("cpu" by default); made once, and made again when it must grow."""
    return _symmem.get_symm_mem_workspace(current_group() if group is None else group, min_size, device)
