"""NCCL's collectives on arrays of any library: the functions of `torch.cuda.nccl`, with its arguments and its checks.

An array is anything with `__cuda_array_interface__` or DLPack, a torch CUDA tensor, or a `symmem.Array` on a device. One
process with several devices passes an array for each, and needs nothing else:

>>> from symmem import nccl
>>> nccl.all_reduce([x0, x1])                        # x0 on cuda:0, x1 on cuda:1  # doctest: +SKIP

Several processes make communicators, with an id that one of them has sent to the others:

>>> comm = nccl.init_rank(world, uid, rank)          # doctest: +SKIP
>>> nccl.all_gather([mine], [everybodys], comms=comm)  # doctest: +SKIP

Then ranks are those of the communicators: roots are any of them, and as many parts has an output. Everything goes in the
order of each device's current stream, or of `streams`, and returns at once; arrays must stay until the streams are done.
Reductions are NCCL's numbers: `SUM`, `PROD`, `MAX`, `MIN`, `AVG`. Those of 8-bit floats and bools are of bytes, so those
types are only good to be moved.

`library()` says which NCCL is used and why. Without one, or with too old a one, everything raises `symmem.NoLibrary` or
`symmem.LibraryTooOld`, which say what was looked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from symmem import _symmem
from symmem._symmem import Communicator, Error

__all__ = [
    "AVG",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Communicator",
    "Library",
    "all_gather",
    "all_reduce",
    "broadcast",
    "init_rank",
    "is_available",
    "library",
    "reduce",
    "reduce_scatter",
    "unique_id",
    "version",
]


def __dir__() -> list[str]:
    return __all__


SUM, PROD, MAX, MIN, AVG = range(5)

_Arrays: TypeAlias = Collection[Any]
#: For each input a stream (of torch or cupy, or a handle), or None for the current one.
_Streams: TypeAlias = Sequence[Any] | None
_Communicators: TypeAlias = Communicator | Iterable[Communicator] | None

# DLPack first: torch computes the others, and not for every tensor.
_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__", "__array_interface__")


class Library(NamedTuple):
    """The NCCL that is in use."""

    path: str
    why: str
    version: tuple[int, int, int] | tuple[int, int, int, str]


def library() -> Library:
    """Which NCCL is used, and why. The first call finds it; `SYMMEM_NCCL_LIBRARY` names another."""
    path, why, numbers, suffix = _symmem._nccl_library()
    return Library(path, why, (*numbers, suffix) if suffix else numbers)


def version() -> tuple[int, int, int] | tuple[int, int, int, str]:
    """The version of NCCL: three numbers, and what is written behind them, where there is something."""
    return library().version


def is_available(tensors: Iterable[Any]) -> bool:
    """Whether NCCL is there, and takes these arrays in one call: contiguous, on devices, no two on the same."""
    try:
        _symmem._nccl_library()
    except Error as problem:
        warnings.warn(str(problem), stacklevel=2)
        return False
    return _symmem._nccl_suits(tensors)


def unique_id() -> bytes:
    """A new id, which all ranks of a communicator must be given. Its process must live until they have used it."""
    return _symmem._nccl_unique_id()


def init_rank(num_ranks: int, uid: bytes, rank: int, *, device: Any = None, timeout: float = 300.0) -> Communicator:
    """Collective over `num_ranks` ranks with the same `uid`: this one is `rank`, on `device` (the current one).

    Waits for the others for at most `timeout` seconds, as do later calls. One that is forgotten is not ended, because
    work may be under way: `finish` ends it with all ranks, `abort` alone.
    """
    return _symmem._nccl_init_rank(num_ranks, uid, rank, device=device, timeout=timeout)


def all_reduce(
    inputs: _Arrays,
    outputs: _Arrays | None = None,
    op: int = SUM,
    streams: _Streams = None,
    comms: _Communicators = None,
) -> None:
    """Every output becomes the reduction of all inputs; in place without outputs."""
    arrays = _collection(inputs)
    _symmem._nccl_all_reduce(arrays, arrays if outputs is None else _collection(outputs), op, streams, comms)


def reduce(
    inputs: _Arrays,
    output: Any = None,
    root: int = 0,
    op: int = SUM,
    streams: _Streams = None,
    comms: _Communicators = None,
    *,
    outputs: Sequence[Any] | None = None,
) -> None:
    """`output`, on the root's device, becomes the reduction of all inputs; without it the root's input does.

    Where the root is a rank of another process, `output` is not looked at. `outputs`, and a list as `output`, are
    deprecated: of those, the root's is taken.
    """
    arrays = _collection(inputs)
    if outputs is not None:
        if output is not None:
            raise ValueError(
                "'output' and 'outputs' can not be both specified. 'outputs' is deprecated in favor of 'output', "
                "taking in a single output tensor. The signature of reduce is: "
                "reduce(inputs, output=None, root=0, op=SUM, streams=None, comms=None)."
            )
        output = outputs
    if isinstance(output, Sequence) and not _is_array(output):
        warnings.warn(
            "nccl.reduce with an output tensor list is deprecated. Please specify a single output tensor.",
            FutureWarning,
            stacklevel=2,
        )
        output = output[root]
    _symmem._nccl_reduce(arrays, output, root, op, streams, comms)


def broadcast(inputs: _Arrays, root: int = 0, streams: _Streams = None, comms: _Communicators = None) -> None:
    """Every array becomes that of rank `root`."""
    _symmem._nccl_broadcast(_collection(inputs), root, streams, comms)


def all_gather(
    inputs: _Arrays, outputs: _Arrays, streams: _Streams = None, comms: _Communicators = None
) -> None:
    """Every output becomes all inputs, one after the other."""
    _symmem._nccl_all_gather(_collection(inputs), _collection(outputs), streams, comms)


def reduce_scatter(
    inputs: _Arrays, outputs: _Arrays, op: int = SUM, streams: _Streams = None, comms: _Communicators = None
) -> None:
    """Every output becomes its rank's part of the reduction of all inputs."""
    _symmem._nccl_reduce_scatter(_collection(inputs), _collection(outputs), op, streams, comms)


def _collection(arrays: Any) -> list[Any]:
    """The arrays of an argument, which must not be an array itself."""
    if not isinstance(arrays, Container) or _is_array(arrays):
        raise TypeError("Inputs should be a collection of tensors")
    if not isinstance(arrays, Iterable):
        raise TypeError("expected a sequence")
    return list(arrays)


def _is_array(value: Any) -> bool:
    return any(hasattr(value, protocol) for protocol in _PROTOCOLS)
