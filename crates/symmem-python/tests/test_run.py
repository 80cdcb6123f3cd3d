"""`symmem run` and `symmem store` with Python: scripts for torchrun and for `symmem.init` as ranks, and PyTorch's own store.

The program is the one that was installed with the package, or what SYMMEM_TEST_PROGRAM names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = os.environ.get("SYMMEM_TEST_PROGRAM")

INIT = """
import symmem
group = symmem.init()
print("met", sorted(group.all_gather_object(group.rank)))
"""

TORCHRUN = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((4,), float(dist.get_rank()))
dist.all_reduce(x)
assert int(os.environ["LOCAL_RANK"]) == dist.get_rank()
print("sum", x.tolist())
dist.destroy_process_group()
"""

FAILING = """
import time
import symmem
group = symmem.init()
if group.rank == 1:
    raise ValueError("wrong on purpose")
time.sleep(100)
"""


def symmem_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program and waits for its end."""
    program = [PROGRAM] if PROGRAM else [sys.executable, "-m", "symmem"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120)


def run(ranks: int, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as so many ranks."""
    path = folder / "script.py"
    path.write_text(script)
    return symmem_program("run", "-n", str(ranks), "--", sys.executable, str(path))


def test_ranks_of_a_script_meet(tmp_path: Path) -> None:
    done = run(4, tmp_path, INIT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] met [0, 1, 2, 3]" for rank in range(4)]


def test_a_script_for_torchrun_needs_no_change(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(4, tmp_path, TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum [6.0, 6.0, 6.0, 6.0]" for rank in range(4)]


def test_the_script_that_fails_is_named_and_its_traceback_is_shown(tmp_path: Path) -> None:
    done = run(2, tmp_path, FAILING)
    assert done.returncode == 1
    assert "[1] ValueError: wrong on purpose" in done.stderr
    assert "error: rank 1 failed first: it exited with 1" in done.stderr


def test_pytorchs_store_is_read_and_written() -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = ("--store", f"127.0.0.1:{store.port}")
    store.set("colour", "green")
    assert symmem_program("store", "get", *where, "colour").stdout == "green\n"
    assert symmem_program("store", "set", *where, "shape", "round").returncode == 0
    assert store.get("shape") == b"round"
    assert symmem_program("store", "add", *where, "count", "3").stdout == "3\n"
    assert store.add("count", 1) == 4
    assert symmem_program("store", "wait", *where, "colour", "shape").returncode == 0
    listed = symmem_program("store", "list", *where)
    if hasattr(store, "list_keys"):
        assert {"colour", "count", "shape"} <= set(listed.stdout.split()), listed.stderr
    else:
        assert listed.returncode == 1
        assert "cannot list its keys" in listed.stderr and listed.stderr.count("\n") == 1
    assert symmem_program("store", "delete", *where, "colour").returncode == 0
    assert not store.check(["colour"])
