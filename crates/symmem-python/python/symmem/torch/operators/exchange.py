"""What the operators do that exchange parts of several sizes: the all-to-alls of experts, and torch's of NCCL.

Of tensors anywhere, symmetric or not. Sizes that only a rank knows are exchanged first, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

import symmem
from symmem.torch import _ops as ops
from symmem.torch import _overlap as overlap
from symmem.torch._groups import resolve
from symmem.typing import Op


def _swapped(splits: Tensor, group: symmem.Group) -> Tensor:
    """Row r of `splits` goes to rank r; row s of the result came from rank s."""
    ours = splits.cpu().contiguous()
    theirs = torch.empty_like(ours)
    group.all_to_all(ours, theirs)
    return theirs


def _refused(text: str, group: str, tensor: Tensor) -> symmem.Invalid:
    """The error to raise on this rank; the others, who exchange sizes on the CPU first, are told of it there."""
    if not tensor.is_cuda:
        return ops._refused(text, group, tensor)
    resolve(group)._refuse(text)
    return symmem.Invalid(text)


@contextmanager
def _telling(group: str, tensor: Tensor) -> Iterator[None]:
    """What fails here, for want of memory say, is told to the others, who exchange sizes next."""
    try:
        yield
    except Exception as error:
        _refused(str(error), group, tensor)
        raise


def _starts(lengths: list[int]) -> list[int]:
    return [0, *accumulate(lengths)][: len(lengths)]


def _check_splits(name: str, splits: Tensor, out: Tensor, shape: tuple[int, ...], group: str) -> None:
    if splits.dtype != torch.int64 or out.dtype != torch.int64:
        raise _refused(f"{name}: splits and offsets must be int64", group, splits)
    if tuple(splits.shape) != shape or out.numel() != 2 * splits.shape[-1]:
        text = f"{name}: splits of {list(splits.shape)} and offsets of {list(out.shape)} do not go with {list(shape)}"
        raise _refused(text, group, splits)


def _check_rows(name: str, input: Tensor, out: Tensor, counts: list[int], sent: int, group: str) -> None:
    if min(counts, default=0) < 0:
        raise _refused(f"{name}: splits and offsets must not be negative, as {min(counts)} is", group, input)
    if input.dtype != out.dtype or input.shape[1:] != out.shape[1:]:
        text = f"{name}: rows of {list(input.shape[1:])} {input.dtype} do not go with {list(out.shape[1:])} {out.dtype}"
        raise _refused(text, group, input)
    if sent > input.shape[0]:
        raise _refused(f"{name}: {sent} rows are sent, and the input has {input.shape[0]}", group, input)


def _receive(
    name: str, rows: Tensor, sends: list[int], receives: list[int], room: int, group_name: str
) -> Tensor:
    """The rows that came, in rank order."""
    group = resolve(group_name)
    if sum(receives) > room:
        text = f"{name}: {sum(receives)} rows came, and the output has {room}"
        raise _refused(text, group_name, rows)
    with _telling(group_name, rows):
        came = rows.new_empty((sum(receives), *rows.shape[1:]))
        rows = rows.contiguous()
    if rows.is_cuda:
        _fetch_parts(rows, sends, came, receives, group_name)
    else:
        group.all_to_all_v(rows, sends, came, receives)
    return came


def _fetch_parts(rows: Tensor, sends: list[int], came: Tensor, receives: list[int], group_name: str) -> None:
    """`all_to_all_v` on a GPU: everybody's rows are in the group's room, where the others fetch theirs."""
    group = resolve(group_name)
    starts = _swapped(torch.tensor(_starts(sends), device="cpu"), group).tolist()
    largest = torch.tensor([max(1, rows.nbytes)], device="cpu")
    group.all_reduce(largest, "max")
    row = came.element_size() * came[0].numel() if came.shape[0] else 0
    at = [[start * row, count * row, to * row] for start, count, to in zip(starts, receives, _starts(receives), strict=True)]
    overlap.fetch_parts(rows, came, [(start, count, to) for start, count, to in at], int(largest), group_name)


def all_to_all_vdev(input: Tensor, out: Tensor, in_splits: Tensor, out_splits_offsets: Tensor, group_name: str) -> None:
    """The next `in_splits[r]` rows go to rank r."""
    name, group = "all_to_all_vdev", resolve(group_name)
    _check_splits(name, in_splits, out_splits_offsets, (group.size,), group_name)
    sends = in_splits.tolist()
    _check_rows(name, input, out, sends, sum(sends), group_name)
    receives = _swapped(in_splits, group).tolist()
    came = _receive(name, input[: sum(sends)], sends, receives, out.shape[0], group_name)
    out[: came.shape[0]].copy_(came)
    out_splits_offsets.view(2, -1).copy_(torch.tensor([receives, _starts(receives)]))


def all_to_all_vdev_2d(
    input: Tensor,
    out: Tensor,
    in_splits: Tensor,
    out_splits_offsets: Tensor,
    group_name: str,
    major_align: int | None = None,
) -> None:
    """Rows for the experts of all ranks, in rank order; they come in the order of this rank's experts, each aligned."""
    name, group = "all_to_all_vdev_2d", resolve(group_name)
    align = 1 if major_align is None else major_align
    if align <= 0 or in_splits.numel() % group.size:
        text = f"{name}: major_align {align} must be positive, and {in_splits.numel()} splits divisible by the {group.size} ranks"
        raise _refused(text, group_name, input)
    _check_splits(name, in_splits, out_splits_offsets, (in_splits.numel(),), group_name)
    splits = in_splits.view(group.size, -1)
    counts = splits.tolist()
    sends = [sum(lengths) for lengths in counts]
    _check_rows(name, input, out, sum(counts, []), sum(sends), group_name)
    theirs = _swapped(splits, group)
    by_expert = theirs.t().tolist()
    room = [max(align, -(-sum(lengths) // align) * align) for lengths in by_expert]
    starts = [
        [start + at for at in _starts(lengths)] for start, lengths in zip(_starts(room), by_expert, strict=True)
    ]
    needed = max([at + n for row, lengths in zip(starts, by_expert, strict=True) for at, n in zip(row, lengths, strict=True)], default=0)
    if needed > out.shape[0]:
        raise _refused(f"{name}: {needed} rows are needed, and the output has {out.shape[0]}", group_name, input)
    came = _receive(name, input[: sum(sends)], sends, theirs.sum(1).tolist(), out.shape[0], group_name)
    at = 0
    for rank, lengths in enumerate(theirs.tolist()):
        for expert, length in enumerate(lengths):
            start = starts[expert][rank]
            out[start : start + length].copy_(came[at : at + length])
            at += length
    flat = torch.tensor([sum(by_expert, []), sum(starts, [])])
    out_splits_offsets.view(2, -1).copy_(flat)


def all_to_all_vdev_2d_offset(
    input: Tensor, out: Tensor, in_splits_offsets: Tensor, out_splits_offsets: Tensor, group_name: str
) -> None:
    """The way back: rows of this rank's experts, which start where they are said to, go to the ranks that they came from."""
    name, group = "all_to_all_vdev_2d_offset", resolve(group_name)
    _check_splits(name, in_splits_offsets, out_splits_offsets, (2, in_splits_offsets.shape[-1]), group_name)
    if in_splits_offsets.shape[-1] % group.size:
        text = f"{name}: {in_splits_offsets.shape[-1]} splits must be divisible by the {group.size} ranks"
        raise _refused(text, group_name, input)
    splits, starts = in_splits_offsets.view(2, -1, group.size).unbind(0)
    lengths, firsts = (each.t().reshape(-1).tolist() for each in (splits, starts))
    ends = [start + length for length, start in zip(lengths, firsts, strict=True)]
    _check_rows(name, input, out, lengths + firsts, max(ends, default=0), group_name)
    pieces = [input[start:end] for start, end in zip(firsts, ends, strict=True)]
    theirs = _swapped(splits.t().contiguous(), group)
    receives = theirs.sum(1).tolist()
    with _telling(group_name, input):
        rows = torch.cat(pieces)
    came = _receive(name, rows, splits.sum(0).tolist(), receives, out.shape[0], group_name)
    out[: came.shape[0]].copy_(came)
    flat = theirs.reshape(-1).tolist()
    out_splits_offsets.view(2, -1).copy_(torch.tensor([flat, _starts(flat)]))


def nccl_all_to_all_nd(input: Tensor, out: Tensor, scatter_dim: int, gather_dim: int, group_name: str) -> None:
    """Parts along `scatter_dim` go to the ranks; those that come are put together along `gather_dim`."""
    name, group = "nccl_all_to_all_nd", resolve(group_name)
    ranks = group.size
    if (scatter_dim, gather_dim) not in ((0, 1), (1, 0)):
        text = f"{name}: scatter_dim and gather_dim must be 0 and 1, or 1 and 0, not {scatter_dim} and {gather_dim}"
        raise ops._refused(text, group_name, input)
    if input.dim() not in (2, 3) or input.dtype != out.dtype or input.numel() != out.numel() or not out.is_contiguous():
        raise ops._refused(f"{name}: {list(input.shape)} cannot become {list(out.shape)}", group_name, input)
    side = input.shape[scatter_dim]
    if side % ranks or (input.dim() == 3 and side != ranks):
        raise ops._refused(f"{name}: a side of {side} must be divisible by the {ranks} ranks", group_name, input)
    with ops._telling(group, input):
        if scatter_dim == 1:
            parts = input.reshape(input.shape[0], ranks, -1).transpose(0, 1).contiguous()
        else:
            parts = input.reshape(ranks, -1, input.shape[-1]).contiguous()
        came = torch.empty_like(parts)
    group.all_to_all(parts, came)
    if scatter_dim == 0:
        came = came.transpose(0, 1)
    out.copy_(came.reshape(out.shape))


def nccl_reduce_scatter_offset(
    input: Tensor,
    out: list[Tensor],
    group_name: str,
    dim: int,
    offsets: list[int] | None = None,
    dst_ranks: list[int] | None = None,
    red_op: str = "sum",
) -> None:
    """Blocks of rows (dim 0) or columns (dim 1), which end at `offsets`, are reduced; block i goes to rank `dst_ranks[i]`."""
    name, group = "nccl_reduce_scatter_offset", resolve(group_name)
    if input.dim() != 2 or dim not in (0, 1):
        raise ops._refused(f"{name}: the input must be 2-D and dim 0 or 1, not {input.dim()}-D and {dim}", group_name, input)
    side, ranks = input.shape[dim], group.size
    if offsets is None and side % ranks:
        raise ops._refused(f"{name}: a side of {side} must be divisible by the {ranks} ranks", group_name, input)
    ends = offsets if offsets is not None else [side // ranks * (at + 1) for at in range(ranks)]
    owners = dst_ranks if dst_ranks is not None else [at % ranks for at in range(len(ends))]
    mine = [at for at, owner in enumerate(owners) if owner == group.rank]
    with ops._telling(group, input):
        blocks = [input.narrow(dim, first, last - first) for first, last in zip([0, *ends], ends, strict=False)]
    wrong = len(owners) != len(ends) or len(mine) != len(out) or any(owner not in range(ranks) for owner in owners)
    if wrong or any(out[at].shape != blocks[block].shape for at, block in enumerate(mine)):
        text = f"{name}: {len(ends)} blocks for ranks {owners} do not go with {[list(each.shape) for each in out]}"
        raise ops._refused(text, group_name, input)
    for at, (block, owner) in enumerate(zip(blocks, owners, strict=True)):
        with ops._telling(group, input):
            part = block.contiguous()
        if owner == group.rank:
            group.reduce(part, cast(Op, red_op), owner, out[mine.index(at)])
        else:
            group.reduce(part, cast(Op, red_op), owner)
