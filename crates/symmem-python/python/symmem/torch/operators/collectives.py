"""What the collective operators do, whatever memory they are given.

Symmetric tensors go to the functions of `symmem.torch` by the same names. Others, on the CPU, go through the group's staging: programs that
torch compiles, and torch's own checks, hand operators copies of what they were written for. All ranks must bring the same kind; if they do
not, all get the same `Mismatch`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

import symmem
from symmem.torch import _ops as ops
from symmem.torch._groups import resolve
from symmem.torch._memory import find
from symmem.typing import Op


def is_symmetric(tensor: Tensor) -> bool:
    """Whether the tensor is in memory that peers can map."""
    return symmem.is_symm_mem_tensor(tensor)


def multimem_all_reduce_(input: Tensor, reduce_op: str, group_name: str) -> None:
    """In place."""
    if is_symmetric(input):
        ops.multimem_all_reduce_(input, cast(Op, reduce_op), group_name)
    else:
        _private_in_place(input, reduce_op, group_name)


def two_shot_all_reduce_(input: Tensor, reduce_op: str, group_name: str) -> None:
    """In place."""
    if is_symmetric(input):
        ops.two_shot_all_reduce_(input, cast(Op, reduce_op), group_name)
    else:
        _private_in_place(input, reduce_op, group_name)


def _private_in_place(input: Tensor, reduce_op: str, group_name: str) -> None:
    if input.numel() == 0:
        ops._nothing(input, group_name)
        return
    resolve(group_name).all_reduce(input, cast(Op, reduce_op))


def multimem_one_shot_all_reduce_out(input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> None:
    """Into `out`."""
    if is_symmetric(input):
        ops.multimem_one_shot_all_reduce_out(input, cast(Op, reduce_op), group_name, out)
    else:
        _private_out("multimem_one_shot_all_reduce", input, reduce_op, group_name, out)


def one_shot_all_reduce_out(input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> None:
    """Into `out`."""
    if is_symmetric(input):
        ops.one_shot_all_reduce_out(input, cast(Op, reduce_op), group_name, out)
    else:
        _private_out("one_shot_all_reduce", input, reduce_op, group_name, out)


def two_shot_all_reduce_out(input: Tensor, reduce_op: str, group_name: str, output: Tensor) -> None:
    """Into `output`; the input stays as it is."""
    if is_symmetric(input):
        ops.two_shot_all_reduce_out(input, cast(Op, reduce_op), group_name, output)
    else:
        _private_out("two_shot_all_reduce_out", input, reduce_op, group_name, output)


def _private_out(name: str, input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> None:
    ops._check_contiguous(name, "input", input, group_name)
    ops._check_like(name, out, input, group_name)
    if input.numel() == 0:
        ops._nothing(input, group_name)
        return
    resolve(group_name).all_reduce(input, cast(Op, reduce_op), out)


def one_shot_all_reduce_copy_out(
    symm_buffer: Tensor, local_input: Tensor, reduce_op: str, group_name: str, out: Tensor
) -> None:
    """Of `local_input`, which goes through `symm_buffer`."""
    if is_symmetric(symm_buffer):
        ops.one_shot_all_reduce_copy_out(symm_buffer, local_input, cast(Op, reduce_op), group_name, out)
        return
    name = "one_shot_all_reduce_copy"
    if local_input.numel() > symm_buffer.numel() or local_input.dtype != symm_buffer.dtype:
        text = f"{name}: {local_input.numel()} {local_input.dtype} elements do not fit into the buffer"
        raise ops._refused(text, group_name, local_input)
    _private_out(name, local_input, reduce_op, group_name, out)
    symm_buffer.view(-1)[: local_input.numel()].copy_(local_input.reshape(-1))


def multimem_one_shot_reduce_out(
    input: Tensor, reduce_op: str, root: int, group_name: str, out: Tensor
) -> None:
    """Into the root's `out`."""
    if is_symmetric(input):
        ops.multimem_one_shot_reduce_out(input, cast(Op, reduce_op), root, group_name, out)
        return
    name, group = "multimem_one_shot_reduce_out", resolve(group_name)
    if not 0 <= root < group.size:
        raise ops._refused(f"{name}: root must be in [0, {group.size}), not {root}", group, input)
    if group.rank == root:
        ops._check_like(name, out, input, group_name)
        group.reduce(input, cast(Op, reduce_op), root, out)
    else:
        group.reduce(input, cast(Op, reduce_op), root)


def multimem_all_gather_out(input: Tensor, group_name: str, out: Tensor) -> None:
    """Everybody's `input` into `out`."""
    if is_symmetric(out):
        ops.multimem_all_gather_out(input, group_name, out)
        return
    name, group = "multimem_all_gather_out", resolve(group_name)
    expected = [input.shape[0] * group.size, *input.shape[1:]] if input.dim() else [group.size]
    if list(out.shape) != expected or out.dtype != input.dtype:
        text = f"{name}: the output is {list(out.shape)} {out.dtype}, not {expected} {input.dtype}"
        raise ops._refused(text, group_name, input)
    group.all_gather(input.contiguous(), out)


def reduce_scatter_out(input: Tensor, group_name: str, split_last_dim: bool, output: Tensor) -> None:
    """This rank's part of the sum into `output`."""
    if is_symmetric(input):
        ops.reduce_scatter_out(input, group_name, split_last_dim, output)
        return
    name, group = "reduce_scatter_out", resolve(group_name)
    ops._check_contiguous(name, "input", input, group_name)
    ops._check_contiguous(name, "output", output, group_name, input)
    problem = ops._problem_of_parts(input, group.size, split_last_dim, output)
    if problem or output.dtype != input.dtype:
        text = f"{name}: {problem or f'the output is {output.dtype}, the input {input.dtype}'}"
        raise ops._refused(text, group_name, input)
    if input.numel() == 0:
        ops._nothing(input, group_name)
        return
    # Parts side by side: those of the last dimension lie across all rows.
    parts = input.view(-1, group.size, output.shape[-1]).transpose(0, 1).contiguous()
    group.reduce_scatter(parts.view(-1), "sum", output.view(-1))


def nvshmem_broadcast(input: Tensor, root: int, group_name: str) -> None:
    """Everybody's `input` becomes that of `root`."""
    if is_symmetric(input):
        find(input, group_name).broadcast(root)
    else:
        resolve(group_name).broadcast(input, root)


def nvshmem_all_to_all(input: Tensor, out: Tensor, group_name: str) -> None:
    """Part r of `input` goes to rank r."""
    name, group = "nvshmem_all_to_all", resolve(group_name)
    ops._check_like(name, out, input, group_name)
    ops._check_contiguous(name, "input", input, group_name)
    if input.numel() % group.size:
        text = f"{name}: {input.numel()} elements must be divisible by the {group.size} ranks"
        raise ops._refused(text, group_name, input)
    if input.numel() == 0:
        ops._nothing(input, group_name)
        return
    group.all_to_all(input.view(-1), out.view(-1))


def tile_reduce(in_tile: Tensor, out_tile: Tensor, root: int, group_name: str, reduce_op: str = "sum") -> None:
    """The reduction of everybody's tile, which may have strides, into the root's `out_tile`."""
    _reduce_tile("tile_reduce", in_tile, out_tile, root, group_name, reduce_op)


def multi_root_tile_reduce(
    in_tiles: list[Tensor], out_tile: Tensor, roots: list[int], group_name: str, reduce_op: str = "sum"
) -> None:
    """Tile i of everybody into the `out_tile` of rank `roots[i]`."""
    name = "multi_root_tile_reduce"
    if len(in_tiles) != len(roots) or len(set(roots)) != len(roots):
        text = f"{name}: {len(in_tiles)} tiles for the roots {roots}, of which each has one"
        raise ops._refused(text, group_name, out_tile)
    for tile, root in zip(in_tiles, roots, strict=True):
        _reduce_tile(name, tile, out_tile, root, group_name, reduce_op)


def _reduce_tile(name: str, tile: Tensor, out: Tensor, root: int, group_name: str, reduce_op: str) -> None:
    group = resolve(group_name)
    if not 0 <= root < group.size:
        raise ops._refused(f"{name}: root must be in [0, {group.size}), not {root}", group, tile)
    if tile.dim() != 2 or tile.shape != out.shape or tile.dtype != out.dtype:
        text = f"{name}: tiles must be 2-D and alike, not {list(tile.shape)} {tile.dtype} and {list(out.shape)} {out.dtype}"
        raise ops._refused(text, group, tile)
    with ops._telling(group, tile):
        whole = tile.contiguous()
        result = torch.empty_like(whole) if group.rank == root else whole
    if group.rank == root:
        group.reduce(whole, cast(Op, reduce_op), root, result)
        out.copy_(result)
    else:
        group.reduce(whole, cast(Op, reduce_op), root)
