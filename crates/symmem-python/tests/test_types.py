"""What checkers find in a program that uses symmem: mypy --strict and pyright (strict), on one script with mistakes in it.

Every line that says `# wrong` must be found by both, and no other.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import symmem
from symmem.typing import Op

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "symmem"

PROGRAM = '''
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import symmem
from symmem.typing import Op, Operand


def main(group: symmem.Group, steps: int, name: str = "run") -> float:
    x = symmem.zeros(4, dtype="float32")
    mem = symmem.rendezvous(x, group)
    assert_type(mem.all_reduce("sum", timeout_ms=100), symmem.Array)
    assert_type(mem.all_reduce(out=np.ones((4, 1))), np.ndarray[tuple[int, int], np.dtype[np.float64]])
    return float(np.asarray(x).sum()) * steps


def operations(group: symmem.Group, x: npt.NDArray[np.float32], op: Op, text: str) -> None:
    group.all_reduce(x, op)
    symmem.all_reduce(x, "summ")  # wrong
    group.all_reduce(x, "summ")  # wrong
    group.all_reduce_start(x, "average")  # wrong
    symmem.reduce_scatter(x, text)  # wrong
    group.reduce(x, "SUM", 0)  # wrong
    symmem.rendezvous(symmem.empty(4)).all_reduce("mean")  # wrong


def arrays(group: symmem.Group, x: npt.NDArray[np.float32], y: symmem.Array, any_array: Operand) -> None:
    assert_type(symmem.all_reduce(x), npt.NDArray[np.float32])
    assert_type(group.all_reduce(x, "max"), npt.NDArray[np.float32])
    assert_type(symmem.all_reduce(y), symmem.Array)
    assert_type(symmem.all_reduce(y, out=x), npt.NDArray[np.float32])
    assert_type(symmem.all_reduce(y, "sum", group, x), npt.NDArray[np.float32])
    assert_type(group.broadcast(y), symmem.Array)
    assert_type(group.all_gather(x), npt.NDArray[np.float32])
    assert_type(group.all_gather(y, x), npt.NDArray[np.float32])
    assert_type(group.all_to_all(y, out=x), npt.NDArray[np.float32])
    assert_type(group.gather(x), npt.NDArray[np.float32] | None)
    assert_type(symmem.scatter(None, out=y), symmem.Array)
    assert_type(symmem.ones_like(x), symmem.Array)
    symmem.all_gather(any_array)
    symmem.all_gather(memoryview(b"bytes"))
    integers: npt.NDArray[np.int64] = symmem.all_reduce(x)  # wrong
    text: str = symmem.all_gather(x)  # wrong
    private: npt.NDArray[np.float32] = group.all_reduce(y)  # wrong
    symmem.all_reduce([1.0, 2.0])  # wrong
    group.all_gather(3.0)  # wrong
    group.gather(x).sum()  # wrong
    print(integers, text, private)


def lonely(group: symmem.Group) -> int:
    return group.rank


def anything(group: symmem.Group, *values: Any) -> str:
    return str(values)


def not_a_rank(number: int) -> None: ...


def spawns(values: tuple[Any, ...]) -> None:
    assert_type(symmem.spawn(main, 2, (3, "name")), list[float])
    assert_type(symmem.spawn(main, 2, args=(3,), threads=True, timeout=5), list[float])
    assert_type(symmem.spawn(lonely, ranks=2), list[int])
    assert_type(symmem.spawn(lambda group: group.rank, 2), list[int])
    assert_type(symmem.spawn(anything, 2, values), list[str])
    assert_type(symmem.spawn(lonely, 2, return_exceptions=True), list[int | BaseException])
    symmem.spawn(main, 2, [3, "name"])
    symmem.spawn(main, 2, ("name", 3))  # wrong
    symmem.spawn(main, 2)  # wrong
    symmem.spawn(lonely, 2, (3,))  # wrong
    symmem.spawn(main, 2, (3, "name", 4))  # wrong
    symmem.spawn(not_a_rank, 2)  # wrong
    symmem.spawn(lonely, 2, pin="core")  # wrong
    symmem.spawn(main, 2, ("name", 3), return_exceptions=True)  # wrong


def errors(group: symmem.Group) -> None:
    try:
        group.barrier()
    except symmem.PeerLost as error:
        assert_type((error.rank, error.culprit, error.pid), tuple[int, int, int])
    except (symmem.PeerLeft, symmem.RankFailed) as error:
        assert_type((error.rank, error.culprit), tuple[int, int])
    except symmem.GroupFailed as error:
        assert_type((error.culprit, error.cause), tuple[int, str])
    except symmem.Spawned as error:
        assert_type((error.rank, error.traceback), tuple[int, str | None])
    except symmem.Timeout as error:
        assert_type(error.missing, list[int] | None)
        print(error.rank + 1)  # wrong
'''


def wrong_lines(program: str) -> set[int]:
    return {number for number, line in enumerate(program.split("\n"), 1) if line.endswith("# wrong")}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPY_CACHE_DIR": os.devnull}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def by_mypy(folder: Path, program: str) -> set[int]:
    path = folder / "program.py"
    path.write_text(program)
    done = run("mypy", "--strict", "--config-file=", str(path))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(rf"^{re.escape(str(path))}:(\d+): error:", done.stdout, flags=re.MULTILINE)}


def pyright(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """What pyright finds. With this output it asks no server for anything."""
    path = folder / "pyrightconfig.json"
    path.write_text(json.dumps({"pythonVersion": "3.11", **config}))
    done = run("pyright", "--outputjson", "--project", str(path), "--pythonpath", sys.executable)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return [one for one in found if one["severity"] == "error"]


def by_pyright(folder: Path, program: str) -> set[int]:
    (folder / "program.py").write_text(program)
    found = pyright(folder, {"include": ["program.py"], "typeCheckingMode": "strict"})
    return {one["range"]["start"]["line"] + 1 for one in found}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_finds_every_mistake_and_no_other(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    check = {"mypy": by_mypy, "pyright": by_pyright}[checker]
    assert check(tmp_path, PROGRAM) == wrong_lines(PROGRAM)
    assert len(wrong_lines(PROGRAM)) == 20


def test_tensors_go_through(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = (
        "from typing import assert_type\nimport symmem\nimport torch\n"
        "def main(group: symmem.Group, x: torch.Tensor) -> None:\n"
        "    assert_type(group.all_reduce(x), torch.Tensor)\n"
        "    assert_type(symmem.all_gather(x), torch.Tensor)\n"
        "    assert_type(group.reduce(x), torch.Tensor | None)\n"
        "    symmem.all_gather(x).astype(int)  # wrong\n"
    )
    assert by_pyright(tmp_path, program) == wrong_lines(program)


def test_pyright_has_nothing_to_say_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    if not PACKAGE.exists():
        pytest.skip("this is no checkout")
    # What builds on torch is mypy's alone: torch's own types are not made for pyright.
    names = [path.name for path in PACKAGE.iterdir() if path.name not in ("torch", "__pycache__", "py.typed")]
    (tmp_path / "symmem").symlink_to(PACKAGE)
    strict = [f"symmem/{name}" for name in ("_symmem.pyi", "typing.py", "_collectives.py", "_creation.py", "_spawn/__init__.py")]
    found = pyright(tmp_path, {"include": [f"symmem/{name}" for name in names], "strict": strict})
    assert not found, json.dumps(found, indent=1)


def test_the_operations_are_those_of_the_library(threads: Any) -> None:
    def main(group: symmem.Group) -> str:
        with pytest.raises(symmem.Invalid) as caught:
            group.all_reduce(np.ones(1), "summ")  # type: ignore[call-overload]
        return str(caught.value)

    (text,) = threads(main, 1)
    assert text.split("is not one of ")[1].split(", ") == list(get_args(Op))
