"""Atomic cells: every change counts once, whatever ranks are, and what is wrong is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

import symmem

ROUNDS = 300


def counts(group: symmem.Group) -> None:
    cells = group.atomics(2)
    assert (cells.dtype, cells.size) == ("int64", 2)
    for turn in range(ROUNDS):
        cells.add(turn % group.size, 0, 2)
        seen = cells.load(0, 1)
        while (found := cells.compare_swap(0, 1, seen, seen + 1)) != seen:
            seen = found
    cells.barrier()
    assert sum(cells.load(rank, 0) for rank in range(group.size)) == 2 * ROUNDS * group.size
    assert cells.load(0, 1) == ROUNDS * group.size
    cells.close()
    cells.close()
    with pytest.raises(symmem.Closed):
        cells.load(0, 0)


def test_every_change_counts_once(run: Any) -> None:
    run(counts, 3)


def types(group: symmem.Group) -> None:
    for dtype, most, least in (
        ("int32", 2**31 - 1, -(2**31)),
        ("uint32", 2**32 - 1, 0),
        ("int64", 2**63 - 1, -(2**63)),
        ("uint64", 2**64 - 1, 0),
    ):
        cells = group.atomics(1, dtype)
        if group.rank == 0:
            cells.store(1, 0, most)
            assert cells.add(1, 0, 1) == most
            assert cells.swap(1, 0, 7) == least
            assert cells.compare_swap(1, 0, 8, 9) == 7
            with pytest.raises(OverflowError, match=dtype):
                cells.store(1, 0, most + 1)
            with pytest.raises(IndexError):
                cells.load(2, 0)
            with pytest.raises(IndexError):
                cells.load(-1, 0)
            with pytest.raises(symmem.OutOfBounds):
                cells.load(0, 1)
        cells.barrier()
        assert cells.load(1, 0) == 7
        cells.close()
    with pytest.raises(symmem.Mismatch):
        group.atomics(1 + group.rank)


def test_types_and_what_is_wrong(threads: Any) -> None:
    threads(types, 2)


def closes(group: symmem.Group) -> None:
    cells = group.atomics(1)
    if group.rank == 0:
        pending = group.barrier_start()
        with pytest.raises(symmem.Busy):
            cells.close()
        assert cells.add(1, 0, 5) == 0
        pending.wait()
    else:
        # The others' close is refused for as long as the barrier lasts.
        end = time.monotonic() + 60
        while cells.load(1, 0) == 0:
            assert time.monotonic() < end
            time.sleep(0.001)
        group.barrier()
    cells.close()
    cells.close()
    with pytest.raises(symmem.Closed):
        cells.load(1, 0)


def test_a_close_that_could_not_begin_is_repeated(threads: Any) -> None:
    threads(closes, 2)


def sizes(group: symmem.Group) -> None:
    for wrong in (2**70, "x", None, -1):
        with pytest.raises((symmem.Error, TypeError, OverflowError, ValueError)):
            group.atomics(wrong if group.rank else 1)
        group.barrier()


def test_what_is_no_size_is_told_to_all(threads: Any) -> None:
    threads(sizes, 2)
