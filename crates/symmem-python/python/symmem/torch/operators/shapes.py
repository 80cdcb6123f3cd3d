"""Shape functions: what operators return, without doing anything. torch.compile, export and FakeTensorMode ask them.

What an operator refuses by shape alone it refuses here too, so that compiling fails where running would.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from symmem.torch._groups import group_name as _name
from symmem.torch.operators.fused import as_dtype


def _ranks(group_name: str) -> int:
    return _resolve_process_group(_name(group_name)).size()


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Of operators that write their arguments only."""


def like_first(input: Tensor, *_args: Any) -> Tensor:
    """A new tensor like the first argument, with its elements side by side."""
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def like_second(_buffer: Tensor, local_input: Tensor, *_args: Any) -> Tensor:
    """A new tensor like the second argument."""
    return torch.empty_like(local_input, memory_format=torch.contiguous_format)


def handle(*_args: Any) -> Any:
    """A number that is not known before the operator runs."""
    return torch.library.get_ctx().new_dynamic_size()


def product(a: Tensor, b: Tensor, *_args: Any) -> Tensor:
    """A matrix product."""
    return a.new_empty((a.shape[0], b.shape[1]))


def remote(x: Tensor, group_name: str) -> list[Tensor]:
    """One tensor per rank."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(_ranks(group_name))]


def _longer(tensor: Tensor, dim: int, ranks: int) -> list[Any]:
    shape = list(tensor.shape)
    shape[dim] = shape[dim] * ranks
    return shape


def _shorter(shape: list[Any], dim: int, ranks: int) -> list[Any]:
    shape = list(shape)
    shape[dim] = shape[dim] // ranks
    return shape


def gathered(tensor: Tensor, group_name: str) -> Tensor:
    """Longer in the first dimension."""
    rows = tensor if tensor.dim() else tensor.view(1)
    return rows.new_empty(_longer(rows, 0, _ranks(group_name)))


def scattered(tensor: Tensor, _reduce_op: str, group_name: str) -> Tensor:
    """Shorter in the first dimension."""
    return tensor.new_empty(_shorter(list(tensor.shape), 0, _ranks(group_name)))


def gathered_products(
    A: Tensor, Bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    """Of `fused_all_gather_matmul`."""
    whole = A.new_empty(_longer(A, gather_dim, _ranks(group_name)))
    return (whole if return_A else None), [B.new_empty((*whole.shape[:-1], B.shape[1])) for B in Bs]


def gathered_scaled_products(
    A: Tensor,
    Bs: list[Tensor],
    _A_scale: Tensor,
    _B_scales: list[Tensor],
    gather_dim: int,
    group_name: str,
    _biases: Any,
    _result_scales: Any,
    out_dtypes: list[Any],
    _use_fast_accum: Any,
) -> tuple[Tensor, list[Tensor]]:
    """Of `fused_all_gather_scaled_matmul`."""
    whole = A.new_empty(_longer(A, gather_dim, _ranks(group_name)))
    pairs = zip(Bs, out_dtypes, strict=True)
    return whole, [B.new_empty((*whole.shape[:-1], B.shape[1]), dtype=as_dtype(dtype, A.dtype)) for B, dtype in pairs]


def scattered_product(A: Tensor, B: Tensor, _reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    """Of `fused_matmul_reduce_scatter`."""
    return A.new_empty(_shorter([*A.shape[:-1], B.shape[1]], scatter_dim, _ranks(group_name)))


def scattered_scaled_product(
    A: Tensor,
    B: Tensor,
    _A_scale: Tensor,
    _B_scale: Tensor,
    _reduce_op: str,
    orig_scatter_dim: int,
    _scatter_dim: int,
    group_name: str,
    output_shape: list[int] | None,
    _bias: Tensor | None = None,
    _result_scale: Tensor | None = None,
    out_dtype: Any = None,
    _use_fast_accum: bool = False,
) -> Tensor:
    """Of `fused_scaled_matmul_reduce_scatter`."""
    shape = [*A.shape[:-1], B.shape[1]] if output_shape is None else list(output_shape)
    return A.new_empty(_shorter(shape, orig_scatter_dim, _ranks(group_name)), dtype=as_dtype(out_dtype, A.dtype))
