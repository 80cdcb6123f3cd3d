"""Times of products with a gather before or a scatter after them, beside torch's: `python fused.py [RANKS]`, one JSON line each.

All ranks are on one GPU, under MPS, each with its share of it. Systems take turns in the same processes; a number is the median, over the turns,
of the slowest rank's time for a call, in microseconds: eager, and replayed from a graph.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

K = N = 4096
ROWS = 1024, 4096, 8192
TURNS, CALLS = 7, 20


def rank() -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as theirs

    import symmem.torch
    from symmem.torch import _overlap as overlap

    me, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", me % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group("gloo", rank=me, world_size=ranks, timeout=timedelta(seconds=120))
    name = str(dist.group.WORLD.group_name)
    theirs.enable_symm_mem_for_group(name)
    ours, group = torch.ops.symmem, symmem.torch._groups.resolve(name)

    def captured(call: Callable[[], Any]) -> Callable[[], Any]:
        call()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def measure(systems: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        return {"eager": turns(systems), "graph": turns({name: captured(call) for name, call in systems.items()})}

    def turns(systems: dict[str, Callable[[], Any]]) -> dict[str, float]:
        times: dict[str, list[float]] = {system: [] for system in systems}
        for turn in range(TURNS + 1):
            for system, call in systems.items():
                torch.cuda.synchronize()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(CALLS):
                    call()
                torch.cuda.synchronize()
                slowest = torch.tensor([(time.perf_counter() - began) / CALLS * 1e6], device="cpu")
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                # The first turn makes what later ones find.
                if turn:
                    times[system].append(float(slowest))
        return {system: round(median(each), 1) for system, each in times.items()}

    def say(**row: Any) -> None:
        if me == 0:
            print(json.dumps(row), flush=True)

    for rows in ROWS:
        shard = torch.randn(rows // ranks, K, dtype=torch.bfloat16) / 64
        whole, B = torch.randn(rows, K, dtype=torch.bfloat16) / 64, torch.randn(K, N, dtype=torch.bfloat16) / 64
        gathered = torch.empty_like(whole)

        def unfused() -> Any:
            group.all_gather(shard, gathered)
            return gathered @ B

        one = ours.fused_all_gather_matmul(shard, [B], 0, name, return_A=False)[1][0]
        error = float((one - unfused()).abs().max())
        say(what="all_gather_matmul", ranks=ranks, rows=rows, error=error, **measure({
            "product": lambda: whole @ B,
            "torch": lambda: torch.ops.symm_mem.fused_all_gather_matmul(shard, [B], 0, name, return_A=False),
            "symmem": lambda: ours.fused_all_gather_matmul(shard, [B], 0, name, return_A=False),
            "after": lambda: overlap._products_after(shard, [B], name, False),
            "after, rows": lambda: overlap._products_after(shard, [B], name, True),
            "meanwhile": lambda: overlap._products_meanwhile(shard, [B], name),
            "unfused": unfused,
            "all_gather": lambda: group.all_gather(shard, gathered),
        }))
        A, B = torch.randn(rows, K // ranks, dtype=torch.bfloat16) / 64, torch.randn(K // ranks, N, dtype=torch.bfloat16) / 64
        part, product = torch.empty(rows // ranks, N, dtype=torch.bfloat16), torch.empty(rows, N, dtype=torch.bfloat16)
        symmetric = symmem.torch.empty(rows, N, dtype=torch.bfloat16, device=device)
        handle = symmem.torch.rendezvous(symmetric, name).raw

        def scattered() -> Any:
            torch.mm(A, B, out=product)
            return group.reduce_scatter(product, "sum", part)

        one = ours.fused_matmul_reduce_scatter(A, B, "sum", 0, name)
        error = float((one - scattered()).abs().max())
        say(what="matmul_reduce_scatter", ranks=ranks, rows=rows, error=error, **measure({
            "product": lambda: torch.mm(A, B, out=product),
            "torch": lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(A, B, "sum", 0, name),
            "symmem": lambda: ours.fused_matmul_reduce_scatter(A, B, "sum", 0, name),
            "unfused": scattered,
            "reduce_scatter": lambda: handle.reduce_scatter("sum", part),
        }))
    dist.destroy_process_group()


def main() -> None:
    import harness

    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // ranks)}
    for number, (code, text) in enumerate(harness.finish(harness.start("fused.py", [], ranks, share), 240)):
        if number == 0 or code:
            print(text, flush=True)
            if code:
                sys.exit(1)


if __name__ == "__main__":
    rank() if "RANK" in os.environ else main()
