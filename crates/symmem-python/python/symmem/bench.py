"""`python -m symmem.bench`: what calling from Python costs.

Two rows of questions, each answered by loops that alternate in the same processes: a barrier called from Python
against the same barrier called from Rust, and an all-reduce of a 64 KB numpy array against torch's Gloo (where torch
is installed). Buffers are dirtied before every operation; the slowest rank counts; medians are compared within a round.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

import symmem
from symmem import _symmem

BYTES = 64 << 10


def main() -> None:
    """The program."""
    options = argparse.ArgumentParser(prog="python -m symmem.bench", description=(__doc__ or "").split("\n\n")[1])
    options.add_argument("--ranks", type=int, default=2, help="number of processes (2)")
    options.add_argument("--rounds", type=int, default=15, help="how often the loops alternate (15)")
    options.add_argument("--quick", action="store_true", help="three rounds of short loops")
    options.add_argument("--json", metavar="FILE", help="also write the rows there; - for the standard output alone")
    chosen = options.parse_args()
    rounds, scale = (3, 10) if chosen.quick else (chosen.rounds, 1)
    report = run(chosen.ranks, rounds, scale)
    finish(report, table(report), chosen.json)


def finish(report: dict[str, Any], text: str, file: str | None) -> NoReturn:
    """Shows the report: `text` for people, JSON in `file` or on the standard output alone ("-"). Ends the program."""
    if file != "-":
        print(text)
    if file:
        numbers = json.dumps(report, indent=1)
        if file == "-":
            print(numbers)
        else:
            with open(file, "w") as output:
                output.write(numbers + "\n")
    sys.exit(0 if all(row["verified"] for row in report["rows"]) else 1)


def run(ranks: int = 2, rounds: int = 15, scale: int = 1) -> dict[str, Any]:
    """The report: rows in microseconds, and the comparisons."""
    # Threads of math libraries would take the cores from the ranks.
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    found: list[dict[str, Any]] = symmem.spawn(measure, ranks, (rounds, scale), timeout=600, env=quiet)
    return found[0]


def measure(group: symmem.Group, rounds: int, scale: int) -> dict[str, Any]:
    """A rank's part; all ranks return the same."""
    with pinned(group):
        barriers = barrier_rounds(group, rounds, 1000 // scale)
    reductions, verified = all_reduce_rounds(group, rounds, 300 // scale)
    rows = [row("barrier", name, group.size, times, True) for name, times in barriers.items()]
    rows += [row("all_reduce", name, group.size, times, verified) for name, times in reductions.items()]
    report: dict[str, Any] = {"version": symmem.__version__, "rows": rows}
    report["barrier_overhead_us"] = statistics.median(
        python - rust for python, rust in zip(barriers["from Python"], barriers["from Rust"])
    )
    if "torch Gloo" in reductions:
        report["gloo_ratio"] = statistics.median(
            gloo / ours for gloo, ours in zip(reductions["torch Gloo"], reductions["numpy array"])
        )
    return report


@contextmanager
def pinned(group: symmem.Group) -> Iterator[None]:
    """One core for each rank, as in `symmem bench`: else the scheduler may put two on one, and measures itself."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[group.rank % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def row(op: str, how: str, ranks: int, times: list[float], verified: bool) -> dict[str, Any]:
    """One line of the report."""
    percentiles = {f"p{percent}": percentile(times, percent) for percent in (50, 90, 99)}
    return {
        "op": op,
        "how": how,
        "ranks": ranks,
        "bytes": BYTES if op == "all_reduce" else 0,
        "us": {"min": min(times), **percentiles, "mean": statistics.fmean(times)},
        "samples": len(times),
        "verified": verified,
    }


def percentile(times: list[float], percent: int) -> float:
    """The nearest one."""
    return sorted(times)[max(0, -(-len(times) * percent // 100) - 1)]


def slowest(group: symmem.Group, mine: list[float]) -> list[float]:
    """The slowest rank's time of each measurement."""
    return [max(times) for times in zip(*group.all_gather_object(mine))]


def barrier_rounds(group: symmem.Group, rounds: int, count: int) -> dict[str, list[float]]:
    """Microseconds per barrier. Loops of `count` are so short that the scheduler spoils only few of them."""
    mem = symmem.rendezvous(symmem.empty(1), group)
    rust, python = [], []
    for _ in range(rounds * 20):
        group.barrier()
        rust.append(_symmem._barrier_loop(mem, count) / 1e3)
        group.barrier()
        python.append(barrier_loop(mem, count))
    # The first ones warm up.
    return {"from Rust": slowest(group, rust)[rounds:], "from Python": slowest(group, python)[rounds:]}


def barrier_loop(mem: symmem.SymmetricMemory, count: int) -> float:
    """Microseconds per barrier, called from Python."""
    barrier = mem.barrier
    start = time.perf_counter_ns()
    for _ in range(count):
        barrier()
    return (time.perf_counter_ns() - start) / count / 1e3


def all_reduce_rounds(group: symmem.Group, rounds: int, count: int) -> tuple[dict[str, list[float]], bool]:
    """Microseconds per all-reduce, one median a round, and whether every result was right."""
    ways = [numpy_way(group), symmetric_way(group)]
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        ways.append(gloo_way())
    times: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    right = True
    for _ in range(rounds + 1):
        for name, buffer, reduce in ways:
            # Gloo has threads of its own, and is faster where all of them may run anywhere.
            with nullcontext() if name == "torch Gloo" else pinned(group):
                median, fine = reduction_loop(group, buffer, reduce, count)
            times[name].append(median)
            right = right and fine
    if has_torch:
        # Its threads do not survive the end of the process.
        importlib.import_module("torch.distributed").destroy_process_group()
    # The first round warms up.
    worst = {name: slowest(group, found)[1:] for name, found in times.items()}
    return worst, all(group.all_gather_object(right))


Way = tuple[str, "np.ndarray[Any, Any]", Callable[[], object]]


def numpy_way(group: symmem.Group) -> Way:
    """A plain numpy array."""
    x = np.zeros(BYTES // 4, dtype="float32")
    return "numpy array", x, lambda: group.all_reduce(x)


def symmetric_way(group: symmem.Group) -> Way:
    """Symmetric memory."""
    x = symmem.empty(BYTES // 4, dtype="float32")
    mem = symmem.rendezvous(x, group)
    return "symmetric array", x.numpy(), lambda: mem.all_reduce()


def gloo_way() -> Way:
    """The same as torch does it. Its ranks meet in the launcher's store."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    x = np.zeros(BYTES // 4, dtype="float32")
    tensor = torch.from_numpy(x)
    return "torch Gloo", x, lambda: dist.all_reduce(tensor)


def reduction_loop(
    group: symmem.Group, x: np.ndarray[Any, Any], reduce: Callable[[], object], count: int
) -> tuple[float, bool]:
    """The median time of `count` all-reduces of `x`, and whether all were right."""
    samples = []
    right = True
    total = group.size * (group.size + 1) / 2
    for step in range(count):
        x.fill((group.rank + 1) * (step % 8 + 1))
        group.barrier()
        start = time.perf_counter_ns()
        reduce()
        samples.append((time.perf_counter_ns() - start) / 1e3)
        right = right and bool((x == total * (step % 8 + 1)).all())
    return statistics.median(samples), right


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{'op':<12}{'how':<18}{'ranks':>5}{'us (p50)':>12}{'min':>10}{'p99':>10}  verified"]
    for one in report["rows"]:
        us = one["us"]
        lines.append(
            f"{one['op']:<12}{one['how']:<18}{one['ranks']:>5}{us['p50']:>12.3f}{us['min']:>10.3f}{us['p99']:>10.3f}"
            f"  {'yes' if one['verified'] else 'NO'}"
        )
    lines.append(f"a barrier from Python costs {report['barrier_overhead_us']:.3f} us more than from Rust")
    if "gloo_ratio" in report:
        lines.append(f"an all_reduce of {BYTES >> 10} KB is {report['gloo_ratio']:.1f} times as fast as torch Gloo")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
