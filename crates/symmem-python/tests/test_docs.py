"""What the documentation says is true: docstrings, the README, the book and its pictures, the examples, the types."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import symmem

CRATE = Path(__file__).resolve().parent.parent
ROOT = CRATE.parent.parent
PACKAGE = CRATE / "python" / "symmem"
EXAMPLES = sorted((CRATE / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def modules() -> list[str]:
    # What belongs to torch is imported only where torch is; programs are not imported at all.
    found = [module.name for module in pkgutil.walk_packages(symmem.__path__, "symmem.", onerror=lambda _: None)]
    skipped = ("symmem.torch", "symmem._spawn.child", "symmem.nccl")
    return ["symmem", *(name for name in found if not name.startswith(skipped) and "__main__" not in name)]


@pytest.mark.parametrize("name", modules())
def test_docstrings(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), verbose=False)
    assert failed == 0


def test_there_are_docstring_examples() -> None:
    tried = sum(doctest.testmod(importlib.import_module(name)).attempted for name in modules())
    assert tried > 15


@pytest.mark.parametrize("name", symmem.__all__)
def test_everything_public_is_there_and_documented(name: str) -> None:
    value = getattr(symmem, name)
    assert name == "__version__" or value.__doc__


def programs(markdown: Path) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output block that may follow it."""
    text = markdown.read_text()
    return re.findall(r"```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", text, flags=re.DOTALL)


def run(program: str, folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def has_torch() -> bool:
    return has("torch")


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def lacking(program: str) -> list[str]:
    """The libraries that a program imports and this environment has not."""
    imports = re.findall(r"^import (?:symmem\.)?(torch|jax)\b", program, flags=re.MULTILINE)
    return sorted(name for name in set(imports) if not has(name))


WITH_PROGRAMS = [page for page in PAGES if page.exists() and programs(page)]


@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_program_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    ran = 0
    for program, output in programs(page):
        if lacking(program):
            continue
        ran += 1
        said = run(program, tmp_path)
        if output:
            assert sorted(said.split("\n")) == sorted(output.split("\n")), program
    if not ran:
        pytest.skip(f"{lacking(programs(page)[0][0])} not installed")


def test_the_pages_have_programs() -> None:
    if not (ROOT / "docs").exists():
        pytest.skip("this is no checkout")
    found = {page.relative_to(ROOT).as_posix(): len(programs(page)) for page in PAGES}
    assert found["README.md"] >= 1 and found["docs/python.md"] >= 8 and found["docs/guides/rank-died.md"] >= 1
    assert all(found[f"docs/tutorials/{name}.md"] >= 2 for name in ("numpy", "torch", "jax"))


@pytest.mark.parametrize("script", ["draw.py", "plot.py"])
def test_the_pictures_are_what_their_scripts_make(script: str) -> None:
    path = ROOT / "docs/images" / script
    if not path.exists():
        pytest.skip("this is no checkout")
    done = subprocess.run([sys.executable, path, "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "right", "planted"),
    [
        ("README.md", " 17 (0.21) ", " 18 (0.21) "),
        ("README.md", "(**1.63**", "(1.63"),
        ("README.md", " 0.40 us", " 0.403 us"),
        ("docs/benchmarks.md", " 2970 ", " 2790 "),
        ("docs/benchmarks.md", " **1.07** ", " 1.07 "),
        ("docs/benchmarks.md", " 157 (0.37) ", " 157 (0.36) "),
        ("docs/images/plot-gpu.svg", 'cy="', 'cy="1'),
    ],
)
def test_a_wrong_number_of_a_page_is_noticed(page: str, right: str, planted: str, tmp_path: Path) -> None:
    if not (ROOT / "docs").exists():
        pytest.skip("this is no checkout")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    text = (tmp_path / page).read_text()
    assert right in text
    (tmp_path / page).write_text(text.replace(right, planted, 1))
    command = [sys.executable, tmp_path / "docs/images/plot.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_end_well(example: Path) -> None:
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("example", [path for path in EXAMPLES if "torch" in path.stem], ids=lambda path: path.stem)
def test_examples_without_torch_say_so(example: Path) -> None:
    text = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", text, example], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing to show: torch is not installed\n", "")


@pytest.mark.parametrize("name", ["symmem", "symmem.nccl", "symmem.torch", "symmem.torch.c10d"])
def test_a_module_shows_its_names_and_nothing_else(name: str) -> None:
    if "torch" in name:
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    modules = {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
    shown = {shown for shown in dir(module) if not shown.startswith("_")}
    public = {public for public in module.__all__ if not public.startswith("_")}
    assert public <= shown <= public | modules


def test_examples_are_numbered() -> None:
    numbers = [int(path.stem[:2]) for path in EXAMPLES]
    assert numbers[0] == 1 and len(set(numbers)) == len(numbers) >= 8


def check(*arguments: str) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "MYPY_CACHE_DIR": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    if not PACKAGE.exists():
        pytest.skip("this is no checkout")
    # What builds on torch can only be checked where torch is.
    check("mypy", str(PACKAGE), *([] if has_torch() else ["--exclude", "symmem/torch"]))


#: What an error of its class always knows has that type in the stub, and is None in the class until it is raised.
KNOWN = r"symmem\._symmem\.\w+\.(rank|ranks|culprit|pid|cause|code|library)"


def test_the_stub_and_the_module_agree(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(KNOWN)
    check("mypy.stubtest", "symmem._symmem", "--allowlist", str(tmp_path / "known"))


def test_a_users_program_is_type_checked(tmp_path: Path) -> None:
    program = tmp_path / "user.py"
    program.write_text(
        "import numpy as np\nimport symmem\n"
        "def main(group: symmem.Group) -> float:\n"
        "    x = symmem.empty(4, dtype='float32')\n"
        "    mem = symmem.rendezvous(x, group)\n"
        "    mem.all_reduce('sum', timeout_ms=100)\n"
        "    return float(np.asarray(x).sum())\n"
        "results: list[float] = symmem.spawn(main, ranks=2)\n"
    )
    check("mypy", "--strict", "--config-file=", str(program))
    program.write_text("import symmem\nsymmem.empty(4, dtyp='float32')\n")
    with pytest.raises(AssertionError, match="dtyp"):
        check("mypy", "--strict", "--config-file=", str(program))
