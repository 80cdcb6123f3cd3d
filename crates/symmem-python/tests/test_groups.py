"""Groups: making them, which is current, parts of them, and what is left after a death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import symmem


def alone(name: str = "default", **options: Any) -> symmem.Group:
    return symmem.Group(symmem.HashStore(), 0, 1, name, **options)


def test_a_group_describes_itself() -> None:
    group = alone("solo", timeout=5)
    assert (group.rank, group.size, group.world_size, group.name) == (0, 1, 1, "solo")
    assert (group.next, group.prev, group.pids, group.failure) == (0, 0, [os.getpid()], None)
    assert group.id and group.id != alone("solo").id
    assert isinstance(group.context, symmem.Context)


def test_without_a_group_there_is_no_current_one() -> None:
    found: list[BaseException] = []

    def ask() -> None:
        try:
            symmem.current_group()
        except RuntimeError as error:
            found.append(error)

    program = "import symmem\ntry: symmem.current_group()\nexcept RuntimeError as e: print(e)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout
    assert "symmem.init()" in said and "symmem.spawn" in said


def test_with_makes_a_group_current_and_closes_it() -> None:
    outer, inner = alone("outer"), alone("inner")
    with outer as entered:
        assert entered is outer and symmem.current_group() is outer
        with inner:
            assert symmem.current_group() is inner
        assert symmem.current_group() is outer
        with outer:
            pass
        outer.barrier()
    with pytest.raises(symmem.Closed):
        outer.barrier()
    with pytest.raises(symmem.Closed):
        inner.barrier()


def test_what_is_current_belongs_to_the_thread() -> None:
    names: list[str] = []

    def other() -> None:
        with alone("theirs"):
            names.append(symmem.current_group().name)

    with alone("mine"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
        names.append(symmem.current_group().name)
    assert names == ["theirs", "mine"]


INIT = """
import os, sys, symmem
group = symmem.init({arguments})
assert symmem.current_group() is group
assert symmem.all_gather_object(group.rank) == [0, 1]
assert group.name == "default"
print("ok")
"""


def launch(program: str, environments: list[dict[str, str]]) -> list[str]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True
        )
        for env in environments
    ]
    try:
        return [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_init_from_the_environment() -> None:
    # A port that was free a moment ago.
    port = str(symmem.TcpStore("127.0.0.1", 0, is_master=True).port)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    assert launch(INIT.format(arguments=""), [{**shared, "RANK": str(rank)} for rank in range(2)]) == ["ok\n"] * 2


def test_init_from_a_store(tmp_path: Path) -> None:
    arguments = f"store=symmem.FileStore({str(tmp_path / 'store')!r}), rank=int(sys.argv[-1]), world_size=2"
    program = INIT.format(arguments=arguments.replace("int(sys.argv[-1])", "int(os.environ['ME'])"))
    assert launch(program, [{"ME": "0"}, {"ME": "1"}]) == ["ok\n"] * 2


def test_init_asks_for_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match="need store="):
        symmem.init(rank=0, world_size=1)
    with pytest.raises(ValueError, match="rank= is missing"):
        symmem.init(store=symmem.HashStore())
    with pytest.raises(symmem.Invalid, match="torchrun"):
        symmem.init()


def halves(group: symmem.Group) -> Any:
    low = group.subgroup([0, 1], "low")
    high = group.subgroup(range(2, 4), "high")
    mine = low or high
    assert mine and bool(low) != bool(high)
    found = mine.all_gather_object(group.rank)
    local = group.local()
    twin = group.clone()
    twin.barrier()
    return found, local.size, mine.rank


def test_subgroups(run: Any) -> None:
    assert run(halves, 4) == [([0, 1], 4, 0), ([0, 1], 4, 1), ([2, 3], 4, 0), ([2, 3], 4, 1)]


def survive(group: symmem.Group) -> Any:
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((symmem.PeerLost, symmem.GroupFailed)) as caught:
        group.barrier()
    assert caught.value.culprit == 1
    failure = group.failure
    assert failure is not None and failure[0] == 1
    rest = group.survivors(20_000)
    rest.barrier()
    return rest.all_gather_object(group.rank)


def test_survivors_go_on() -> None:
    found = symmem.spawn(survive, 3, threads=False, timeout=60, return_exceptions=True)
    assert found[0] == found[2] == [0, 2]
    assert isinstance(found[1], symmem.Spawned)


def abort_on_1(group: symmem.Group) -> str:
    if group.rank == 1:
        group.abort("out of coffee")
    with pytest.raises(symmem.GroupFailed, match="out of coffee") as caught:
        group.barrier()
        group.barrier()
    assert caught.value.culprit == 1
    return "told"


def test_abort_tells_everybody_why(run: Any) -> None:
    assert run(abort_on_1, 2) == ["told", "told"]


def colors(group: symmem.Group) -> Any:
    # Odd ranks backwards, the last one in no part at all.
    last = group.rank == group.size - 1
    part = group.split(None if last else group.rank % 2, key=-group.rank)
    again = symmem.split(7, group=group)
    assert again and (again.rank, again.size) == (group.rank, group.size)
    if not part:
        assert last and isinstance(part, symmem.NonMember) and "color=None" in repr(part)
        return None
    return part.rank, part.all_gather_object(group.rank)


def test_split_makes_one_group_per_color_in_the_order_of_keys(run: Any) -> None:
    assert run(colors, 4) == [(1, [2, 0]), (0, [1]), (0, [2, 0]), None]


def name_in_errors(group: symmem.Group) -> None:
    with pytest.raises(symmem.Timeout) as caught:
        group.recv(None, group.rank, timeout_ms=1)
    assert caught.value.group == group.name == "default"
    assert f"{group.name!r}".replace("'", '"') in repr(group) and f'"{group.name}"' in str(caught.value)


def test_a_group_has_one_name(run: Any) -> None:
    run(name_in_errors, 2)


def test_within_bounds_one_call(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        if group.rank == 0:
            with pytest.raises(symmem.Timeout):
                group.within(0.2).barrier()
        else:
            time.sleep(1)

    threads(main, 2)


def objects(group: symmem.Group) -> Any:
    return group.all_gather_object({"rank": group.rank, "text": "x" * 100_000 * group.rank})


def test_objects_of_any_size(run: Any) -> None:
    found = run(objects, 2)
    assert found[0] == found[1]
    assert [len(one["text"]) for one in found[0]] == [0, 100_000]


def test_contexts_are_the_ranks_own(threads: Any) -> None:
    def main(group: symmem.Group) -> int:
        assert symmem.current_context().signal_pad_size == 9216
        symmem.set_signal_pad_size(1024 * (group.rank + 1))
        group.barrier()
        return symmem.get_signal_pad_size()

    assert threads(main, 2) == [1024, 2048]
