"""`monitored_barrier` for groups of the backend "symmem", which the function of older torch refuses: it asks for Gloo by name."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

import symmem
from symmem.torch._groups import GroupLike, process_group_of, resolve
from symmem.torch.c10d import SymmemProcessGroup


def monitored_barrier(
    group: GroupLike = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Collective. A barrier that waits at most `timeout` (seconds, or a timedelta); its error says which ranks are missing.

    The arguments are those of `torch.distributed.monitored_barrier`, which does it for groups of other backends. Here the error
    is a `symmem.Timeout`, and `missing` are all ranks that did not come, whatever `wait_all_ranks` says.
    """
    limit = timedelta(seconds=timeout) if isinstance(timeout, float | int) else timeout
    if isinstance(group, symmem.Group | symmem.NonMember):
        milliseconds = 0 if limit is None else max(1, round(limit.total_seconds() * 1000))
        resolve(group).barrier(milliseconds)
        return
    process_group = process_group_of(group) if isinstance(group, str | None) else group
    if isinstance(process_group, SymmemProcessGroup):
        process_group.monitored_barrier(limit, wait_all_ranks)
    else:
        dist.monitored_barrier(process_group, limit, wait_all_ranks)
