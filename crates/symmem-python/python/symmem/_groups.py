"""Which group a call means when it names none.

A thread's innermost `with group:`, else the group it was made a rank of (`spawn` with threads), else the group of the
process (`init`, `spawn`). The contexts of ranks follow: inside such a block `empty` uses the group's context.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from symmem._symmem import Group


class _Thread(threading.local):
    """What one thread has entered, innermost last."""

    def __init__(self) -> None:
        self.entered: list[Group] = []


_thread = _Thread()
_of_process: Group | None = None


def enter(group: Group) -> None:
    """Makes `group` the calling thread's current one. `with group:` calls it."""
    group.context.__enter__()
    _thread.entered.append(group)


def leave(group: Group) -> None:
    """Undoes the last `enter` of `group`. The end of `with group:` calls it."""
    entered = _thread.entered
    for at in reversed(range(len(entered))):
        if entered[at] is group:
            del entered[at]
            group.context.__exit__(None, None, None)
            return


def set_group_of_process(group: Group | None) -> None:
    """The group that every thread without one of its own falls back to."""
    global _of_process
    _of_process = group


def find_current_group() -> Group | None:
    """The current group, if there is one."""
    return _thread.entered[-1] if _thread.entered else _of_process


def current_group() -> Group:
    """The group that calls without `group=` use: the innermost `with group:`, else that of `init` or `spawn`."""
    group = find_current_group()
    if group is None:
        raise RuntimeError(
            "there is no current group. Hint: call symmem.init() (under torchrun), run the function with "
            "symmem.spawn(fn, ranks), enter `with group:`, or pass group="
        )
    return group


def init(
    *,
    store: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    name: str = "default",
    timeout: float | None = None,
) -> Group:
    """Collective. Joins the group of this job and makes it the current one of the process.

    Without arguments the environment says who this rank is, as `torchrun` sets it (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
    `MASTER_PORT`). With a `store` the ranks meet there; `rank` and `world_size` default to the environment's. `timeout` in
    seconds is the group's default for every wait.

    >>> import symmem
    >>> group = symmem.init(store=symmem.HashStore(), rank=0, world_size=1)
    >>> symmem.current_group() is group
    True
    """
    group = _join(store, rank, world_size, name, timeout)
    set_group_of_process(group)
    return group


def _join(
    store: Any, rank: int | None, world_size: int | None, name: str, timeout: float | None
) -> Group:
    if store is None:
        if rank is not None or world_size is not None:
            raise ValueError("rank= and world_size= need store=: where else should the ranks meet?")
        return Group.from_env(name, timeout)
    rank = _from_environment("RANK", "rank") if rank is None else rank
    world_size = _from_environment("WORLD_SIZE", "world_size") if world_size is None else world_size
    return Group(store, rank, world_size, name, timeout=timeout)


def _from_environment(variable: str, argument: str) -> int:
    text = os.environ.get(variable)
    if text is None:
        raise ValueError(f"{argument}= is missing, and the environment has no {variable}")
    return int(text)
