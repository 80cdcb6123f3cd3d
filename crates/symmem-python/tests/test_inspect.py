"""`symmem.inspect`: who waits for whom, seen from a thread beside the ranks, and from another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import symmem

PATIENCE = 60


def until(id: str) -> symmem.GroupState:
    """The first state of the group in which rank 1 is to blame for a wait of a second."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for group in symmem.inspect(os.getpid()):
            if group.id == id and group.culprits == [1] and "rank 0 has waited" in group.explanation:
                return group
        time.sleep(0.05)
    raise AssertionError(f"it never came: {symmem.inspect()}")


def test_a_rank_in_its_own_code_is_named() -> None:
    seen: list[symmem.GroupState] = []

    def main(group: symmem.Group) -> None:
        if group.rank == 1:
            seen.append(until(group.id))
        group.barrier()

    symmem.spawn(main, ranks=2, threads=True)
    (group,) = seen
    assert (group.world_size, group.cycle, group.failure) == (2, [], None)
    waits, culprit = group.ranks
    assert (waits.waits_for, culprit.waits_for, culprit.since) == ([1], [], None)
    assert waits.since is not None and 1 <= waits.since <= group.age
    assert waits.operation is not None and waits.operation["name"] == "barrier"
    assert waits.last[0] == (waits.operation["sequence"], "barrier")
    assert waits.pid == os.getpid() and waits.life in ("running", "sleeping")
    assert str(group).startswith(f"{group.name}: rank 0 has waited for rank 1 in barrier")


def test_other_processes_see_it_too() -> None:
    program = f"import symmem; print([group.id for group in symmem.inspect({os.getpid()})])"

    def main(group: symmem.Group) -> bool:
        sees = True
        if group.rank == 0:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
            sees = group.id in done.stdout
        group.barrier()
        return sees

    assert symmem.spawn(main, ranks=2, threads=True) == [True, True]


def test_a_process_without_groups_has_none() -> None:
    assert symmem.inspect(1 << 30) == []
