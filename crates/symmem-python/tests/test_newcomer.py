"""The first hour of somebody who has just installed symmem: the package and its program in a fresh environment, and programs of
`newcomer/`, which once lost an error, gave a wrong number, or took a minute.

The wheel is the one that `cargo xtask test` built, as `pip install .` does.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import symmem

WHEEL = os.environ.get("SYMMEM_TEST_WHEEL")
PROGRAMS = Path(__file__).with_name("newcomer")
#: What is said of the machine elsewhere must not reach a newcomer's programs.
FOREIGN = ("SYMMEM_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_")

pytestmark = pytest.mark.skipif(WHEEL is None, reason="no wheel was built: SYMMEM_TEST_WHEEL names it")


@dataclass(frozen=True)
class Machine:
    """A fresh environment."""

    folder: Path
    began: float

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, somewhere else."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder, env=env)

    def said(self, program: str, *arguments: str) -> str:
        """What a program that must succeed has printed."""
        done = self.run(program, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    assert WHEEL is not None
    machine = Machine(tmp_path_factory.mktemp("newcomer"), time.monotonic())
    subprocess.run([sys.executable, "-m", "venv", machine.folder], check=True, timeout=120)
    # numpy is the one of this environment, so that nothing is downloaded.
    (packages,) = machine.folder.glob("lib/python*/site-packages")
    here, elsewhere = Path(sysconfig.get_path("purelib")), machine.folder / "elsewhere"
    elsewhere.mkdir()
    for path in here.glob("numpy*"):
        (elsewhere / path.name).symlink_to(path)
    (packages / "elsewhere.pth").write_text(f"{elsewhere}\n")
    machine.said("python", "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", WHEEL)
    yield machine


def test_every_file_of_the_wheel_is_in_its_record() -> None:
    assert WHEEL is not None
    with zipfile.ZipFile(WHEEL) as wheel:
        (record,) = [name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")]
        rows = {name: (digest, size) for name, digest, size in csv.reader(wheel.read(record).decode().splitlines())}
        assert sorted(rows) == sorted(wheel.namelist())
        for name, (digest, size) in rows.items():
            if name != record:
                found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={found}", wheel.getinfo(name).file_size), name
        script = wheel.getinfo(record.replace(".dist-info/RECORD", ".data/scripts/symmem"))
        assert script.external_attr >> 16 & 0o111 == 0o111


def test_the_package_is_there(machine: Machine) -> None:
    version, path = machine.said("python", "-c", "import symmem; print(symmem.__version__, symmem.__file__)").split()
    assert version == symmem.__version__
    assert Path(path).is_relative_to(machine.folder)


def test_the_program_is_there_and_starts_itself_again_for_ranks(machine: Machine) -> None:
    assert machine.said("symmem", "--version") == f"symmem {symmem.__version__}\n"
    assert "SYMMEM_TIMEOUT" in machine.said("symmem", "config")
    report = json.loads(machine.said("symmem", "bench", "--quick", "--ranks", "2", "--ops", "barrier", "--json", "-"))
    assert all(row["verified"] for row in report["results"])


def test_python_runs_the_program_too(machine: Machine) -> None:
    assert machine.said("python", "-m", "symmem", "--version") == f"symmem {symmem.__version__}\n"
    settings = json.loads(machine.said("python", "-m", "symmem", "config", "--json"))
    assert any(setting["setting"] == "SYMMEM_TIMEOUT" for setting in settings)
    assert machine.run("python", "-m", "symmem", "no-such-command").returncode == 2


def test_a_missing_program_is_one_sentence(machine: Machine) -> None:
    program = machine.folder / "bin" / "symmem"
    aside = program.rename(machine.folder / "aside")
    try:
        done = machine.run("python", "-m", "symmem", "config")
    finally:
        aside.rename(program)
    assert done.returncode == 1
    assert done.stderr.startswith("the program symmem was not installed") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("ranks", ["processes", "threads"])
def test_a_users_exception_is_shown(ranks: str, machine: Machine) -> None:
    done = machine.run("python", str(PROGRAMS / "lost_exception.py"), ranks)
    assert done.returncode == 1
    assert "KeyError: 'missing'" in done.stderr and 'return {}["missing"]' in done.stderr
    assert "symmem.Closed" not in done.stderr


def test_a_rank_outside_a_subgroup_is_told(machine: Machine) -> None:
    done = machine.run("python", str(PROGRAMS / "not_a_member.py"))
    assert done.returncode == 1
    assert "not in" in done.stderr
    assert "206" not in done.stdout


def test_types_are_named_as_numpy_names_them(machine: Machine) -> None:
    done = machine.run("python", str(PROGRAMS / "element_types.py"))
    names = ["f4", "<f8", "i4", "u1", "int", "float", "float32"]
    assert done.stdout.splitlines() == [f"{name} is True" for name in names], done.stderr
    # One byte here once, eight in numpy.
    assert done.returncode == 1 and "i8" in done.stderr


def test_a_small_training_loop_takes_no_minute(machine: Machine) -> None:
    # Seconds: half of one where ranks share the cores, half a minute where each takes all of them.
    assert float(machine.said("python", str(PROGRAMS / "sgd.py"))) < 10


def test_within_bounds_a_block(machine: Machine) -> None:
    assert machine.said("python", str(PROGRAMS / "within.py")) == "(True, False)\n"


def test_one_array_is_shared_by_all(machine: Machine) -> None:
    assert machine.said("python", str(PROGRAMS / "sharing.py")) == "True True\n"


def test_every_program_is_tried_and_all_of_it_took_less_than_five_minutes(machine: Machine) -> None:
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in PROGRAMS.glob("*.py"))
    assert time.monotonic() - machine.began < 300
