"""all_reduce, residual and RMSNorm as one operator, on symmetric tensors and on others.

On the CPU it has what the host has: a sum with a residual and a weight, written as it is. What is refused is told to the other ranks.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from symmem.torch import _ops as ops
from symmem.torch._groups import resolve
from symmem.torch._memory import find
from symmem.torch.operators.collectives import is_symmetric
from symmem.typing import Op

_NAME = "all_reduce_rms_norm_out"


def all_reduce_rms_norm_out(
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    reduce_op: str,
    group_name: str,
    out: Tensor,
    scale: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """`residual` becomes itself and the reduction of everybody's `input`, and `out` the norm of that; fp8 by `scale` or `scales`."""
    for what, tensor in (("output", out), ("residual", residual)):
        if tensor is not None and tensor.shape != input.shape:
            text = f"{_NAME}: the {what} has sizes {list(tensor.shape)}, the input {list(input.shape)}"
            raise ops._refused(text, group_name, input)
    op = cast(Op, reduce_op)
    if is_symmetric(input):
        ops._check_contiguous(_NAME, "input", input, group_name)
        find(input, group_name).all_reduce_rms_norm(residual, weight, epsilon, out, op=op, scale=scale, scales=scales)
    else:
        group = resolve(group_name)
        group.all_reduce_rms_norm(input, residual, weight, epsilon, out, op=op, scale=scale, scales=scales)
