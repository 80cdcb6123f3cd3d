"""Variables of the environment that are named like settings and are none."""

from __future__ import annotations

from typing import Any

import pytest

PROGRAM = """
import symmem
def f(group): return float(symmem.empty(1)[0])
if __name__ == "__main__":
    symmem.empty(1)
    symmem.empty(1)
    print(symmem.spawn(f, 2, threads={threads}, timeout=30))
"""


@pytest.mark.parametrize(("threads", "times"), [(True, 1), (False, 2)])
def test_a_misspelt_variable_is_said_once_in_a_process_and_by_one_rank(
    threads: bool, times: int, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMMEM_TIMOUT", "5")
    done = script(PROGRAM.format(threads=threads))
    assert done.stdout == "[0.0, 0.0]\n"
    said = "SYMMEM_TIMOUT is set, and means nothing. Hint: did you mean SYMMEM_TIMEOUT?"
    assert done.stderr == f"{said}\n" * times


def test_what_spawn_and_torchrun_set_is_known(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMEM_PROVIDER", "vmm")
    done = script(PROGRAM.format(threads=False))
    assert (done.stdout, done.stderr) == ("[0.0, 0.0]\n", "")


def test_a_program_may_silence_it(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMEM_TIMOUT", "5")
    text = "import logging; logging.getLogger('symmem').setLevel(logging.ERROR)\nimport symmem\nsymmem.empty(1)\n"
    assert script(text).stderr == ""
