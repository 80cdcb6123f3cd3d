"""Which `symmem.Group` a torch process group means.

Made collectively at the first rendezvous on a process group, from its store; kept as long as the process
group, and closed with it: when torch destroys it, whoever still has it then. It is no group that the backend "symmem" works on, so operations on symmetric
memory and collectives of `torch.distributed` do not disturb each other.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
from torch.distributed import distributed_c10d

import symmem

GroupLike: TypeAlias = "symmem.Group | ProcessGroup | str | None"

_groups: weakref.WeakKeyDictionary[ProcessGroup, symmem.Group] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
#: Held by the thread that makes the symmem group.
_making: weakref.WeakKeyDictionary[ProcessGroup, threading.RLock] = weakref.WeakKeyDictionary()
#: Which of torch's functions are `_heeded`.
_heeded: set[str] = set()
# Called with each process group that is resolved for the first time, and its group.
on_first_use: list[Callable[[ProcessGroup, symmem.Group], None]] = []
# Called with the name of each process group that was destroyed.
on_forget: list[Callable[[str], None]] = []


def resolve(group: GroupLike) -> symmem.Group:
    """The symmem group for a group, a process group, the name of one, or None: the default one.

    Collective when a process group comes for the first time. As torch does, it compares numbers of elements and not shapes.
    """
    if isinstance(group, symmem.Group):
        return group.any_shape()
    if isinstance(group, symmem.NonMember):
        group._refuse("rendezvous")
    process_group = process_group_of(group)
    if process_group is None:
        return symmem.current_group().any_shape()
    with _lock:
        made = _groups.get(process_group)
    return made if made is not None and not made.closed else _make(process_group)


def _make(process_group: ProcessGroup) -> symmem.Group:
    """The symmem group of a process group, made by the thread that comes first: a rank joins once, whatever its threads do."""
    with _lock:
        making = _making.setdefault(process_group, threading.RLock())
    with making:
        with _lock:
            made = _groups.get(process_group)
        if made is None or made.closed:
            made = symmem.Group.from_torch(process_group).any_shape()
            _remember(process_group, made)
            for call in on_first_use:
                call(process_group, made)
        return made


def resolved(name: str) -> symmem.Group | None:
    """The symmem group of the process group of that name, if it was resolved before. Never collective."""
    process_group = named(name)
    with _lock:
        return _groups.get(process_group) if process_group is not None else None


def named(name: str) -> ProcessGroup | None:
    """The process group of that name, if there is one."""
    try:
        return process_group_of(name)
    except (RuntimeError, ValueError):
        return None


def process_group_of(group: ProcessGroup | str | None) -> ProcessGroup | None:
    """The process group that is meant; None where torch has no default one."""
    if isinstance(group, ProcessGroup):
        return group
    if isinstance(group, str):
        return _resolve_process_group(group_name(group))
    if group is None:
        return distributed_c10d._get_default_group() if distributed_c10d.is_initialized() else None
    raise TypeError(f"rendezvous: unsupported group type: {type(group).__name__}")


def group_name(name: str) -> distributed_c10d.GroupName:
    """torch types names of groups as a kind of string of its own, from 2.10 on."""
    make: Any = getattr(distributed_c10d, "GroupName", str)
    named: distributed_c10d.GroupName = make(name)
    return named


def forget(process_group: ProcessGroup) -> None:
    """The process group was destroyed: leaves its symmem group."""
    with _lock:
        made = _groups.pop(process_group, None)
    if made is not None:
        made.close()
    for heed in on_forget:
        heed(process_group.group_name)


def _heed(function: str, ended: Callable[..., list[ProcessGroup]]) -> None:
    """Has `torch.distributed` tell of the process groups that it destroys by its `function`: `ended` says which those are.

    Only our own backend hears of its end from torch. A name is given to another process group afterwards, and what is remembered by names and
    handles must not be taken for that one's, on whichever ranks somebody still has the old one.
    """
    usual = getattr(distributed_c10d, function, None)
    if usual is None or function in _heeded:
        return
    _heeded.add(function)

    @functools.wraps(usual)
    def told(*args: Any, **kwargs: Any) -> Any:
        gone = ended(*args, *kwargs.values())
        try:
            return usual(*args, **kwargs)
        finally:
            for process_group in gone:
                forget(process_group)

    setattr(distributed_c10d, function, told)


def _named_ones() -> list[ProcessGroup]:
    """The process groups with a symmem group that torch knows by their names."""
    with _lock:
        known = list(_groups)
    return [each for each in known if _is_named(each)]


def _is_named(process_group: ProcessGroup) -> bool:
    try:
        return process_group_of(str(process_group.group_name)) is process_group
    except (RuntimeError, ValueError):
        return False


def _heed_torch() -> None:
    with _lock:
        _heed("_unregister_process_group", lambda *args: [each for each in _named_ones() if each.group_name in args])
        _heed("_unregister_all_process_groups", lambda *_: _named_ones())


def _remember(process_group: ProcessGroup, group: symmem.Group) -> None:
    _heed_torch()
    with _lock:
        _groups[process_group] = group
    finalizer = weakref.finalize(process_group, group.close)
    # A process that ends leaves its groups anyway, and then Python objects may be gone.
    finalizer.atexit = False
