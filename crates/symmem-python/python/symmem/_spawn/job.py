"""What a launcher sends to its ranks, and what they send back.

A function travels by name where that is possible, else by value (cloudpickle). A rank imports the launcher's main
script only if the job refers to it, under another `__name__` as `multiprocessing` does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

MAIN_IN_A_RANK = "__symmem_main__"

_GUARD = """symmem.spawn was called while a rank imported the main script {script}.
Every rank imports it to find the function, so what starts ranks must be under a guard:

    if __name__ == "__main__":
        symmem.spawn(...)
"""

_log = logging.getLogger("symmem")
_importing_main = False
_said = False


class MissingGuard(RuntimeError):
    """`spawn` was reached by the import of the main script."""


@dataclass(frozen=True)
class Job:
    """A call, ready to travel."""

    payload: bytes
    by_value: bool
    """Made by cloudpickle, and so must be the result."""
    main: tuple[str, str] | None
    """The main script, if the payload refers to it: ("module", name) or ("path", file)."""


@dataclass(frozen=True)
class Report:
    """How a rank ended: a pickled result, or a failure."""

    result: bytes | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Failure:
    """A rank's exception, as text and, where it can be pickled, as it was."""

    message: str
    traceback: str = ""
    secondary: bool = False
    """It only says that another rank failed."""
    exception: bytes | None = None


def refuse_without_guard() -> None:
    """Raises if a rank is importing the main script: a `spawn` there would go on forever."""
    if _importing_main:
        raise MissingGuard(_GUARD.format(script=getattr(sys.modules.get(MAIN_IN_A_RANK), "__file__", "")).strip())


def encode(fn: Callable[..., Any], args: Sequence[Any]) -> Job:
    """The job of calling `fn` with `args`."""
    if (payload := _by_name(fn, args)) is not None:
        return Job(payload, by_value=False, main=_main() if _refers_to_main(payload) else None)
    if _has_cloudpickle():
        payload = dumper(by_value=True)((fn, tuple(args)))
        # By value goes what `__main__` defines, but in a rank that module has another name.
        return Job(payload, by_value=True, main=_main() if MAIN_IN_A_RANK.encode() in payload else None)
    raise TypeError(
        f"{fn!r} with these arguments cannot be sent to another process ({_why_not(fn, args)}). Hint: define it at the "
        "top level of a script or module, install cloudpickle, or pass threads=True"
    )


def is_only_for_threads(fn: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether this is a notebook or the like, and `fn` cannot leave it for want of cloudpickle; says so once."""
    global _said
    main = sys.modules["__main__"]
    has_program = getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", ""))
    if has_program or _has_cloudpickle() or _by_name(fn, args) is not None:
        return False
    if not _said:
        _said = True
        _log.warning(
            "spawn: the ranks are threads of this process, for what a session without a file defines cannot go to another. "
            "Hint: install cloudpickle for processes, or pass threads=True"
        )
    return True


def dumper(by_value: bool) -> Callable[[Any], bytes]:
    """What pickles; by value it takes more, and does not refer to the main script."""
    if not by_value:
        return pickle.dumps
    import cloudpickle

    return cloudpickle.dumps  # type: ignore[no-any-return,unused-ignore]


def decode(job: Job) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """In a rank: the function and its arguments."""
    if job.main is not None:
        _import_main(*job.main)
    fn, args = pickle.loads(job.payload)
    return fn, tuple(args)


def load(result: bytes) -> Any:
    """In the launcher: a result. What a rank calls its main module is the main module here."""
    sys.modules.setdefault(MAIN_IN_A_RANK, sys.modules["__main__"])
    return pickle.loads(result)


def _by_name(fn: Callable[..., Any], args: Sequence[Any]) -> bytes | None:
    try:
        payload = pickle.dumps((fn, tuple(args)))
    except Exception:
        return None
    return None if _refers_to_main(payload) and _main() is None else payload


def _refers_to_main(payload: bytes) -> bool:
    """Whether something in it is found by the name of the main script, which in a rank is another one."""
    return b"__main__" in payload or MAIN_IN_A_RANK.encode() in payload


def _why_not(fn: Callable[..., Any], args: Sequence[Any]) -> str:
    try:
        pickle.dumps((fn, tuple(args)))
    except Exception as error:
        return str(error)
    return "it was defined in a session that has no file to import"


def _has_cloudpickle() -> bool:
    return importlib.util.find_spec("cloudpickle") is not None


def _main() -> tuple[str, str] | None:
    """How a rank can import the main script of this process; None if there is none to import."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        # The `__main__` of a package is a program, not a place where functions are looked for.
        return None if name == "__main__" or name.endswith(".__main__") else ("module", name)
    path = getattr(main, "__file__", None)
    return ("path", os.path.abspath(path)) if path is not None and os.path.isfile(path) else None


def _import_main(kind: str, where: str) -> None:
    global _importing_main
    module = ModuleType(MAIN_IN_A_RANK)
    module.__file__ = where
    sys.modules[MAIN_IN_A_RANK] = module
    _importing_main = True
    try:
        if kind == "module":
            names = runpy.run_module(where, run_name=MAIN_IN_A_RANK, alter_sys=True)
        else:
            names = runpy.run_path(where, run_name=MAIN_IN_A_RANK)
    finally:
        _importing_main = False
    module.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN_IN_A_RANK] = module
