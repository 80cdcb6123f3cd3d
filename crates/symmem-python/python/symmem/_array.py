"""`Array`: symmetric memory that behaves like a numpy array.

The compiled class has the memory and the zero-copy protocols; this one adds what numpy users expect of an array.
Every operation works on `numpy()`, a view that shares the memory. Arrays on a GPU have no such view: give them to
torch, cupy or jax (`torch.from_dlpack(x)`), which share their memory too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from symmem import _symmem

#: What numpy's arrays have and `Array` passes on.
_NUMPYS = frozenset(name for name in dir(np.ndarray) if not name.startswith("_"))


def _plain(value: Any) -> Any:
    """An array's numpy view, also in lists and tuples; anything else unchanged."""
    if isinstance(value, _symmem.Array):
        return value.numpy()
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value


class Array(_symmem.Array, NDArrayOperatorsMixin):
    """Symmetric memory with the manners of a numpy array. Made by `symmem.empty` and its kin, and by the views of a handle.

    It keeps its memory alive, and so does every numpy or torch view of it. `copy.copy` and `copy.deepcopy` make ordinary
    numpy arrays.

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
        return _call(getattr(ufunc, method), inputs, options)

    def __array_function__(
        self, function: Callable[..., Any], _types: Sequence[type], args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        return _call(function, args, options)

    def __jax_array__(self) -> Any:
        """A copy: jax takes for granted that its arrays do not change. `jax.numpy.from_dlpack(x)` shares the memory."""
        jnp: Any = importlib.import_module("jax.numpy")
        return jnp.array(self.numpy() if self.device == "cpu" else jnp.from_dlpack(self), copy=True)

    def __copy__(self) -> np.ndarray[Any, Any]:
        return self.numpy().copy()

    def __deepcopy__(self, _memo: object) -> np.ndarray[Any, Any]:
        return self.numpy().copy()

    def __getattr__(self, name: str) -> Any:
        # Only reached for what the array itself lacks: `x.sum()`, `x.reshape(...)`, `x.T`.
        if name in _NUMPYS and self.device == "cpu":
            return getattr(self.numpy(), name)
        text = f"symmem.Array on {self.device} has no attribute {name!r}"
        if not name.startswith("_") and hasattr(_symmem.SymmetricMemory, name):
            text += f". Hint: rendezvous first: mem = symmem.rendezvous(x), then mem.{name}"
        raise AttributeError(text, name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(_NUMPYS if self.device == "cpu" else ())})

    def fill(self, value: Any) -> None:
        """Sets every element."""
        self.numpy().fill(value)

    def __repr__(self) -> str:
        prefix = "symmem.Array("
        try:
            text = np.array2string(self.numpy(), separator=", ", prefix=prefix)
        except Exception:  # On a GPU, without ml_dtypes, after a fork: no reason to fail in a debugger.
            text = f"shape={self.shape}"
        return f"{prefix}{text}, dtype={self.dtype_name}, device={self.device!r})"

    def __str__(self) -> str:
        try:
            return str(self.numpy())
        except Exception:  # As in `__repr__`.
            return repr(self)


def _call(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Calls a function of numpy with numpy's views. What it returns of `out` is what was passed."""
    result = function(*_plain(tuple(args)), **{name: _plain(value) for name, value in options.items()})
    out = options.get("out")
    if out is None:
        return result
    # Of ufuncs `out` is a tuple: `x += 1` must leave `x` the array it was.
    if not isinstance(out, tuple):
        return out
    if len(out) == 1:
        return out[0]
    return tuple(given if given is not None else made for given, made in zip(out, result, strict=True))


_symmem._set_array_type(Array)
