"""`x.share()`: one array for processes that are no ranks, by `multiprocessing`, executors, or a fork."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symmem

#: Seconds. Far less than anybody waits for in vain.
AT_ONCE = 5.0

METHODS = ["fork", "spawn", "forkserver"]

#: Workers that got a handle, in every way in which `multiprocessing` and executors hand things over: each adds 1 to an
#: element of its own, and says what it saw.
WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import symmem

def work(task):
    handle, i = task
    y = handle.open()
    y[i] += 1
    return float(y[-1]), y.shape, str(y.dtype)

def set_up(handle):
    global shared
    shared = handle.open()

def work_on_global(i):
    shared[i] += 1
    return float(shared[-1]), shared.shape, str(shared.dtype)

def by_process(context, handle):
    queue = context.SimpleQueue()
    def start(i):
        process = context.Process(target=put, args=(queue, (handle, i)))
        process.start()
        return process
    processes = [start(i) for i in range(4)]
    said = [queue.get() for _ in range(4)]
    [process.join() for process in processes]
    return said

def put(queue, task):
    queue.put(work(task))

def by_pool(context, handle):
    with context.Pool(2, set_up, (handle,)) as pool:
        return pool.map(work_on_global, range(4))

def by_pool_task(context, handle):
    with context.Pool(2) as pool:
        # Handles of their own, which nobody keeps: the array does.
        return pool.map(work, [(x.share(), i) for i in range(4)])

def by_executor(context, handle):
    with ProcessPoolExecutor(2, context, set_up, (handle,)) as pool:
        return list(pool.map(work_on_global, range(4)))

def by_executor_task(context, handle):
    with ProcessPoolExecutor(2, context) as pool:
        return list(pool.map(work, [(handle, i) for i in range(4)]))

WAYS = [by_process, by_pool, by_pool_task, by_executor, by_executor_task]

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else METHOD)
    x = symmem.empty(1 << 16, dtype="float64")
    x[-1] = 42
    handle = x.share()
    for done, way in enumerate(WAYS, 1):
        said = way(context, handle)
        assert said == [(42.0, (1 << 16,), "float64")] * 4, said
        assert x[:5].tolist() == [done] * 4 + [0], (way, x[:5])
    print("shared", len(WAYS))
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_every_kind_share_the_array(method: str, script: Any) -> None:
    done = script(WORKERS.replace("METHOD", repr(method)))
    assert (done.returncode, done.stdout) == (0, "shared 5\n"), done.stderr
    # Nothing to say about leaked resources either.
    assert done.stderr == ""


def worker(pipe: Any) -> None:
    """Does what it is told in another process, until that is nothing."""
    names: dict[str, Any] = {"symmem": symmem, "np": np, "pipe": pipe, "fds": fds, "inode": inode}
    while (told := pipe.recv()) is not None:
        expression, arguments = told
        names.update(arguments)
        try:
            pipe.send((True, eval(expression, names)))
        except BaseException as error:
            pipe.send((False, error))


class Worker:
    """A process of its own that evaluates what it is told."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=worker, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, expression: str, **arguments: Any) -> Any:
        self.pipe.send((expression, arguments))
        assert self.pipe.poll(30), expression
        fine, result = self.pipe.recv()
        if not fine:
            raise result
        return result

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stop(self) -> None:
        """Returns once all its threads have stopped, which takes them a moment."""
        os.kill(self.pid, signal.SIGSTOP)
        started = time.monotonic()
        stats = [path / "stat" for path in Path(f"/proc/{self.pid}/task").iterdir()]
        while any(stat.read_text().rsplit(")", 1)[1].split()[0] != "T" for stat in stats):
            assert time.monotonic() - started < AT_ONCE

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)


@pytest.fixture
def other() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.kill()


@contextmanager
def refused(match: str, within: float = AT_ONCE) -> Iterator[None]:
    started = time.monotonic()
    with pytest.raises(symmem.NotShared, match=match):
        yield
    assert time.monotonic() - started < within


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def inode(address: int) -> str:
    """The file that is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[4]
    raise AssertionError("nothing is mapped there")


def strided() -> Any:
    x = symmem.empty_strided_p2p((3, 4), (1, 3), "int32", "cpu")
    x[:] = np.arange(12).reshape(3, 4)
    return x


def filled(*shape: int, dtype: str = "float32") -> Any:
    x = symmem.empty(*shape, dtype=dtype)
    x[:] = np.arange(x.size).reshape(shape) % 2
    return x


#: What can be shared, with what it is of: views keep their offset, shape, type and strides.
ARRAYS: dict[str, Callable[[], Any]] = {
    "matrix": lambda: filled(3, 5),
    "scalar": lambda: symmem.empty((), dtype="int64"),
    "empty": lambda: symmem.empty(0, 7, dtype="int8"),
    "strided": strided,
    **{
        name: lambda name=name: filled(4, dtype=name)
        for name in ["bool", "uint8", "int16", "float16", "bfloat16", "float8_e4m3fn", "float64"]
    },
}


@pytest.mark.parametrize("name", ARRAYS)
def test_shape_type_and_strides_are_kept(name: str, other: Worker) -> None:
    pytest.importorskip("ml_dtypes")
    x = ARRAYS[name]()
    y = "handle.open()"
    found = other(f"(({y}).shape, ({y}).strides, ({y}).dtype_name, ({y}).tolist())", handle=x.share())
    assert found == (x.shape, x.strides, x.dtype_name, x.tolist())


def test_a_view_of_any_library_is_shared_where_it_is(other: Worker) -> None:
    x = filled(10, 10, dtype="int32")
    assert other("handle.open().tolist()", handle=symmem.share(x[3:5])) == x[3:5].tolist()
    handle = symmem.share(x.numpy().reshape(-1)[7:9].view("uint8"))
    assert (handle.shape, handle.dtype, handle.pid) == ((8,), np.uint8, os.getpid())
    other("handle.open().__setitem__(0, 77)", handle=handle)
    assert x[0, 7] == 77
    torch = pytest.importorskip("torch")
    other("handle.open().fill(5)", handle=symmem.share(torch.from_dlpack(x)[9]))
    assert x[9].tolist() == [5] * 10 and x[8, 0] != 5


def test_it_is_the_same_memory_and_not_a_copy(other: Worker) -> None:
    x = symmem.empty(1 << 20, dtype="float64")
    assert other("inode((y := handle.open()).data_ptr())", handle=x.share()) == inode(x.data_ptr())


def test_a_handle_can_be_passed_on(other: Worker) -> None:
    x = filled(4)
    third = Worker()
    passed = other("symmem and handle", handle=x.share())
    assert third("handle.open().tolist()", handle=passed) == x.tolist() == copy.deepcopy(passed).open().tolist()
    third.kill()


def test_the_process_that_shares_it_opens_the_very_array() -> None:
    x = filled(3, 4)
    handle = pickle.loads(pickle.dumps(symmem.share(x[1:])))
    y = handle.open()
    assert y.data_ptr() == x.data_ptr() + 16 and y.tolist() == x[1:].tolist()
    assert symmem.is_symm_mem_tensor(y)
    del x
    gc.collect()
    # It is the memory, so it keeps it, and goes on sharing it.
    assert handle.open().tolist() == y.tolist()


def test_the_array_or_the_handle_keeps_it_shared(other: Worker) -> None:
    x = filled(4)
    sent = pickle.dumps(x.share())  # nobody keeps this handle, but the array is there
    assert other("handle.open().tolist()", handle=pickle.loads(sent)) == [0, 1, 0, 1]
    kept, view = x.share(), x.numpy()
    del x
    gc.collect()
    assert other("handle.open().tolist()", handle=kept) == [0, 1, 0, 1]
    del kept
    gc.collect()
    assert other("handle.open().tolist()", handle=pickle.loads(sent)) == [0, 1, 0, 1]
    assert other("globals().update(y=handle.open())", handle=pickle.loads(sent)) is None
    view[0] = 9
    del view
    gc.collect()
    with refused(f"process {os.getpid()} no longer shares it. Hint: keep the array"):
        other("handle.open()", handle=pickle.loads(sent))
    with refused("no longer shares it"):
        pickle.loads(sent).open()
    # Who has opened it has it.
    assert other("y.tolist()") == [9, 1, 0, 1]


SHARE = "globals().update(x=symmem.empty(4, dtype='int32')) or x.share()"


def test_an_array_outlives_the_process_that_shared_it(other: Worker) -> None:
    handle = other(SHARE)
    y = handle.open()
    y[:] = [1, 2, 3, 4]
    assert other("x.tolist()") == [1, 2, 3, 4]
    other.kill()
    y[0] = 7
    assert y.tolist() == [7, 2, 3, 4]
    with refused(f"process {other.pid}, which shared it, has ended. Hint: "):
        handle.open()


def test_a_worker_that_is_killed_takes_nothing_along(other: Worker) -> None:
    x = filled(4)
    other("globals().update(y=handle.open()) or y.fill(3)", handle=x.share())
    other.kill()
    assert x.tolist() == [3] * 4
    third = Worker()
    assert third("handle.open().tolist()", handle=x.share()) == [3] * 4
    third.kill()


def test_a_process_that_does_not_answer_is_waited_for_until_the_timeout(other: Worker) -> None:
    handle = other(SHARE)
    other.stop()
    with refused("has not answered for .*Hint: is it stopped"):
        handle.open(timeout_ms=200)
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        handle.open()
    assert time.monotonic() - started < AT_ONCE
    os.kill(other.pid, signal.SIGCONT)
    assert handle.open().tolist() == [0] * 4


def test_a_hundred_opens_leak_no_descriptors(other: Worker) -> None:
    handle = other(SHARE)
    handle.open()
    before = fds(), other("fds()")
    arrays = [handle.open() for _ in range(100)]
    assert fds() <= before[0] and other("fds()") <= before[1] + 1
    assert {array.tolist()[0] for array in arrays} == {0}
    # Nor does what is shared and dropped, or sent a hundred times.
    x = symmem.empty(4)
    x.share()
    before = fds(), 0
    sent = [pickle.dumps(x.share()) for _ in range(100)]
    assert fds() == before[0] and len(set(sent)) == 1


def test_no_secret_is_shown() -> None:
    handle = symmem.empty(2, 3).share()
    text = handle.__reduce__()[1][0]
    assert repr(handle) == f"<symmem.ShareHandle of [2, 3] float32 in process {os.getpid()}>"
    assert all(secret not in repr(handle) for secret in text.split(":")[:2])


def test_what_cannot_be_shared_says_so(other: Worker) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled.*x\.share\(\)"):
        pickle.dumps(symmem.empty(1))
    with pytest.raises(symmem.Invalid, match=r"not in symmetric memory of this process. Hint: allocate it with symmem\.empty"):
        symmem.share(np.zeros(3))
    opened = other(SHARE).open()
    with pytest.raises(symmem.Invalid, match="pass its handle on"):
        opened.share()
    assert not symmem.is_symm_mem_tensor(opened)


#: Handles whose elements would not be in the memory, as pickles that were tampered with.
WRONG = [(4, [4], [4]), (0, [5], [4]), (0, [2], [-4]), (2, [1], [4]), (0, [1 << 62], [4]), (1 << 63, [1], [4]), (0, [2], [1 << 62])]


@pytest.mark.parametrize("offset, shape, strides", WRONG)
def test_a_handle_reaches_no_further_than_the_memory(offset: int, shape: list[int], strides: list[int]) -> None:
    x = symmem.empty(4, dtype="int32")
    text = x.share().__reduce__()[1][0]
    assert symmem.ShareHandle(text, 12, [4], [-4], "int32").open().tolist() == [0] * 4
    with pytest.raises(symmem.Invalid, match="not within the memory"):
        symmem.ShareHandle(text, offset, shape, strides, "int32").open()
    for bad in ("", text[:-1], text[1:]):
        with pytest.raises(symmem.Invalid, match="share handle"):
            symmem.ShareHandle(bad, 0, [1], [4], "int32")
    with pytest.raises(symmem.Invalid, match="one stride per side"):
        symmem.ShareHandle(text, 0, [1, 1], [4], "int32")


def bring_an_opened_array(group: symmem.Group, handle: symmem.ShareHandle) -> float:
    opened = handle.open()
    with pytest.raises(symmem.Invalid, match="of another process .opened"):
        symmem.rendezvous(opened, group)
    # To the group's own collectives it is an array like any.
    return float(group.all_reduce(np.asarray(opened).copy())[1])


def test_an_opened_array_cannot_be_rendezvoused(processes: Any) -> None:
    x = filled(4)
    assert processes(bring_an_opened_array, 2, x.share()) == [2, 2]


def in_child(call: Callable[[], Any]) -> str:
    """What `call` says in a forked child."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            said = str(call())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def fork_of_a_rank(group: symmem.Group) -> tuple[str, str, str]:
    x = symmem.empty(4, dtype="int32")
    symmem.rendezvous(x, group)
    handle = x.share()

    def open_and_write() -> str:
        handle.open()[0] = 7
        return "written"

    said = in_child(lambda: x[0]), in_child(x.share), in_child(open_and_write)
    assert x[0] == 7
    group.barrier()
    return said


def test_the_fork_of_a_rank_opens_handles_and_nothing_else(processes: Any) -> None:
    for array, share, opened in processes(fork_of_a_rank, 2):
        assert array.startswith("Forked: ") and share.startswith("Forked: ") and opened == "written"


FORKED = """
import multiprocessing, os
import numpy as np
import symmem

def read_and_write(i):
    assert x[0] == 42 and x.sum() >= 42
    x[i] = os.getpid()
    return os.getpid()

def child_of_its_own():
    # Whatever else the array does elsewhere it does here.
    assert memoryview(x)[0] == 42 and np.from_dlpack(x)[0] == 42 and x.data_ptr()
    assert x.share().open()[0] == 42
    with symmem.init(store=symmem.HashStore(), rank=0, world_size=1) as group:
        try:
            symmem.rendezvous(x, group)
        except symmem.Invalid as error:
            assert "from before a fork" in str(error), error
        else:
            raise AssertionError("the parent's memory was brought")
        # It is the child's group, and the array is as usable as before.
        x[1] = 43
        assert group.all_reduce(symmem.empty(2))[0] == 0

if __name__ == "__main__":
    x = symmem.empty(100, dtype="int64")
    x[0] = 42
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert set(pool.map(read_and_write, range(10, 20))) == set(x[10:20].tolist())
    process = context.Process(target=child_of_its_own)
    process.start()
    process.join(30)
    assert process.exitcode == 0 and x[1] == 43
    # From the first group on, a forked child is the child of a rank.
    with symmem.init(store=symmem.HashStore(), rank=0, world_size=1):
        with context.Pool(1) as pool:
            try:
                pool.map(read_and_write, [1])
            except symmem.Forked as error:
                print("refused")
"""


def test_an_array_is_shared_with_forked_children_until_a_group_is_made(script: Any) -> None:
    done = script(FORKED)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
