"""Groups as they look from outside: `inspect` says what each rank does, who waits for whom, and who is to blame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from symmem import _symmem


@dataclass(frozen=True)
class RankState:
    """A rank of a group, as `symmem.inspect` sees it."""

    #: Its number.
    rank: int
    #: Its process, None if it cannot be seen from here.
    pid: int | None
    #: "running", "sleeping", "stopped", "dead", "left", "elsewhere" (another host) or "unknown".
    life: str
    #: The last operation that it is known to have begun: name, sequence, epoch, channel, bytes, root, dtype, reduce, algorithm.
    operation: dict[str, Any] | None
    #: The ranks that it waits for; empty if it does not.
    waits_for: list[int]
    #: For how many seconds it has waited, None if it does not.
    since: float | None
    #: Its last operations, the latest first, each as its number and its name.
    last: list[tuple[int, str]]
    #: What it has done so far, None for a dead rank.
    counters: dict[str, int] | None
    #: Its GPUs, one for each engine: device, lanes (launches, meetings, last, ago), failure, is_aborted.
    devices: list[dict[str, Any]]


@dataclass(frozen=True)
class GroupState:
    """A group, as `symmem.inspect` sees it. `str` of it is a sentence that says who waits for whom."""

    #: Its name, which may recur.
    name: str
    #: What tells it from all other groups.
    id: str
    #: Number of ranks.
    world_size: int
    #: How many seconds ago it was made.
    age: float
    #: Who waits for whom, in which operation, for how long, and who is to blame: a sentence.
    explanation: str
    #: The ranks that are to blame for the others' waiting, the worst first.
    culprits: list[int]
    #: Ranks that wait for each other, where nobody else is to blame.
    cycle: list[int]
    #: Why it failed, None if it has not: culprit, cause, reason.
    failure: dict[str, Any] | None
    #: Its ranks, in order.
    ranks: list[RankState]

    def __str__(self) -> str:
        return f"{self.name}: {self.explanation}"


def inspect(*pids: int) -> list[GroupState]:
    """Local. The running groups of this user on this machine, or those of the processes `pids` and below, the oldest first.

    Nobody has to cooperate and nobody is disturbed: it also shows ranks that are stuck, stopped or dead. `symmem inspect` shows
    the same in a terminal.

    >>> import symmem
    >>> def main(group):
    ...     mine = [seen for seen in symmem.inspect() if seen.id == group.id]
    ...     group.barrier()
    ...     return [rank.rank for rank in mine[0].ranks]
    >>> symmem.spawn(main, ranks=2, threads=True)
    [[0, 1], [0, 1]]
    """
    return [_group(group) for group in json.loads(_symmem._inspect(pids or None))]


def _group(seen: dict[str, Any]) -> GroupState:
    ranks: Sequence[dict[str, Any]] = seen["ranks"]
    return GroupState(
        name=seen["name"],
        id=seen["id"],
        world_size=seen["world"],
        age=seen["made"],
        explanation=seen["explanation"],
        culprits=seen["culprits"],
        cycle=seen["cycle"],
        failure=seen["failure"],
        ranks=[_rank(rank) for rank in ranks],
    )


def _rank(seen: dict[str, Any]) -> RankState:
    waiting: dict[str, Any] = seen["waiting"] or {"ranks": [], "since": None}
    return RankState(
        rank=seen["rank"],
        pid=seen["pid"],
        life=seen["life"],
        operation=seen["operation"],
        waits_for=waiting["ranks"],
        since=waiting["since"],
        last=[(last["sequence"], last["name"]) for last in seen["last"]],
        counters=seen["counters"],
        devices=seen["devices"],
    )
