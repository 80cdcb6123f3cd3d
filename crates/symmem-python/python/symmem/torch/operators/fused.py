"""What the operators do that torch too has in Python: gathers and reductions with a matrix product before or after.

On the CPU `_host_products` does both at a time where that is faster, else it is the collective first, then the product, or the other way
round; on GPUs it is `_overlap`. They return new tensors, so torch's interface for extensions, which takes no Python tensors, is of no use to them.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

import symmem
from symmem.torch import _host_products as host
from symmem.torch import _ops as ops
from symmem.torch import _overlap as overlap
from symmem.torch._groups import resolve
from symmem.torch._host_products import plain
from symmem.torch.operators import onesided
from symmem.typing import Op


def _gathered(tensor: Tensor, dim: int, group_name: str) -> Tensor:
    """Everybody's `tensor` along `dim`."""
    group = resolve(group_name)
    with ops._telling(group, tensor):
        moved = tensor.movedim(dim, 0).contiguous()
        out = moved.new_empty((moved.shape[0] * group.size, *moved.shape[1:]))
    group.all_gather(moved, out)
    return out.movedim(0, dim)


def _scattered(tensor: Tensor, reduce_op: str, dim: int, group_name: str) -> Tensor:
    """This rank's part, along `dim`, of the reduction of everybody's `tensor`."""
    group, side = resolve(group_name), tensor.shape[dim]
    ops._check_scatter(reduce_op, side, group, tensor)
    with ops._telling(group, tensor):
        moved = tensor.movedim(dim, 0).contiguous()
        out = moved.new_empty((side // group.size, *moved.shape[1:]))
    group.reduce_scatter(moved, cast(Op, reduce_op), out)
    return out.movedim(0, dim)


def _told(group_name: str, A: Tensor) -> AbstractContextManager[None]:
    """What is wrong with this rank's arguments is told to the others, who call the operator, on the CPU."""
    return ops._telling(group_name, A) if A.is_cpu else nullcontext()


def _check_product(A: Tensor, dim: int, Bs: list[Tensor], what: str) -> None:
    if A.dim() < 2:
        raise ValueError("A_shard must be a matrix" if what == "gather_dim" else "A must be a matrix")
    if any(B.dim() != 2 for B in Bs):
        raise ValueError("B must be a matrix")
    if not 0 <= dim < A.dim():
        raise ValueError(f"Invalid {what}: {dim} of {A.dim()}")


def _check_scale(A: Tensor, dim: int, scale: Tensor, group_name: str) -> None:
    """A scale is of the tensor, of this rank's rows, or of everybody's."""
    if A.is_cpu and not scale.is_cpu:
        raise ValueError(f"Invalid scale: it is on {scale.device}, and the tensor on the CPU")
    whole = list(A.shape)
    whole[dim] *= resolve(group_name).size
    is_of_rows = scale.shape == (*A.shape[:-1], 1)
    if scale.numel() > 1 and not is_of_rows and list(scale.shape[:-1]) != whole[:-1]:
        raise ValueError(f"Invalid scale shape {list(scale.shape)} for {list(A.shape)}")


def fused_all_gather_matmul(
    A: Tensor, Bs: list[Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[Tensor | None, list[Tensor]]:
    """Everybody's `A`, and its product with each of `Bs`."""
    with _told(group_name, A):
        _check_product(A, gather_dim, Bs, "gather_dim")
    if A.is_cuda and A.numel() and gather_dim < A.dim() - 1:
        return _overlapped(A, Bs, gather_dim, group_name, return_A)
    # Columns are multiplied where they lie: nobody has all of them side by side.
    if Bs and not (return_A and gather_dim == A.dim() - 1) and host.fuses(A, group_name):
        return host.all_gather_products(A, Bs, gather_dim, group_name, return_A)
    whole = _gathered(A, gather_dim, group_name)
    return (plain(whole) if return_A else None), [plain(torch.matmul(whole, B)) for B in Bs]


def _overlapped(
    A: Tensor, Bs: list[Tensor], gather_dim: int, group_name: str, return_A: bool
) -> tuple[Tensor | None, list[Tensor]]:
    moved = A.movedim(gather_dim, 0)
    with overlap.telling(group_name, moved, overlap.room_of_products(moved, Bs, group_name, return_A)):
        moved = moved.contiguous()
    rows, products = overlap.all_gather_products(moved.flatten(0, -2), Bs, group_name, return_A)
    sides = (moved.shape[0] * resolve(group_name).size, *moved.shape[1:-1])

    def shaped(flat: Tensor) -> Tensor:
        return plain(flat.view(*sides, flat.shape[-1]).movedim(0, gather_dim))

    return (shaped(rows) if return_A else None), [shaped(product) for product in products]


def fused_matmul_reduce_scatter(
    A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> Tensor:
    """This rank's part of the reduction of everybody's product."""
    with _told(group_name, A):
        _check_product(A, scatter_dim, [B], "scatter_dim")
    if A.is_cuda and A.numel() and scatter_dim < A.dim() - 1:
        return _product_scattered(A, B, reduce_op, scatter_dim, group_name)
    if host.fuses(A, group_name):
        return host.product_reduce_scatter(A, B, reduce_op, scatter_dim, group_name)
    with ops._telling(group_name, A):
        product = torch.matmul(A, B)
    return plain(_scattered(product, reduce_op, scatter_dim, group_name))


def _product_scattered(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    moved, ranks = A.movedim(scatter_dim, 0), resolve(group_name).size
    problem, product = None, A.numel() // A.shape[-1] * B.shape[1] * A.element_size()
    if reduce_op not in ("sum", "avg"):
        problem = f"reduce_op must be sum or avg, not {reduce_op}"
    elif moved.shape[0] % ranks:
        problem = f"a side of {moved.shape[0]} must be divisible by the {ranks} ranks"
    if problem is not None:
        raise overlap.refused(problem, group_name, product, A.device)
    with overlap.telling(group_name, A, product):
        moved = moved.contiguous()
    out = overlap.product_reduce_scatter(moved.flatten(0, -2), B, cast(Op, reduce_op), group_name)
    return plain(out.view(moved.shape[0] // ranks, *moved.shape[1:-1], B.shape[1]).movedim(0, scatter_dim))


#: Torch's dispatcher gives kernels in Python the numbers of types that are in lists.
_TYPES = {
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}


def as_dtype(given: Any, default: torch.dtype) -> torch.dtype:
    """The type that an optional argument says."""
    if given is None:
        return default
    if isinstance(given, torch.dtype):
        return given
    if given not in _TYPES:
        raise ValueError(f"type {given} of torch is none that products are made in")
    return _TYPES[given]


def _scaled(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    dtype: Any,
    fast: bool,
) -> Tensor:
    """The product of scaled numbers: on the CPU in float32, as there is no 8-bit product there."""
    if A.is_cuda and A.element_size() == 1 and A_scale.dtype == torch.float32:
        flat = torch._scaled_mm(
            A.flatten(0, -2),
            B,
            A_scale if A_scale.numel() == 1 else A_scale.flatten(0, -2),
            B_scale,
            bias=bias,
            scale_result=scale,
            out_dtype=as_dtype(dtype, A.dtype),
            use_fast_accum=fast,
        )
        return flat.view(*A.shape[:-1], B.shape[1])
    product = torch.matmul(A.float() * A_scale.float(), B.float() * B_scale.float())
    return _finished(product, bias, scale, as_dtype(dtype, A.dtype))


def _finished(product: Tensor, bias: Tensor | None, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What becomes of a product that is float32."""
    if bias is not None:
        product = product + bias.float()
    if scale is not None:
        product = product * scale.float()
    return product.to(dtype)


def _gathered_scaled(
    A: Tensor, Bs: list[Tensor], A_scale: Tensor, B_scales: list[Tensor], dim: int, group_name: str
) -> list[Tensor]:
    """The products of everybody's rows in float32, of scaled numbers of the CPU."""
    group = resolve(group_name)
    with ops._telling(group_name, A):
        scaled = A.float()
        factors = [B.float() * scale.float() for B, scale in zip(Bs, B_scales, strict=True)]
        if A_scale.shape == (*A.shape[:-1], 1):
            scaled = scaled * A_scale.float()
        elif A_scale.numel() == 1:
            # This rank's, for everybody's rows.
            factors = [factor * A_scale.float().view(()) for factor in factors]
        else:
            scaled = scaled * A_scale.float().chunk(group.size, dim)[group.rank]
    return host.all_gather_products(scaled, factors, dim, group_name, False)[1]


def fused_all_gather_scaled_matmul(
    A: Tensor,
    Bs: list[Tensor],
    A_scale: Tensor,
    B_scales: list[Tensor],
    gather_dim: int,
    group_name: str,
    biases: list[Tensor | None],
    result_scales: list[Tensor | None],
    out_dtypes: list[Any],
    use_fast_accum: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    """`fused_all_gather_matmul` of scaled numbers; a scale per row is gathered with its rows."""
    # Whatever the scales are, all ranks gather them or `A` next.
    with ops._telling(group_name, A):
        _check_product(A, gather_dim, Bs, "gather_dim")
        _check_scale(A, gather_dim, A_scale, group_name)
        if {len(Bs)} != {len(each) for each in (B_scales, biases, result_scales, out_dtypes, use_fast_accum)}:
            raise ValueError("len(Bs) must be that of the lists of scales, biases, types and use_fast_accum")
    is_of_rows, scales = A_scale.shape == (*A.shape[:-1], 1), A_scale
    if is_of_rows or A.is_cpu:
        # First, and on the CPU also where nobody needs it: so ranks whose scales are of different kinds find out.
        scales = _gathered(A_scale if is_of_rows else A_scale.reshape(-1), gather_dim if is_of_rows else 0, group_name)
    whole = plain(_gathered(A, gather_dim, group_name))
    if Bs and gather_dim < A.dim() - 1 and host.fuses(A, group_name, torch.float32):
        products = _gathered_scaled(A, Bs, A_scale, B_scales, gather_dim, group_name)
        types = (as_dtype(dtype, A.dtype) for dtype in out_dtypes)
        return whole, [_finished(*each) for each in zip(products, biases, result_scales, types, strict=True)]
    # Also where a shard has one row only: a scale of the tensor has another shape then.
    if is_of_rows:
        A_scale = scales
    each = zip(Bs, B_scales, biases, result_scales, out_dtypes, use_fast_accum, strict=True)
    return whole, [
        _scaled(whole, B, A_scale, scale, bias, result, dtype, fast) for B, scale, bias, result, dtype, fast in each
    ]


def fused_scaled_matmul_reduce_scatter(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: list[int] | None,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """`fused_matmul_reduce_scatter` of scaled numbers, whose product has `output_shape` before it is scattered."""
    sides = list(A.shape if output_shape is None else output_shape)[:-1]
    with ops._telling(group_name, A):
        _check_scattered(A, B, sides, orig_scatter_dim, scatter_dim_after_maybe_reshape)
        for given in (bias, result_scale):
            _check_columns(given, B.shape[1])
    if host.fuses(A, group_name, torch.float32):
        with ops._telling(group_name, A):
            dtype = as_dtype(out_dtype, A.dtype)
            scaled = (A.float() * A_scale.float()).reshape(*sides, A.shape[-1])
            factor = (B.float() * B_scale.float()).view(B.shape)
            scaled, factor = _folded(scaled, factor, bias, result_scale)
        return host.product_reduce_scatter(scaled, factor, reduce_op, orig_scatter_dim, group_name).to(dtype)
    with ops._telling(group_name, A):
        product = _scaled(A, B, A_scale, B_scale, bias, result_scale, out_dtype, use_fast_accum)
        product = product.reshape(*sides, B.shape[1])
    return plain(_scattered(product, reduce_op, orig_scatter_dim, group_name))


def _check_scattered(A: Tensor, B: Tensor, sides: list[int], dim: int, dim_of_A: int) -> None:
    """What torch would say of the product of `A`, with these sides before its columns, which is scattered along `dim`."""
    _check_product(A, dim_of_A, [B], "scatter_dim_after_maybe_reshape")
    if not 0 <= dim <= len(sides):
        raise ValueError(f"Invalid orig_scatter_dim: {dim} of {len(sides) + 1}")


def _check_columns(given: Tensor | None, columns: int) -> None:
    """A bias or scale of a product is one number, or one for each column."""
    if given is not None and (given.numel() not in (1, columns) or list(given.shape[-1:]) not in ([], [given.numel()])):
        raise ValueError(f"Invalid shape {list(given.shape)} of a bias or a result scale: the product has {columns} columns")


def _folded(scaled: Tensor, factor: Tensor, bias: Tensor | None, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Two sides whose product is `(scaled @ factor + bias) * scale`: a bias is one more row, behind a column of ones.

    Which ranks have a bias is their own affair, so it must not change what they do together: only the shape of the product is everybody's.
    """
    columns = factor.shape[1]
    if bias is not None:
        scaled = torch.cat([scaled, scaled.new_ones((*scaled.shape[:-1], 1))], -1)
        factor = torch.cat([factor, bias.float().reshape(1, -1).expand(1, columns)])
    return scaled, (factor if scale is None else factor * scale.float().reshape(1, -1))


def _low_contention_all_gather(tensor: Tensor, group_name: str) -> Tensor:
    """Everybody's `tensor`, complete on return; on GPUs when `wait_tensor` says so."""
    return ops._low_contention_all_gather(tensor, group_name)


def _low_contention_reduce_scatter(tensor: Tensor, reduce_op: str, group_name: str) -> Tensor:
    """This rank's part of the sum or average."""
    return ops._low_contention_reduce_scatter(tensor, cast(Op, reduce_op), group_name)


def _low_contention_all_gather_ce_multicast(tensor: Tensor, group_name: str) -> Tensor:
    """`_low_contention_all_gather`: nothing here has multicast to do it by."""
    rows = tensor if tensor.dim() else tensor.view(1)
    return ops._low_contention_all_gather(rows, group_name)


def _low_contention_all_gather_ce_multicast_out(tensor: Tensor, group_name: str, out: Tensor) -> None:
    """The same into `out`."""
    ranks = resolve(group_name).size
    expected = [tensor.shape[0] * ranks, *tensor.shape[1:]] if tensor.dim() else [ranks]
    if list(out.shape) != expected or not out.is_contiguous():
        raise ops._refused(f"expected out shape {expected}, contiguous, not {list(out.shape)}", group_name, tensor)
    resolve(group_name).all_gather(tensor.contiguous(), out)


def _async_input_mm(a: Tensor, b: Tensor, a_chunk_signals: Tensor, a_chunk_pivot: int) -> Tensor:
    """The product of `a`, whose chunks of rows are there when their signals are not 0; from chunk `a_chunk_pivot` on."""
    chunks = a_chunk_signals.numel()
    if a_chunk_signals.dtype != torch.uint32 or a.dim() != 2 or chunks == 0 or a.shape[0] % chunks:
        raise symmem.Invalid(f"_async_input_mm: {list(a.shape)} must be an integer multiple of {chunks} uint32 signals")
    out, rows = a.new_empty((a.shape[0], b.shape[1])), a.shape[0] // chunks
    signals, end = a_chunk_signals.view(torch.int32), time.monotonic() + onesided.PATIENCE
    for step in range(chunks):
        chunk = (a_chunk_pivot + step) % chunks
        while signals[chunk].item() == 0:
            if time.monotonic() > end:
                raise symmem.Timeout(f"_async_input_mm: chunk {chunk} is not there after {onesided.PATIENCE:.0f} s")
            time.sleep(0)
        torch.mm(a[chunk * rows : (chunk + 1) * rows], b, out=out[chunk * rows : (chunk + 1) * rows])
    return out
