"""NCCL communicators that others made, for groups whose symmetric memory comes from NCCL.

A registration is by the group's name and the device. It counts when the group first works on the device; without one the group makes a
communicator of its own. torch gives the name of a group that was destroyed to the next one, so a registration is of the process group that had the name when it
was made, or that first had it afterwards, and ends with it.
"""

from __future__ import annotations

import operator
import threading
import weakref
from types import TracebackType
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup

import symmem
from symmem.torch import _groups

_registered: dict[tuple[str, int], ExternalNcclComm] = {}
_lock = threading.Lock()


class ExternalNcclComm:
    """A registered communicator: made by `register_external_nccl_comm`. As a context manager it is registered until the end of the block."""

    def __init__(self, group_name: str, comm_ptr: int, device: torch.device, comm: Any, group: symmem.Group | None) -> None:
        self.group_name = group_name
        self.comm_ptr = comm_ptr
        self.device = device
        self.comm = comm
        self.registered = True
        self._group = group
        self._process_group: weakref.ref[ProcessGroup] | None = None

    def __repr__(self) -> str:
        state = "registered" if self.registered else "not registered"
        return f"<ExternalNcclComm {self.comm_ptr:#x} of group {self.group_name!r} on {self.device}: {state}>"

    def attach(self, group: symmem.Group) -> None:
        """Gives the communicator to the symmem group, which holds `comm` from then on as long as it needs it."""
        if self._group is group:
            return
        group._adopt_nccl(self.comm_ptr, self.device.index, self.comm)
        self._group = group

    def unregister(self) -> None:
        """Undoes the registration, and lets go of `comm`; harmless when it was undone before.

        A group that works on the communicator already keeps both until it is closed.
        """
        with _lock:
            if not self.registered:
                return
            self.registered = False
            if _registered.get(self._key) is self:
                del _registered[self._key]
        if self._group is not None:
            self._group._disown_nccl(self.comm_ptr, self.device.index)
        self._group = self.comm = None

    def _is_of(self, process_group: ProcessGroup | None) -> bool:
        return self._process_group is None or self._process_group() is process_group

    def _belong_to(self, process_group: ProcessGroup) -> None:
        self._process_group = weakref.ref(process_group)
        finalizer = weakref.finalize(process_group, self.unregister)
        # A process that ends lets go of everything anyway, and then Python objects may be gone.
        finalizer.atexit = False

    @property
    def _key(self) -> tuple[str, int]:
        return self.group_name, self.device.index

    def __enter__(self) -> ExternalNcclComm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()


def register_external_nccl_comm(
    group: _groups.GroupLike, comm_ptr: int, device: torch.device | str | int, comm: Any = None
) -> ExternalNcclComm:
    """Local, on every rank. The group's symmetric memory of NCCL on `device` will meet by the communicator at `comm_ptr`, an `ncclComm_t`.

    It must be of the NCCL that `symmem.nccl.library()` names, with the group's ranks in their order, and nobody else may call it while symmem does. `comm` is
    kept as long as it is registered or used: the object that ends the communicator when it goes. Before the group first works on the device.
    """
    if isinstance(group, symmem.NonMember):
        group._refuse("register_external_nccl_comm")
    if not comm_ptr:
        raise symmem.Invalid("register_external_nccl_comm: the communicator is a null pointer")
    comm_ptr = operator.index(comm_ptr)
    if not 0 < comm_ptr < 1 << 64:
        raise symmem.Invalid(f"register_external_nccl_comm: {comm_ptr} is not an address")
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if where.type != "cuda":
        raise symmem.Invalid(f"register_external_nccl_comm: NCCL works on CUDA devices, not on {where.type}")
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    if isinstance(group, symmem.Group):
        made = ExternalNcclComm(group.name, comm_ptr, where, comm, None)
        made.attach(group)
        return made
    if isinstance(group, str):
        name, process_group = group, _groups.named(group)
    else:
        process_group = _groups.process_group_of(group)
        if process_group is None:
            raise symmem.Invalid("register_external_nccl_comm: there is no process group")
        name = process_group.group_name
    made = ExternalNcclComm(name, comm_ptr, where, comm, None)
    if process_group is not None:
        made._belong_to(process_group)
    earlier = _registered.get(made._key)
    if earlier is not None and not earlier._is_of(process_group):
        earlier.unregister()
    with _lock:
        if made._key in _registered:
            raise symmem.Invalid(f"register_external_nccl_comm: group {name!r} has a communicator for {where} already. Hint: unregister it")
        _registered[made._key] = made
    known = _groups.resolved(name)
    if known is not None and not known.closed:
        try:
            made.attach(known)
        except BaseException:
            made.unregister()
            raise
    return made


def _attach_all(process_group: ProcessGroup, group: symmem.Group) -> None:
    for each in _registered_as(process_group.group_name):
        if not each._is_of(process_group):
            each.unregister()
            continue
        if each._process_group is None:
            each._belong_to(process_group)
        each.attach(group)


def _registered_as(name: str) -> list[ExternalNcclComm]:
    with _lock:
        return [each for (theirs, _), each in _registered.items() if theirs == name]


def _unregister_all(name: str) -> None:
    for each in _registered_as(name):
        each.unregister()


_groups.on_first_use.append(_attach_all)
_groups.on_forget.append(_unregister_all)
