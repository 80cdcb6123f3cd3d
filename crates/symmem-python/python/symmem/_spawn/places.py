"""Where ranks run: the cores that each is kept on, and the threads that its math libraries take.

The rules are the compiled module's. Math libraries read the environment when they are imported, so that is for ranks that are
processes. Those that are threads share the libraries of this process: numpy's own can be told while they run.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from symmem._symmem import _place

_log = logging.getLogger("symmem")
_said = False


@dataclass(frozen=True)
class Places:
    """Where the ranks of one `spawn` run."""

    cpus: list[list[int]]
    """The processors of each rank; none means any."""
    env: dict[str, str] = field(default_factory=dict)
    """What is added to the environment of ranks that are processes."""
    threads: int | None = None
    """How many threads the libraries of this process may take while its threads are ranks; None: as they are."""


def of_threads(ranks: int, pin: str | None) -> Places:
    """For ranks that are threads of this process."""
    cpus, threads, added = _place(ranks, pin, os.environ)
    tell = any(variable == "OPENBLAS_NUM_THREADS" for variable, _ in added)
    return Places(cpus, threads=threads if tell else None)


def of_processes(ranks: int, pin: str | None, env: Mapping[str, str]) -> Places:
    """For ranks that are processes, whose environment gets `env` too."""
    cpus, threads, added = _place(ranks, pin, {**os.environ, **env})
    if ranks > 1 and any(variable == "OMP_NUM_THREADS" for variable, _ in added):
        _say(ranks, threads)
    return Places(cpus, {**dict(added), **env})


def _say(ranks: int, threads: int) -> None:
    """Once, where logs of warnings are seen unless the program says otherwise: as torchrun does."""
    global _said
    if not _said:
        _said = True
        _log.warning(
            "spawn: BLAS and OpenMP get %d thread%s in each of %d ranks; set OMP_NUM_THREADS to choose another number",
            threads,
            "" if threads == 1 else "s",
            ranks,
        )


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """In it every OpenBLAS of this process, numpy's among them, takes at most so many threads for a product."""
    with ExitStack() as stack:
        for get, set_threads in _openblas() if threads is not None else ():
            before = get()
            if before > (threads or before):
                set_threads(threads)
                stack.callback(set_threads, before)
        yield


def _openblas() -> Iterator[tuple[Callable[[], int], Callable[[int | None], object]]]:
    """How each one is asked and told. They prefix and suffix their names as they were built."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "openblas" in line}
    except OSError:
        return
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        for name in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
            if hasattr(library, name.format("set")) and hasattr(library, name.format("get")):
                yield getattr(library, name.format("get")), getattr(library, name.format("set"))
                break
