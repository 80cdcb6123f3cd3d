"""The fake CUDA driver of `symmem-fakecuda`, for tests without a device: device memory is host memory there."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import harness

NAME = "libsymmem_fakecuda.so"
# Positions in `symmem-fakecuda/src/control.rs`.
HANDLES, RANGES, MAPPINGS, LAUNCHES, STALE = 1, 2, 3, 12, 18


def library() -> Path | None:
    """The newest one that cargo has built, or what `SYMMEM_FAKECUDA` names."""
    named = os.environ.get("SYMMEM_FAKECUDA")
    if named:
        return Path(named) if Path(named).is_file() else None
    root = harness.HERE.parents[3]
    targets = [Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))]
    found = [path for target in targets for kind in ("debug", "release") for path in target.glob(f"{kind}/**/{NAME}")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def environment(folder: str, devices: int) -> dict[str, str]:
    """What makes a process find the fake driver instead of a real one."""
    path = library()
    if path is None:
        harness.skip(f"there is no {NAME}. Hint: cargo build -p symmem-fakecuda")
    for link in ("libcuda.so", "libcuda.so.1"):
        (Path(folder) / link).symlink_to(str(path))
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": f"{folder}:{before}" if before else folder,
        "SYMMEM_NVRTC_LIBRARY": str(path),
        "SYMMEM_CACHE_DIR": "off",
        "FAKECUDA_GRANULARITY": "65536",
        "FAKECUDA_UUIDS": ",".join(f"gpu-{number}" for number in range(devices)),
    }


def run_ranks(case: str, world: int, devices: int | None = None) -> list[object]:
    """`harness.run_ranks` on the fake driver, with a device for each rank unless told otherwise."""
    with tempfile.TemporaryDirectory(prefix="symmem-fake-cuda-") as folder:
        return harness.run_ranks(case, world, environment(folder, world if devices is None else devices))


def live(kind: int) -> int:
    """How many of a kind there are in this process, which runs on the fake driver."""
    function = ctypes.CDLL("libcuda.so").fakecuda_live
    function.restype = ctypes.c_int64
    return int(function(ctypes.c_uint32(kind)))


def peek(address: int, count: int) -> list[int]:
    """Words of fake device memory."""
    return list((ctypes.c_uint32 * count).from_address(address))


def poke(address: int, words: list[int]) -> None:
    values: list[ctypes.c_uint32 | int] = [*words]
    (ctypes.c_uint32 * len(words)).from_address(address)[:] = values
