"""What the operators do in which one rank moves: puts, gets, signals, and handles as numbers.

A handle that an operator returns is a number, because torch's dispatcher carries no class of ours. The number is good as long as the group
and the memory. `nvshmem_` and `nccl_` are torch's names for whose library does it there; here both do the same.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

import symmem
from symmem.torch import _ops as ops
from symmem.torch._memory import SymmetricMemory, find, rendezvous

#: How long a rank waits for a value that a peer writes, as long as other waits do.
PATIENCE = 300.0

_handles: dict[int, SymmetricMemory] = {}
_numbers: dict[tuple[int, str | None], int] = {}
_next_number = itertools.count(1)
_lock = threading.Lock()


def _rendezvous(tensor: Tensor, group_name: str | None = None) -> int:
    """Collective for new memory: the handle of a tensor on a group."""
    handle = SymmetricMemory(find(tensor, group_name))
    key = (tensor.data_ptr(), group_name)
    with _lock:
        # A handle keeps its memory mapped, so as long as it is here nobody else's can have the address.
        for number in [number for number, known in _handles.items() if not _is_in_use(known)]:
            del _handles[number]
        for stale in [stale for stale, number in _numbers.items() if number not in _handles]:
            del _numbers[stale]
        if key not in _numbers:
            _numbers[key] = next(_next_number)
            _handles[_numbers[key]] = handle
        return _numbers[key]


def _is_in_use(handle: SymmetricMemory) -> bool:
    """Whether the group is open, and somebody still has the memory."""
    return not handle.raw.closed and symmem.is_symm_mem_tensor(handle.raw.local())


def handle_of(number: int) -> SymmetricMemory:
    """The handle that a number stands for."""
    with _lock:
        handle = _handles.get(number)
    if handle is None:
        raise symmem.Invalid(f"{number} is not a handle of an open group. Hint: torch.ops.symmem._rendezvous gives one")
    return handle


def _barrier(handle: int) -> None:
    """Returns once every rank is here."""
    handle_of(handle).barrier()


def put(tensor: Tensor, peer: int) -> None:
    """Writes this rank's elements over those of `peer`, on the default group."""
    _check("put", tensor)
    rendezvous(tensor).get_remote_tensor(peer, tensor.shape, tensor.dtype).copy_(tensor)


def get(tensor: Tensor, peer: int) -> None:
    """Reads the elements of `peer` over this rank's, on the default group."""
    _check("get", tensor)
    tensor.copy_(rendezvous(tensor).get_remote_tensor(peer, tensor.shape, tensor.dtype))


def _check(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise symmem.Invalid(f"{name}: the tensor must be contiguous")
    if not symmem.is_symm_mem_tensor(tensor):
        raise symmem.Invalid(f"{name}: the tensor must be allocated with symmem.torch.empty() or empty_strided_p2p()")


def get_out(dst: Tensor, handle: int, offset: int, size: int, peer: int) -> None:
    """Reads `size` elements of `peer`, from element `offset` of its tensor on, into `dst`."""
    if not 0 <= size <= dst.numel():
        raise symmem.Invalid(f"get: {size} elements exceeds the {dst.numel()} of the destination")
    ops.get(dst.view(-1)[:size], handle_of(handle), peer, offset)


def nccl_put_signal(src: Tensor, handle: int, peer: int) -> None:
    """Writes `src` to the start of the tensor of `peer`, and raises this rank's signal there."""
    ops.put_signal(src, handle_of(handle), peer)


def nccl_wait_signal(handle: int, peer: int) -> None:
    """Waits for that signal, and consumes it."""
    ops.wait_signal(handle_of(handle), peer)


def nvshmem_put_with_signal(tensor: Tensor, sigpad: Tensor, signal: int, peer: int) -> None:
    """`put`, and then `signal` as the first 64 bits of the `sigpad` of `peer`."""
    put(tensor, peer)
    _write(_remote_word(tensor, sigpad, peer), signal)


def nccl_put_with_signal(tensor: Tensor, signal: int, peer: int) -> None:
    """`put`, and then `signal` as the first 64 bits of the signal pad of `peer`.

    Those are two slots of channel 0 of `put_signal` and `wait_signal` as well: use one or the other with a handle.
    """
    put(tensor, peer)
    _write(rendezvous(tensor).get_signal_pad(peer, (1,), torch.int64), signal)


def _remote_word(tensor: Tensor, sigpad: Tensor, peer: int) -> Tensor:
    """Where `sigpad`, symmetric memory or a part of a signal pad of the tensor's handle, is at `peer`."""
    if symmem.is_symm_mem_tensor(sigpad):
        own = SymmetricMemory(find(sigpad, None))
        return own.get_buffer(peer, (1,), torch.int64, _word_at(own.offset))
    handle = rendezvous(tensor)
    for start in handle.signal_pad_ptrs:
        at = sigpad.data_ptr() - start
        if 0 <= at < handle.signal_pad_size:
            return handle.get_signal_pad(peer, (1,), torch.int64, _word_at(at))
    raise symmem.Invalid("put_with_signal: sigpad is neither symmetric nor in a signal pad of the tensor's handle")


def _word_at(start: int) -> int:
    if start % 8:
        raise symmem.Invalid("put_with_signal: sigpad must begin at a multiple of 8 bytes")
    return start // 8


def _write(word: Tensor, value: int) -> None:
    # The lock's release orders what was put before the signal, also where the processor would not.
    with _lock:
        pass
    word.fill_(value)


def nvshmem_wait_for_signal(sigpad: Tensor, signal: int, peer: int) -> None:
    """Waits until the first 64 bits are `signal`, whoever wrote them."""
    _wait("nvshmem_wait_for_signal", sigpad, lambda value: value == signal, signal)


def nccl_wait_for_signal(sigpad: Tensor, signal: int) -> None:
    """Waits until the first 64 bits are `signal` or more."""
    _wait("nccl_wait_for_signal", sigpad, lambda value: value >= signal, signal)


def _wait(name: str, sigpad: Tensor, is_there: Callable[[int | float], bool], signal: int) -> None:
    if not sigpad.is_contiguous() or sigpad.nbytes < 8 or sigpad.data_ptr() % 8:
        raise symmem.Invalid(f"{name}: sigpad must be contiguous, have 64 bits and begin at a multiple of 8 bytes")
    word = sigpad.view(-1).view(torch.int64)[:1]
    end = time.monotonic() + PATIENCE
    while not is_there(word.item()):
        if time.monotonic() > end:
            raise symmem.Timeout(f"{name}: the signal is {word.item()} after {PATIENCE:.0f} s, not {signal}")
        time.sleep(0)


def get_remote_tensors(x: Tensor, group_name: str) -> list[Tensor]:
    """Every rank's `x`, in rank order."""
    handle = SymmetricMemory(find(x, group_name))
    return [handle.get_remote_tensor(peer, x.shape, x.dtype) for peer in range(handle.world_size)]
