"""Arrays with something in them: `zeros`, `ones`, `full`, `array`, and the forms that are like another array.

All are local, and as `symmem.empty` otherwise: what they return can become symmetric by `rendezvous`. What is not told a
`dtype` is float32, unless there are values or another array to take it from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from symmem import _symmem
from symmem._array import Array

#: DLPack's kind of device that is CUDA's.
_CUDA = 2


def zeros(*size: int | Sequence[int], dtype: Any = None, device: Any = "cpu") -> Array:
    """Local. An array of zeros, float32 without `dtype`. The same as `empty`, which is zeroed too.

    >>> import symmem
    >>> symmem.zeros(3)
    symmem.Array([0., 0., 0.], dtype=float32, device='cpu')
    """
    return _symmem.empty(*size, dtype=dtype, device=device)


def ones(*size: int | Sequence[int], dtype: Any = None, device: Any = "cpu") -> Array:
    """Local. An array of ones, float32 without `dtype`.

    >>> import symmem
    >>> symmem.ones(2, 2, dtype="int64").tolist()
    [[1, 1], [1, 1]]
    """
    return _filled(_symmem.empty(*size, dtype=dtype, device=device), 1)


def full(size: int | Sequence[int], value: Any, *, dtype: Any = None, device: Any = "cpu") -> Array:
    """Local. An array of `value`; without `dtype` of the type that numpy gives it.

    >>> import symmem
    >>> symmem.full((2,), 7)
    symmem.Array([7, 7], dtype=int64, device='cpu')
    """
    dtype = np.asarray(value).dtype if dtype is None else dtype
    return _filled(_symmem.empty(size, dtype=dtype, device=device), value)


def array(values: Any, *, dtype: Any = None, device: Any = "cpu") -> Array:
    """Local. An array with a copy of `values`: another array, a tensor, or numbers in lists. Without `dtype` it is theirs.

    >>> import symmem
    >>> symmem.array([[1, 2], [3, 4]])
    symmem.Array([[1, 2],
                  [3, 4]], dtype=int64, device='cpu')
    """
    if not hasattr(values, "__dlpack_device__"):
        values = np.asarray(values)
    return _filled(_symmem.empty(values.shape, dtype=_dtype_of(values) if dtype is None else dtype, device=device), values)


def empty_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Local. A zeroed array of the size, type and device of `x`, as far as nothing else is asked for.

    >>> import numpy as np, symmem
    >>> symmem.empty_like(np.ones((2, 2), "int8")).dtype
    dtype('int8')
    """
    if not hasattr(x, "__dlpack_device__"):
        x = np.asarray(x)
    if device is None:
        kind, number = x.__dlpack_device__()
        device = f"cuda:{number}" if kind == _CUDA else "cpu"
    return _symmem.empty(x.shape, dtype=_dtype_of(x) if dtype is None else dtype, device=device)


def zeros_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Local. The same as `empty_like`, which is zeroed too."""
    return empty_like(x, dtype=dtype, device=device)


def ones_like(x: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Local. An array of ones, otherwise as `empty_like` gives it."""
    return _filled(empty_like(x, dtype=dtype, device=device), 1)


def full_like(x: Any, value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Local. An array of `value`, otherwise as `empty_like` gives it: the type is that of `x`."""
    return _filled(empty_like(x, dtype=dtype, device=device), value)


def _dtype_of(x: Any) -> Any:
    """The element type of an array, which needs no ml_dtypes where the array is ours."""
    return x.dtype_name if isinstance(x, _symmem.Array) else x.dtype


def _filled(x: Array, values: Any) -> Array:
    """`x`, once `values` have been written into it; what is on a GPU, by torch or cupy."""
    torch = sys.modules.get("torch")
    if torch is not None and (x.device != "cpu" or isinstance(values, torch.Tensor)):
        x.torch().copy_(torch.as_tensor(values))
    elif x.device == "cpu":
        x[...] = values
    elif "cupy" in sys.modules:
        cupy = sys.modules["cupy"]
        cupy.from_dlpack(x)[...] = cupy.asarray(values)
    else:
        raise TypeError(f"nobody can write to {x.device} here. Hint: import torch or cupy, or use symmem.empty")
    return x
