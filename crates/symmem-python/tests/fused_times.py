"""Times of the fused operators on CPU tensors, beside the collective and the product by themselves: `python fused_times.py [TURNS]`.

Two processes on a core each, with one thread of torch's. Ways take turns in the same processes, forwards and backwards; a number is the median, over the
turns, of the slower rank's milliseconds, and in brackets its ratio to the fused way. "unfused" is the operator without `_host_products`, "gloo" and "c10d" are
`torch.distributed` and `@`. A torch that is to multiply without instructions for bfloat16 is told so by `ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

RANKS = 2
#: Rows of the gathered matrix, what is added up, columns.
SIZES = [(2048, 2048, 64), (2048, 2048, 128), (2048, 2048, 2048), (64, 512, 512)]
#: Torch takes minutes for larger products of float16, where the processor has none.
SLOW = {"float16": 128}


def rank(me: int, path: str, turns: int) -> None:
    import torch
    import torch.distributed as dist

    import symmem.torch  # noqa: F401
    from symmem.torch import _host_products as host

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[me]})
    dist.init_process_group("gloo", store=dist.FileStore(path, RANKS), rank=me, world_size=RANKS, timeout=timedelta(seconds=120))
    group = dist.new_group(backend="symmem")
    assert group is not None
    name, ours = group.group_name, torch.ops.symmem
    torch.manual_seed(me)

    def way(fused: bool, call: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            known = host.resolve(name)
            host._agreed[known.id, known.rank] = frozenset(host.TYPES if fused else ())
            return call()

        return made

    def times(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns + 1):
            for name in list(ways) if turn % 2 else reversed(ways):
                dist.barrier(group)
                began = time.perf_counter()
                ways[name]()
                if turn:
                    found[name].append(time.perf_counter() - began)
        everybodys: list[Any] = [None] * RANKS
        dist.all_gather_object(everybodys, found)
        return {name: 1e3 * median(map(max, zip(*(theirs[name] for theirs in everybodys), strict=True))) for name in ways}

    def say(what: str, found: dict[str, float]) -> None:
        if me == 0:
            print(what, ", ".join(f"{name} {ms:.2f} ({ms / found['fused']:.2f})" for name, ms in found.items()), sep=": ", flush=True)

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows, depth, columns in SIZES:
            if columns > SLOW.get(str(dtype).removeprefix("torch."), columns):
                continue

            def new(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.randn(*shape).to(dtype)

            def gather(of: Any, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
                whole = A.new_empty(RANKS * A.shape[0], A.shape[1])
                dist.all_gather_into_tensor(whole, A, group=of)
                return whole @ B

            def scatter(of: Any, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
                product = A @ B
                out = product.new_empty(product.shape[0] // RANKS, product.shape[1])
                dist.reduce_scatter_tensor(out, product, group=of)
                return out

            for what, A, B, fused, by_itself in (
                ("all_gather, product", new(rows // RANKS, depth), new(depth, columns), lambda A, B: ours.fused_all_gather_matmul(A, [B], 0, name, return_A=False), gather),
                ("product, reduce_scatter", new(rows, depth // RANKS), new(depth // RANKS, columns), lambda A, B: ours.fused_matmul_reduce_scatter(A, B, "sum", 0, name), scatter),
            ):
                left = new(rows, depth) if what[0] == "a" else A
                ways: dict[str, Callable[[], Any]] = {
                    "fused": way(True, lambda A=A, B=B, fused=fused: fused(A, B)),
                    "unfused": way(False, lambda A=A, B=B, fused=fused: fused(A, B)),
                    "c10d": lambda A=A, B=B, by_itself=by_itself: by_itself(group, A, B),
                    "gloo": lambda A=A, B=B, by_itself=by_itself: by_itself(None, A, B),
                    "product alone": lambda left=left, B=B: left @ B,
                }
                say(f"{str(dtype).removeprefix('torch.')} {rows} x {depth} x {columns}, {what}", times(ways))
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as processes

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank, args=(f"{folder}/store", int(sys.argv[1]) if len(sys.argv) > 1 else 11), nprocs=RANKS)
