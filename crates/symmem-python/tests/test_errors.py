"""Failures are typed, say who is to blame, and come soon."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symmem

CLASSES = [
    ("Timeout", TimeoutError), ("Mismatch", ValueError), ("OutOfMemory", MemoryError), ("Invalid", ValueError),
    ("RankOutOfRange", IndexError), ("ChannelOutOfRange", IndexError), ("OutOfBounds", IndexError),
    ("SystemFailed", OSError), ("PeerLost", RuntimeError), ("PeerLeft", RuntimeError), ("GroupFailed", RuntimeError),
    ("Closed", RuntimeError), ("Forked", RuntimeError), ("Spawned", RuntimeError),
]  # fmt: skip


@pytest.mark.parametrize("name, base", CLASSES)
def test_exceptions_have_pythons_classes_too(name: str, base: type[BaseException]) -> None:
    kind = getattr(symmem, name)
    assert issubclass(kind, symmem.Error) and issubclass(kind, base)
    assert kind.__module__ == "symmem"


def test_an_exception_of_no_group_is_no_failure_of_one() -> None:
    for name in symmem.__all__:
        kind = getattr(symmem, name)
        if isinstance(kind, type) and issubclass(kind, symmem.Error):
            assert kind("text").is_group_failure is False, name


def test_exceptions_can_be_pickled() -> None:
    error = symmem.PeerLost("rank 1 died")
    error.rank = 1
    error.is_group_failure = True
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is symmem.PeerLost and copy.rank == 1 and copy.is_group_failure and str(copy) == "rank 1 died"


def late(group: symmem.Group) -> None:
    if group.rank == 1:
        time.sleep(1)
        return
    with pytest.raises(symmem.Timeout, match="missing: ranks") as caught:
        group.barrier(timeout_ms=200)
    error = caught.value
    assert error.missing == [1] and error.is_group_failure
    assert error.group == group.name and (error.rank, error.world_size) == (0, 2)
    assert error.op == "barrier"


def test_a_timeout_names_the_missing(run: Any) -> None:
    run(late, 2)


def no_signal(group: symmem.Group) -> None:
    mem = symmem.rendezvous(symmem.empty(1), group)
    with pytest.raises(symmem.Timeout) as caught:
        mem.wait_signal(group.prev, 0, 100)
    assert not caught.value.is_group_failure and group.failure is None
    group.barrier()
    # Nothing is broken by it.
    mem.put_signal(group.next)
    mem.wait_signal(group.prev, 0, 10_000)
    group.barrier()


def test_a_signal_wait_that_timed_out_can_be_repeated(run: Any) -> None:
    run(no_signal, 2)


def killed(group: symmem.Group) -> tuple[str, int | None, int | None, float]:
    pids = group.pids
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        group.barrier()
    except symmem.PeerLost as error:
        assert error.rank == group.rank and error.pid == pids[1] and "died" in str(error)
        assert "group.survivors()" in str(error)
        return "PeerLost", error.culprit, error.rank, time.monotonic() - start
    except symmem.GroupFailed as error:
        assert error.cause == "died"
        return "GroupFailed", error.culprit, error.rank, time.monotonic() - start
    return "nothing", None, None, 0.0


def test_kill_9_is_noticed_and_named() -> None:
    found = symmem.spawn(killed, 3, threads=False, timeout=60, return_exceptions=True)
    assert isinstance(found[1], symmem.Spawned)
    kinds = {found[0][0], found[2][0]}
    assert "PeerLost" in kinds and kinds <= {"PeerLost", "GroupFailed"}
    for at, (_, culprit, rank, seconds) in ((0, found[0]), (2, found[2])):
        assert (culprit, rank) == (1, at) and seconds < 5


def leave(group: symmem.Group) -> None:
    if group.rank == 1:
        return
    with pytest.raises((symmem.PeerLeft, symmem.GroupFailed)) as caught:
        group.barrier()
    assert caught.value.culprit == 1


def test_a_rank_that_left_is_named(run: Any) -> None:
    run(leave, 2)


def different_sizes(group: symmem.Group) -> None:
    with pytest.raises(symmem.Mismatch, match="disagree"):
        group.all_reduce(np.ones(4 + group.rank, dtype="float32"))
    with pytest.raises(ValueError, match="rank 0: 4 x float32 .*rank 1: 4194304 x float32 "):
        symmem.rendezvous(symmem.empty(4 << (20 * group.rank)), group)
    with pytest.raises(symmem.Mismatch, match="disagree"):
        symmem.rendezvous(symmem.empty(4, dtype=["float32", "int32"][group.rank]), group)
    # They are still in step.
    assert group.all_reduce(np.ones(2)).tolist() == [2, 2]


def test_ranks_that_disagree_are_told_and_stay_in_step(run: Any) -> None:
    run(different_sizes, 2)


def in_child(*calls: Any) -> list[str]:
    """What `calls` raise in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in calls:
            try:
                call()
                said.append("nothing")
            except BaseException as error:
                said.append(f"{type(error).__name__}: {error}")
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read().split("\n")
    os.waitpid(child, 0)
    return said


def fork(group: symmem.Group) -> list[str]:
    x = symmem.empty(4)
    mem = symmem.rendezvous(x, group)
    said = in_child(
        group.barrier, mem.barrier, lambda: mem.all_reduce(), lambda: group.all_reduce(np.ones(2)), x.numpy, lambda: mem.put_signal(0)
    )
    group.barrier()
    mem.all_reduce()
    return said


def test_a_forked_child_is_told(processes: Any) -> None:
    for said in processes(fork, 2):
        for line in said:
            assert line.startswith("Forked: "), said
            assert "forked" in line


def test_too_much_memory_says_how_much_there_is() -> None:
    with pytest.raises(MemoryError, match="out of memory: asked for") as caught:
        symmem.empty(1 << 50, dtype="uint8")
    assert isinstance(caught.value, symmem.OutOfMemory)


def busy(group: symmem.Group) -> None:
    if group.rank == 0:
        pending = group.barrier_start()
        with pytest.raises(symmem.Busy):
            group.all_reduce(np.ones(1))
        group.store.set("go", "1")
        pending.wait(20_000)
        return
    group.store.wait(["go"], 20)
    group.barrier()


def test_two_operations_at_once_are_refused(threads: Any) -> None:
    threads(busy, 2)


def test_devices_that_are_not_there() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    with pytest.raises(symmem.NoCuda):
        symmem.empty(4, device="cuda:0")
    with pytest.raises(ValueError, match="abacus"):
        symmem.empty(4, device="abacus")
