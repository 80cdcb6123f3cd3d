"""`init_process_group("symmem")` without an import of ours, and that torch is never the worse for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import symmem  # noqa: E402

JOIN = """
import tempfile, torch, torch.distributed as dist
with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("symmem", init_method=f"file://{file.name}.store", rank=0, world_size=1)
    x = torch.ones(3)
    dist.all_reduce(x)
    print(dist.get_backend(), x.tolist())
    dist.destroy_process_group()
"""


def program(text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `text` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


def test_the_backend_needs_no_import() -> None:
    done = program(JOIN)
    assert (done.returncode, done.stdout) == (0, "symmem [1.0, 1.0, 1.0]\n"), done.stderr


def test_importing_torch_loads_nothing_of_ours_and_changes_no_default() -> None:
    text = """
import os, sys, torch
import torch.distributed as dist
print("symmem" in dist.Backend.backend_list, [name for name in sys.modules if name.startswith("symmem")])
print(sorted(dist.Backend.default_device_backend_map.items()), dist.Backend.backend_capability["symmem"])
"""
    loaded, defaults = program(text).stdout.splitlines()
    assert loaded == "True []"
    _, unchanged = program(
        text.replace('dist.Backend.backend_capability["symmem"]', "['cpu']"), TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    ).stdout.splitlines()
    assert defaults == unchanged


def test_with_a_broken_extension_torch_works_and_the_backend_says_why_it_does_not(tmp_path: Path) -> None:
    package = Path(symmem.__file__).parent
    shutil.copytree(package, tmp_path / "symmem", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "symmem" / "_symmem.abi3.so").write_bytes(b"this is no library")
    broken = {"PYTHONPATH": str(tmp_path)}
    fine = program("import torch; print(torch.ones(2).sum().item())", **broken)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "2.0\n", "")
    failed = program(JOIN, **broken)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "_symmem.abi3.so" in last


def test_where_autoloading_is_off_the_import_registers() -> None:
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert "Unknown backend type symmem" in program(JOIN, **off).stderr
    done = program("import symmem.torch\n" + JOIN, **off)
    assert (done.returncode, done.stdout) == (0, "symmem [1.0, 1.0, 1.0]\n"), done.stderr


def test_registering_twice_is_fine() -> None:
    done = program("import torch, symmem.torch\nimport _symmem_backend\n_symmem_backend.autoload()\n" + JOIN)
    assert (done.returncode, done.stdout) == (0, "symmem [1.0, 1.0, 1.0]\n"), done.stderr


@pytest.mark.parametrize("module", ["None", "object()"])
def test_whatever_torch_has_become_nothing_is_raised(module: str) -> None:
    name = "torch.distributed.distributed_c10d"
    text = f"import sys\nimport _symmem_backend\nsys.modules[{name!r}] = {module}\nprint(_symmem_backend.autoload())"
    done = program(text)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_it_takes_less_than_five_milliseconds() -> None:
    (entry,) = [entry for entry in entry_points(group="torch.backends") if entry.name == "symmem"]
    text = f"""
import sys, time, torch
from importlib.metadata import EntryPoint
from torch.distributed import Backend
entry, times = EntryPoint({entry.name!r}, {entry.value!r}, {entry.group!r}), []
for _ in range(10):
    Backend._plugins.pop("SYMMEM", None)
    sys.modules.pop("_symmem_backend", None)
    start = time.perf_counter()
    entry.load()()
    times.append(time.perf_counter() - start)
    assert "SYMMEM" in Backend._plugins
print(min(times))
"""
    done = program(text)
    assert float(done.stdout) < 0.005, done.stderr
