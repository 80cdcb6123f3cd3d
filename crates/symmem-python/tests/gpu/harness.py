"""What the tests on devices share: ranks as processes with an end to every wait, and a way to run without pytest.

    python test_device.py [NAME ...]      # one JSON line per test; exits 1 if one failed

A test is a function `test_...` that starts ranks with `run_ranks`; a rank runs a function of `cases.py`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Longer than any test takes, start of torch included.
LIMIT = float(os.environ.get("SYMMEM_TEST_LIMIT", "120"))
# How long ranks wait for each other: shorter, so that a rank says what it waited for before it is killed.
WAIT = "40"

try:
    import pytest

    Skipped: type[BaseException] = pytest.skip.Exception
except ImportError:

    class Skipped(Exception):  # type: ignore[no-redef]
        """The test cannot run here."""


def skip(reason: str) -> None:
    raise Skipped(reason)


class Failed(AssertionError):
    """A rank failed; the message is what all of them said."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(script: str, arguments: list[str], world: int, env: Mapping[str, str]) -> list[subprocess.Popen[bytes]]:
    """Ranks of `script`, as torchrun would start them. Their output goes to files, which cannot fill a pipe."""
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "SYMMEM_TIMEOUT": WAIT,
        "SYMMEM_ALLOW_OVERLAPPING_DEVICES": "1",
        "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        # A server of MPS has a limited number of queues for all its clients.
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "4"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **env,
    }
    ranks = []
    for rank in range(world):
        # Unlinked at once: it is gone when the process is.
        output = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        process.output = output  # type: ignore[attr-defined]
        ranks.append(process)
    return ranks


def finish(ranks: list[subprocess.Popen[bytes]], limit: float) -> list[tuple[int, str]]:
    """Exit status and output of every rank; those that are not done in time are killed."""
    end = time.monotonic() + limit
    try:
        for process in ranks:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
            if process.returncode != 0:
                # The others learn it from the group, or from their own deadlines; but nobody needs them for long.
                end = min(end, time.monotonic() + 15)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.terminate()
        for process in ranks:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
    results = []
    for process in ranks:
        process.output.seek(0)  # type: ignore[attr-defined]
        text = process.output.read().decode(errors="replace")  # type: ignore[attr-defined]
        results.append((process.returncode, text))
    return results


def run_ranks(case: str, world: int, env: Mapping[str, str] | None = None, limit: float = LIMIT) -> list[Any]:
    """Runs the function `case` of `cases.py` on `world` processes; what each returned."""
    results = finish(start("cases.py", [case], world, env or {}), limit)
    values = []
    for rank, (code, text) in enumerate(results):
        lines = [line for line in text.splitlines() if line.startswith('{"result"')]
        if code != 0 or not lines:
            said = "\n".join(f"--- rank {at}: exit {code}\n{text[-4000:]}" for at, (code, text) in enumerate(results))
            raise Failed(f"{case}: rank {rank} of {world} failed\n{said}")
        values.append(json.loads(lines[-1])["result"])
    return values


def main(tests: Mapping[str, Any]) -> None:
    """Runs the tests of a module, all or those that were named, without pytest."""
    names = [name for name in tests if name.startswith("test_") and callable(tests[name])]
    wanted = sys.argv[1:] or names
    failed = 0
    for name in (name for name in names if any(want in name for want in wanted)):
        began = time.monotonic()
        outcome, words = attempt(tests[name])
        failed += outcome == "failed"
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"test": name, "outcome": outcome, "seconds": seconds, "words": words}), flush=True)
    sys.exit(1 if failed else 0)


def attempt(test: Callable[[], None]) -> tuple[str, str]:
    try:
        test()
    except Skipped as reason:
        return "skipped", str(reason)
    except Exception as error:
        traceback.print_exc()
        return "failed", (str(error).splitlines() or [type(error).__name__])[0][:300]
    return "passed", ""
