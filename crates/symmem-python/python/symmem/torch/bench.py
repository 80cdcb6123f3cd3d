"""`python -m symmem.torch.bench`: what `torch.distributed` costs on symmem, beside Gloo.

Two tables. `dist.all_reduce`, synchronous and with `async_op=True`, beside `group.all_reduce` of the same tensor, the same call on a
backend that does nothing, and Gloo. Training steps of a small network by DDP and by FSDP2, on symmem and on Gloo. All loops alternate in the
same processes, ranks are not pinned, the slowest rank counts, medians of rounds are compared, and results are checked. `--load N` runs
N busy loops beside them.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch._C._distributed_c10d import Work as _Work
from torch.nn.parallel import DistributedDataParallel

import symmem
import symmem.torch  # noqa: F401  registers the backend
from symmem.bench import finish, slowest

# Calls in a loop, after as many to warm up: what ran before may have left both ranks on one core. Gloo takes longer.
SIZES = {1 << 10: 2000, 64 << 10: 1000, 1 << 20: 200, 16 << 20: 10}
GLOO = 20
WIDTH = 256
_BUSY = "import os\nwhile os.getppid() == {0}:\n    for _ in range(100000): pass"

Row = dict[str, Any]


def main() -> None:
    """The program."""
    about = (__doc__ or "").split("\n\n")[1]
    options = argparse.ArgumentParser(prog="python -m symmem.torch.bench", description=about)
    options.add_argument("--ranks", type=int, default=2, help="number of processes (2)")
    options.add_argument("--rounds", type=int, default=15, help="how often the loops alternate (15)")
    options.add_argument("--load", type=int, default=0, help="busy loops beside the ranks (0)")
    options.add_argument("--quick", action="store_true", help="three rounds of short loops")
    options.add_argument("--json", metavar="FILE", help="also write the rows there; - for the standard output alone")
    chosen = options.parse_args()
    rounds, scale = (3, 10) if chosen.quick else (chosen.rounds, 1)
    report = run(chosen.ranks, rounds, scale, chosen.load)
    finish(report, table(report), chosen.json)


def run(ranks: int = 2, rounds: int = 15, scale: int = 1, load: int = 0) -> dict[str, Any]:
    """The report: rows in microseconds."""
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with busy(load):
        found: list[list[Row]] = symmem.spawn(measure, ranks, (rounds, scale), timeout=900, env=quiet)
    return {"version": symmem.__version__, "torch": torch.__version__, "ranks": ranks, "load": load, "rows": found[0]}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute, and end when this one does."""
    program = [sys.executable, "-c", _BUSY.format(os.getpid())]
    loops = [subprocess.Popen(program) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Nothing(ProcessGroup):
    """A backend that does nothing: what torch's own part of a call takes."""

    class Work(_Work):
        """What was never begun is done."""

        def wait(self, timeout: timedelta = timedelta(0)) -> bool:
            """At once."""
            return True

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._work = self.Work()

    def getBackendName(self) -> str:
        """Its name."""
        return "nothing"

    def allreduce(self, tensors: Any, opts: Any = None) -> _Work:  # type: ignore[override]
        """Nothing."""
        return self._work


def measure(group: symmem.Group, rounds: int, scale: int) -> list[Row]:
    """A rank's part; all ranks return the same."""
    torch.set_num_threads(1)
    dist.init_process_group("symmem", timeout=timedelta(seconds=120))
    gloo = dist.new_group(backend="gloo")
    try:
        rows = [row for size, count in SIZES.items() for row in reductions(group, gloo, size, rounds, max(count // scale, 2))]
        return rows + training(group, gloo, rounds, max(20 // scale, 2))
    finally:
        dist.destroy_process_group()


def reductions(group: symmem.Group, gloo: Any, size: int, rounds: int, count: int) -> list[Row]:
    """Rows of an all-reduce of `size` bytes."""
    x = torch.zeros(size // 4)
    nothing = Nothing(group.rank, group.size)
    ways: dict[str, Callable[[], object]] = {
        "group.all_reduce": lambda: group.all_reduce(x),
        "nothing": lambda: dist.all_reduce(x, group=nothing),
        "symmem": lambda: dist.all_reduce(x),
        "symmem, async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "gloo": lambda: dist.all_reduce(x, group=gloo),
        "gloo, async": lambda: dist.all_reduce(x, group=gloo, async_op=True).wait(),
    }
    right = True
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, reduce in ways.items():
            x.fill_(group.rank + 1)
            reduce()
            expected = group.rank + 1 if name == "nothing" else group.size * (group.size + 1) / 2
            right = right and bool((x == expected).all())
            x.zero_()
            calls = max(count // GLOO, 2) if name.startswith("gloo") else count
            loop(group, reduce, calls)
            times[name].append(loop(group, reduce, calls))
    return [row(group, "all_reduce", name, size, found, right) for name, found in times.items()]


def loop(group: symmem.Group, call: Callable[[], object], count: int) -> float:
    """Microseconds a call."""
    group.barrier()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count / 1e3


def training(group: symmem.Group, gloo: Any, rounds: int, count: int) -> list[Row]:
    """Rows of training steps."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    ranks = list(range(group.size))
    meshes = {
        name: DeviceMesh.from_group(each, "cpu", ranks)
        for name, each in {"symmem": dist.group.WORLD, "gloo": gloo}.items()
    }
    wraps: dict[tuple[str, str], Callable[[Any], Any]] = {
        ("DDP step", "symmem"): DistributedDataParallel,
        ("DDP step", "gloo"): functools.partial(DistributedDataParallel, process_group=gloo),
        ("FSDP2 step", "symmem"): functools.partial(fully_shard, mesh=meshes["symmem"]),
        ("FSDP2 step", "gloo"): functools.partial(fully_shard, mesh=meshes["gloo"]),
    }
    steps = {key: trainer(group.rank, wrap) for key, wrap in wraps.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in wraps}
    losses: dict[tuple[str, str], float] = {}
    for _ in range(rounds + 1):
        for key, step in steps.items():
            loop(group, step, count)
            times[key].append(loop(group, step, count))
            losses[key] = step()
    # All did the same steps on the same data.
    right = max(losses.values()) - min(losses.values()) < 1e-3 * abs(max(losses.values()))
    # The first round warms up.
    return [row(group, *key, WIDTH * WIDTH * 4, found[1:], right) for key, found in times.items()]


def trainer(rank: int, wrap: Callable[[Any], Any]) -> Callable[[], float]:
    """A step of training; gives the loss."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    model = wrap(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(rank))

    def step() -> float:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def row(group: symmem.Group, op: str, how: str, size: int, times: list[float], right: bool) -> Row:
    """One line of the report."""
    worst = slowest(group, times)
    us = {"min": min(worst), "p50": statistics.median(worst), "mean": statistics.fmean(worst)}
    return {"op": op, "how": how, "bytes": size, "us": us, "verified": all(group.all_gather_object(right))}


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    found = {(row["op"], row["bytes"], row["how"]): row["us"]["p50"] for row in report["rows"]}
    lines = [
        f"{report['ranks']} ranks, {report['load']} busy loops, torch {report['torch']}; microseconds, medians of rounds",
        f"{'op':<12}{'bytes':>10}  {'how':<18}{'us (p50)':>12}{'min':>12}{'/ gloo':>8}  verified",
    ]
    for one in report["rows"]:
        theirs = found.get((one["op"], one["bytes"], "gloo, async" if one["how"].endswith("async") else "gloo"))
        ratio = f"{one['us']['p50'] / theirs:.2f}" if theirs and one["how"].startswith("symmem") else ""
        lines.append(
            f"{one['op']:<12}{one['bytes']:>10}  {one['how']:<18}{one['us']['p50']:>12.2f}{one['us']['min']:>12.2f}"
            f"{ratio:>8}  {'yes' if one['verified'] else 'NO'}"
        )
    for size in SIZES:
        group, nothing, sync, later = (
            found["all_reduce", size, how] for how in ("group.all_reduce", "nothing", "symmem", "symmem, async")
        )
        allowed = group + 2 * nothing
        lines.append(
            f"all_reduce of {size} bytes: synchronous {sync / allowed:.2f}, asynchronous {later / allowed:.2f} of "
            f"group.all_reduce and twice nothing"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
