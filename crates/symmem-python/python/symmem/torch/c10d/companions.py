"""The backends for other devices beside ours: what `cuda:nccl` means in `cpu:symmem,cuda:nccl`.

torch takes a process group made in Python as a whole, and makes no backend for the devices that come after
it. So the group makes them itself, from the same backend string, when the first tensor of such a device
comes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroup, Store
from torch.distributed import distributed_c10d

import symmem


class Companions:
    """The backends of one process group for tensors that are not on the CPU."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._name = name
        self._backends: dict[str, Any] = {}
        #: Held while one is made, which all ranks do once, whatever their threads do.
        self._making = threading.Lock()
        self._is_new = False

    def is_being_made(self) -> None:
        """By torch, which notes the group when it is done."""
        self._is_new = True

    def devices(self, group: ProcessGroup) -> list[str]:
        """The device types that the group's backend string names; just "cpu" where torch knows nothing of it.

        None while torch makes the group: since 2.15 it asks then whether its flight recorder can be attached to a backend that the group
        has in C++, and ours has none.
        """
        self._is_new = self._is_new and group not in distributed_c10d._world.pg_backend_config
        return [] if self._is_new else list(self._config(group))

    def of(self, group: ProcessGroup, device: str) -> Any:
        """The backend for a device type, made when it is asked for first."""
        if device not in self._backends:
            with self._making:
                if device not in self._backends:
                    self._backends[device] = self._make(device, self._named(group, device))
        return self._backends[device]

    def check(self, group: ProcessGroup, device: str) -> None:
        """An error if there can be no backend for a device type. The backend string is everybody's: whoever asks for another device has it too."""
        if device not in self._backends:
            self._named(group, device)

    def shutdown(self) -> None:
        """Ends all of them."""
        for backend in self._backends.values():
            backend.shutdown()
        self._backends.clear()

    def _config(self, group: ProcessGroup) -> dict[str, str]:
        noted = distributed_c10d._world.pg_backend_config.get(group)
        if noted is None:
            return {"cpu": "symmem"}
        return {
            device: str(name)
            for device, name in distributed_c10d.BackendConfig(
                distributed_c10d.Backend(noted)
            ).device_backend_map.items()
        }

    def _named(self, group: ProcessGroup, device: str) -> str:
        name = self._config(group).get(device)
        if name is None or name == "symmem":
            beside = "nccl" if device == "cuda" else "<backend>"
            raise symmem.Invalid(
                f"the backend symmem moves CPU tensors, and this one is on {device}. "
                f'Hint: init_process_group("cpu:symmem,{device}:{beside}"), or symmetric memory of GPUs: symmem.torch.empty'
            )
        if name not in ("nccl", "gloo"):
            raise symmem.Invalid(f"symmem knows nccl and gloo beside itself, not {name}")
        return name

    def _make(self, device: str, name: str) -> Any:
        store = PrefixStore(f"companion/{device}/", self._store)
        if name == "gloo":
            return dist.ProcessGroupGloo(store, self._rank, self._size, self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self._rank, self._size, options)


def other_device(name: str, values: Iterable[Any]) -> str | None:
    """The type of the device that the tensors in nested lists are on, unless it is the CPU. One operation's are all on one."""
    other, on_cpu = None, False
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.is_cpu:
                on_cpu = True
            else:
                other = value
        elif isinstance(value, (list, tuple)):
            left += value
    if other is None:
        return None
    if on_cpu:
        raise symmem.Invalid(f"{name}: one tensor is on {other.device.type}, and another one on the CPU")
    return other.device.type


def routed(method: Callable[..., Any], name: str | None = None) -> Any:
    """Sends calls with tensors of other devices to their backend, by `name` or the method's own. Untyped, like the overloads of c10d."""
    theirs = name or method.__name__

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = other_device(theirs, (*args, *kwargs.values()))
        if device is None:
            return method(self, *args, **kwargs)
        return getattr(self._companions.of(self, device), theirs)(*args, **kwargs)

    return call


def collective(method: Callable[..., Any], name: str | None = None) -> Any:
    """`routed`, for a method that starts one operation of all ranks: what fails before that is told to the others, who would wait for it.

    What another backend says is not: where there is one, the others are there.
    """
    theirs = name or method.__name__

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            device = _device_of(self, theirs, (*args, *kwargs.values()))
            if device is None:
                return method(self, *args, **kwargs)
        except Exception as error:
            self._tell(error)
            raise
        return getattr(self._companions.of(self, device), theirs)(*args, **kwargs)

    return call


def _device_of(group: Any, name: str, values: Iterable[Any]) -> str | None:
    """`other_device`, if there can be a backend for it."""
    device = other_device(name, values)
    if device is not None:
        group._companions.check(group, device)
    return device


def collective_each(theirs: str) -> Callable[[Callable[..., Any]], Any]:
    """`collective` for what c10d's backends have for one pair of tensors only, as `theirs`, where Python can call them."""

    def wrap(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def call(self: Any, outputs: list[Tensor], inputs: list[Tensor], *args: Any, **kwargs: Any) -> Any:
            try:
                device = _device_of(self, method.__name__, (outputs, inputs))
                if device is None:
                    return method(self, outputs, inputs, *args, **kwargs)
            except Exception as error:
                self._tell(error)
                raise
            backend = self._companions.of(self, device)
            # Lengths that differ are told before anything is begun.
            pairs = list(zip(outputs, inputs, strict=True))
            # What the caller began is the caller's to end, and to wait for: c10d's own manager does.
            begun = device in self._coalescing_on
            together = backend.supports_coalescing and not begun
            if together:
                backend._start_coalescing()
            try:
                works = [getattr(backend, theirs)(*pair, *args, **kwargs) for pair in pairs]
            finally:
                # Also after an error: what is begun and not ended keeps all later operations back.
                ended = backend._end_coalescing() if together else None
            if together:
                return ended
            if begun:
                return works[-1]
            # Those that go one after the other are done when the last one is, once the others are.
            for work in works[:-1]:
                work.wait()
            return works[-1]

        return call

    return wrap
