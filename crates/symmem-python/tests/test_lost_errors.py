"""The user's own exception comes through, whatever became of the group; what is closed names the call that was made."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import numpy as np
import pytest

import symmem
from conftest import LIMIT


def in_a_block(group: symmem.Group) -> None:
    with group:
        raise KeyError("missing")


def after_close(group: symmem.Group) -> None:
    group.close()
    raise KeyError("missing")


def in_two_blocks(group: symmem.Group) -> None:
    with group, group.clone():
        raise KeyError("missing")


def on_one_rank(group: symmem.Group) -> None:
    with group:
        if group.rank == 1:
            raise KeyError("missing")
        group.barrier()


def after_abort(group: symmem.Group) -> None:
    group.abort("enough")
    raise KeyError("missing")


PROGRAMS = [in_a_block, after_close, in_two_blocks, on_one_rank, after_abort]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_users_exception_is_raised(program: Any, run: Any) -> None:
    with pytest.raises(symmem.Spawned, match=r"rank \d failed: KeyError: 'missing'") as caught:
        run(program, 2)
    error = caught.value
    assert isinstance(error.__cause__, KeyError) and error.__cause__.args == ("missing",)
    assert error.traceback and f"in {program.__name__}" in error.traceback and "_spawn" not in error.traceback
    assert program is not on_one_rank or error.rank == 1


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_users_exception_is_returned(program: Any, threads: bool) -> None:
    found = symmem.spawn(program, 2, threads=threads, timeout=LIMIT, return_exceptions=True)
    assert isinstance(found[1], symmem.Spawned) and isinstance(found[1].__cause__, KeyError)
    assert "missing" in str(found[1]) and program.__name__ in (found[1].traceback or "")


def use_after_close(group: symmem.Group) -> None:
    group.close()
    group.barrier()


def test_a_use_after_close_names_the_call(run: Any) -> None:
    with pytest.raises(symmem.Spawned, match="failed: symmem.Closed: barrier: ") as caught:
        run(use_after_close, 2)
    assert isinstance(caught.value.__cause__, symmem.Closed) and caught.value.__cause__.op == "barrier"


def test_the_launchers_frames_are_not_shown(run: Any) -> None:
    with pytest.raises(symmem.Spawned) as caught:
        run(in_a_block, 2)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert sum("_spawn" in file for file in files) == 1 and files[-1].endswith("_spawn/__init__.py")
    assert caught.value.__cause__ is not None
    shown = [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]
    assert shown in ([], ["in_a_block"])


@pytest.mark.parametrize("ranks", ["2", 2.0, None, [2]])
def test_a_number_of_ranks_that_is_none_is_a_clear_error(ranks: Any) -> None:
    with pytest.raises(TypeError, match="spawn: ranks must be an int, not "):
        symmem.spawn(in_a_block, ranks=ranks)


#: Arguments of the methods that have some without a default.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_to_all_v": (np.ones(2), [1, 1], np.ones(2), [1, 1]),
    "get": (0, 0, np.ones(2, dtype="float32")),
    "isend": (np.ones(2), 0),
    "put": (0, np.ones(2, dtype="float32")),
    "scatter_object": ([1],),
    "send": (np.ones(2), 0),
    "send_object": (1, 0),
    "sendrecv": (np.ones(2), 0),
    "sendrecv_object": (1, 0),
    "split": (0,),
    "subgroup": ([0],),
}
#: What works on something that is closed: what it was, and its end.
WORKING = {
    symmem.Group: {
        "abort", "close", "closed", "context", "id", "name", "next", "pids", "prev", "rank", "size", "store", "world_size",
        "within", "any_shape", "from_env", "from_torch",
    },
    symmem.SymmetricMemory: {
        "buffer_ptrs", "buffer_ptrs_dev", "buffer_size", "close", "closed", "device", "dtype", "group", "group_name",
        "multicast_ptr", "offset", "rank", "ranks_without_memory", "shape", "signal_pad_ptrs", "signal_pad_ptrs_dev",
        "signal_pad_size", "world_size",
        # There are no such forms, whatever the handle is.
        "gather_start", "scatter_start",
    },
    symmem.Mailbox: {"close"},
}  # fmt: skip
CLASSES = {"Group": symmem.Group, "SymmetricMemory": symmem.SymmetricMemory, "Mailbox": symmem.Mailbox}


def arguments(kind: type, name: str) -> tuple[Any, ...]:
    """What the method can be called with: a rank, a tag or an array for each argument that it must have."""
    if kind is symmem.SymmetricMemory and name == "all_to_all_v":
        return [2], np.ones(2, dtype="float32")
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    method = getattr(kind, name)
    parameters = list(inspect.signature(method).parameters.values())[1:] if callable(method) else []
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    known = {"x": np.ones(2), "counts": [2]}
    return tuple(known.get(one.name, 0) for one in needed)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_method_of_what_is_closed_names_itself(kind: str) -> None:
    group = symmem.Group(symmem.HashStore(), 0, 1)
    mem, mail = symmem.rendezvous(symmem.empty(2, dtype="float32"), group), symmem.Mailbox(group)
    mail.close()
    group.close()
    on: Any = {"Group": group, "SymmetricMemory": mem, "Mailbox": mail}[kind]
    for name in (name for name in dir(CLASSES[kind]) if not name.startswith("_")):
        if name in WORKING[CLASSES[kind]]:
            continue
        with pytest.raises(symmem.Closed) as caught:
            getattr(on, name)(*arguments(CLASSES[kind], name))
        assert caught.value.op == name.removesuffix("_start"), name
        assert str(caught.value).startswith(f"{caught.value.op}: ")


def test_other_calls_on_a_closed_group_name_themselves() -> None:
    group = symmem.Group(symmem.HashStore(), 0, 1)
    mem = symmem.rendezvous(symmem.empty(2), group)
    group.close()
    group.abort("nobody hears it")
    calls = {
        "rendezvous": lambda: symmem.rendezvous(symmem.empty(2), group),
        "Mailbox": lambda: symmem.Mailbox(group),
        "peer": lambda: mem[0],
        "with": group.__enter__,
    }
    for name, call in calls.items():
        with pytest.raises(symmem.Closed) as caught:
            call()
        assert caught.value.op == name


EYE = np.eye(2, dtype="float32")
#: Calls that wait for rank 1, by what the error must call them.
WAITING: dict[str, list[Any]] = {
    "barrier": [lambda group, mem: group.barrier(), lambda group, mem: mem.barrier()],
    "all_reduce": [
        lambda group, mem: group.all_reduce(np.ones(2)),
        lambda group, mem: group.all_reduce(np.ones(2), out=np.ones(2)),
        lambda group, mem: mem.all_reduce(),
        lambda group, mem: mem.all_reduce(out=np.ones(4, dtype="float32")),
    ],
    "reduce": [lambda group, mem: group.reduce(np.ones(2)), lambda group, mem: mem.reduce()],
    "reduce_scatter": [
        lambda group, mem: group.reduce_scatter(np.ones(2)),
        lambda group, mem: mem.reduce_scatter(),
        lambda group, mem: mem.reduce_scatter(split_last_dim=True),
    ],
    "scan": [lambda group, mem: group.scan(np.ones(2)), lambda group, mem: mem.scan()],
    "exclusive_scan": [lambda group, mem: group.exclusive_scan(np.ones(2)), lambda group, mem: mem.exclusive_scan()],
    "all_gather": [lambda group, mem: group.all_gather(np.ones(2)), lambda group, mem: mem.all_gather()],
    "all_gather_v": [
        lambda group, mem: group.all_gather_v(np.ones(2), [2, 2]),
        lambda group, mem: mem.all_gather_v([2, 1]),
    ],
    "gather_v": [
        lambda group, mem: group.gather_v(np.ones(2), [2, 2]),
        lambda group, mem: mem.gather_v([2, 1]),
    ],
    "scatter_v": [
        lambda group, mem: group.scatter_v(None, [2, 2], 1, np.ones(2)),
        lambda group, mem: mem.scatter_v([1, 1], 1),
    ],
    "broadcast": [lambda group, mem: group.broadcast(np.ones(2), 1), lambda group, mem: mem.broadcast(1)],
    "all_to_all": [lambda group, mem: group.all_to_all(np.ones(2)), lambda group, mem: mem.all_to_all()],
    "gather": [lambda group, mem: group.gather(np.ones(2)), lambda group, mem: mem.gather()],
    "scatter": [lambda group, mem: group.scatter(None, 1, np.ones(2)), lambda group, mem: mem.scatter(1)],
    "all_gather_matmul": [lambda group, mem: mem.all_gather_matmul(EYE)],
    "all_gather_columns_matmul": [lambda group, mem: mem.all_gather_columns_matmul(np.ones((4, 2), dtype="float32"))],
    "matmul_reduce_scatter": [lambda group, mem: mem.matmul_reduce_scatter(EYE, EYE)],
    "matmul_reduce_scatter_columns": [lambda group, mem: mem.matmul_reduce_scatter_columns(EYE, EYE)],
    "all_reduce_rms_norm": [lambda group, mem: mem.all_reduce_rms_norm(EYE.copy(), EYE[0])],
    "wait_signal": [lambda group, mem: mem.wait_signal(1)],
    "recv": [lambda group, mem: group.recv(np.ones(1), 1), lambda group, mem: group.recv(src=1)],
    "probe": [lambda group, mem: group.probe()],
    "rendezvous": [lambda group, mem: symmem.rendezvous(symmem.empty(3), group)],
}


def wait_for_1(whole: symmem.Group, op: str) -> None:
    for call in WAITING[op]:
        group = whole.clone()
        mem = symmem.rendezvous(symmem.empty(2, 2, dtype="float32"), group)
        if whole.rank == 0:
            with group.within(0.05), pytest.raises(symmem.Timeout) as caught:
                call(group, mem)
            assert caught.value.op == op and str(caught.value).startswith(f"{op} on group "), str(caught.value)
        whole.barrier()


@pytest.mark.parametrize("op", WAITING)
def test_a_wait_that_ends_names_the_call(op: str, threads: Any) -> None:
    threads(wait_for_1, 2, op)
