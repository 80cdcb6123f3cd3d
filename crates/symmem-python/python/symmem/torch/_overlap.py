"""Collectives on a GPU beside the current stream: copies by the copy engines on a stream of their own, and matrix products meanwhile.

`_ops` and the fused operators come here for CUDA tensors. What peers read is symmetric: a user's tensor, or one of the two halves of a room that a
process group has on a device.

How the halves are reused: every use of a room writes the half that the use before did not, and has a meeting of all ranks in which its readers wait
for its writers. Who comes to the meeting of one use has read what it wanted of the use before: `order_behind` after the last read says so, and
`Room.half`, with which a use begins, waits for it on any stream. So when the meeting of a use is over, the half of the use before can be
written, and no second meeting is needed. The half is the channel of the meeting, so ranks that are not at the same one get an error. So do ranks that
look for each other's bytes at different places of a half (`_SHARD`, `_ROWS`): there are channels for each. A room that is too small is left with a
meeting at the half of the last use, where nobody is who uses it again.

A graph has the half of its capture in every replay. So once a room is in a graph, every use meets also before it writes: whoever comes there has read
what it wanted of all uses before, eager or replayed, if its stream has waited for the result of those (`wait_tensor`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, Work, _register_work

import symmem
from symmem._symmem import DeviceMemory, _device_memory
from symmem.torch._groups import GroupLike, process_group_of, resolve
from symmem.torch._memory import SymmetricMemory, current_stream, empty, find
from symmem.typing import Op

_LEAST = 1 << 20
#: What a rank has in its half: what it brings, from the start on; or everybody's rows, its own at the place of its rank.
_SHARD, _ROWS = 0, 2
_streams: dict[tuple[int, int], Any] = {}
_is_capturing = torch.cuda.is_current_stream_capturing


def side_stream(device: torch.device) -> Any:
    """The stream of a device on which copies of this thread's rank run; before others, for they wait for nobody on this GPU."""
    key = (device.index, threading.get_ident())
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    return _streams[key]


class Room:
    """Symmetric memory of a group on a device, in two halves."""

    def __init__(self, group: symmem.Group, nbytes: int, device: torch.device) -> None:
        self.half_size = max(_LEAST, 1 << (nbytes - 1).bit_length())
        try:
            self.bytes = empty(2 * self.half_size, dtype=torch.uint8, device=device)
        except Exception as error:
            # The others are about to rendezvous.
            group._refuse(str(error))
            raise
        self.handle = SymmetricMemory(symmem.rendezvous(self.bytes, group))
        self.memory = short_way(self.handle)
        self.uses = 0
        self.is_in_graphs = False
        self._views: dict[Any, Tensor] = {}
        self._handles: dict[Any, symmem.SymmetricMemory] = {}

    def has(self, nbytes: int) -> bool:
        """Whether a half has so many bytes."""
        return self.half_size >= nbytes and not self.handle.raw.closed

    def half(self, is_read_once: bool = True) -> int:
        """The byte at which the half starts that is written next. The current stream waits for all uses so far of this rank's.

        With `is_read_once` peers may still read it when this rank's use is over.
        """
        self.is_in_graphs = self.is_in_graphs or _is_capturing()
        self.uses += 1
        stream = current_stream(self.memory.device)
        if self.is_in_graphs and is_read_once:
            self.meet(stream)
        else:
            self.memory.order_behind(stream)
        return self.half_size * (self.uses % 2)

    def meet(self, stream: int, what: int = _SHARD) -> None:
        """In the order of `stream`: every rank is here, at this use, and has `what` in its half."""
        self.memory.barrier_raw(self.uses % 2 + what, stream)

    def outgrow(self) -> None:
        """In the order of the current stream: every rank is about to make a larger room. One that uses this one instead is told at once."""
        if not self.handle.raw.closed:
            self.meet(current_stream(self.memory.device))

    def view(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """This rank's elements from byte `start` on."""
        key = (start, shape, dtype)
        view = self._views.get(key)
        if view is None:
            if len(self._views) > 256:
                self._views.clear()
                self._handles.clear()
            count = torch.Size(shape).numel() * dtype.itemsize
            view = self._views[key] = self.bytes[start : start + count].view(dtype).view(shape)
        return view

    def handle_of(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> symmem.SymmetricMemory:
        """The handle of everybody's elements from byte `start` on."""
        key = (start, shape, dtype)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = symmem.rendezvous(self.view(*key), self.handle.raw.group)
        return handle


#: By process group, as long as it is there; and by device.
_rooms: weakref.WeakKeyDictionary[ProcessGroup, dict[int, Room]] = weakref.WeakKeyDictionary()


def _known_rooms(group: GroupLike) -> dict[int, Room]:
    process_group = None if isinstance(group, symmem.Group) else process_group_of(group)
    return {} if process_group is None else _rooms.setdefault(process_group, {})


def refused(text: str, group: GroupLike, nbytes: int, device: torch.device) -> symmem.Invalid:
    """The error to raise on this rank in place of a use of `nbytes` of the room; the others, who use it, are told of it where they will be."""
    room = _known_rooms(group).get(device.index)
    if room is None or not room.has(nbytes):
        # They are about to make a larger one, together; or have an error of their own, if they capture as this rank does.
        if not _is_capturing():
            # What is wrong here is raised here, whatever comes of telling it.
            with suppress(symmem.Error):
                if room is not None:
                    room.outgrow()
                resolve(group)._refuse(text)
    else:
        # As theirs, or the next use would be of another half.
        room.uses += 1
        resolve(group)._refuse(text, room.bytes)
    return symmem.Invalid(text)


def is_shared_in_place(tensor: Tensor) -> bool:
    """Whether `Shared` leaves the tensor where it is; else it goes through the room."""
    return tensor.is_contiguous() and symmem.is_symm_mem_tensor(tensor)


def refuse_sharing(text: str, group: GroupLike, tensor: Tensor) -> None:
    """Tells the others, who share a tensor like this one with `Shared`, where they will be."""
    if is_shared_in_place(tensor):
        resolve(group)._refuse(text, tensor)
    else:
        refused(text, group, tensor.nbytes, tensor.device)


@contextmanager
def telling(group: GroupLike, tensor: Tensor, nbytes: int | None = None) -> Iterator[None]:
    """What fails here, for want of memory say, is told to the others: they share `tensor`, or use `nbytes` of the room."""
    try:
        yield
    except Exception as error:
        if nbytes is None:
            refuse_sharing(str(error), group, tensor)
        else:
            refused(str(error), group, nbytes, tensor.device)
        raise


def room_of(group: GroupLike, nbytes: int, device: torch.device) -> Room:
    """Collective where it has to be made or to grow: the room of a group on a device, with halves of `nbytes` or more."""
    known = _known_rooms(group)
    room = known.get(device.index)
    if room is None or not room.has(nbytes):
        if _is_capturing():
            raise symmem.Invalid(
                f"a workspace of {nbytes} bytes is needed, which cannot be made during graph capture. "
                "Hint: call the operation once with as many elements before the capture"
            )
        if room is not None:
            room.outgrow()
        room = known[device.index] = Room(resolve(group), nbytes, device)
    return room


def short_way(handle: SymmetricMemory) -> DeviceMemory:
    """The handle that takes addresses."""
    return _device_memory(handle.raw)


class Shared:
    """Everybody's `tensor`: where it is, or where it was copied to, in the order of the current stream."""

    def __init__(self, tensor: Tensor, group: GroupLike) -> None:
        self.tensor = tensor.contiguous()
        self.room: Room | None = None
        if symmem.is_symm_mem_tensor(self.tensor):
            handle, self.start = SymmetricMemory(find(self.tensor, group)), 0
            self.memory = short_way(handle)
        else:
            room = self.room = room_of(group, self.tensor.nbytes, tensor.device)
            handle, self.memory, self.start = room.handle, room.memory, room.half()
            room.view(self.start, tuple(self.tensor.shape), self.tensor.dtype).copy_(self.tensor)
        self.rank, self.ranks = handle.rank, handle.world_size

    def meet(self, stream: Any) -> None:
        """In the order of `stream`: every rank is here."""
        if self.room is None:
            self.memory.barrier_raw(0, stream.cuda_stream)
        else:
            self.room.meet(stream.cuda_stream)

    def done(self, stream: Any) -> None:
        """In the order of `stream`: this rank has read what it wanted. Users write their own memory again, so there all meet."""
        if self.room is None:
            self.meet(stream)
        else:
            self.memory.order_behind(stream.cuda_stream)

    def others(self) -> list[int]:
        """The other ranks, so that no two ranks begin with the same one."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    def fetch(self, peer: int, out: Tensor, stream: Any, first: int = 0) -> None:
        """In the order of `stream`: the bytes of `out`, from byte `first` of the tensor of `peer` on."""
        self.memory.get_ptr(peer, self.start + first, out.data_ptr(), out.nbytes, stream.cuda_stream)


class _Copied(Work):
    """Work on the side stream: who waits for it makes the current stream wait."""

    def __init__(self, event: torch.cuda.Event, device: torch.device, used: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._event, self._device, self._used = event, device, used

    def wait(self, timeout: Any = None) -> bool:
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._used = ()
        return True

    def is_completed(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]


def _promise(result: Tensor, side: Any, *used: Tensor) -> Tensor:
    """`result` is there when the side stream is done: `wait_tensor` waits for it. So long what it was made of is kept."""
    if not _is_capturing():
        for tensor in (result, *used):
            tensor.record_stream(side)
        used = ()
    _register_work(result, _Copied(side.record_event(), result.device, used))
    return result


@torch.no_grad()
def all_gather(tensor: Tensor, group: GroupLike) -> Tensor:
    """Everybody's `tensor` along the first dimension, in a while."""
    # Before the room is used, because there may be no memory for it.
    with telling(group, tensor):
        out = tensor.new_empty((tensor.shape[0] * resolve(group).size, *tensor.shape[1:]))
        tensor = tensor.contiguous()
    shared, side = Shared(tensor, group), side_stream(tensor.device)
    parts = out.view(shared.ranks, *tensor.shape)
    side.wait_stream(torch.cuda.current_stream(tensor.device))
    shared.meet(side)
    with torch.cuda.stream(side):
        parts[shared.rank].copy_(shared.tensor)
    for peer in shared.others():
        shared.fetch(peer, parts[peer], side)
    shared.done(side)
    return _promise(out, side, shared.tensor)


@torch.no_grad()
def reduce_scatter(tensor: Tensor, reduce_op: Op, group: GroupLike) -> Tensor:
    """This rank's part, along the first dimension, of the sum or average, in a while."""
    ranks = resolve(group).size
    with telling(group, tensor):
        # In the order of ranks, so that every rank's part is summed alike.
        terms = tensor.new_empty((ranks, tensor.shape[0] // ranks, *tensor.shape[1:]))
        out = tensor.new_empty(terms.shape[1:])
        tensor = tensor.contiguous()
    shared, side = Shared(tensor, group), side_stream(tensor.device)
    own = shared.tensor.view(terms.shape)[shared.rank]
    side.wait_stream(torch.cuda.current_stream(tensor.device))
    shared.meet(side)
    for peer in shared.others():
        shared.fetch(peer, terms[peer], side, own.nbytes * shared.rank)
    shared.done(side)
    with torch.cuda.stream(side):
        terms[shared.rank].copy_(own)
        torch.sum(terms, 0, out=out) if reduce_op == "sum" else torch.mean(terms, 0, out=out)
    return _promise(out, side, terms, shared.tensor)


@torch.no_grad()
def all_gather_products(
    shard: Tensor, Bs: list[Tensor], group: GroupLike, return_rows: bool
) -> tuple[Tensor, list[Tensor]]:
    """Everybody's rows, and their products with each of `Bs`. Without `return_rows` the rows are the room's, for this call only."""
    if _overlaps(shard, Bs):
        return _products_meanwhile(shard, Bs, group)
    return _products_after(shard, Bs, group, return_rows)


#: Up to so many multiplications of a rank's own rows the others' come meanwhile, in graphs. Measured with ranks that share one H200 (docs/torch.md):
#: beyond, a product in parts costs more than is saved, and outside of graphs the launches of two streams do.
_MEANWHILE = 2 * 10**10


def _overlaps(shard: Tensor, Bs: list[Tensor]) -> bool:
    return shard.numel() * sum(B.shape[1] for B in Bs) <= _MEANWHILE and _is_capturing()


def room_of_products(shard: Tensor, Bs: list[Tensor], group: GroupLike, return_rows: bool) -> int | None:
    """Bytes of the room that `all_gather_products` gathers in, with these arguments; None where it shares the shard."""
    if _overlaps(shard, Bs) or return_rows or is_shared_in_place(shard):
        return None
    return resolve(group).size * shard.nbytes


def _products_after(
    shard: Tensor, Bs: list[Tensor], group: GroupLike, return_rows: bool
) -> tuple[Tensor, list[Tensor]]:
    """The gather, then products of all rows. They are gathered in the room where nobody wants them."""
    rows, stream = shard.shape[0], torch.cuda.current_stream(shard.device)
    ranks = resolve(group).size
    if return_rows or symmem.is_symm_mem_tensor(shard):
        with telling(group, shard):
            whole = shard.new_empty((ranks * rows, shard.shape[1]))
            shard = shard.contiguous()
        shared = Shared(shard, group)
        whole[shared.rank * rows : (shared.rank + 1) * rows].copy_(shared.tensor)
        shared.meet(stream)
        for peer in shared.others():
            shared.fetch(peer, whole[peer * rows : (peer + 1) * rows], stream)
        shared.done(stream)
        return whole, [torch.mm(whole, B) for B in Bs]
    with telling(group, shard, ranks * shard.nbytes):
        products = [shard.new_empty((ranks * rows, B.shape[1])) for B in Bs]
    room = room_of(group, ranks * shard.nbytes, shard.device)
    rank, start = room.handle.rank, room.half()
    whole = room.view(start, (ranks * rows, shard.shape[1]), shard.dtype)
    whole[rank * rows : (rank + 1) * rows].copy_(shard)
    room.meet(stream.cuda_stream, _ROWS)
    address, size = whole.data_ptr(), shard.nbytes
    for first in (size * ((rank + step) % ranks) for step in range(1, ranks)):
        room.memory.get_ptr(first // size, start + first, address + first, size, stream.cuda_stream)
    for B, product in zip(Bs, products, strict=True):
        torch.mm(whole, B, out=product)
    # The products read the room.
    room.memory.order_behind(stream.cuda_stream)
    return whole, products


def _products_meanwhile(shard: Tensor, Bs: list[Tensor], group: GroupLike) -> tuple[Tensor, list[Tensor]]:
    """The products of this rank's rows while the others' come, then theirs in the order in which they come."""
    rows, current, ranks = shard.shape[0], torch.cuda.current_stream(shard.device), resolve(group).size
    with telling(group, shard):
        whole = shard.new_empty((ranks * rows, shard.shape[1]))
        products = [shard.new_empty((ranks * rows, B.shape[1])) for B in Bs]
        shard = shard.contiguous()
    shared, side = Shared(shard, group), side_stream(shard.device)

    def multiply(rank: int, part: Tensor) -> None:
        for B, product in zip(Bs, products, strict=True):
            torch.mm(part, B, out=product[rank * rows : (rank + 1) * rows])

    side.wait_stream(current)
    shared.meet(side)
    arrived: list[tuple[int, Tensor, Any]] = []
    for peer in shared.others():
        part = whole[peer * rows : (peer + 1) * rows]
        shared.fetch(peer, part, side)
        arrived.append((peer, part, side.record_event()))
    shared.done(side)
    multiply(shared.rank, shared.tensor)
    whole[shared.rank * rows : (shared.rank + 1) * rows].copy_(shared.tensor)
    for peer, part, event in arrived:
        current.wait_event(event)
        multiply(peer, part)
    current.wait_stream(side)
    return whole, products


@torch.no_grad()
def product_reduce_scatter(A: Tensor, B: Tensor, reduce_op: Op, group: GroupLike) -> Tensor:
    """This rank's rows of the reduction of everybody's product, which is made where peers read it."""
    shape, nbytes = (A.shape[0], B.shape[1]), A.shape[0] * B.shape[1] * A.element_size()
    with telling(group, A, nbytes):
        out = A.new_empty((A.shape[0] // resolve(group).size, B.shape[1]))
    room = room_of(group, nbytes, A.device)
    # The reduction begins with a meeting, and ends with one: nobody reads the half any more.
    start = room.half(is_read_once=False)
    try:
        torch.mm(A, B, out=room.view(start, shape, A.dtype))
    except Exception as error:
        # A product may need memory of its own. The half is taken, as theirs.
        resolve(group)._refuse(str(error), room.bytes)
        raise
    room.handle_of(start, shape, A.dtype).reduce_scatter(reduce_op, out)
    return out


@torch.no_grad()
def fetch_parts(rows: Tensor, out: Tensor, parts: list[tuple[int, int, int]], largest: int, group: GroupLike) -> None:
    """Of each rank, in order: the first byte in its `rows`, how many, and where they go in `out`. `largest` is the most bytes that a rank has."""
    room = room_of(group, largest, rows.device)
    start, stream = room.half(), torch.cuda.current_stream(rows.device).cuda_stream
    if rows.nbytes:
        room.view(start, tuple(rows.shape), rows.dtype).copy_(rows)
    room.meet(stream)
    for peer, (first, count, at) in enumerate(parts):
        if count:
            room.memory.get_ptr(peer, start + first, out.data_ptr() + at, count, stream)
    room.memory.order_behind(stream)
