"""What each collective does, on CPU tensors and a `symmem.Group`.

Blocking functions, each an operation of the process group. Plain tensors go straight to the extension module; the rest is for
those that it leaves: strided ones, which are copied in and out, and what is wrong. Reductions see the tensors' elements;
anything that only moves sees bytes, so every dtype moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

import symmem
from symmem import _symmem
from symmem.typing import Op

_NAMES: dict[str, Op] = {
    "SUM": "sum",
    "AVG": "avg",
    "MIN": "min",
    "MAX": "max",
    "PRODUCT": "prod",
    "BAND": "and",
    "BOR": "or",
    "BXOR": "xor",
}
# Of complex numbers these reduce the real and imaginary parts by themselves.
_LINEAR = ("sum", "avg")
# By number: torch's enumerations take long to compare and to hash.
_OPS: dict[int, Op] = {getattr(ReduceOp, theirs).value: ours for theirs, ours in _NAMES.items()}


def op_name(op: ReduceOp, tensors: Sequence[Tensor]) -> Op:
    """symmem's name of a torch reduction; `symmem.Invalid` for one that there is not, for these tensors."""
    known: Any = getattr(op, "op", op)
    name = _OPS.get(known.value)
    if name is None:
        raise symmem.Invalid(f"reduction {known} is not supported; there are {', '.join(_NAMES)}")
    if name not in _LINEAR and any(tensor.is_complex() for tensor in tensors):
        raise symmem.Invalid(f"reduction {known} of complex numbers is not supported; there are SUM, AVG")
    return name


def check_dense(name: str, tensor: Tensor) -> None:
    """Sparse and quantised tensors have no plain memory."""
    if tensor.layout is not torch.strided:
        raise symmem.Invalid(f"{name}: a tensor of layout {tensor.layout}; only dense ones are supported")


@contextmanager
def before(group: symmem.Group) -> Iterator[None]:
    """What fails in it, before this rank takes part in a collective, is told to the others, who do."""
    try:
        yield
    except Exception as error:
        # What it was is raised here, whatever comes of telling it.
        with suppress(Exception):
            refuse(group, str(error))
        raise


def refuse(group: symmem.Group, words: str) -> None:
    """In place of a collective that the others call: they get these words as their error."""
    group._refuse(words)


def quiet(written: Sequence[Tensor]) -> AbstractContextManager[None]:
    """In it these tensors may be written, whatever autograd knows of them."""
    if any(tensor.is_inference() for tensor in written):
        return torch.inference_mode()
    return torch.no_grad()


def plain(tensor: Tensor) -> Tensor:
    """The tensor as its memory has it, or a copy: views may say that it is to be conjugated or negated."""
    return tensor.resolve_conj().resolve_neg()


def elements(tensor: Tensor) -> Tensor:
    """What reductions see: contiguous, complex numbers as pairs of real ones. A view if it can be, else a copy."""
    tensor = plain(tensor)
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).contiguous()


def store_elements(tensor: Tensor, found: Tensor) -> None:
    """Writes `elements` into a tensor, unless they are a view of it."""
    if found.data_ptr() != tensor.data_ptr():
        tensor.copy_(torch.view_as_complex(found) if tensor.is_complex() else found)


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor as a flat one: a view if it is contiguous, else of a copy."""
    flat = plain(tensor).contiguous().view(-1)
    # Of one element or none any stride is contiguous, but only 1 can be viewed as bytes.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def store_bytes(tensor: Tensor, received: Tensor) -> None:
    """Writes received bytes into a tensor, unless `received` is a view of it."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor.copy_(received.view(tensor.dtype).view(tensor.shape))
        return
    own = as_bytes(tensor)
    if own.data_ptr() != received.data_ptr():
        own.copy_(received)


def apart(tensor: Tensor, out: Tensor) -> Tensor:
    """`tensor`, or a copy of it where it shares memory with `out`:

    Torch's in-place forms. Both are contiguous.
    """
    start, other = tensor.data_ptr(), out.data_ptr()
    disjoint = start + total_bytes([tensor]) <= other or other + total_bytes([out]) <= start
    return tensor if disjoint else tensor.clone()


def total_bytes(tensors: Sequence[Tensor]) -> int:
    """How many bytes the elements of all of them take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_equal(what: str, tensors: Sequence[Tensor], like: Tensor, count: int) -> None:
    """One tensor for every rank, each with as many bytes as `like`."""
    if len(tensors) != count:
        raise symmem.Invalid(f"{what}: {len(tensors)} tensors for {count} ranks")
    for tensor in tensors:
        if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
            raise symmem.Invalid(
                f"{what}: a tensor of {tensor.numel()} {tensor.dtype} elements beside one of "
                f"{like.numel()} {like.dtype}"
            )


def check_whole(what: str, out: Tensor, like: Tensor, count: int) -> None:
    """Room for `count` tensors like this one, whatever its shape."""
    if out.numel() != like.numel() * count or out.dtype != like.dtype:
        raise symmem.Invalid(
            f"{what}: {count} inputs of {like.numel()} {like.dtype} elements into an output of "
            f"{out.numel()} {out.dtype}"
        )


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all of them, one behind the other."""
    return torch.cat([as_bytes(tensor) for tensor in tensors])


def unpack(packed: Tensor, tensors: Sequence[Tensor]) -> None:
    """Undoes `pack`, into existing tensors."""
    start = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        store_bytes(tensor, packed[start : start + size])
        start += size


def all_reduce(group: symmem.Group, tensor: Tensor, op: Op) -> None:
    """Every rank's `tensor` becomes the reduction of all."""
    with before(group):
        whole = elements(tensor)
    group.all_reduce(whole, op)
    store_elements(tensor, whole)


def reduce(group: symmem.Group, tensor: Tensor, op: Op, root: int) -> None:
    """The root's `tensor` becomes the reduction of all; the others keep theirs."""
    with before(group):
        own = elements(tensor)
        whole = torch.empty(own.shape, dtype=own.dtype) if group.rank == root else None
    if whole is None:
        group.reduce(own, op, root)
        return
    group.reduce(own, op, root, whole)
    store_elements(tensor, whole)


def reduce_scatter(group: symmem.Group, out: Tensor, parts: Tensor, op: Op) -> None:
    """`out` becomes the reduction of this rank's slice of everybody's `parts`."""
    with before(group):
        if parts.numel() != out.numel() * group.size:
            raise symmem.Invalid(
                f"reduce_scatter: an input of {parts.numel()} elements into {group.size} outputs of {out.numel()}"
            )
        part = elements(out)
        whole = apart(elements(parts), part)
    group.reduce_scatter(whole.view(-1), op, part.view(-1))
    store_elements(out, part)


def reduce_scatter_list(group: symmem.Group, out: Tensor, parts: Sequence[Tensor], op: Op) -> None:
    """`reduce_scatter` of a list with one tensor for every rank."""
    with before(group):
        check_equal("reduce_scatter", parts, out, group.size)
        whole = torch.stack([part.reshape(-1) for part in parts])
    reduce_scatter(group, out, whole, op)


def broadcast(group: symmem.Group, tensor: Tensor, root: int) -> None:
    """Everybody's `tensor` becomes the root's."""
    with before(group):
        data = as_bytes(tensor)
    group.broadcast(data, root)
    if group.rank != root:
        store_bytes(tensor, data)


def all_gather(group: symmem.Group, out: Tensor, tensor: Tensor) -> None:
    """`out` becomes everybody's `tensor`, in rank order."""
    with before(group):
        check_whole("all_gather", out, tensor, group.size)
        data = as_bytes(out)
        own = apart(as_bytes(tensor), data)
    group.all_gather(own, data)
    store_bytes(out, data)


def all_gather_list(group: symmem.Group, outs: Sequence[Tensor], tensor: Tensor) -> None:
    """`all_gather` into one tensor for every rank."""
    with before(group):
        check_equal("all_gather", outs, tensor, group.size)
        own, packed = as_bytes(tensor), torch.empty(total_bytes(outs), dtype=torch.uint8)
    group.all_gather(own, packed)
    unpack(packed, outs)


def gather(group: symmem.Group, outs: Sequence[Tensor], tensor: Tensor, root: int) -> None:
    """The root's `outs` become everybody's `tensor`."""
    with before(group):
        own, packed = as_bytes(tensor), None
        if group.rank == root:
            check_equal("gather", outs, tensor, group.size)
            packed = torch.empty(total_bytes(outs), dtype=torch.uint8)
    if packed is None:
        group.gather(own, root)
        return
    group.gather(own, root, packed)
    unpack(packed, outs)


def gather_single(group: symmem.Group, out: Tensor, tensor: Tensor, root: int) -> None:
    """The root's `out` becomes everybody's `tensor`, in rank order; the others' is not looked at."""
    with before(group):
        own, data = as_bytes(tensor), None
        if group.rank == root:
            check_whole("gather", out, tensor, group.size)
            data = as_bytes(out)
            own = apart(own, data)
    if data is None:
        group.gather(own, root)
        return
    group.gather(own, root, data)
    store_bytes(out, data)


def scatter(group: symmem.Group, out: Tensor, parts: Sequence[Tensor], root: int) -> None:
    """Everybody's `out` becomes its part of the root's `parts`."""
    with before(group):
        packed, part = None, as_bytes(out)
        if group.rank == root:
            check_equal("scatter", parts, out, group.size)
            packed = pack(parts)
    group.scatter(packed, root, part)
    store_bytes(out, part)


def all_to_all(group: symmem.Group, outs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Rank r's `outs[s]` becomes rank s's `parts[r]`; they may differ in size."""
    with before(group):
        if len(outs) != group.size or len(parts) != group.size:
            raise symmem.Invalid(
                f"all_to_all: {len(outs)} outputs and {len(parts)} inputs for {group.size} ranks"
            )
        received = torch.empty(total_bytes(outs), dtype=torch.uint8)
        sends, receives = ([total_bytes([each]) for each in tensors] for tensors in (parts, outs))
        packed = pack(parts)
    group.all_to_all_v(packed, sends, received, receives)
    unpack(received, outs)


def all_to_all_even(group: symmem.Group, out: Tensor, tensor: Tensor) -> None:
    """`all_to_all` of equal slices of two tensors."""
    with before(group):
        if out.numel() != tensor.numel() or tensor.numel() % group.size:
            raise symmem.Invalid(
                f"all_to_all: {tensor.numel()} elements into {out.numel()} do not split evenly over "
                f"{group.size} ranks"
            )
        data = as_bytes(out)
        own = apart(as_bytes(tensor), data)
    group.all_to_all(own, data)
    store_bytes(out, data)


def split_rows(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The slices of the first dimension that `all_to_all_single` names, as views."""
    if sum(sizes) != tensor.shape[0]:
        raise symmem.Invalid(f"all_to_all: split sizes {list(sizes)} of a dimension of {tensor.shape[0]}")
    with quiet([tensor]):  # they may be written only in the mode in which they were made
        return list(torch.split(tensor, list(sizes)))


# What plain tensors take instead: it does the same and says True, or does nothing and says False.
_STRAIGHT: dict[Callable[..., None], Callable[..., bool]] = {
    all_reduce: _symmem._tensor_all_reduce,
    broadcast: _symmem._tensor_broadcast,
    all_gather: _symmem._tensor_all_gather,
    reduce_scatter: _symmem._tensor_reduce_scatter,
    all_to_all_even: _symmem._tensor_all_to_all,
}


# What `perform` takes.
Operation = tuple[symmem.Group, Callable[..., None], Sequence[tuple[Any, ...]], Sequence[Tensor]]


def perform(
    group: symmem.Group,
    function: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    written: Sequence[Tensor],
) -> None:
    """Calls `function(group, *call)` for every call, which write the tensors `written`."""
    straight = _STRAIGHT.get(function)
    for call in calls:
        if straight is None or not straight(group, *call):
            with before(group):
                for tensor in written:
                    check_dense(function.__name__, tensor)
            with quiet(written):
                function(group, *call)
