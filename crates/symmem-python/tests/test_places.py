"""Where `symmem.spawn` runs its ranks: thread counts of math libraries, and cores."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import numpy as np
import pytest

import symmem
from symmem._spawn import places
from symmem._symmem import _place

COUNTS = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"]


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has set nothing."""
    for name in [*COUNTS, "VECLIB_MAXIMUM_THREADS"]:
        monkeypatch.delenv(name, raising=False)


def told(_: symmem.Group) -> list[str | None]:
    return [os.environ.get(name) for name in COUNTS]


def allowed(group: symmem.Group) -> list[int]:
    group.barrier()
    return sorted(os.sched_getaffinity(0))


def train(group: symmem.Group, steps: int) -> float:
    """Seconds of a small training loop."""
    x = np.ones((64, 256), dtype="float32")
    weights = np.full((256, 256), 1e-3, dtype="float32")
    start = 0.0
    for step in range(steps + 1):
        if step == 1:  # the first one warms up
            group.barrier()
            start = time.perf_counter()
        gradient = x.T @ (x @ weights)
        group.all_reduce(gradient, "avg")
        weights -= 1e-6 * gradient
    return time.perf_counter() - start


@pytest.mark.usefixtures("unset")
def test_math_libraries_get_their_share_of_the_cores() -> None:
    ranks = 4
    share = str(max(1, _place(1, None, {})[1] // ranks))
    assert symmem.spawn(told, ranks, timeout=60) == [[share] * len(COUNTS)] * ranks


@pytest.mark.usefixtures("unset")
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    by_argument = symmem.spawn(told, 1, timeout=60, env={"OMP_NUM_THREADS": "3"})
    # The others follow OpenMP's.
    assert by_argument == [["3", None, None, None, None]]
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    (found,) = symmem.spawn(told, 1, timeout=60)
    assert found[2] == "5" and found[0] is not None


@pytest.mark.usefixtures("unset")
def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_said", False)
    with caplog.at_level(logging.WARNING, "symmem"):
        for _ in range(3):
            places.of_processes(2, None, {})
    assert len(caplog.records) == 1 and "OMP_NUM_THREADS" in caplog.records[0].getMessage()
    monkeypatch.setattr(places, "_said", False)
    with caplog.at_level(logging.WARNING, "symmem"):
        places.of_processes(2, None, {"OMP_NUM_THREADS": "1"})
        places.of_processes(1, None, {})
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("how", [{}, {"pin": "cores"}, {"threads": True}, {"threads": True, "pin": "cores"}])
def test_a_numpy_loop_is_as_fast_as_with_one_thread_each(how: dict[str, Any]) -> None:
    """Without the user doing anything: libraries that take all cores in every rank are a hundred times slower."""
    ranks, steps = max(4, len(os.sched_getaffinity(0))), 60
    one = {"env": {"OMP_NUM_THREADS": "1"}}
    ratios = []
    for _ in range(3):
        alone = max(symmem.spawn(train, ranks, (steps,), timeout=60, **one))
        ours = max(symmem.spawn(train, ranks, (steps,), timeout=60, **how))
        ratios.append(ours / alone)
    # A busy machine can spoil one.
    assert min(ratios) < 2, ratios


@pytest.mark.usefixtures("unset")
def test_libraries_are_told_while_threads_are_ranks_and_no_longer() -> None:
    found = list(places._openblas())
    if not found:
        pytest.skip("numpy comes without OpenBLAS")
    before = [get() for get, _ in found]
    with places.limited(1):
        assert [get() for get, _ in found] == [1] * len(found)
    assert [get() for get, _ in found] == before
    with places.limited(None):
        assert [get() for get, _ in found] == before


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("pin", ["cores", "numa"])
def test_ranks_are_kept_on_cores(pin: Any, threads: bool) -> None:
    before = os.sched_getaffinity(0)
    cpus = [sorted(each) for each in _place(2, pin, {})[0]]
    assert symmem.spawn(allowed, 2, threads=threads, pin=pin, timeout=60) == cpus
    if pin == "cores" and len(before) >= 4:
        assert not set(cpus[0]) & set(cpus[1])
    assert os.sched_getaffinity(0) == before


def test_an_unknown_place_is_an_error() -> None:
    with pytest.raises(symmem.Invalid, match="sockets"):
        symmem.spawn(allowed, 2, pin="sockets")  # type: ignore[arg-type]
