"""Waits: Ctrl-C ends them, other threads run meanwhile, and started operations can be awaited."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import symmem

INTERRUPTED = """
import signal, sys, threading, time, symmem
store = symmem.HashStore()
threading.Thread(target=lambda: (symmem.Group(store, 1, 2, context=symmem.Context()), time.sleep(60)), daemon=True).start()
group = symmem.Group(store, 0, 2)
{prepare}
print("ready", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
"""

WAITS = {
    "barrier": ("", "group.barrier()"),
    "all_reduce": ("import numpy", "group.all_reduce(numpy.ones(4))"),
    "refusal": ("", "group.all_reduce('no array')"),
    "refusal of others": ("", "group._refuse('no tensor')"),
    "object": ("", "group.all_gather_object(1)"),
    "pending": ("pending = group.barrier_start()", "pending.wait()"),
    "store": ("", "store.wait(['never'])"),
    "join": ("", "symmem.Group(store, 0, 2, 'another')"),
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_wait(what: str) -> None:
    prepare, wait = WAITS[what]
    program = INTERRUPTED.format(prepare=prepare, wait=wait)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        try:
            assert waiting.stdout.readline() == "ready\n"
            time.sleep(0.5)
            pressed = time.time()
            waiting.send_signal(signal.SIGINT)
            said = waiting.stdout.readline().split()
            assert said[0] == "interrupted"
            assert float(said[1]) - pressed < 1.0
            waiting.wait(20)
        finally:
            waiting.kill()


def test_a_handler_that_returns_does_not_end_the_wait(threads: Any) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    store = symmem.HashStore()

    def other() -> None:
        group = symmem.Group(store, 1, 2, context=symmem.Context())
        time.sleep(0.3)
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.3)
        group.barrier()

    try:
        thread = threading.Thread(target=other)
        thread.start()
        symmem.Group(store, 0, 2).barrier()
        thread.join(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [1]


def count_while(wait: Any) -> int:
    """How far another thread counts while this one waits."""
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        wait()
    finally:
        done.set()
        thread.join(20)
    return counted


def waits(group: symmem.Group) -> int:
    mem = symmem.rendezvous(symmem.empty(1), group)
    x = np.ones(4)
    if group.rank == 1:
        for _ in range(4):
            time.sleep(0.3)
            group.barrier()
        return 0
    found = [count_while(group.barrier)]
    del mem, x
    for _ in range(3):
        found.append(count_while(group.barrier))
    return min(found)


def test_other_threads_run_while_one_waits(processes: Any) -> None:
    assert processes(waits, 2)[0] > 20


def start_and_wait(group: symmem.Group) -> None:
    x = symmem.empty(1000)
    x[:] = group.rank + 1
    mem = symmem.rendezvous(x, group)
    pending = mem.all_reduce_start("sum")
    pending.wait(20_000)
    assert pending.test() and (x == 3).all()
    out = np.zeros(2000, dtype="float32")
    assert group.all_gather_start(np.full(1000, group.rank, dtype="float32"), out).wait(20_000) is out
    assert out.tolist() == [0.0] * 1000 + [1.0] * 1000


def test_started_operations(run: Any) -> None:
    run(start_and_wait, 2)


def slow_peer(group: symmem.Group) -> None:
    if group.rank == 1:
        group.store.wait(["go"], 20)
        group.barrier()
        return
    pending = group.barrier_start()
    assert not pending.test()
    with pytest.raises(symmem.Timeout, match="goes on"):
        pending.wait(100)
    group.store.set("go", "1")
    pending.wait(20_000)
    assert pending.test()


def test_a_wait_for_a_started_operation_may_be_repeated(threads: Any) -> None:
    threads(slow_peer, 2)


def awaiting(group: symmem.Group) -> int:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        x = np.full(8, group.rank + 1, dtype="float32")
        if group.rank == 1:
            await asyncio.sleep(0.3)
        found = await group.all_reduce_start(x, out=x)
        assert found is x and x.tolist() == [3.0] * 8
        ticker.cancel()
        return ticks

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_asyncio_runs_while_an_operation_does(run: Any) -> None:
    assert min(run(awaiting, 2)) > 5


def awaiting_a_failure(group: symmem.Group) -> str:
    async def main() -> str:
        if group.rank == 1:
            return "left"
        try:
            await group.barrier_start()
        except (symmem.PeerLeft, symmem.GroupFailed) as error:
            return type(error).__name__
        return "nothing"

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_awaiting_raises_what_waiting_raises(threads: Any) -> None:
    assert threads(awaiting_a_failure, 2)[0] in ("PeerLeft", "GroupFailed")
