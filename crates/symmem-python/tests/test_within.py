"""`with group.within(seconds):` bounds what is called inside, and closes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem

SHORT = 0.15
#: In which two ranks that are both there meet, also on a busy machine.
LONG = 0.6
#: Seconds. The group's own timeout is 30.
AT_ONCE = 5.0

#: Calls that wait for a peer, by what the call is made on inside the block. Those that fail the group come on groups of their own.
CALLS: dict[str, Callable[[symmem.Group, symmem.Group, Any, Any], Any]] = {
    "function": lambda group, bounded, mem, mail: symmem.barrier(),
    "object of the block": lambda group, bounded, mem, mail: bounded.barrier(),
    "the group itself": lambda group, bounded, mem, mail: group.barrier(),
    "a function with a group": lambda group, bounded, mem, mail: symmem.all_reduce(np.ones(2), group=group),
    "a started call": lambda group, bounded, mem, mail: group.all_reduce_start(np.ones(2)).wait(),
    "an object call": lambda group, bounded, mem, mail: symmem.all_gather_object(1),
    "a handle": lambda group, bounded, mem, mail: mem.all_reduce(),
    "the end of a handle": lambda group, bounded, mem, mail: mem.close(),
    "a handle's signal": lambda group, bounded, mem, mail: mem.wait_signal(1),
    "a symmetric array": lambda group, bounded, mem, mail: symmem.all_reduce(mem.local()),
    "a message": lambda group, bounded, mem, mail: group.recv(np.ones(1), 1),
    "a started message": lambda group, bounded, mem, mail: group.irecv(np.ones(1), 1).wait(),
    "a message of any length": lambda group, bounded, mem, mail: symmem.recv(src=1),
    "an object": lambda group, bounded, mem, mail: symmem.recv_object(1),
    "a probe": lambda group, bounded, mem, mail: symmem.probe(),
    "a mailbox": lambda group, bounded, mem, mail: mail.recv(np.ones(1), 1),
    "a rendezvous": lambda group, bounded, mem, mail: symmem.rendezvous(symmem.empty(1)),
    "a part": lambda group, bounded, mem, mail: group.split(0),
}


def wait_alone(whole: symmem.Group, call: str) -> None:
    group = whole.clone()
    mem, mail = symmem.rendezvous(symmem.empty(2), group), symmem.Mailbox(group)
    if whole.rank == 0:
        start = time.monotonic()
        with group.within(SHORT) as bounded:
            assert symmem.current_group() is bounded and bounded == group
            with pytest.raises(symmem.Timeout):
                CALLS[call](group, bounded, mem, mail)
        assert SHORT <= time.monotonic() - start < AT_ONCE
        assert not group.closed and symmem.current_group() is not bounded
    whole.barrier()


@pytest.mark.parametrize("call", CALLS)
def test_every_kind_of_call_in_the_block_is_bounded(call: str, threads: Any) -> None:
    threads(wait_alone, 2, call)


def longer_inside(group: symmem.Group) -> None:
    with group.within(SHORT):
        # What a call says itself is nearer than the block, and an inner block nearer than an outer one.
        with pytest.raises(symmem.Timeout):
            group.recv(np.ones(1), 0, timeout_ms=1)
        group.barrier(20_000)
        start = time.monotonic()
        if group.rank == 1:
            time.sleep(3 * SHORT)
        with group.within(20):
            group.barrier()
        group.barrier(20_000)
        group.within(20).barrier()
        assert time.monotonic() - start >= 2 * SHORT
    if group.rank == 1:
        time.sleep(2 * SHORT)
    group.barrier()
    assert group.failure is None and not group.closed


def test_the_block_ends_with_its_end_and_the_nearest_timeout_wins(run: Any) -> None:
    run(longer_inside, 2)


def made_inside(group: symmem.Group) -> None:
    with group.within(LONG):
        mem = symmem.rendezvous(symmem.empty(2), group, timeout_ms=20_000)
        group.barrier(20_000)
        made = [group.within(20).clone(), group.split(0, timeout_ms=20_000)]
        mail = symmem.Mailbox(group)
    for one in made:
        assert one
        if group.rank == 1:
            time.sleep(1.5 * LONG)
        one.barrier()
    if group.rank == 1:
        time.sleep(1.5 * LONG)
        mem.put_signal(0)
        time.sleep(1.5 * LONG)
        mail.send_object("late", 0)
    else:
        mem.wait_signal(1)
        assert mail.recv_object(1) == "late"
    mem.barrier()


def test_what_is_made_in_the_block_is_not_bounded_after_it(run: Any) -> None:
    run(made_inside, 2)


def fails_inside(group: symmem.Group) -> None:
    with pytest.raises(KeyError):
        with group.within(20):
            raise KeyError("mine")
    # Nothing was closed or aborted.
    group.barrier()
    with group:
        with group.within(20):
            group.barrier()
        group.barrier()
    assert group.closed


def test_an_exception_leaves_the_group_as_it_is(run: Any) -> None:
    run(fails_inside, 2)


def test_the_block_is_the_threads_own(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        twin = group.clone()
        if group.rank == 0:
            with group.within(SHORT):
                time.sleep(2 * SHORT)
                # Another group of this thread is not bounded.
                twin.barrier()
        else:
            time.sleep(4 * SHORT)
            twin.barrier()
        group.barrier()

    threads(main, 2)
