"""What a rank does in a test on devices: `python cases.py NAME`, started by `harness.run_ranks`.

Cases named `fake_...` need the fake driver, on which kernels do nothing; the others need a GPU and torch.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import sys
from typing import Any

import symmem
from symmem import _symmem

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def raises(kind: type[BaseException], words: str, call: Any) -> None:
    """`call` must raise a `kind` whose text has `words`."""
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def main() -> None:
    result = globals()[sys.argv[1]]()
    print(json.dumps({"result": result}), flush=True)


# ----------------------------------------------------------------------------------------------- on the fake driver


def fake_array() -> None:
    """One rank, no group: arrays on a device, and what other libraries see of them."""
    import capsule
    import fake

    assert symmem.get_backend("cuda") == "CUDA"
    x = symmem.empty(4, 6, dtype="float32", device="cuda:0")
    assert (x.shape, x.device, x.nbytes, x.strides) == ((4, 6), "cuda:0", 96, (24, 4))
    assert symmem.is_symm_mem_tensor(x)
    assert fake.peek(x.data_ptr(), 24) == [0] * 24

    interface = x.__cuda_array_interface__
    assert interface["shape"] == (4, 6) and interface["typestr"] == "<f4"
    assert interface["data"] == (x.data_ptr(), False) and interface["version"] >= 3
    assert not hasattr(x, "__array_interface__")
    raises(Exception, "", x.numpy)
    assert repr(x) == str(x) == "symmem.Array(shape=(4, 6), dtype=float32, device='cuda:0')"
    assert "torch" in dir(x) and "sum" not in dir(x)
    raises(AttributeError, "rendezvous first", lambda: x.all_reduce)
    assert symmem.zeros(2, device="cuda:0").device == symmem.empty_like(x).device == "cuda:0"
    assert symmem.empty_like(x, device="cpu").device == "cpu"
    if not {"torch", "cupy"} & set(sys.modules):
        raises(TypeError, "import torch or cupy", lambda: symmem.ones(2, device="cuda:0"))

    assert x.__dlpack_device__() == (2, 0)
    for arguments in ({}, {"max_version": (1, 0)}, {"stream": 1}, {"stream": -1}, {"stream": 2}):
        tensor = capsule.read(x.__dlpack__(**arguments))
        assert tensor.device == (2, 0) and tensor.data == x.data_ptr(), tensor
        assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1) and tensor.shape == [4, 6], tensor
        assert tensor.versioned == ("max_version" in arguments)
    raises(ValueError, "", lambda: x.__dlpack__(stream=0))

    # A capsule keeps the memory; the last one gives it back.
    before = fake.live(fake.MAPPINGS)
    address, kept = x.data_ptr(), x.__dlpack__()
    del x
    gc.collect()
    assert fake.live(fake.MAPPINGS) == before and fake.peek(address, 1) == [0]
    del kept
    gc.collect()
    assert fake.live(fake.MAPPINGS) == before - 1

    raises(symmem.Invalid, "0, 1", lambda: symmem.empty(1, device="cuda:7"))
    empty = symmem.empty(0, dtype="float16", device="cuda:0")
    assert empty.nbytes == 0 and empty.shape == (0,)


def fake_persistent() -> None:
    """One rank, no group: the same id is the same memory, one array at a time."""

    def weights(count: int) -> symmem.Array:
        return symmem.empty(count, dtype="int32", device="cuda:0", alloc_id="weights")

    x = weights(8)
    address = x.data_ptr()
    raises(symmem.Persistent, "still active", lambda: weights(8))
    del x
    gc.collect()
    raises(symmem.Persistent, "32", lambda: weights(9))
    assert weights(8).data_ptr() == address
    # Ids of the host are others.
    assert symmem.empty(8, dtype="int32", alloc_id="weights").device == "cpu"


class Segments:
    """What torch's caching allocator does with the functions that it is given: segments, by C, without the interpreter."""

    def __init__(self) -> None:
        take, give = _symmem._mempool_functions()
        self._take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(take)
        self._give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(give)

    def take(self, size: int, device: int = 0) -> int | None:
        found: int | None = self._take(size, device, None)
        return found

    def give(self, address: int | None, size: int, device: int = 0) -> None:
        self._give(address, size, device, None)


def at(address: int, count: int, device: int) -> Any:
    """`count` floats at an address of a device, as torch would make a tensor in a segment."""

    class Tensor:
        __cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3, "strides": None}

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, device)

    return Tensor()


def fake_segments() -> None:
    """One rank, no group: segments come, are symmetric everywhere in them, and go; what cannot be is null."""
    import threading

    import fake

    segments = Segments()
    before = fake.live(fake.MAPPINGS)
    # Null is a lack of memory for torch. Why is on stderr.
    assert segments.take(-1) is None
    assert segments.take(1 << 20, device=7) is None
    segments.give(None, 0)
    segments.give(12345, 0)
    address = segments.take(2 << 20)
    assert address is not None and fake.peek(address, 4) == [0] * 4
    for inside in (0, 512, (2 << 20) - 16):
        assert symmem.is_symm_mem_tensor(at(address + inside, 4, 0))
    assert not symmem.is_symm_mem_tensor(at(address + (2 << 20), 4, 0))
    assert fake.live(fake.MAPPINGS) == before + 1
    # Which thread takes or gives does not matter: autograd has threads of its own.
    second: list[int | None] = []
    worker = threading.Thread(target=lambda: second.append(segments.take(1 << 20)))
    worker.start()
    worker.join(30)
    assert second[0] is not None and second[0] != address
    segments.give(second[0], 1 << 20)
    segments.give(address, 2 << 20)
    assert not symmem.is_symm_mem_tensor(at(address, 4, 0))
    assert fake.live(fake.MAPPINGS) == before
    # To give twice is nothing.
    segments.give(address, 2 << 20)


def fake_pool() -> None:
    """Tensors in the middle of segments meet: the first of a segment collectively, the next ones without the others."""
    import fake

    segments = Segments()
    size = 2 << 20
    with symmem.init() as group:
        segment = segments.take(size, RANK)
        assert segment is not None
        x = at(segment + 4096, 256, RANK)
        fake.poke(segment + 4096, [RANK + 1] * 256)
        mem = symmem.rendezvous(x, group)
        assert (mem.offset, mem.buffer_size, mem.buffer_ptrs[RANK]) == (4096, size, segment)
        group.barrier()
        theirs = mem.get_remote_tensor(group.next, (256,), "float32")
        assert theirs.data_ptr() == mem.buffer_ptrs[group.next] + 4096
        assert fake.peek(theirs.data_ptr(), 256) == [group.next + 1] * 256
        group.barrier()
        # The place is used again by another tensor, and a second one is beside it: known memory.
        again = symmem.rendezvous(at(segment + 4096, 100, RANK), group)
        beside = symmem.rendezvous(at(segment + 65536, COUNT, RANK), group)
        assert (again.offset, beside.offset) == (4096, 65536)
        assert again.buffer_ptrs == beside.buffer_ptrs == mem.buffer_ptrs
        assert again.signal_pad_ptrs == mem.signal_pad_ptrs
        # So many that the copy engine moves them, which is real on the fake driver.
        fake.poke(segment + 65536, [10 + RANK] * COUNT)
        got = symmem.empty(COUNT, device=f"cuda:{RANK}")
        group.barrier()
        beside.get(group.prev, 0, got)
        assert fake.peek(got.data_ptr(), COUNT) == [10 + group.prev] * COUNT
        group.barrier()
        # A round trip, the segment goes and comes, and another round trip.
        for _ in range(3):
            other = segments.take(size, RANK)
            assert other is not None and other != segment
            tensor = at(other + 128, 8, RANK)
            handle = symmem.rendezvous(tensor, group)
            assert fake.peek(handle.signal_pad_ptrs[RANK], 8) == [0] * 8
            handle.barrier()
            handle.close()
            segments.give(other, size, RANK)
            assert not symmem.is_symm_mem_tensor(tensor)
        # A view keeps the segment that torch gave back.
        view_of_next = beside.get_remote_tensor(group.next, (64,), "float32")
        segments.give(segment, size, RANK)
        del mem, again, beside, theirs
        gc.collect()
        assert fake.peek(view_of_next.data_ptr(), 64) == [10 + group.next] * 64
        group.barrier()
        # Segments of other sizes are an error on all ranks.
        if WORLD > 1:
            odd = segments.take(size * (1 + RANK % 2), RANK)
            assert odd is not None
            raises(symmem.Mismatch, "", lambda: symmem.rendezvous(at(odd, 8, RANK), group))


def fake_words() -> None:
    """One rank, no group: memset32 and stream_write_value32, with the reference's checks in its order."""
    import fake

    x = symmem.empty(100, dtype="uint32", device="cuda:0")
    symmem.memset32(x, 10, 42, 3)
    symmem.memset32(x, 99, 0xFFFFFFFF)
    symmem.stream_write_value32(x, 0, 7, stream=0)
    words = fake.peek(x.data_ptr(), 100)
    assert (words[0], words[9:14], words[99]) == (7, [0, 42, 42, 42, 0], 0xFFFFFFFF), words
    for arguments, text in (
        ((-1, -1, 0), "offset must be greater than or equal to 0"),
        ((0, 1, 0), "count must be a positive integer"),
        ((0, -1, 1), "val must be in the range of"),
        ((0, 1 << 32, 1), "val must be in the range of"),
        ((100, 1, 1), "exceeded the numel of the input"),
        ((0, 1, 101), "exceeded the numel of the input"),
    ):
        raises(symmem.Invalid, text, lambda: symmem.memset32(x, *arguments))
    raises(symmem.Invalid, "exceeded the numel", lambda: symmem.stream_write_value32(x, 100, 1))
    flat = "flat, contiguous uint32"
    raises(symmem.Invalid, flat, lambda: symmem.memset32(symmem.empty(8, dtype="int32", device="cuda:0"), 0, 1))
    raises(symmem.Invalid, flat, lambda: symmem.memset32(symmem.empty(2, 2, dtype="uint32", device="cuda:0"), 0, 1))
    raises(symmem.Invalid, "devices", lambda: symmem.memset32(symmem.empty(2, dtype="uint32"), 0, 1))
    raises(TypeError, "cuda_stream", lambda: symmem.memset32(x, 0, 1, stream="zero"))


# Elements of 4 bytes: more than a copy by a kernel has, for kernels do nothing on the fake driver.
COUNT = 20_000


def fake_handle() -> None:
    """Everybody maps everybody: pointers, tables, views, copies, signals, close."""
    import fake

    with symmem.init() as group:
        x = symmem.empty(COUNT, dtype="float32", device=f"cuda:{RANK}")
        fake.poke(x.data_ptr(), [RANK + 1] * COUNT)
        mem = symmem.rendezvous(x, group)
        assert (mem.rank, mem.world_size, mem.offset, mem.buffer_size) == (RANK, WORLD, 0, 4 * COUNT)
        assert mem.device == f"cuda:{RANK}" and mem.multicast_ptr == 0
        assert mem.buffer_ptrs[RANK] == x.data_ptr() and len(set(mem.buffer_ptrs)) == WORLD
        assert table(mem.buffer_ptrs_dev) == mem.buffer_ptrs
        assert table(mem.signal_pad_ptrs_dev) == mem.signal_pad_ptrs
        group.barrier()
        for rank in range(WORLD):
            theirs = mem.get_buffer(rank, (10, 10), "int32", 5)
            assert theirs.device == mem.device and theirs.data_ptr() == mem.buffer_ptrs[rank] + 20
            assert fake.peek(theirs.data_ptr(), 1) == [rank + 1]
            pad = mem.get_signal_pad(rank)
            assert (pad.data_ptr(), pad.nbytes) == (mem.signal_pad_ptrs[rank], mem.signal_pad_size)
        raises(symmem.RankOutOfRange, "", lambda: mem.get_buffer(WORLD, (1,), "int32"))
        raises(symmem.OutOfBounds, "", lambda: mem.get_buffer(0, (COUNT + 1,), "int32"))

        # Another view of the same allocation: local, and the same memory.
        part = symmem.rendezvous(view(x, 100, 50), group)
        assert (part.offset, part.buffer_ptrs) == (400, mem.buffer_ptrs)
        remote = part.get_remote_tensor(group.next, (50,), "float32")
        assert remote.data_ptr() == mem.buffer_ptrs[group.next] + 400

        # Copies are real on the fake driver.
        got = symmem.empty(COUNT, dtype="float32", device=f"cuda:{RANK}")
        mem.get(group.next, 0, got)
        assert fake.peek(got.data_ptr(), COUNT) == [group.next + 1] * COUNT
        group.barrier()
        part.put(group.next, view(got, 0, 5))
        group.barrier()
        assert fake.peek(x.data_ptr() + 400, 6) == [RANK + 1] * 6
        raises(symmem.Invalid, "cpu", lambda: mem.get(0, 0, symmem.empty(COUNT, dtype="float32")))
        operations(mem, got)
        by_the_group(group, x, mem.get_buffer(group.next, (10,), "float32"))

        # The pad has the size that was asked for when the array was made.
        symmem.set_signal_pad_size(2 * mem.signal_pad_size)
        wide = symmem.empty(4, device=f"cuda:{RANK}")
        symmem.set_signal_pad_size(mem.signal_pad_size)
        assert symmem.rendezvous(wide, group).signal_pad_size == 2 * mem.signal_pad_size

        # What a failed group worked on can be seen, but not be brought to another.
        doomed = group.clone()
        spoilt = symmem.empty(4, device=f"cuda:{RANK}")
        symmem.rendezvous(spoilt, doomed)
        group.barrier()
        if RANK == 0:
            doomed.abort("spoilt")
        group.barrier()
        raises(symmem.RankFailed, "poisoned", lambda: symmem.rendezvous(spoilt, group))
        assert fake.peek(spoilt.data_ptr(), 1) == [0]
        doomed.close()
        del wide, doomed, spoilt

        # Arrays outlive the handle, also a closed one.
        peer = mem.get_buffer(group.next, (COUNT,), "float32")
        group.barrier()
        mem.close()
        raises(symmem.Closed, "", lambda: mem.barrier())
        raises(symmem.Closed, "", lambda: part.all_reduce())
        assert fake.peek(peer.data_ptr(), 1) == [group.next + 1]

        # It can be met over again.
        again = symmem.rendezvous(x, group)
        assert fake.peek(again.buffer_ptrs[group.prev], 1) == [group.prev + 1]
        group.barrier()
    raises(symmem.Closed, "", lambda: again.barrier())
    assert fake.peek(peer.data_ptr(), 1) == [(RANK + 1) % WORLD + 1]
    before = fake.live(fake.RANGES)
    del x, mem, part, remote, theirs, pad, got, again, peer
    gc.collect()
    assert fake.live(fake.RANGES) < before
    raises(symmem.Error, "", lambda: symmem.rendezvous(symmem.empty(1, device=f"cuda:{RANK}"), group))


def table(address: int) -> list[int]:
    """The table of addresses at a fake device address."""
    import ctypes

    return list((ctypes.c_uint64 * WORLD).from_address(address))


def view(x: Any, start: int, count: int) -> Any:
    """A part of a flat array on a device, as another library would make it."""

    class View:
        def __init__(self) -> None:
            before = x.__cuda_array_interface__
            address = before["data"][0] + start * x.itemsize
            self.kept = x
            self.__cuda_array_interface__ = {**before, "shape": (count,), "data": (address, False), "strides": None}

        def __dlpack_device__(self) -> tuple[int, int]:
            return tuple(x.__dlpack_device__())

    return View()


def operations(mem: Any, private: Any) -> None:
    """What launches, on a driver whose kernels do nothing; and what devices do not do."""
    import fake

    launched = fake.live(fake.LAUNCHES)
    mem.barrier()
    mem.barrier(3, stream=0)
    mem.put_signal((RANK + 1) % WORLD, 1)
    mem.wait_signal((RANK - 1) % WORLD, 1)
    mem.all_reduce("sum")
    mem.all_reduce("avg", out=private)
    mem.broadcast()
    assert fake.live(fake.LAUNCHES) == launched + 7
    raises(symmem.ChannelOutOfRange, "", lambda: mem.barrier(mem.signal_pad_size))
    raises(symmem.RankOutOfRange, "", lambda: mem.put_signal(WORLD))
    raises(symmem.Invalid, "sum and avg", lambda: mem.all_reduce("max"))
    raises(symmem.Error, "not done on devices", lambda: mem.try_put_signal(0))
    raises(symmem.Error, "stream", lambda: mem.all_reduce_start())

    fast = _symmem._device_memory(mem)
    codes = type(fast).DTYPES.index("float32"), type(fast).OPS.index("sum")
    launched = fake.live(fake.LAUNCHES)
    for algorithm in ("auto", "low_latency", "two_shot", "two_trip"):
        code = type(fast).ALGORITHMS.index(algorithm)
        fast.all_reduce_ptr(mem.buffer_ptrs[RANK] + 16, 0, 0, 100, *codes, code, 0)
    for algorithm in ("one_shot", "one_trip"):
        code = type(fast).ALGORITHMS.index(algorithm)
        fast.all_reduce_ptr(mem.buffer_ptrs[RANK], 0, private.data_ptr(), COUNT, *codes, code, 0)
    fast.all_reduce_from(private)
    fast.all_reduce_using("two_shot")
    part = COUNT // WORLD
    fast.reduce_scatter_ptr(fast.base, part * WORLD, private.data_ptr(), part, *codes, 0)
    assert fake.live(fake.LAUNCHES) == launched + 9
    fast.sync()
    assert fast.status() is None
    assert fast.plan("out", COUNT)[0] in type(fast).ALGORITHMS
    one_shot = type(fast).ALGORITHMS.index("one_shot")
    raises(symmem.Invalid, "in place", lambda: fast.all_reduce_ptr(fast.base, 0, 0, 100, *codes, one_shot, 0))
    raises(symmem.OutOfBounds, "", lambda: fast.all_reduce_ptr(fast.base, 0, 0, COUNT + 1, *codes, 0, 0))
    raises(symmem.OutOfBounds, "", lambda: fast.all_reduce_ptr(fast.base - 4, 0, 0, 1, *codes, 0, 0))
    beyond = (fast.base - 4, part * WORLD, private.data_ptr(), part)
    raises(symmem.OutOfBounds, "", lambda: fast.reduce_scatter_ptr(*beyond, *codes, 0))
    raises(symmem.Invalid, "no element type", lambda: fast.reduce_scatter_ptr(fast.base, 8, 0, 4, 200, 0, 0))


def by_the_group(group: Any, symmetric: Any, other: Any) -> None:
    """Collectives of a group know symmetric arrays on devices, and take others through a room."""
    import fake

    launched = fake.live(fake.LAUNCHES)
    assert group.all_reduce(symmetric) is symmetric
    assert fake.live(fake.LAUNCHES) == launched + 1
    group.broadcast(symmetric)
    assert fake.live(fake.LAUNCHES) == launched + 2
    assert group.all_reduce(other) is other
    assert fake.live(fake.LAUNCHES) == launched + 3


def captured(stream: int, work: Any) -> int:
    """What `work` puts on a stream as a graph that can be launched, as another library captures."""
    driver = ctypes.CDLL("libcuda.so")
    graph, ready = ctypes.c_uint64(), ctypes.c_uint64()
    assert driver.cuStreamBeginCapture_v2(ctypes.c_uint64(stream), 2) == 0
    try:
        work()
    finally:
        assert driver.cuStreamEndCapture(ctypes.c_uint64(stream), ctypes.byref(graph)) == 0
    assert driver.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_uint64(0)) == 0
    assert driver.cuGraphDestroy(graph) == 0
    return ready.value


def fake_private() -> None:
    """Collectives on arrays of a device that are not symmetric: through a room, and wrong lengths are refused before anything is written."""
    import fake

    device = f"cuda:{RANK}"
    with symmem.init() as group:
        x, short = (symmem.empty(count, dtype="float32", device=device) for count in (COUNT, 10))
        out = symmem.empty(COUNT * WORLD, dtype="float32", device=device)
        before = fake.live(fake.MAPPINGS)
        assert group.all_gather(x, out) is out and group.broadcast(x, WORLD - 1) is x and group.all_reduce(x) is x
        assert fake.live(fake.MAPPINGS) > before, "there is a room"
        rooms = fake.live(fake.MAPPINGS)
        group.all_gather(x, out)
        assert fake.live(fake.MAPPINGS) == rooms, "one is enough"
        raises(symmem.Invalid, "it has 10 elements, the input 20000", lambda: group.all_reduce(x, "sum", short))
        raises(symmem.Invalid, "not reduced on devices", lambda: group.all_reduce(symmem.empty(8, dtype="int32", device=device)))
        raises(symmem.Invalid, "devices do not have it", lambda: group.scan(x))
        part = symmem.empty(COUNT // WORLD + 1, dtype="float32", device=device)
        if WORLD == 1:
            raises(symmem.Invalid, "the root has 20000 elements", lambda: group.scatter(x, 0, part))
        raises(symmem.Invalid, "never waits", lambda: group.all_gather_start(x, out))
        host = symmem.empty(COUNT, dtype="float32")
        raises(symmem.Invalid, "the input on", lambda: group.all_reduce(x, "sum", host))
        # The others are about to make a larger room when one refuses: they are told there, and nobody waits. All of them say so first in the room
        # that there is, for the sake of a rank that would use that one.
        launched = fake.live(fake.LAUNCHES)
        large, large_host = (symmem.empty(1 << 20, dtype="float32", **where) for where in ({"device": device}, {}))
        if RANK == WORLD - 1:
            raises(symmem.Invalid, "the input on", lambda: group.all_reduce(large, "sum", large_host))
        else:
            raises(symmem.RankFailed, "the input on", lambda: group.all_reduce(large, "sum", large))
        group.barrier()
        group.all_reduce(large)
        grown = fake.live(fake.LAUNCHES)
        group.all_reduce(large)
        meetings = grown - launched - (fake.live(fake.LAUNCHES) - grown)
        assert meetings == 2, f"one with each of two calls, not {meetings}"


def fake_busy() -> None:
    """While a thread is in a collective that goes through the room, another one of its rank is busy, tells nobody, and spoils nothing."""
    import threading
    import time

    device = f"cuda:{RANK}"
    with symmem.init() as group:
        x, out, large = (symmem.empty(count, dtype="float32", device=device) for count in (8, 8 * WORLD, 1 << 20))
        # The room is made, and made larger: with the others, who come when this rank has tried.
        for first in (x, large):
            if RANK == 0:
                thread = threading.Thread(target=group.all_reduce, args=(first,))
                thread.start()
                end = time.monotonic() + 20
                while not any(state.ranks[0].waits_for for state in symmem.inspect(os.getpid())):
                    assert time.monotonic() < end, "it never waited"
                    time.sleep(0.01)
                for call in (lambda: group.all_reduce(x), lambda: group.all_gather(x, out), lambda: group.broadcast(x, 0)):
                    raises(symmem.Busy, "another thread of this rank is inside an operation", call)
                for rank in range(1, WORLD):
                    group.send_object("tried", rank)
                thread.join(20)
                assert not thread.is_alive()
            else:
                assert group.recv_object(0) == "tried"
                group.all_reduce(first)
            assert group.all_reduce(x) is x
            group.barrier()


def fake_norm() -> None:
    """What a norm takes and refuses, on symmetric and on private memory: its arguments come to one launch, or two."""
    import fake

    device, (rows, columns) = f"cuda:{RANK}", (6, 32)

    def array(*shape: int, dtype: str = "float32", device: str = device) -> symmem.Array:
        return symmem.empty(*shape, dtype=dtype, device=device)

    with symmem.init() as group:
        for dtype in ("float32", "bfloat16", "float16"):
            x, residual, out = (array(rows, columns, dtype=dtype) for _ in range(3))
            weight, private, fp8 = array(columns, dtype=dtype), array(rows, columns, dtype=dtype), array(rows, columns, dtype="float8_e4m3fn")
            scale, scales = array(1), array(rows)
            mem = symmem.rendezvous(x, group)
            calls: list[tuple[int, Any, Any]] = [
                (1, out, lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, out)),
                (1, out, lambda: mem.all_reduce_rms_norm(None, None, 1e-5, out, op="avg")),
                (2, out, lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, out, fused=False)),
                (1, fp8, lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, fp8, scale=scale)),
                (1, fp8, lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, fp8, scales=scales, x=private)),
                (1, out, lambda: group.all_reduce_rms_norm(x, residual, weight, 1e-5, out)),
                (1, out, lambda: group.all_reduce_rms_norm(private, residual, weight, 1e-5, out, op="avg")),
                (1, fp8, lambda: symmem.all_reduce_rms_norm(private, residual, weight, 1e-5, group, fp8, scales=scales)),
            ]
            # The group's workspace is made by the first call on private memory.
            group.all_reduce_rms_norm(private, residual, weight, 1e-5, out)
            for number, (launches, result, call) in enumerate(calls):
                launched = fake.live(fake.LAUNCHES)
                assert call() is result, number
                assert fake.live(fake.LAUNCHES) == launched + launches, number
            wrong: list[tuple[str, Any]] = [
                ("weight of shape", lambda: mem.all_reduce_rms_norm(residual, array(columns - 1, dtype=dtype), 1e-5, out)),
                ("residual: it has", lambda: mem.all_reduce_rms_norm(array(rows - 1, columns, dtype=dtype), weight, 1e-5, out)),
                ("float64", lambda: mem.all_reduce_rms_norm(residual, array(columns, dtype="float64"), 1e-5, out)),
                ("is on cpu", lambda: mem.all_reduce_rms_norm(array(rows, columns, dtype=dtype, device="cpu"), weight, 1e-5, out)),
                ("float8_e4m3fn are needed", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, out, scale=scale)),
                ("scales", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, fp8, scale=scale, scales=scales)),
                ("scales: it has", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, fp8, scales=scale)),
                ("median", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, out, op="median")),
                ("", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, out, op="max")),
                ("overlaps", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, x)),
                ("overlaps", lambda: mem.all_reduce_rms_norm(residual, weight, 1e-5, residual)),
                ("weight of shape", lambda: group.all_reduce_rms_norm(private, residual, private, 1e-5, out)),
                ("is on cpu", lambda: group.all_reduce_rms_norm(private, residual, array(columns, dtype=dtype, device="cpu"), 1e-5, out)),
            ]
            # Told to the others, who learn it from kernels, which this driver does not run: so all refuse.
            for number, (words, call) in enumerate(wrong):
                launched = fake.live(fake.LAUNCHES)
                raises(symmem.Invalid, words, call)
                assert fake.live(fake.LAUNCHES) == launched + 1, number
            group.barrier()
        odd = symmem.rendezvous(array(rows, columns, dtype="int32"), group)
        raises(symmem.Invalid, "not reduced on devices", lambda: odd.all_reduce_rms_norm(None, None, 1e-5, array(rows, columns, dtype="int32")))
        short = symmem.rendezvous(array(rows, 3), group)
        raises(symmem.Invalid, "a row has 12 bytes", lambda: short.all_reduce_rms_norm(None, None, 1e-5, array(rows, 3)))
        host = symmem.rendezvous(array(rows, columns, device="cpu"), group)
        on_host, ones = (array(*shape, device="cpu") for shape in ((rows, columns), (columns,)))
        raises(symmem.Invalid, "for devices", lambda: host.all_reduce_rms_norm(on_host, ones, op="avg"))
        raises(symmem.Invalid, "has a residual and a weight", lambda: host.all_reduce_rms_norm(None, ones))
        group.barrier()


def fake_nothing() -> None:
    """Ranks meet for private arrays without elements too: others may have some, and would wait for those that have none."""
    import fake

    device = f"cuda:{RANK}"
    with symmem.init() as group:
        nothing, something = (symmem.empty(count, dtype="float32", device=device) for count in (0, 2 * WORLD))
        out = symmem.empty(0, dtype="float32", device=device)
        no_rows = [symmem.empty(0, 4, dtype="float32", device=device) for _ in range(3)]
        weight = symmem.empty(4, dtype="float32", device=device)
        works: list[Any] = [
            lambda: group.all_reduce(nothing),
            lambda: group.all_reduce(nothing, "avg", out),
            lambda: group.broadcast(nothing, WORLD - 1),
            lambda: group.all_gather(nothing, out),
            lambda: group.all_to_all(nothing, out),
            lambda: group.reduce_scatter(nothing, "sum", out),
            lambda: group.all_reduce_rms_norm(no_rows[0], no_rows[1], weight, 1e-5, no_rows[2]),
        ]
        # That the ranks disagree the kernels see, of which this driver runs none: both are at one launch.
        launched = fake.live(fake.LAUNCHES)
        assert group.all_reduce(something if RANK == 0 else nothing) is not None
        assert fake.live(fake.LAUNCHES) == launched + 1
        for number, work in enumerate(works):
            launched = fake.live(fake.LAUNCHES)
            work()
            assert fake.live(fake.LAUNCHES) == launched + 1, number
        raises(symmem.Invalid, "it has 0 elements", lambda: group.all_reduce(something, "sum", out))


def fake_captures() -> None:
    """A graph keeps the arrays of symmem's that its operations were given."""
    import fake

    driver = ctypes.CDLL("libcuda.so")
    device = f"cuda:{RANK}"
    with symmem.init() as group:
        mem = symmem.rendezvous(symmem.empty(COUNT // 16, 16, dtype="float32", device=device), group)
        weight, norm = (symmem.empty(*shape, dtype="float32", device=device) for shape in ((16,), (COUNT // 16, 16)))
        context, stream = ctypes.c_uint64(), ctypes.c_uint64()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), RANK) == 0
        assert driver.cuCtxSetCurrent(context) == 0
        assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
        on: dict[str, Any] = {"stream": stream.value}
        works: list[tuple[str, Any]] = [
            ("float32", lambda x: mem.all_reduce("sum", out=x, **on)),
            ("float32", lambda x: mem.all_to_all(out=x, **on)),
            ("float32", lambda x: mem.get(0, 0, x, **on)),
            ("float32", lambda x: mem.put(0, x, **on)),
            ("float32", lambda x: _symmem._device_memory(mem).all_reduce_from(x, **on)),
            ("float32", lambda x: mem.all_reduce_rms_norm(x, weight, 1e-5, norm, **on)),
            ("float32", lambda x: mem.all_reduce_rms_norm(None, None, 1e-5, x, **on)),
            ("float32", lambda x: mem.all_reduce_rms_norm(None, None, 1e-5, norm, x=x, **on)),
            ("uint32", lambda x: symmem.memset32(x, 0, 5, 4, **on)),
        ]
        for number, (dtype, work) in enumerate(works):
            given = symmem.empty(COUNT, dtype=dtype, device=device)
            graph = captured(stream.value, functools.partial(work, given))
            del given
            gc.collect()
            others = [symmem.empty(COUNT, dtype="float32", device=device) for _ in range(2)]
            group.barrier()
            assert driver.cuGraphLaunch(ctypes.c_uint64(graph), stream) == 0, number
            assert fake.live(fake.STALE) == 0, number
            assert all(word == 0 for other in others for word in fake.peek(other.data_ptr(), COUNT)), number
            assert driver.cuGraphExecDestroy(ctypes.c_uint64(graph)) == 0
            group.barrier()


def fake_threads() -> list[int]:
    """Ranks that are threads of one process, each on a device of its own."""

    def rank(group: Any) -> int:
        import fake

        x = symmem.empty(100, dtype="float32", device=f"cuda:{group.rank}")
        fake.poke(x.data_ptr(), [group.rank + 1] * 100)
        mem = symmem.rendezvous(x, group)
        group.barrier()
        seen = fake.peek(mem.buffer_ptrs[group.next], 1)[0]
        group.barrier()
        # The legacy default stream would make ranks of one process wait for each other only on one device.
        mem.all_reduce()
        mem.close()
        return seen

    return symmem.spawn(rank, 3, threads=True, timeout=60)


def fake_mismatch() -> None:
    """Ranks that bring different memory get the same error, and go on."""
    with symmem.init() as group:
        odd = RANK == WORLD - 1
        device = f"cuda:{RANK}"
        raises(
            symmem.Mismatch,
            "bytes",
            lambda: symmem.rendezvous(symmem.empty(11 if odd else 10, device=device), group),
        )
        dtype = "int32" if odd else "float32"
        raises(symmem.Mismatch, "", lambda: symmem.rendezvous(symmem.empty(10, dtype=dtype, device=device), group))
        mem = symmem.rendezvous(symmem.empty(10, device=device), group)
        assert len(mem.buffer_ptrs) == WORLD
        theirs = mem.get_buffer(0 if RANK else 1, (1,), "uint8")
        raises(symmem.Error, "symmem.empty", lambda: symmem.rendezvous(theirs, group))
        # One array for all ranks is for host memory.
        x = symmem.empty(10, device=device)
        raises(symmem.Mismatch, "", lambda: symmem.rendezvous(None if odd else x, group))
        raises(symmem.Invalid, "only memory of the CPU", x.share)
        group.barrier()


def fake_cost() -> float:
    """Nanoseconds of an operation from Python on a driver that does nothing, torch's look-ups apart."""
    import time

    with symmem.init() as group:
        x = symmem.empty(1 << 15, dtype="bfloat16", device="cuda:0")
        fast = _symmem._device_memory(symmem.rendezvous(x, group))
        at, out = x.data_ptr(), symmem.empty(1 << 15, dtype="bfloat16", device="cuda:0")
        arguments = (at, 0, out.data_ptr(), 1 << 15, type(fast).DTYPES.index("bfloat16"), 0, 4, 0)
        best = float("inf")
        for _ in range(20):
            began = time.perf_counter_ns()
            for _ in range(1000):
                fast.all_reduce_ptr(*arguments)
            best = min(best, (time.perf_counter_ns() - began) / 1000)
        return best


# ------------------------------------------------------------------------------------------------------ on a GPU


def gpu_all() -> dict[str, str]:
    """Every trial of `trials.py`, in turn; what became of each. Ends with the first that failed on any rank."""
    import trials

    outcomes = {}
    with symmem.init() as group:
        stage = trials.Stage(group)
        for name, trial in trials.all_trials():
            try:
                outcomes[name] = trial(stage) or "ok"
                stage.settle()
            except Exception as error:
                import traceback

                traceback.print_exc()
                outcomes[name] = f"{type(error).__name__}: {error}"[:500]
            said = group.all_gather_object(outcomes[name])
            wrong = [f"rank {rank}: {words}" for rank, words in enumerate(said) if not words.startswith(FINE)]
            if wrong:
                outcomes[name] = "; ".join(wrong)
                break
    return outcomes


# How `gpu_all` begins what it says of a trial that did not fail.
FINE = "ok", "skipped"


#: On the CPU only, and why.
NOT_ON_GPUS = {"_async_input_mm": "skipped: torch's kernel for CUDA stays, which waits for signals inside of the product"}


def gpu_operators() -> dict[str, str]:
    """Every operator of `torch.ops.symmem`, or, installed, of `torch.ops.symm_mem`, on CUDA tensors. Ends with the first that failed."""
    import traceback
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    names = os.environ["OPERATOR_NAMESPACE"]
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD, timeout=timedelta(seconds=60))
    import torch_trials

    import symmem.torch

    if names == "symm_mem":
        print(symmem.torch.install())
    torch.set_default_device(torch.device("cuda", torch.cuda.current_device()))
    trials = {**torch_trials.TRIALS, **{f"{name} of 8 bits": trial for name, trial in torch_trials.EIGHTHS.items()}}
    trials.update(torch_trials.ON_GPUS)
    outcomes: dict[str, str] = {}
    for label, trial in trials.items():
        name = label.partition(" ")[0]
        if name in NOT_ON_GPUS:
            outcomes[label] = NOT_ON_GPUS[name]
            continue
        operator = getattr(getattr(torch.ops, names), name, None)
        if operator is None or (names == "symm_mem" and name in symmem.torch.install().left):
            outcomes[label] = "skipped: torch has no such operator, or keeps it"
            continue
        try:
            tried = trial(RANK, WORLD)
            with tried.running():
                result = operator(*tried.args)
                if isinstance(result, torch.Tensor):
                    result = torch.ops._c10d_functional.wait_tensor(result)
            aliased = any(each.alias_info for each in operator.default._schema.returns)
            tried.check(None if aliased else result)
            outcomes[label] = "ok"
        except Exception as error:
            traceback.print_exc()
            outcomes[label] = f"{type(error).__name__}: {error}"[:500]
        said: list[Any] = [None] * WORLD
        dist.all_gather_object(said, outcomes[label])
        wrong = [f"rank {rank}: {words}" for rank, words in enumerate(said) if words != "ok"]
        if wrong:
            outcomes[label] = "; ".join(wrong)
            if os.environ.get("GO_ON_AFTER_FAILURES") != "1":
                break
    dist.destroy_process_group()
    return outcomes


def gpu_unlike() -> str:
    """Ranks that want different things of one room, or of which only one must make a larger one, are told at once. The error of it."""
    import time

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(RANK % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    from symmem.torch import _overlap as overlap

    name = str(dist.group.WORLD.group_name)
    group = overlap.resolve(name)
    # Halves of a megabyte.
    small, large = torch.ones(64, 64, device=device), torch.ones(1 << 19, device=device)
    operation = torch.ops.symmem.fused_all_gather_matmul

    def scaled(A: torch.Tensor, scale: torch.Tensor) -> Any:
        product, one = torch.ops.symmem.fused_all_gather_scaled_matmul, torch.ones((), device=device)
        return product(A.bfloat16(), [small.bfloat16()], scale, [one], 0, name, [None], [None], [torch.bfloat16], [False])

    works = {
        "rows": lambda: operation(small, [small], 0, name, return_A=RANK == 0),
        "room": lambda: overlap.all_gather(large if RANK == 0 else small, name),
        "workspace": lambda: group.all_reduce(large if RANK == 0 else small),
        # Told in place of the gather, for which the workspace is large enough, or of the meeting before there is a larger one.
        "scale": lambda: scaled(small, torch.ones(3 if RANK == 0 else 1, 1, device=device)),
        "kinds of scales": lambda: scaled(small, torch.ones(64 if RANK == 0 else 1, 1, device=device)),
        "scale of more": lambda: scaled(large.repeat(2).view(-1, 64), torch.ones(3 if RANK == 0 else 1, 1, device=device)),
    }
    overlap.all_gather(small, name)
    group.all_reduce(small)
    torch.cuda.synchronize()
    dist.barrier()
    began, words = time.monotonic(), "done"
    try:
        works[os.environ["UNLIKE"]]()
        torch.cuda.synchronize()
        group.barrier()
    except (symmem.Error, RuntimeError, ValueError) as error:
        words = f"{type(error).__name__}: {error}"
    assert time.monotonic() - began < 10, f"nobody was told: {words}"
    # The others need this rank's memory until they know.
    dist.barrier()
    return words


def gpu_failure() -> str:
    """A rank that waits alone gives up at its deadline, and says so; its peers learn it."""
    import torch

    with symmem.init() as group:
        torch.cuda.set_device(0)
        x = symmem.empty(16, dtype="float32", device="cuda:0").torch()
        mem = symmem.rendezvous(x, group)
        fast = _symmem._device_memory(mem)
        mem.barrier()
        fast.sync(20_000)
        assert fast.status() is None
        group.barrier()
        if RANK == 0:
            mem.barrier(timeout_ms=500)
            raises(symmem.Error, "", lambda: fast.sync(20_000))
            assert fast.status() is not None
            raises(symmem.Error, "", lambda: mem.all_reduce())
            return "gave up"
        import time

        end = time.monotonic() + 20
        while fast.status() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert fast.status() is not None, "nobody told this rank"
        return "was told"


if __name__ == "__main__":
    main()
