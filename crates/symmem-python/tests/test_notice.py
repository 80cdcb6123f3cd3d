"""A wait that lasts says so on stderr: who waits, in what, for whom. Rarely, and not where it was silenced."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

#: Rank 1 comes late to each of these.
PROGRAM = """
import sys, time
import numpy as np
import symmem

def main(group):
    x = symmem.empty(4)
    if {what!r} == "rendezvous":
        time.sleep(group.rank * {late})
        symmem.rendezvous(x, group)
        return
    mem = symmem.rendezvous(x, group)
    if group.rank == 1:
        time.sleep({late})
    {call}
    mem.barrier()

if __name__ == "__main__":
    symmem.spawn(main, ranks=2)
"""

CALLS = {
    "barrier": "group.barrier()",
    "all_reduce": "group.all_reduce(np.ones(3))",
    "broadcast": "mem.broadcast(1)",
    "rendezvous": "pass",
    "wait_signal": "mem.put_signal(0) if group.rank else mem.wait_signal(1)",
    "recv": "group.send(np.ones(3), 0) if group.rank else group.recv(np.ones(3), 1)",
    "started": "group.all_reduce_start(np.ones(3)).wait()",
}

LINE = r"symmem: rank 0 of 2 has waited for rank 1 in (\w+) on group \"\w+\" for \d+ s now \(SYMMEM_WAIT_NOTICE=never silences this\)"


def errors_of(program: str, notice: str) -> list[str]:
    command = [sys.executable, "-c", program]
    environment = {"SYMMEM_WAIT_NOTICE": notice, "OMP_NUM_THREADS": "1", "SYMMEM_TIMEOUT": "30"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.splitlines()


@pytest.mark.parametrize("what", CALLS)
def test_a_long_wait_says_who_waits_for_whom(what: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("notice") / "program.py"
    path.write_text(PROGRAM.format(what=what, call=CALLS[what], late=1.5))
    run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    lines = errors_of(run, "0.3")
    found = [match.group(1) for line in lines if (match := re.fullmatch(LINE, line))]
    expected = {"started": "all_reduce", "recv": "receive"}.get(what, what)
    # 0.3 s and the next one after 1.8 s: rarely.
    assert found == [expected], lines


def test_it_can_be_silenced(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("notice") / "program.py"
    path.write_text(PROGRAM.format(what="barrier", call=CALLS["barrier"], late=0.8))
    run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    assert errors_of(run, "never") == []
    assert errors_of(run, "20") == []


def test_a_join_says_that_it_waits() -> None:
    program = """
import threading, time, symmem
store = symmem.HashStore()
late = lambda: (time.sleep(1.5), symmem.Group(store, 1, 2, "team", context=symmem.Context()).barrier())
thread = threading.Thread(target=late)
thread.start()
symmem.Group(store, 0, 2, "team").barrier()
thread.join()
"""
    lines = errors_of(program, "0.3")
    assert any("rank 0 of 2 has waited to join group \"team\", whose ranks are not all there, for" in line for line in lines)


def test_a_store_that_does_not_answer_is_named() -> None:
    program = """
import os, socket, symmem
with socket.socket() as held:
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        symmem.init(timeout=1.5)
    except symmem.StoreTimeout:
        pass
"""
    lines = errors_of(program, "0.3")
    assert any("this process has waited for the store at 127.0.0.1:" in line for line in lines), lines
