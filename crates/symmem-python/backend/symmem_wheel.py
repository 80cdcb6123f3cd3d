"""Builds the package: maturin's wheel, with the program `symmem` among its scripts.

maturin puts an extension or a program into a wheel, not both. So pip and other frontends call this (`build-backend` in pyproject.toml),
which has cargo build the program, lets maturin do everything else, and adds the program to what it made. The program is that of `cargo
build --release`, in the same target folder, so nothing is built twice. Settings are maturin's, by its own ways
(`--config-settings build-args=...`, MATURIN_PEP517_ARGS).

With `--zig` a wheel runs on older systems than the one it was built on: zig links extension and program with the glibc of
`--compatibility`. That takes the packages ziglang and cargo-zigbuild; `cargo xtask package` has them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import maturin  # type: ignore[import-untyped]
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None

#: Options of maturin that are cargo's as well: a switch, or with a value.
_SWITCHES = ("--frozen", "--locked", "--offline")
_VALUES = ("--profile", "--target")

#: glibc of the wheels that have a year in their names, and of those that maturin makes with zig if nobody says more.
_GLIBC_OF_YEARS = {"manylinux2014": "2.17", "manylinux2010": "2.12"}
_GLIBC = "2.17"


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The wheel that `pip install` installs."""
    return _with_program(maturin.build_wheel, wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The same for `pip install --editable`. The program is a copy, which later edits do not change."""
    return _with_program(maturin.build_editable, wheel_directory, config_settings, metadata_directory)


def _with_program(build: Callable[..., str], folder: str, settings: Settings, metadata: str | None) -> str:
    program = _program(settings)
    name = build(folder, settings, metadata)
    _add(Path(folder, name), program)
    return name


def _program(settings: Settings) -> bytes:
    """The program, without what only a debugger needs."""
    command = [*_cargo(settings), "--package", "symmem-cli", "--bin", "symmem", *_cargo_options(settings)]
    command.append("--message-format=json-render-diagnostics")
    print("Running `{}`".format(" ".join(command)), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, env=maturin._get_env(), text=True)
    if done.returncode != 0:
        raise SystemExit("the program symmem cannot be built")
    messages = (json.loads(line) for line in done.stdout.splitlines())
    path = next(path for message in messages if (path := message.get("executable")))
    strip = shutil.which("strip")
    if strip is None:
        return Path(path).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder, "symmem")
        subprocess.run([strip, "-o", stripped, path], check=True)
        return stripped.read_bytes()


def _cargo(settings: Settings) -> list[str]:
    """The command that builds: with zig, for the glibc that the wheel is to be compatible with."""
    given = maturin.get_maturin_pep517_args(settings)
    if "--zig" not in given:
        return ["cargo", "build"]
    if any(option.startswith("--target") for option in given):
        raise SystemExit("--zig builds for this machine's processor: leave --target out")
    said = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    (host,) = [line.removeprefix("host: ") for line in said.splitlines() if line.startswith("host: ")]
    return ["cargo", "zigbuild", "--target", f"{host}.{_glibc(given)}"]


def _glibc(given: list[str]) -> str:
    """The version of glibc in `--compatibility manylinux_2_28`."""
    joined = " ".join(given).replace("=", " ").split()
    tag = joined[joined.index("--compatibility") + 1] if "--compatibility" in joined else ""
    if match := re.fullmatch(r"manylinux_(\d+)_(\d+)", tag):
        return ".".join(match.groups())
    return _GLIBC_OF_YEARS.get(tag, _GLIBC)


def _cargo_options(settings: Settings) -> list[str]:
    given = iter(maturin.get_maturin_pep517_args(settings))
    options = []
    for option in given:
        if option in _SWITCHES or option.startswith(tuple(f"{name}=" for name in _VALUES)):
            options.append(option)
        elif option in _VALUES:
            options += [option, next(given)]
    has_profile = any(option.startswith("--profile") for option in options)
    return options if has_profile else ["--release", *options]


def _add(wheel: Path, program: bytes) -> None:
    """Writes the wheel again with the program in it, and in its list of files."""
    added = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(added, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = [name for name in old.namelist() if name.endswith(".dist-info/RECORD")]
        script = zipfile.ZipInfo(record.replace(".dist-info/RECORD", ".data/scripts/symmem"))
        script.external_attr = (stat.S_IFREG | 0o755) << 16
        script.compress_type = zipfile.ZIP_DEFLATED
        for entry in old.infolist():
            if entry.filename != record:
                new.writestr(entry, old.read(entry))
        new.writestr(script, program)
        digest = base64.urlsafe_b64encode(hashlib.sha256(program).digest()).decode().rstrip("=")
        lines = old.read(record).decode().splitlines()
        lines.insert(-1, f"{script.filename},sha256={digest},{len(program)}")
        new.writestr(old.getinfo(record), "".join(f"{line}\n" for line in lines))
    added.replace(wheel)
