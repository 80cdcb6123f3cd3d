"""Products of CPU tensors that are made while a collective runs: `Group.all_gather_matmul` and its kind in place of a collective and
torch's own product.

The fused operators come here for tensors of the CPU. Which way is faster depends on whose product is: symmem's adds up in float32, and is
one thread's unless `SYMMEM_THREADS_PER_RANK` says more; torch's may have more threads, and instructions for 16-bit numbers that symmem's
does not use. Measured with 2 ranks of one thread each (docs/benchmarks.md): where torch has neither, the fused way is faster at every size
in that table; where torch has the instructions, the unfused way is. (At 16 x 64 x 64 it depends on type and operator.) So sizes play no part.
The ranks of a group agree once, and fuse what all of them would.
"""

from __future__ import annotations

import os
import platform
import weakref
from typing import cast

import torch
from torch import Tensor

import symmem
from symmem.torch import _ops as ops
from symmem.torch._groups import resolve
from symmem.typing import Op

#: Element types that symmem multiplies.
TYPES = (torch.float32, torch.bfloat16, torch.float16)

#: What each group fuses, as long as it is there. Ranks that are threads have a group each.
_agreed: weakref.WeakKeyDictionary[symmem.Group, frozenset[torch.dtype]] = weakref.WeakKeyDictionary()


def wanted() -> frozenset[torch.dtype]:
    """The types whose products this rank had better leave to symmem."""
    # Elsewhere nothing was measured.
    is_measured = platform.machine() == "x86_64"
    if not is_measured or torch.get_num_threads() > int(os.environ.get("SYMMEM_THREADS_PER_RANK") or 1):
        return frozenset()
    return frozenset(dtype for dtype in TYPES if not _has_instructions(dtype))


def _has_instructions(dtype: torch.dtype) -> bool:
    """Whether torch multiplies 16-bit numbers of this type by instructions for them. What cannot be known is taken to be so."""
    if dtype == torch.float32 or not torch._C._has_mkldnn:
        return False
    if dtype == torch.float16:
        return bool(getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", _yes)())
    return any(getattr(torch.cpu, f"_is_{name}_supported", _yes)() for name in ("avx512_bf16", "amx_tile"))


def _yes() -> bool:
    return True


def fuses(A: Tensor, group_name: str, dtype: torch.dtype | None = None) -> bool:
    """Whether products with `A`, or with what is of another type and made of it, are fused on this group.

    Collective when such a one comes for the first time; nothing of it differs between ranks whose `A` are alike.
    """
    dtype = A.dtype if dtype is None else dtype
    if not A.is_cpu or dtype not in TYPES or A.layout != torch.strided or not A.numel():
        return False
    group = resolve(group_name)
    agreed = _agreed.get(group)
    if agreed is None:
        all_ranks = group.all_gather_object([str(dtype) for dtype in wanted()])
        agreed = _agreed[group] = frozenset(dtype for dtype in TYPES if all(str(dtype) in names for names in all_ranks))
    return dtype in agreed


def _check(A: Tensor, Bs: list[Tensor], depth: int) -> None:
    """What torch's product would say."""
    for B in Bs:
        if B.shape[0] != depth:
            rows = A.numel() // A.shape[-1]
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{depth} and {B.shape[0]}x{B.shape[1]})")
        if B.dtype != A.dtype:
            raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {A.dtype} != {B.dtype}")


def all_gather_products(
    A: Tensor, Bs: list[Tensor], dim: int, group_name: str, return_A: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Everybody's `A` along `dim`, unless that is the last dimension, and its product with each of `Bs`."""
    group, columns = resolve(group_name), dim == A.dim() - 1
    with ops._telling(group_name, A):
        _check(A, Bs, A.shape[-1] * (group.size if columns else 1))
        moved = A.contiguous() if columns else A.movedim(dim, 0).contiguous()
        sides = moved.shape[:-1] if columns else (moved.shape[0] * group.size, *moved.shape[1:-1])
        products = [A.new_empty((*sides, B.shape[1])) for B in Bs]
        whole = A.new_empty((*sides, A.shape[-1])) if return_A else None
        Bs = [B.contiguous() for B in Bs]
    if columns:
        group.all_gather_columns_matmul(moved, Bs, products)
        return None, products
    group.all_gather_matmul(moved, Bs, products, whole)
    return (None if whole is None else _back(whole, dim)), [_back(product, dim) for product in products]


def product_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, dim: int, group_name: str) -> Tensor:
    """This rank's part, along `dim`, of the reduction of everybody's `A @ B`, which are rounded once."""
    group, columns = resolve(group_name), dim == A.dim() - 1
    with ops._telling(group_name, A):
        side = B.shape[1] if columns else A.shape[dim]
        _check(A, [B], A.shape[-1])
    ops._check_scatter(reduce_op, side, group_name, A)
    with ops._telling(group_name, A):
        moved = A.contiguous() if columns else A.movedim(dim, 0).contiguous()
        sides = moved.shape[:-1] if columns else (moved.shape[0] // group.size, *moved.shape[1:-1])
        out = A.new_empty((*sides, B.shape[1] // group.size if columns else B.shape[1]))
        B = B.contiguous()
    op = cast(Op, reduce_op)
    if columns:
        group.matmul_reduce_scatter_columns(moved, B, op, out)
        return out
    group.matmul_reduce_scatter(moved, B, op, out)
    return _back(out, dim)


def plain(tensor: Tensor) -> Tensor:
    """The tensor with its elements side by side, and the strides that a new one has, also of sides of 1."""
    return tensor.contiguous().view(-1).view(tensor.shape)


def _back(tensor: Tensor, dim: int) -> Tensor:
    """With its first dimension at `dim`."""
    return plain(tensor.movedim(0, dim))
