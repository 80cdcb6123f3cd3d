"""Operators of torch's dispatcher: `torch.ops.symmem.*`.

`table` lists them all; `collectives`, `exchange`, `onesided` and `fused` do their work; `shapes` says what they return; `library` registers
them, once, when `symmem.torch` is imported.
"""

from __future__ import annotations

from symmem.torch.operators.library import register
from symmem.torch.operators.table import BY_NAME, LEFT_OUT, OPERATORS, Operator

__all__ = ["BY_NAME", "LEFT_OUT", "OPERATORS", "Operator", "register"]
