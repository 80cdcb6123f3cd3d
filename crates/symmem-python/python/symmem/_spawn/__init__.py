"""`spawn`: ranks for programs that nobody launched.

`processes` starts them as new interpreters (`child` is their part), `threads` as threads of this one; `job` is what
travels between launcher and rank, `places` where ranks run, `lines` how their output is told apart, `outcome` how a failure
becomes the exception of the launcher.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from symmem._spawn import job, places, processes, threads as as_threads
from symmem._symmem import Error, Group

__all__ = ["spawn"]

_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")


class _Options(TypedDict, total=False):
    threads: bool | None
    timeout: float | None
    env: Mapping[str, str] | None
    pin: Literal["cores", "numa"] | None
    prefix: bool


# A tuple of arguments is checked against the function, a list is not: its elements have one type.
@overload
def spawn(
    fn: Callable[[Group], _Result],
    ranks: int,
    args: tuple[()] = (),
    *,
    return_exceptions: Literal[False] = False,
    **options: Unpack[_Options],
) -> list[_Result]: ...
@overload
def spawn(
    fn: Callable[[Group, *_Args], _Result],
    ranks: int,
    args: tuple[*_Args],
    *,
    return_exceptions: Literal[False] = False,
    **options: Unpack[_Options],
) -> list[_Result]: ...
@overload
def spawn(
    fn: Callable[[Group], _Result], ranks: int, args: tuple[()] = (), *, return_exceptions: bool, **options: Unpack[_Options]
) -> list[_Result | BaseException]: ...
@overload
def spawn(
    fn: Callable[[Group, *_Args], _Result],
    ranks: int,
    args: tuple[*_Args],
    *,
    return_exceptions: bool,
    **options: Unpack[_Options],
) -> list[_Result | BaseException]: ...
@overload
def spawn(
    fn: Callable[..., Any], ranks: int, args: list[Any], *, return_exceptions: bool = False, **options: Unpack[_Options]
) -> list[Any]: ...
def spawn(
    fn: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    *,
    threads: bool | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    pin: Literal["cores", "numa"] | None = None,
    prefix: bool = False,
    return_exceptions: bool = False,
) -> list[Any]:
    """Runs `fn(group, *args)` on `ranks` new ranks and returns their results in rank order.

    Ranks are processes: fresh interpreters that import the script and find `fn` by its name, so the call must be under
    `if __name__ == "__main__":`. Lambdas, closures and functions of a notebook travel by value when cloudpickle is
    installed. `threads=True` makes the ranks threads of this process, which needs none of that; it is also what a notebook
    gets where cloudpickle is missing, with a warning.

    The first rank that fails by itself ends the others and raises `symmem.Spawned` here, with `rank` and `traceback` (its
    text). With `return_exceptions` nobody is ended, and the exceptions come in the list. `timeout` in seconds bounds the
    whole call (`symmem.Timeout`). `env` adds to the environment of the processes, which is otherwise as torchrun sets it.
    Processes are ended by Ctrl-C and when this process dies.

    `pin="cores"` keeps each rank on its own part of the physical cores, `pin="numa"` on one NUMA node. BLAS and OpenMP get as
    many threads in each rank as it has cores to itself, unless the environment or `env` says how many.

    `prefix=True` puts `[rank 0] ` and so on before every line that a process writes to stdout or stderr, and keeps lines whole.
    A rank may call `spawn` too.

    >>> import symmem
    >>> def twice(group, x):
    ...     return x * 2 + group.rank
    >>> symmem.spawn(twice, ranks=3, args=(10,), threads=True)
    [20, 21, 22]
    """
    job.refuse_without_guard()
    try:
        ranks = operator.index(ranks)
    except TypeError:
        raise TypeError(f"spawn: ranks must be an int, not {type(ranks).__name__} ({ranks!r})") from None
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    if threads or (threads is None and job.is_only_for_threads(fn, args)):
        if env:
            raise ValueError("env= needs processes: threads share the environment of this one")
        if prefix:
            raise ValueError("prefix= needs processes: threads share the output of this one")
        place = places.of_threads(ranks, pin)
        with places.limited(place.threads):
            ended = as_threads.run(fn, ranks, args, timeout, place, return_exceptions)
    else:
        place = places.of_processes(ranks, pin, env or {})
        ended = processes.run(job.encode(fn, args), ranks, timeout, place, prefix, return_exceptions)
    if isinstance(ended, Error):
        # Here, so that nothing of how ranks are started stands between the caller and the message.
        raise ended
    return ended
