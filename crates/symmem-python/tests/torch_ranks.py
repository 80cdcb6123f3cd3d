"""Runs a test's function on several ranks: real processes with a torch process group, everything bounded.

`run(function, ranks, *args)` calls `function(rank, *args)` in each, with the backend "symmem" as the default
group, and gives what they returned, in rank order. A rank that raises or hangs fails the test.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 90.0


def run(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    backend: str = "symmem",
    may_die: tuple[int, ...] = (),
    seconds: float = SECONDS,
) -> list[Any]:
    """Calls `function(rank, *args)` on so many ranks. Those in `may_die` need not return."""
    # Ranks are forked from a process that has imported torch and done nothing else: that takes seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        processes = [
            context.Process(
                target=_rank, args=(function, rank, ranks, path, backend, args, results), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(processes, results, may_die, seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(processes: list[Any], results: Any, may_die: tuple[int, ...], seconds: float) -> list[Any]:
    outcome: dict[int, Any] = {}
    end = time.monotonic() + seconds
    needed = set(range(len(processes))) - set(may_die)
    while not needed <= outcome.keys():
        assert time.monotonic() < end, (
            f"ranks {sorted(needed - outcome.keys())} did not finish in {seconds} s"
        )
        while not results.empty():
            rank, error, value = results.get()
            assert error is None, f"rank {rank} failed:\n{error}"
            outcome[rank] = value
        for rank in needed - outcome.keys():
            code = processes[rank].exitcode
            assert code in (None, 0), f"rank {rank} ended with {code}"
        time.sleep(0.01)
    for rank in needed:
        processes[rank].join(10)
        assert processes[rank].exitcode == 0, f"rank {rank} ended with {processes[rank].exitcode}"
    return [outcome.get(rank) for rank in range(len(processes))]


def _rank(
    function: Callable[..., Any], rank: int, ranks: int, path: str, backend: str, args: Any, results: Any
) -> None:
    import symmem.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    torch.manual_seed(7)
    store = dist.FileStore(path, ranks)
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=SECONDS / 2)
        )
        value = function(rank, *args)
        error = None
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        value, error = None, traceback.format_exc()
    results.put((rank, error, value))
    results.close()
    results.join_thread()
