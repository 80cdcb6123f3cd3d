"""`symmem.spawn`: results, failures, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import symmem


def rank_and_args(group: symmem.Group, *args: Any) -> tuple[Any, ...]:
    return (group.rank, group.size, *args)


def current(group: symmem.Group) -> bool:
    return symmem.current_group() is group


def pid(_: symmem.Group) -> int:
    return os.getpid()


def fail_on_1(group: symmem.Group) -> None:
    if group.rank == 1:
        raise ValueError("rank one is unwell")
    group.barrier()


def die_on_1(group: symmem.Group, how: str) -> str:
    if group.rank == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)
    try:
        group.barrier()
    except symmem.Error as error:
        return type(error).__name__
    return "nothing happened"


def sleep_on_1(group: symmem.Group) -> None:
    if group.rank == 1:
        time.sleep(60)


def leave_a_pid_and_fail(group: symmem.Group, folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    group.barrier()
    if group.rank == 0:
        raise RuntimeError("enough")
    time.sleep(60)


def variable(_: symmem.Group, name: str) -> str | None:
    return os.environ.get(name)


def unpicklable(_: symmem.Group) -> object:
    return lambda: None


def large(group: symmem.Group, n: int) -> bytes:
    return bytes([group.rank]) * n


def leave_early(group: symmem.Group) -> int:
    sys.exit(group.rank)


def spawn_again(group: symmem.Group) -> list[Any]:
    return symmem.spawn(rank_and_args, 2, (group.rank,), timeout=30)


def fork_and_leave(group: symmem.Group) -> str:
    if (child := os.fork()) == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    group.barrier()
    return "fine"


def test_a_forked_child_is_not_the_rank(processes: Any) -> None:
    assert processes(fork_and_leave, 2) == ["fine", "fine"]


def hang_on_1(group: symmem.Group) -> int:
    time.sleep(60 * (group.rank == 1))
    raise ValueError("at once")


@pytest.mark.parametrize("threads", [False, True])
def test_ranks_that_did_not_end_are_returned_as_timeouts(threads: bool) -> None:
    found = symmem.spawn(hang_on_1, 2, threads=threads, timeout=5, return_exceptions=True)
    assert isinstance(found[0], symmem.Spawned) and isinstance(found[1], symmem.Timeout)
    assert found[1].missing == [1]


def test_results_come_in_rank_order(run: Any) -> None:
    assert run(rank_and_args, 3, "a", 1) == [(0, 3, "a", 1), (1, 3, "a", 1), (2, 3, "a", 1)]


def test_one_rank_is_enough(run: Any) -> None:
    assert run(rank_and_args, 1) == [(0, 1)]


def test_no_rank_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        symmem.spawn(rank_and_args, 0)


def test_the_group_is_the_current_one(run: Any) -> None:
    assert run(current, 2) == [True, True]


def test_processes_are_processes_and_threads_are_threads(processes: Any, threads: Any) -> None:
    assert os.getpid() not in processes(pid, 2)
    assert threads(pid, 2) == [os.getpid()] * 2


def test_lambdas_and_closures_travel_by_value(processes: Any) -> None:
    pytest.importorskip("cloudpickle")
    offset = 10
    assert processes(lambda group, x: group.rank * x + offset, 2, 3) == [10, 13]


def test_without_cloudpickle_a_lambda_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="install cloudpickle, or pass threads=True"):
        symmem.spawn(lambda group: 1, 2)


def test_the_failing_rank_is_named_with_its_traceback(run: Any) -> None:
    with pytest.raises(symmem.Spawned, match="rank 1 failed: ValueError: rank one is unwell") as caught:
        run(fail_on_1, 3)
    assert caught.value.rank == 1
    assert "in fail_on_1" in caught.value.traceback
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("how, words", [("kill", "killed by SIGKILL"), ("exit", "exited with status 7")])
def test_a_dead_rank_is_named(how: str, words: str, processes: Any) -> None:
    with pytest.raises(symmem.Spawned, match=f"rank 1 failed: it (was )?{words}") as caught:
        processes(die_on_1, 2, how)
    assert caught.value.rank == 1


def test_exceptions_can_be_returned_and_nobody_is_ended() -> None:
    found = symmem.spawn(die_on_1, 3, ("kill",), return_exceptions=True, timeout=30)
    assert isinstance(found[1], symmem.Spawned)
    assert {found[0], found[2]} <= {"PeerLost", "GroupFailed"}


def test_sys_exit_is_a_failure(processes: Any) -> None:
    with pytest.raises(symmem.Spawned, match="SystemExit"):
        processes(leave_early, 2)


@pytest.mark.parametrize("threads", [False, True])
def test_the_timeout_bounds_everything(threads: bool) -> None:
    start = time.monotonic()
    with pytest.raises(symmem.Timeout, match=r"ranks \[1\] did not end") as caught:
        # Long enough for rank 0 to start and end on a busy machine.
        symmem.spawn(sleep_on_1, 2, threads=threads, timeout=6)
    assert time.monotonic() - start < 20
    assert caught.value.missing == [1]


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_the_others_are_ended(tmp_path: Path, processes: Any) -> None:
    with pytest.raises(symmem.Spawned, match="enough"):
        processes(leave_a_pid_and_fail, 3, str(tmp_path))
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)


def test_the_environment_is_as_torchrun_sets_it(processes: Any) -> None:
    assert processes(variable, 2, "RANK") == ["0", "1"]
    assert processes(variable, 2, "WORLD_SIZE") == ["2", "2"]


def test_env_adds_to_the_environment() -> None:
    assert symmem.spawn(variable, 1, ("COLOUR",), env={"COLOUR": "blue"}, timeout=30) == ["blue"]
    with pytest.raises(ValueError, match="env= needs processes"):
        symmem.spawn(variable, 1, ("COLOUR",), env={"COLOUR": "blue"}, threads=True)


def test_a_result_that_cannot_travel_is_an_error(processes: Any) -> None:
    with pytest.raises(symmem.Spawned, match="(?i)pickle"):
        processes(unpicklable, 1)


def test_results_may_be_larger_than_a_pipe(processes: Any) -> None:
    found = processes(large, 2, 3_000_000)
    assert [(len(result), result[0]) for result in found] == [(3_000_000, 0), (3_000_000, 1)]


def test_a_rank_may_spawn(processes: Any) -> None:
    assert processes(spawn_again, 2) == [[(0, 2, 0), (1, 2, 0)], [(0, 2, 1), (1, 2, 1)]]


NESTED = """
import symmem
class Point:
    def __init__(self, *at): self.at = at
def inner(group, point):
    with group:
        return Point(*point.at, group.rank, group.all_gather_object(group.rank))
def outer(group, threads):
    found = symmem.spawn(inner, 2, (Point(group.rank),), threads=threads, timeout=30)
    group.barrier()
    return found
def by_value(group):
    return symmem.spawn(lambda group, point: inner(group, point), 2, (Point(group.rank),), timeout=30)
def thrice(group):
    return symmem.spawn(outer, 1, (False,), timeout=30)[0]
def fails(group):
    symmem.spawn(lacks, 1, timeout=30)
def lacks(group):
    return {}["missing"]
if __name__ == "__main__":
    expected = [[(rank, inner, [0, 1]) for inner in range(2)] for rank in range(2)]
    def at(found): return [[point.at for point in points] for points in found]
    for outer_threads, inner_threads in [(False, False), (False, True), (True, False), (True, True)]:
        found = symmem.spawn(outer, 2, (inner_threads,), threads=outer_threads, timeout=60)
        assert at(found) == expected, at(found)
    assert at(symmem.spawn(by_value, 2, timeout=60)) == expected
    assert at(symmem.spawn(thrice, 2, timeout=60)) == [expected[0]] * 2
    try:
        symmem.spawn(fails, 1, timeout=60)
    except symmem.Spawned as error:
        assert "in lacks" in error.traceback and "KeyError: 'missing'" in error.traceback, error.traceback
    print("all")
"""


def test_ranks_of_ranks_find_what_the_script_defines(script: Any) -> None:
    pytest.importorskip("cloudpickle")
    done = script(NESTED)
    assert (done.stdout, done.stderr) == ("all\n", "")


def test_ranks_of_ranks_find_what_the_main_module_defines(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    (tmp_path / "the_program.py").write_text(NESTED)
    done = subprocess.run(
        [sys.executable, "-m", "the_program"], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("all\n", "")


def test_a_session_without_a_file_may_nest_too(script: Any) -> None:
    pytest.importorskip("cloudpickle")
    text = (
        "import symmem\ndef inner(group, x): return x + group.rank\n"
        "def outer(group): return symmem.spawn(inner, 2, (10 * group.rank,), timeout=30)\n"
        "print(symmem.spawn(outer, 2, timeout=30))\n"
    )
    done = script(text, stdin=True)
    assert (done.stdout, done.stderr) == ("[[0, 1], [10, 11]]\n", "")


def write_lines(group: symmem.Group, count: int) -> None:
    for number in range(count):
        # In parts, and past Python's own streams too.
        print("line", number, end="", flush=True)
        print(" of", count)
        os.write(2, b"problem \xff\n")
    print("no end", end="")


def test_lines_of_ranks_are_whole_and_have_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    symmem.spawn(write_lines, 3, (200,), prefix=True, timeout=60)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    for rank in range(3):
        own = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [*(f"line {number} of 200" for number in range(200)), "no end"]
    assert len(lines) == 3 * 201
    assert sorted(err.splitlines()) == sorted(f"[rank {rank}] problem \\xff" for rank in range(3) for _ in range(200))


def print_and_fail(group: symmem.Group) -> None:
    print("before")
    fail_on_1(group)


def test_what_a_failing_rank_printed_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(symmem.Spawned, match="unwell"):
        symmem.spawn(print_and_fail, 2, prefix=True, timeout=60)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] before", "[rank 1] before"]


def keep_the_pipe(_: symmem.Group) -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def test_who_keeps_the_output_open_keeps_nobody_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    (sleeper,) = symmem.spawn(keep_the_pipe, 1, prefix=True, timeout=60)
    os.kill(sleeper, signal.SIGKILL)
    assert time.monotonic() - start < 30
    assert capsys.readouterr().out == ""


def test_threads_have_no_output_of_their_own() -> None:
    with pytest.raises(ValueError, match="prefix= needs processes"):
        symmem.spawn(rank_and_args, 2, threads=True, prefix=True)


GUARDED = """
import symmem
class Point:
    def __init__(self, x): self.x = x
def f(group, point): return Point(point.x + group.rank)
if __name__ == "__main__":
    print([point.x for point in symmem.spawn(f, 2, (Point(5),), timeout=30)])
"""


def test_scripts_may_define_what_travels(script: Any) -> None:
    done = script(GUARDED)
    assert (done.stdout, done.stderr) == ("[5, 6]\n", "")


def test_a_module_may_be_the_script(tmp_path: Path) -> None:
    (tmp_path / "the_program.py").write_text(GUARDED)
    done = subprocess.run(
        [sys.executable, "-m", "the_program"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("[5, 6]\n", "")


def test_a_session_without_a_file_works_too(script: Any) -> None:
    text = "import symmem\ndef f(group): return group.rank\nprint(symmem.spawn(f, 2, timeout=30))\n"
    assert script(text, stdin=True).stdout == "[0, 1]\n"


def test_a_session_without_cloudpickle_gets_threads(script: Any) -> None:
    text = (
        "import sys; sys.modules['cloudpickle'] = None\nimport os, symmem\n"
        "def f(group): return os.getpid()\n"
        + "print(symmem.spawn(f, 2, timeout=30) == [os.getpid()] * 2)\n" * 2
    )
    done = script(text, stdin=True)
    assert done.stdout == "True\nTrue\n"
    assert done.stderr.count("the ranks are threads of this process") == 1
    assert done.stderr.count("install cloudpickle") == 1


def test_a_missing_guard_is_one_clear_error(script: Any) -> None:
    start = time.monotonic()
    done = script("import symmem\ndef f(group): return 1\nsymmem.spawn(f, 3)\n")
    assert time.monotonic() - start < 20
    assert done.returncode == 1
    assert done.stderr.count('if __name__ == "__main__":') == 1
    assert "symmem.spawn was called while a rank imported the main script" in done.stderr
    assert "program.py" in done.stderr


WAITING = """
import os, time, symmem
def tell():
    os.write(1, b"%d\\n" % os.getpid())  # at once: lines of several processes must not mix
def f(group):
    tell()
    {wait}
if __name__ == "__main__":
    tell()
    symmem.spawn(f, 2, timeout=60)
"""


@pytest.mark.parametrize("wait", ["time.sleep(60)", "group.barrier() if group.rank else time.sleep(60)"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_their_launcher(number: signal.Signals, wait: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(WAITING.format(wait=wait))
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        try:
            pids = [int(launcher.stdout.readline()) for _ in range(3)]
            launcher.send_signal(number)
            start = time.monotonic()
            launcher.wait(30)
            assert all(gone(pid) for pid in pids)
            assert time.monotonic() - start < 10
            if number == signal.SIGINT:
                assert "KeyboardInterrupt" in launcher.stderr.read()
        finally:
            launcher.kill()


def where_the_store_listens(group: symmem.Group) -> list[str]:
    port = f":{int(os.environ['MASTER_PORT']):04X}"
    tables = [Path(name).read_text().splitlines()[1:] for name in ("/proc/net/tcp", "/proc/net/tcp6")]
    fields = [line.split() for table in tables for line in table]
    listening = [local for _, local, _, state, *_ in fields if state == "0A"]
    return [local.removesuffix(port) for local in listening if local.endswith(port)]


def test_the_store_is_on_loopback_only_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMEM_STORE_BIND", "*")
    assert symmem.spawn(where_the_store_listens, 1, timeout=30) == [["0100007F"]]


def pipes_of_a_started_program(group: symmem.Group) -> list[str]:
    command = ["sh", "-c", "ls -l /proc/$$/fd"]
    listed = subprocess.run(command, capture_output=True, text=True, close_fds=False, check=True)
    own = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    return [name for name in own if name.startswith("pipe:") and name in listed.stdout]


def test_what_a_rank_starts_does_not_inherit_the_pipe_of_its_report() -> None:
    # Pipes of this process are handed down from outside, whatever they are.
    outside = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}
    (found,) = symmem.spawn(pipes_of_a_started_program, 1, timeout=30)
    assert not set(found) - outside
