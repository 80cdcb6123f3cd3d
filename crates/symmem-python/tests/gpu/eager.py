"""Eager reductions from Python: symmem.torch beside torch's own symmetric memory, in the same processes.

    python eager.py [--ranks 2,4] [--kib 8,64,512] [--rounds 15] [--calls 200] [--dtype bfloat16] [--by functions]

`--by operators` calls `torch.ops.symmem` in place of the functions of `symmem.torch`: what compiled programs call, and what `install()` puts
behind torch's own operators.

Rounds of the two systems alternate, and each begins with everybody ready. A round is `--calls` operations in a loop and
one synchronisation. For every case one JSON line: microseconds per operation (median of the rounds, each as slow as its
slowest rank), of the host alone until the last one is launched, and the ratio. Every result is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import harness

FORMS = (
    "one_shot_all_reduce",
    "one_shot_all_reduce_out",
    "two_shot_all_reduce_",
    "one_shot_all_reduce_copy",
    "one_shot_all_reduce_copy_out",
    "reduce_scatter_out",
    "barrier",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--kib", default="8,64,512")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--by", default="functions", choices=["functions", "operators"])
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for each number of ranks")
    return parser.parse_args()


def lead(options: argparse.Namespace) -> int:
    """Starts the ranks and tells what they measured."""
    failed = 0
    for world in (int(number) for number in options.ranks.split(",")):
        ranks = harness.start("eager.py", sys.argv[1:], world, {"SYMMEM_EAGER_RANK": "1"})
        results = harness.finish(ranks, options.limit)
        rows = [parse(text) for _, text in results]
        complete = set.intersection(*(set(row) for row in rows))
        for case in (case for case in rows[0] if case in complete):
            print(json.dumps({"ranks": world, **merge([row[case] for row in rows])}), flush=True)
        if any(code != 0 for code, _ in results):
            failed += 1
            for rank, (code, text) in enumerate(results):
                print(f"--- rank {rank} of {world}: exit {code}\n{text[-3000:]}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def parse(text: str) -> dict[str, dict[str, Any]]:
    rows = (json.loads(line) for line in text.splitlines() if line.startswith('{"case"'))
    return {row["case"]: row for row in rows}


def merge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line for all ranks: each round counts as its slowest rank."""
    merged: dict[str, Any] = {key: rows[0][key] for key in ("case", "form", "bytes", "dtype", "algorithm")}
    merged["wrong"] = sum(row["wrong"] for row in rows)
    for name in ("symmem", "torch"):
        if not all(row[name] for row in rows):
            merged[f"{name}_us"] = None
            merged["words"] = rows[0]["words"]
            continue
        for what in ("all", "host"):
            slowest = [max(times) for times in zip(*(row[name][what] for row in rows), strict=True)]
            key = f"{name}_us" if what == "all" else f"{name}_host_us"
            merged[key] = round(statistics.median(slowest), 2)
    if merged.get("symmem_us") and merged.get("torch_us"):
        merged["ratio"] = round(merged["symmem_us"] / merged["torch_us"], 3)
    return merged


class Rank:
    """One rank, with both systems."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as torch_symm

        import symmem
        import symmem.torch as ours

        self.torch, self.dist, self.theirs, self.ours, self.symmem = torch, dist, torch_symm, ours, symmem
        self.options = options
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        # Its own stream, as a serving loop has one.
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(self.stream)
        from datetime import timedelta

        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        self.dtype = getattr(torch, options.dtype)
        world: Any = dist.group.WORLD
        self.name = world.group_name
        self.group = symmem.Group.from_torch(world)

    def run(self) -> None:
        for kib in (int(number) for number in self.options.kib.split(",")):
            count = kib * 1024 // self.dtype.itemsize
            mine = self.ours.empty(count, dtype=self.dtype, device=self.device)
            self.ours.rendezvous(mine, self.group)
            other = self.theirs.empty(count, dtype=self.dtype, device=self.device)
            self.theirs.rendezvous(other, self.name)
            for form in self.options.forms.split(","):
                self.measure(form, count, mine, other)
            self.dist.barrier()
        # Destructors may wait for ranks that are gone.
        self.torch.cuda.synchronize()
        self.dist.barrier()
        sys.stdout.flush()
        os._exit(0)

    def operations(self, form: str, count: int, mine: Any, other: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        ours, theirs = self.ours, self.torch.ops.symm_mem
        group, name, local = self.group, self.name, self.torch.ones_like(mine)
        if form == "barrier":
            one, two = ours.rendezvous(mine, group), self.theirs.rendezvous(other, name)
            return one.barrier, two.barrier
        own, native = getattr(ours, form), getattr(theirs, form)
        mine_of: Any = group
        if self.options.by == "operators":
            own, mine_of = getattr(self.torch.ops.symmem, form), name
        if form == "reduce_scatter_out":
            a, b = mine.new_empty(count // self.world), other.new_empty(count // self.world)
            return lambda: (own(mine, mine_of, False, a), a)[1], lambda: native(other, name, False, b)
        if form.endswith("_copy_out"):
            a, b = self.torch.empty_like(mine), self.torch.empty_like(other)
            return lambda: (own(mine, local, "sum", mine_of, a), a)[1], lambda: native(other, local, "sum", name, b)
        if form.endswith("_out"):
            a, b = self.torch.empty_like(mine), self.torch.empty_like(other)
            return lambda: (own(mine, "sum", mine_of, a), a)[1], lambda: native(other, "sum", name, b)
        if form.endswith("_copy"):
            return lambda: own(mine, local, "sum", mine_of), lambda: native(other, local, "sum", name)
        if form.endswith("_"):
            return lambda: (own(mine, "sum", mine_of), mine)[1], lambda: native(other, "sum", name)
        return lambda: own(mine, "sum", mine_of), lambda: native(other, "sum", name)

    def measure(self, form: str, count: int, mine: Any, other: Any) -> None:
        nbytes = count * self.dtype.itemsize
        row: dict[str, Any] = {
            "case": f"{form} {nbytes}",
            "form": form,
            "bytes": nbytes,
            "dtype": self.options.dtype,
            "algorithm": "",
            "wrong": 0,
            "words": "",
            "symmem": None,
            "torch": None,
        }
        systems: dict[str, tuple[Callable[[], Any], Any]] = {}
        for name, (operate, tensor) in zip(
            ("symmem", "torch"), zip(self.operations(form, count, mine, other), (mine, other), strict=True), strict=True
        ):
            try:
                row["wrong"] += self.check(form, operate, tensor)
                systems[name] = operate, tensor
            except Exception as error:
                # Refused before it began, so on every rank.
                row["words"] += f"{name}: {type(error).__name__}: {error}"[:200]
        if "symmem" in systems and "all_reduce" in form:
            row["algorithm"] = self.algorithm(form, mine)
        for name in systems:
            row[name] = {"all": [], "host": []}
        for number in range(self.options.rounds + 1):
            order = list(systems) if number % 2 == 0 else list(reversed(systems))
            for name in order:
                whole, host = self.round(*systems[name])
                # The first round warms up.
                if number > 0:
                    row[name]["all"].append(whole)
                    row[name]["host"].append(host)
        print(json.dumps(row), flush=True)

    def algorithm(self, form: str, mine: Any) -> str:
        from symmem import _symmem

        fast = _symmem._device_memory(self.symmem.rendezvous(mine, self.group))
        kind = "in_place" if form.endswith("_") else "private" if "_copy" in form else "out"
        return str(fast.plan(kind, mine.numel())[0])

    def check(self, form: str, operate: Callable[[], Any], tensor: Any) -> int:
        """Elements that are wrong."""
        torch = self.torch
        tensor.fill_(self.rank + 1)
        torch.cuda.synchronize()
        self.dist.barrier()
        result = operate()
        torch.cuda.synchronize()
        self.dist.barrier()
        if form == "barrier":
            return 0
        wanted = self.world if "_copy" in form else self.world * (self.world + 1) // 2
        return int((result != wanted).sum().item())

    def round(self, operate: Callable[[], Any], tensor: Any) -> tuple[float, float]:
        """Microseconds of an operation: of all, and of the host alone."""
        # In-place sums must not overflow: zeros stay zeros.
        tensor.zero_()
        self.torch.cuda.synchronize()
        self.dist.barrier()
        calls = self.options.calls
        start = time.perf_counter()
        for _ in range(calls):
            operate()
        launched = time.perf_counter()
        self.stream.synchronize()
        end = time.perf_counter()
        return (end - start) / calls * 1e6, (launched - start) / calls * 1e6


def main() -> None:
    options = arguments()
    if os.environ.get("SYMMEM_EAGER_RANK"):
        Rank(options).run()
        return
    try:
        import torch
    except ImportError:
        print(json.dumps({"skipped": "there is no torch"}))
        return
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "torch finds no CUDA device"}))
        return
    sys.exit(lead(options))


if __name__ == "__main__":
    main()
