"""Types for annotations, as `numpy.typing` has them; at run time nothing asks for them.

`Op` is the name of a reduce operation; `Operand` is what collectives take: an array that shows its memory. The functions and
the stub of the compiled module take these from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Op", "Operand"]

#: The reduce operations.
Op: TypeAlias = Literal["sum", "avg", "min", "max", "prod", "and", "or", "xor"]


class _SpeaksDLPack(Protocol):
    """numpy, torch, cupy, jax, symmem."""

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class _HasInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class _HasCudaInterface(Protocol):
    """numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class _Tensor(_SpeaksDLPack, Protocol):
    """torch's. By a word with underscores, because to checkers an `Array` has all others."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = ..., kwargs: Any = ...) -> Any: ...


#: An array of symmem, numpy, torch, cupy, jax, or anything else that shows its memory.
Operand: TypeAlias = "_SpeaksDLPack | _HasInterface | _HasCudaInterface | Buffer"

#: What was passed is what is returned.
Same = TypeVar("Same", bound="Operand")
#: Arrays of whose kind new ones are made, where no `out` is passed.
Kind = TypeVar("Kind", bound="np.ndarray[Any, Any] | _Tensor")
