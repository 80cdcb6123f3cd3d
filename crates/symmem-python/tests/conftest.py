"""What all tests share: bounded waits, and ranks as processes or threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Before symmem is imported, here and in ranks: no test waits longer.
os.environ.setdefault("SYMMEM_TIMEOUT", "30")
# One thread a rank, and nothing for `spawn` to say.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What tests on GPUs try is tried here on the CPU.
sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))

import symmem  # noqa: E402

#: Seconds that one `spawn` may take.
LIMIT = 60.0


@pytest.fixture(params=["processes", "threads"])
def run(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """`run(fn, ranks, *args)` on ranks of either kind."""
    threads = request.param == "threads"

    def run(fn: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
        return symmem.spawn(fn, ranks, args, threads=threads, timeout=LIMIT)

    return run


@pytest.fixture
def threads() -> Callable[..., list[Any]]:
    """`threads(fn, ranks, *args)` on ranks that are threads: many at little cost."""

    def run(fn: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
        return symmem.spawn(fn, ranks, args, threads=True, timeout=LIMIT)

    return run


@pytest.fixture
def processes() -> Callable[..., list[Any]]:
    """`processes(fn, ranks, *args)` on ranks that are processes."""

    def run(fn: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
        return symmem.spawn(fn, ranks, args, threads=False, timeout=LIMIT)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`script(text)` runs a program in a process of its own and returns what it did."""

    def run(text: str, *, name: str = "program.py", stdin: bool = False) -> subprocess.CompletedProcess[str]:
        path = tmp_path / name
        path.write_text(text)
        command = [sys.executable, "-" if stdin else str(path)]
        return subprocess.run(
            command, input=text if stdin else None, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path
        )

    return run
