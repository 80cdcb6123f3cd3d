"""How ranks' failures become the launcher's exception."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from symmem._spawn import job
from symmem._spawn.job import Failure, Report
from symmem._symmem import Error, Spawned, Timeout

#: Seconds that ranks have to end by themselves after one has failed.
GRACE = 2.0


def failure_of(error: BaseException, rank: int) -> Failure:
    """What is told of a rank's exception."""
    if isinstance(error, job.MissingGuard):
        return Failure(str(error))
    message = "".join(traceback.format_exception_only(error)).strip()
    text = "".join(traceback.format_exception(type(error), error, of_the_user(error.__traceback__))).strip()
    return Failure(message, text, is_secondary(error, rank), _pickled(error))


def of_the_user(trace: TracebackType | None) -> TracebackType | None:
    """The part that starts in the user's function; all of it if there is no such part."""
    part = trace
    while part is not None and os.path.dirname(part.tb_frame.f_code.co_filename) == os.path.dirname(__file__):
        part = part.tb_next
    return part or trace


def is_secondary(error: BaseException, rank: int) -> bool:
    """Whether the exception only says that another rank failed."""
    culprit = getattr(error, "culprit", None) if isinstance(error, Error) else None
    return culprit is not None and culprit != rank


def reason_of(error: BaseException) -> str:
    """What the other ranks are told, in one line."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


def spawned(rank: int, failure: Failure, cause: BaseException | None = None) -> Spawned:
    """The launcher's exception for a rank's failure. A `cause` of this process shows its traceback by itself."""
    text = f"rank {rank} failed: {failure.message}"
    if failure.traceback and cause is None:
        text += f"\n\nrank {rank} said:\n{failure.traceback}"
    error = Spawned(text)
    error.rank = rank
    error.traceback = failure.traceback
    error.__cause__ = cause or _unpickled(failure.exception)
    return error


def timed_out(ranks: Sequence[int], timeout: float) -> Timeout:
    """The launcher's exception for ranks that did not end."""
    error = Timeout(f"spawn: ranks {list(ranks)} did not end within {timeout} s, and were ended")
    error.missing = list(ranks)
    return error


def unended(ended: set[int], ranks: int, timeout: float | None) -> list[Any]:
    """The list of results before there are any: a `Timeout` for every rank that is not in `ended`."""
    return [
        None if rank in ended or timeout is None else timed_out([rank], timeout) for rank in range(ranks)
    ]


def results(
    ended: Sequence[tuple[int, Report]], ranks: int, timeout: float | None, return_exceptions: bool
) -> list[Any] | Error:
    """The results in rank order, or what to raise. `ended` is in the order of time, which says which failure came first."""
    failures = [(rank, report.failure) for rank, report in ended if report.failure is not None]
    if failures and not return_exceptions:
        return spawned(*next((pair for pair in failures if not pair[1].secondary), failures[0]))
    values = unended({rank for rank, _ in ended}, ranks, timeout)
    for rank, report in ended:
        if report.failure is not None:
            values[rank] = spawned(rank, report.failure)
        elif report.result is not None:
            values[rank] = job.load(report.result)
    return values


def _pickled(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error)
    except Exception:
        return None


def _unpickled(error: bytes | None) -> BaseException | None:
    try:
        found = None if error is None else job.load(error)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None
