"""Ranks as threads of this process, each with a context of its own. For notebooks, tests and small machines."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from symmem import _groups
from symmem._spawn import outcome
from symmem._spawn.places import Places
from symmem._symmem import Context, Error, Group, HashStore, Spawned


@dataclass
class _Outcome:
    """How a thread ended."""

    rank: int
    result: Any = None
    error: BaseException | None = None


@dataclass
class _Run:
    """One call of `spawn`."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    ranks: int
    cpus: list[list[int]]
    store: HashStore = field(default_factory=HashStore)
    groups: dict[int, Group] = field(default_factory=dict)
    ended: queue.SimpleQueue[_Outcome] = field(default_factory=queue.SimpleQueue)

    def rank(self, rank: int) -> None:
        """The body of a rank's thread."""
        try:
            self.ended.put(_Outcome(rank, self._call(rank)))
        except BaseException as error:
            self.ended.put(_Outcome(rank, error=error))

    def _call(self, rank: int) -> Any:
        group = Group(self.store, rank, self.ranks, context=Context())
        self.groups[rank] = group
        if self.cpus[rank]:
            os.sched_setaffinity(0, self.cpus[rank])  # of this thread
        _groups.enter(group)
        try:
            return self.fn(group, *self.args)
        except BaseException as error:
            group.abort(outcome.reason_of(error))
            raise
        finally:
            _groups.leave(group)
            del self.groups[rank]

    def abort(self, reason: str) -> None:
        """Ends the waits of ranks that still run."""
        for group in list(self.groups.values()):
            group.abort(reason)


def run(
    fn: Callable[..., Any],
    ranks: int,
    args: Sequence[Any],
    timeout: float | None,
    place: Places,
    return_exceptions: bool,
) -> list[Any] | Error:
    """Runs `fn` on `ranks` threads; see `symmem.spawn`. Gives the results, or what to raise.

    Threads cannot be killed: one that never ends is left behind.
    """
    work = _Run(fn, args, ranks, place.cpus)
    # Daemons: a rank that hangs must not keep the program from ending.
    for rank in range(ranks):
        threading.Thread(target=work.rank, args=(rank,), name=f"rank {rank}", daemon=True).start()
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    try:
        ended = _collect(work, deadline, return_exceptions)
    except BaseException:
        work.abort("the launcher was interrupted")
        raise
    missing = sorted(set(range(ranks)) - {one.rank for one in ended})
    if missing:
        work.abort("the launcher gave up waiting")
    if timeout is not None and missing and not any(one.error for one in ended):
        return outcome.timed_out(missing, timeout)
    return _results(ended, ranks, timeout, return_exceptions)


def _collect(work: _Run, deadline: float, to_the_end: bool) -> list[_Outcome]:
    ended: list[_Outcome] = []
    while len(ended) < work.ranks and (left := deadline - time.monotonic()) > 0:
        try:
            ended.append(work.ended.get(timeout=min(left, threading.TIMEOUT_MAX)))
        except queue.Empty:
            continue
        if ended[-1].error is not None and not to_the_end:
            deadline = min(deadline, time.monotonic() + outcome.GRACE)
    return ended


def _results(
    ended: Sequence[_Outcome], ranks: int, timeout: float | None, return_exceptions: bool
) -> list[Any] | Error:
    failed = [one for one in ended if one.error is not None]
    if failed and not return_exceptions:
        own = (one for one in failed if one.error and not outcome.is_secondary(one.error, one.rank))
        return _spawned(next(own, failed[0]))
    values = outcome.unended({one.rank for one in ended}, ranks, timeout)
    for one in ended:
        values[one.rank] = one.result if one.error is None else _spawned(one)
    return values


def _spawned(one: _Outcome) -> Spawned:
    assert one.error is not None
    one.error.__traceback__ = outcome.of_the_user(one.error.__traceback__)
    return outcome.spawned(one.rank, outcome.failure_of(one.error, one.rank), one.error)
