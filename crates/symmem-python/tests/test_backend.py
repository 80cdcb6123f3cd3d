"""What builds the wheel (`backend/symmem_wheel.py`): the program is built as the extension is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BACKEND = Path(__file__).parents[1] / "backend" / "symmem_wheel.py"


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    pytest.importorskip("maturin")
    spec = importlib.util.spec_from_file_location("symmem_wheel", BACKEND)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_zig_cargo_builds_for_this_system(backend: ModuleType) -> None:
    assert backend._cargo({"build-args": "--locked --compatibility manylinux_2_28"}) == ["cargo", "build"]
    assert backend._cargo(None) == ["cargo", "build"]


@pytest.mark.parametrize(
    ("arguments", "glibc"),
    [
        ("--zig --compatibility manylinux_2_28", "2.28"),
        ("--zig --compatibility=manylinux_2_17 --locked", "2.17"),
        ("--zig --compatibility manylinux2014", "2.17"),
        ("--zig", "2.17"),
    ],
)
def test_zig_links_with_the_glibc_of_the_wheels_name(arguments: str, glibc: str, backend: ModuleType) -> None:
    *command, target = backend._cargo({"build-args": arguments})
    assert command == ["cargo", "zigbuild", "--target"]
    assert target.endswith(f"-linux-gnu.{glibc}")


def test_zig_and_another_target_are_refused(backend: ModuleType) -> None:
    with pytest.raises(SystemExit, match="leave --target out"):
        backend._cargo({"build-args": "--zig --target aarch64-unknown-linux-gnu"})
