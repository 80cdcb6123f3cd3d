"""`Array`: symmetric memory that behaves like a numpy array.

The compiled class has the memory and the zero-copy protocols; this one adds what numpy users expect of an array.
Every operation works on `numpy()`, a view that shares the memory. Arrays on a GPU have no such view: give them to
torch, cupy or jax (`torch.from_dlpack(x)`), which share their memory too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from symmem import _symmem


def _plain(value: Any) -> Any:
    """An array's numpy view; anything else unchanged."""
    return value.numpy() if isinstance(value, _symmem.Array) else value


class Array(_symmem.Array, NDArrayOperatorsMixin):
    """Symmetric memory with the manners of a numpy array. Made by `symmem.empty` and the views of a handle.

    It keeps its memory alive, and so does every numpy or torch view of it.

    >>> import symmem
    >>> x = symmem.empty(2, 3, dtype="int32")
    >>> x[0] = [1, 2, 3]
    >>> x += 1
    >>> x
    symmem.Array([[2, 3, 4],
                  [1, 1, 1]], dtype=int32, device='cpu')
    >>> int(x.sum()), (x * 2).tolist()
    (12, [[4, 6, 8], [2, 2, 2]])
    """

    def __getitem__(self, key: Any) -> Any:
        return self.numpy()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.numpy()[key] = _plain(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __contains__(self, value: Any) -> bool:
        return value in self.numpy()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.get("out")
        if out is not None:
            options["out"] = tuple(_plain(target) for target in out)
        result = getattr(ufunc, method)(*(_plain(value) for value in inputs), **options)
        # `x += 1` must leave `x` the array it was.
        return out[0] if out is not None and len(out) == 1 else result

    def __getattr__(self, name: str) -> Any:
        # Only reached for what the array itself lacks: `x.sum()`, `x.reshape(...)`, `x.T`.
        if name.startswith("_") or self.device != "cpu":
            raise AttributeError(f"{type(self).__name__!r} object on {self.device} has no attribute {name!r}")
        return getattr(self.numpy(), name)

    def fill(self, value: Any) -> None:
        """Sets every element."""
        self.numpy().fill(value)

    def __repr__(self) -> str:
        if self.device != "cpu":
            return f"symmem.Array(shape={self.shape}, dtype={self.dtype.name}, device={self.device!r})"
        prefix = "symmem.Array("
        text = np.array2string(self.numpy(), separator=", ", prefix=prefix)
        return f"{prefix}{text}, dtype={self.dtype.name}, device={self.device!r})"


_symmem._set_array_type(Array)
