"""`symmem.nccl` without a GPU: its checks one by one, and its collectives on the fake driver and the fake NCCL.

    python test_nccl.py CASE      # what a test runs in a process of its own, where the fakes stand in
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "gpu"))

import fake  # noqa: E402

import symmem  # noqa: E402
from symmem import nccl  # noqa: E402

NAME = "libsymmem_fakenccl.so"
LIMIT = 60.0
#: Positions in `symmem-fakenccl/src/control.rs`.
COMMUNICATORS, VIOLATIONS = 0, 3


# ------------------------------------------------------------------------------------------------------ the fakes


def fake_nccl() -> Path | None:
    """The newest fake NCCL that cargo has built, or what `SYMMEM_FAKENCCL` names."""
    named = os.environ.get("SYMMEM_FAKENCCL")
    if named:
        return Path(named) if Path(named).is_file() else None
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target"))
    found = [path for kind in ("debug", "release") for path in target.glob(f"{kind}/**/{NAME}")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def run(case: str, devices: int = 2, **variables: str) -> Any:
    """Runs a function of this file in a process with the fakes; what it returned."""
    return json.loads(run_script(["test_nccl.py", case], devices, **variables).splitlines()[-1])


def run_script(command: list[str], devices: int, **variables: str) -> str:
    """Runs a program beside this one in a process with the fakes; what it printed."""
    path = fake_nccl()
    if path is None:
        pytest.skip(f"there is no {NAME}. Hint: cargo build -p symmem-fakenccl")
    with tempfile.TemporaryDirectory(prefix="symmem-fake-nccl-") as folder:
        named = {"SYMMEM_NCCL_LIBRARY": str(path), **variables}
        environment = {**os.environ, **fake.environment(folder, devices), **named}
        command = [sys.executable, *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def control(name: str, result: Any) -> Any:
    function = ctypes.CDLL(os.environ["SYMMEM_NCCL_LIBRARY"])[name]
    function.restype = result
    return function


def log() -> list[str]:
    """The calls of NCCL since the last time."""
    return str(control("fakenccl_log", ctypes.c_char_p)().decode()).splitlines()


def live(kind: int) -> int:
    return int(control("fakenccl_live", ctypes.c_int64)(ctypes.c_uint32(kind)))


def fail(at: int) -> None:
    control("fakenccl_fail", None)(ctypes.c_uint64(at))


# ----------------------------------------------------------------------------------------------------- the arrays


def array(device: int, count: int = 4, dtype: str = "float32", fill: float | None = None) -> Any:
    x = symmem.empty(count, dtype=dtype, device=f"cuda:{device}")
    if fill is not None:
        elements(x)[:] = np.asarray(fill).astype(x.dtype)
    return x


def elements(x: Any) -> Any:
    """The elements of an array on a fake device, whose memory is the host's."""
    memory = (ctypes.c_uint8 * x.nbytes).from_address(x.data_ptr())
    return np.frombuffer(memory, dtype=x.dtype)


class OnDevice:
    """What has nothing but `__cuda_array_interface__`, as libraries have it that this one does not know."""

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.id = ordinal

    def __init__(self, x: Any, **changed: Any) -> None:
        self.x = x
        self.device = self.Device(int(x.device.split(":")[1]))
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changed}


class ByDlpack:
    """What has nothing but DLPack, of today."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


# ------------------------------------------------------------------------------------------- the checks, one by one

RUNTIME, TYPE, VALUE = "RuntimeError", "TypeError", "ValueError"
Check = tuple[str, str, Callable[[], Any]]


def strided(device: int) -> OnDevice:
    return OnDevice(array(device, 8), shape=(4,), strides=(8,))


def both(**options: Any) -> list[Any]:
    return [array(0, **options), array(1, **options)]


def checks() -> dict[str, Check]:
    """By what is wrong: the class, the beginning of the text, and the call."""
    comm = nccl.init_rank(1, nccl.unique_id(), 0)
    other = nccl.init_rank(1, nccl.unique_id(), 0, device="cuda:1")
    a, b = both()
    bare = "Inputs should be a collection of tensors"
    dense = "input and output elements have to be cuda dense Tensors"
    length = "inputs and outputs sequences have to be of the same length, but got input of length"
    size = "output must be of size input_size * size_multiplier"
    streams = "number of streams is not equal to number of inputs"
    comms = "number of communicators is not equal to number of inputs"
    return {
        "all_reduce of a bare array": (TYPE, bare, lambda: nccl.all_reduce(a)),
        "all_reduce to a bare array": (TYPE, bare, lambda: nccl.all_reduce([a], a)),
        "all_reduce of a bare host array": (TYPE, bare, lambda: nccl.all_reduce(np.zeros(3))),
        "reduce of a bare array": (TYPE, bare, lambda: nccl.reduce(a)),
        "broadcast of a bare array": (TYPE, bare, lambda: nccl.broadcast(a)),
        "all_gather of a bare array": (TYPE, bare, lambda: nccl.all_gather(a, a)),
        "all_gather to a bare array": (TYPE, bare, lambda: nccl.all_gather([a], a)),
        "reduce_scatter of a bare array": (TYPE, bare, lambda: nccl.reduce_scatter(a, a)),
        "reduce_scatter to a bare array": (TYPE, bare, lambda: nccl.reduce_scatter([a], a)),
        "a number": (TYPE, bare, lambda: nccl.broadcast(7)),  # type: ignore[arg-type]
        "a generator": (TYPE, bare, lambda: nccl.broadcast(x for x in [a])),  # type: ignore[arg-type]
        "a list of something else": (TYPE, "expected Tensor at 1 (got object)", lambda: nccl.broadcast([a, object()])),
        "all_reduce of nothing": (RUNTIME, "input sequence can't be empty", lambda: nccl.all_reduce([])),
        "all_gather of nothing": (RUNTIME, "input sequence can't be empty", lambda: nccl.all_gather([], [])),
        "reduce_scatter of nothing": (RUNTIME, "input sequence can't be empty", lambda: nccl.reduce_scatter([], [])),
        "broadcast of nothing": (RUNTIME, "invalid root", lambda: nccl.broadcast([])),
        "more outputs": (RUNTIME, f"{length} 1 and output of length 2", lambda: nccl.all_reduce([a], [a, b])),
        "fewer outputs": (RUNTIME, f"{length} 2 and output of length 1", lambda: nccl.all_gather([a, b], [a])),
        "an input on the host": (RUNTIME, dense, lambda: nccl.all_reduce([np.zeros(4, "f4")])),
        "an output on the host": (RUNTIME, dense, lambda: nccl.all_reduce([a], [np.zeros(4, "f4")])),
        "the host is named": (
            RUNTIME, f"{dense}: NCCL only supports CUDA tensors, but got a tensor on cpu",
            lambda: nccl.broadcast([np.zeros(4, "f4")]),
        ),
        "inputs of two types": (
            RUNTIME, "all inputs and outputs must be of the same Tensor dtype",
            lambda: nccl.broadcast([a, array(1, dtype="int32")]),
        ),
        "an output of another type": (
            RUNTIME, "all inputs and outputs must be of the same Tensor dtype",
            lambda: nccl.all_reduce([a], [array(0, dtype="int32")]),
        ),
        "a strided input": (
            RUNTIME, "all inputs and outputs have to be contiguous", lambda: nccl.all_reduce([strided(0)]),
        ),
        "a strided output": (
            RUNTIME, "all inputs and outputs have to be contiguous", lambda: nccl.all_reduce([a], [strided(0)]),
        ),
        "inputs of two sizes": (
            RUNTIME, "all inputs must have the same number of elements", lambda: nccl.broadcast([a, array(1, 5)]),
        ),
        "an output on another device": (
            RUNTIME, "input and output must be on the same device", lambda: nccl.all_reduce([a], [b]),
        ),
        "two inputs on a device": (
            RUNTIME, "inputs must be on unique devices", lambda: nccl.all_reduce([a, array(0)]),
        ),
        "all_reduce to another size": (RUNTIME, size, lambda: nccl.all_reduce([a], [array(0, 5)])),
        "all_gather to the size of one": (RUNTIME, size, lambda: nccl.all_gather([a, b], both())),
        "reduce_scatter to the size of all": (RUNTIME, size, lambda: nccl.reduce_scatter([a, b], both())),
        "reduce to another size": (RUNTIME, size, lambda: nccl.reduce([a, b], array(0, 5))),
        "reduce to another device": (
            RUNTIME, "input and output must be on the same device", lambda: nccl.reduce([a, b], b),
        ),
        "a root below": (RUNTIME, "invalid root", lambda: nccl.broadcast([a, b], -1)),
        "a root above": (RUNTIME, "invalid root", lambda: nccl.broadcast([a, b], 2)),
        "reduce to a root above": (RUNTIME, "invalid root", lambda: nccl.reduce([a, b], a, 2)),
        "reduce in place at a root above": (RUNTIME, "invalid root", lambda: nccl.reduce([a, b], root=2)),
        "reduce to a root below": (RUNTIME, "invalid root", lambda: nccl.reduce([a, b], root=-1)),
        "reduce of nothing": (RUNTIME, "invalid root", lambda: nccl.reduce([])),
        "output and outputs": (
            VALUE, "'output' and 'outputs' can not be both specified.", lambda: nccl.reduce([a], a, outputs=[a]),
        ),
        "too few streams": (RUNTIME, streams, lambda: nccl.all_reduce([a, b], streams=[None])),
        "too many streams": (RUNTIME, streams, lambda: nccl.broadcast([a], streams=[None, 0])),
        "streams that are none": (
            RUNTIME, "streams have to be a sequence", lambda: nccl.broadcast([a], streams=3),  # type: ignore[arg-type]
        ),
        "a stream that is none": (TYPE, "stream must be None, an int", lambda: nccl.broadcast([a], streams=["x"])),
        "one communicator for two": (RUNTIME, comms, lambda: nccl.all_reduce([a, b], comms=comm)),
        "two communicators for one": (RUNTIME, comms, lambda: nccl.all_reduce([a], comms=[comm, other])),
        "no communicators for one": (RUNTIME, comms, lambda: nccl.all_reduce([a], comms=[])),
        "a number for a communicator": (
            TYPE, "comm is not a sequence", lambda: nccl.all_reduce([a], comms=3),  # type: ignore[arg-type]
        ),
        "a list of no communicators": (
            TYPE, "expected Communicator at 0 (got int)",
            lambda: nccl.all_reduce([a], comms=[3]),  # type: ignore[list-item]
        ),
        "one rank twice": (
            RUNTIME, "the communicators are not different ranks of one set",
            lambda: nccl.all_reduce([a, b], comms=[comm, other]),
        ),
        "a communicator elsewhere": (
            RUNTIME, "communicator 0 is on cuda:0, and its input on cuda:1", lambda: nccl.all_reduce([b], comms=comm),
        ),
        "an output that is read-only": (
            RUNTIME, "an output is read-only",
            lambda: nccl.all_reduce([a], [OnDevice(a, data=(a.data_ptr(), True))]),
        ),
        "int16": (RUNTIME, "Unconvertible NCCL type int16", lambda: nccl.all_reduce([array(0, dtype="int16")])),
        "uint16": (RUNTIME, "Unconvertible NCCL type uint16", lambda: nccl.broadcast([array(0, dtype="uint16")])),
        "uint32": (RUNTIME, "Unconvertible NCCL type uint32", lambda: nccl.all_reduce([array(0, dtype="uint32")])),
        "uint64": (RUNTIME, "Unconvertible NCCL type uint64", lambda: nccl.all_reduce([array(0, dtype="uint64")])),
        "complex64": (RUNTIME, "Unconvertible NCCL type complex64", lambda: nccl.all_reduce([np.zeros(2, "c8")])),
        "a short id": (
            RUNTIME, "invalid unqiue_id (expected 128 bytes, got 3)", lambda: nccl.init_rank(1, b"abc", 0),
        ),
        "a rank too many": (RUNTIME, "ncclCommInitRankConfig", lambda: nccl.init_rank(1, nccl.unique_id(), 1)),
        "a rank below": (RUNTIME, "there is no rank -1 of 1", lambda: nccl.init_rank(1, nccl.unique_id(), -1)),
        "a rank on the host": (
            RUNTIME, "NCCL only supports CUDA devices", lambda: nccl.init_rank(1, nccl.unique_id(), 0, device="cpu"),
        ),
        "no time": (VALUE, "timeout", lambda: nccl.init_rank(1, nccl.unique_id(), 0, timeout=-1.0)),
        "an operation that NCCL does not have": (RUNTIME, "ncclGroupEnd: invalid argument", lambda: nccl.all_reduce([a], op=9)),
    }  # fmt: skip


NAMES = """
all_reduce of a bare array; all_reduce to a bare array; all_reduce of a bare host array; reduce of a bare array;
broadcast of a bare array; all_gather of a bare array; all_gather to a bare array; reduce_scatter of a bare array;
reduce_scatter to a bare array; a number; a generator; a list of something else; all_reduce of nothing;
all_gather of nothing; reduce_scatter of nothing; broadcast of nothing; more outputs; fewer outputs;
an input on the host; an output on the host; the host is named; inputs of two types;
an output of another type; a strided input; a strided output; inputs of two sizes; an output on another device;
two inputs on a device; all_reduce to another size; all_gather to the size of one; reduce_scatter to the size of all;
reduce to another size; reduce to another device; a root below; a root above; reduce to a root above;
reduce in place at a root above; reduce to a root below; reduce of nothing; output and outputs; too few streams;
too many streams; streams that are none; a stream that is none; one communicator for two; two communicators for one;
no communicators for one; a number for a communicator; a list of no communicators; one rank twice;
a communicator elsewhere; an output that is read-only; int16; uint16; uint32; uint64; complex64; a short id;
a rank too many; a rank below; a rank on the host; no time; an operation that NCCL does not have
"""
CHECKS = [" ".join(name.split()) for name in NAMES.split(";")]


def case_checks() -> dict[str, list[str]]:
    """Class names and text of what every check raised, and NCCL's calls by then."""
    kinds: dict[str, type[BaseException]] = {RUNTIME: RuntimeError, TYPE: TypeError, VALUE: ValueError}
    outcomes = {}
    table = checks()
    assert sorted(table) == sorted(CHECKS)
    for name, (kind, text, call) in table.items():
        log()
        try:
            call()
        except kinds[kind] as error:
            right = str(error).startswith(text)
            began = [line for line in log() if line.startswith("ncclAll")] if "NCCL does not" not in name else []
            outcomes[name] = ["passed" if right and not began else "failed", f"{error} {began}"]
        except Exception as error:
            outcomes[name] = ["failed", repr(error)]
        else:
            outcomes[name] = ["failed", "nothing was raised"]
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> Any:
    return run("case_checks")


@pytest.mark.parametrize("name", CHECKS)
def test_an_argument_is_refused_in_the_words_of_torch(name: str, outcomes: Any) -> None:
    outcome, words = outcomes[name]
    assert outcome == "passed", words


# ------------------------------------------------------------------------------------------------- the collectives

DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "int8", "uint8"]


def same(x: Any, expected: Any) -> None:
    found = elements(x).astype("f8").tolist()
    assert found == list(expected), f"{found} is not {expected}"


def case_collectives() -> int:
    """One process, all its devices: every collective in every type."""
    count = symmem._symmem._cuda_device_count()
    total = sum(range(1, count + 1))
    for dtype in DTYPES:

        def new(size: int = 4, dtype: str = dtype) -> list[Any]:
            return [array(device, size, dtype, device + 1) for device in range(count)]

        x = new()
        nccl.all_reduce(x)
        for each in x:
            same(each, [total] * 4)
        x, out = new(), new()
        nccl.all_reduce(tuple(x), out, nccl.MAX)
        for device in range(count):
            same(x[device], [device + 1] * 4)
            same(out[device], [count] * 4)
        for root in range(count):
            x = new()
            nccl.broadcast(x, root)
            for each in x:
                same(each, [root + 1] * 4)
            x, one = new(), array(root, 4, dtype)
            nccl.reduce(x, one, root)
            same(one, [total] * 4)
            same(x[root], [root + 1] * 4)
            nccl.reduce(x, root=root)
            same(x[root], [total] * 4)
        x, out = new(), new(4 * count)
        nccl.all_gather(x, out)
        for each in out:
            same(each, [device + 1 for device in range(count) for _ in range(4)])
        x, out = new(4 * count), new()
        nccl.reduce_scatter(x, out, nccl.SUM, [None] * count)
        for each in out:
            same(each, [total] * 4)
    assert live(VIOLATIONS) == 0
    return count


def case_arrays() -> None:
    """Arrays of other libraries; collections of all kinds; empty arrays; streams; the deprecated forms."""
    for kind in (OnDevice, ByDlpack):
        a, b = array(0, fill=1), array(1, fill=2)
        nccl.all_reduce([kind(a), kind(b)])
        same(a, [3] * 4)
        same(b, [3] * 4)
    a, b = array(0, fill=1), array(1, fill=2)
    nccl.all_reduce({OnDevice(a), OnDevice(b)}, op=nccl.PROD, streams=[None, 0])
    same(b, [2] * 4)
    nccl.all_reduce(both(count=0))
    for dtype in ("bool", "float8_e4m3fn", "float8_e5m2"):
        # As in torch: such types are bytes, so that they can be moved.
        a, b = both(dtype=dtype)
        elements(a).view("u1")[:] = 1
        nccl.broadcast([a, b])
        assert elements(b).view("u1").tolist() == [1] * 4
    a, b = array(0, fill=1), array(1, fill=2)
    for arguments in ("output", "outputs"):
        out = array(1)
        given: dict[str, Any] = {arguments: [None, out]}
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            nccl.reduce([a, b], root=1, **given)
        assert [warning.category for warning in seen] == [FutureWarning] and __file__ in seen[0].filename
        same(out, [3] * 4)
    assert nccl.is_available([a, b]) and nccl.is_available(x for x in [a])
    for wrong in ([a, array(0)], [np.zeros(3, "f4")], [strided(0)]):
        assert not nccl.is_available(wrong)


def case_cache() -> None:
    """Communicators are made once for a list of devices, in its order; a call is one group; one failed call is one."""
    a, b = both()
    log()
    for _ in range(3):
        nccl.all_reduce([a, b])
    lines = log()
    assert lines.count("ncclCommInitRankConfig") == 2 and live(COMMUNICATORS) == 2, lines
    assert lines[-4:] == ["ncclGroupStart", "ncclAllReduce", "ncclAllReduce", "ncclGroupEnd"], lines
    nccl.broadcast([b, a])
    assert log().count("ncclCommInitRankConfig") == 2 and live(COMMUNICATORS) == 4
    nccl.all_reduce([a])
    assert live(COMMUNICATORS) == 5

    fail(2)
    with pytest.raises(symmem.LibraryFailed, match="ncclAllReduce: internal error") as caught:
        nccl.all_reduce([a, b])
    assert caught.value.code == 3 and caught.value.library == "NCCL"
    nccl.all_reduce([a, b])
    assert live(VIOLATIONS) == 0

    elements(a)[:], elements(b)[:] = 1, 1
    threads = [threading.Thread(target=lambda: nccl.all_reduce([a, b], op=nccl.MAX)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    same(b, [1] * 4)


def ranks(world: int, work: Callable[[int, nccl.Communicator], None]) -> None:
    """`work` as ranks that are threads, each with a communicator that it made itself."""
    uid, problems = nccl.unique_id(), []

    def one(rank: int) -> None:
        try:
            work(rank, nccl.init_rank(world, uid, rank, device=f"cuda:{rank}", timeout=20.0))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    if problems:
        raise problems[0]


def collectives(rank: int, comm: nccl.Communicator) -> None:
    """Every collective of one array per call: the communicator's ranks count."""
    world, total = comm.size, sum(range(1, comm.size + 1))
    assert (comm.rank, comm.device) == (rank, f"cuda:{rank}") and "ended" not in repr(comm)

    def new(size: int = 4) -> Any:
        return array(rank, size, fill=rank + 1)

    x = new()
    nccl.all_reduce([x], comms=comm)
    same(x, [total] * 4)
    for root in range(world):
        x = new()
        nccl.broadcast([x], root, comms=[comm])
        same(x, [root + 1] * 4)
        x, out = new(), array(rank)
        nccl.reduce([x], out, root, comms=comm)
        same(out, [total if rank == root else 0] * 4)
        nccl.reduce([x], root=root, comms=comm)
        same(x, [total if rank == root else rank + 1] * 4)
    x, out = new(), new(4 * world)
    # What the reference would take, and write behind.
    with pytest.raises(RuntimeError, match="output must be of size"):
        nccl.all_gather([x], [new()], comms=comm)
    nccl.all_gather([x], [out], comms=comm)
    same(out, [peer + 1 for peer in range(world) for _ in range(4)])
    x, out = new(4 * world), new()
    with pytest.raises(RuntimeError, match="output must be of size"):
        nccl.reduce_scatter([x], [new(4 * world)], comms=comm)
    nccl.reduce_scatter([x], [out], comms=comm)
    same(out, [total] * 4)


def case_ranks() -> None:
    """Communicators of the caller's; forgotten ones stay, and are ended by name."""
    ranks(2, collectives)
    gc.collect()
    assert live(COMMUNICATORS) == 2

    def finish(rank: int, comm: nccl.Communicator) -> None:
        comm.finish(10.0)
        assert "ended" in repr(comm)
        with pytest.raises(symmem.Closed):
            nccl.broadcast([array(rank)], comms=comm)

    ranks(2, finish)
    assert live(COMMUNICATORS) == 2
    comm = nccl.init_rank(1, nccl.unique_id(), 0)
    comm.abort()
    comm.abort()
    del comm
    assert live(COMMUNICATORS) == 2 and live(VIOLATIONS) == 0

    late = nccl.unique_id()
    with pytest.raises(symmem.LibraryFailed, match="not done after 20"):
        nccl.init_rank(2, late, 0, timeout=0.2)


def case_torch() -> None:
    """Tensors of torch that NCCL does not take; one that is on a device needs a real one."""
    import torch

    dense = "input and output elements have to be cuda dense Tensors"
    for wrong in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.eye(2)):
        with pytest.raises(RuntimeError, match=dense):
            nccl.all_reduce([wrong])
        with pytest.raises(TypeError, match="Inputs should be a collection of tensors"):
            nccl.all_reduce(wrong)
        assert not nccl.is_available([wrong])
    with pytest.raises(RuntimeError, match="Unconvertible NCCL type torch.complex64"):
        nccl.all_reduce([torch.zeros(2, dtype=torch.complex64)])
    # Of a type that symmem does not have, and torch moves as bytes: refused for where it is, not for what.
    with pytest.raises(RuntimeError, match=dense):
        nccl.all_reduce([torch.zeros(2, dtype=torch.float8_e4m3fnuz)])


def case_library() -> list[Any]:
    path, why, version = nccl.library()
    assert nccl.version() == version and len(nccl.unique_id()) == 128 and nccl.unique_id() != nccl.unique_id()
    return [path, why, version]


def case_nothing() -> list[str]:
    """Everything raises the same one error; only `is_available` says no."""
    x = array(0)
    said: list[str] = []
    for call in (
        nccl.library, nccl.version, nccl.unique_id, lambda: nccl.init_rank(1, bytes(128), 0),
        lambda: nccl.all_reduce([x]), lambda: nccl.reduce([x]), lambda: nccl.broadcast([x]),
        lambda: nccl.all_gather([x], [x]), lambda: nccl.reduce_scatter([x], [x]),
    ):  # fmt: skip
        with pytest.raises((symmem.NoLibrary, symmem.LibraryTooOld)) as caught:
            call()
        assert isinstance(caught.value, symmem.Error) and caught.value.library == "NCCL"
        assert isinstance(caught.value, (symmem.NoNccl, symmem.NcclTooOld)), "the older names"
        said.append(f"{caught.type.__name__}: {caught.value}")
    assert len(set(said)) == 1, said
    with pytest.warns(UserWarning) as seen:
        assert not nccl.is_available([x])
    return [said[0], str(seen[0].message)]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_every_collective_of_all_devices_of_a_process(devices: int) -> None:
    pytest.importorskip("ml_dtypes")
    assert run("case_collectives", devices) == devices


def test_arrays_of_other_libraries() -> None:
    pytest.importorskip("ml_dtypes")
    run("case_arrays")


def test_tensors_of_torch() -> None:
    pytest.importorskip("torch")
    run("case_torch")


def test_communicators_are_made_once_for_a_list_of_devices() -> None:
    run("case_cache")


def test_ranks_bring_their_communicators() -> None:
    run("case_ranks")


def test_the_script_for_gpus_is_sound() -> None:
    said = run_script(["gpu/test_nccl_gpu.py", "one_process"], 1)
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) == 28 and lines[-1]["outcome"] == "passed", said


def test_the_library_says_which_it_is() -> None:
    path, why, version = run("case_library", FAKENCCL_VERSION="2.28.9")
    assert (Path(path).name, why, version) == (NAME, "SYMMEM_NCCL_LIBRARY names it", [2, 28, 9])


def test_without_nccl_there_is_one_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "libnccl.so.2"
    said, warned = run("case_nothing", SYMMEM_NCCL_LIBRARY=str(missing))
    assert said.startswith("NoLibrary: NCCL cannot be used: version 2.19.1 or newer") and str(missing) in said
    assert said.endswith(warned)


def test_a_library_that_is_not_nccl_is_told_apart() -> None:
    other = fake.library()
    said, _ = run("case_nothing", SYMMEM_NCCL_LIBRARY=str(other))
    assert "is not NCCL: it has no ncclGetVersion" in said


def test_too_old_an_nccl_is_named_with_the_version_that_will_do() -> None:
    said, warned = run("case_nothing", FAKENCCL_VERSION="2.18.5")
    assert said.startswith("LibraryTooOld: ") and "needs NCCL 2.19.1 or newer" in said and "2.18.5" in said
    assert said.endswith(warned)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
