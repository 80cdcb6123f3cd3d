"""`symmem.nccl` on a GPU that all ranks share, or on one each: every collective, ranks as processes.

    python test_nccl_gpu.py [NAME ...]     # a JSON line per case, and one per test

Ranks share a GPU with NCCL 2.30.3 or newer, best under MPS; older ones run over sockets. Without torch: it brings an NCCL of
its own, and here the one that `SYMMEM_NCCL_LIBRARY` names is meant. `test_torch` is for that.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import harness
import numpy as np

import symmem
from symmem import nccl

FLOATS, INTEGERS = ("float32", "float16", "bfloat16"), ("int32", "int64")
#: Elements of a part: one, an odd number, and more than one of NCCL's steps.
COUNTS = (1, 1000, 1 << 18)
SHARING = (2, 30, 3)

Words = dict[str, str]


# --------------------------------------------------------------------------------------------------------- the memory


class Driver:
    """As much of CUDA as a test needs: plain memory, and copies in the order of the default stream."""

    def __init__(self, device: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(number), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = self.library[name](*arguments)
        assert code == 0, f"{name} failed with {code}"

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: Any) -> None:
        size, host = ctypes.c_size_t(data.nbytes), ctypes.c_void_p(data.ctypes.data)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), host, size, None)
        self.call("cuCtxSynchronize")

    def read(self, address: int, data: Any) -> None:
        size, host = ctypes.c_size_t(data.nbytes), ctypes.c_void_p(data.ctypes.data)
        self.call("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(address), size, None)
        self.call("cuCtxSynchronize")


DRIVER: Driver
DEVICE: int


class Plain:
    """Memory of the driver with nothing but `__cuda_array_interface__`."""

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.id = ordinal

    def __init__(self, count: int, dtype: str) -> None:
        stored = storage(dtype)
        self.address, self.dtype, self.device = DRIVER.allocate(count * stored.itemsize), dtype, self.Device(DEVICE)
        self.__cuda_array_interface__ = {
            "shape": (count,),
            # There is no code for bfloat16; then `dtype` says what it is.
            "typestr": "<V2" if dtype == "bfloat16" else stored.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }

    def data_ptr(self) -> int:
        return self.address

    def __del__(self) -> None:
        DRIVER.free(self.address)


class ByDlpack:
    """Memory of symmem with nothing but DLPack."""

    def __init__(self, count: int, dtype: str) -> None:
        self.x = symmem.empty(count, dtype=dtype, device=f"cuda:{DEVICE}")

    def data_ptr(self) -> int:
        return self.x.data_ptr()

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def symmetric(count: int, dtype: str) -> Any:
    return symmem.empty(count, dtype=dtype, device=f"cuda:{DEVICE}")


def storage(dtype: str) -> Any:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def encode(values: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        # The values are small, and their lower halves empty.
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return values.astype(dtype)


def decode(data: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (data.astype("<u4") << 16).view("<f4").astype("f8")
    return data.astype("f8")


def fill(x: Any, values: Any, dtype: str) -> Any:
    DRIVER.write(x.data_ptr(), encode(values, dtype))
    return x


def check(what: str, x: Any, expected: Any, dtype: str) -> None:
    data = np.empty(len(expected), storage(dtype))
    DRIVER.read(x.data_ptr(), data)
    found = decode(data, dtype)
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        at = wrong[0]
        raise AssertionError(f"{what}: {wrong.size} of {len(expected)} wrong, [{at}] is {found[at]}, not {expected[at]}")


# ---------------------------------------------------------------------------------------------------------- the cases


def pattern(rank: int, count: int) -> Any:
    """What a rank has: small whole numbers, whose sums and products fit every type."""
    return np.full(count, rank + 1.0) + np.arange(count) % 7


def reductions(dtype: str) -> dict[int, Callable[[Any], Any]]:
    found: dict[int, Callable[[Any], Any]]
    found = {nccl.SUM: sum, nccl.MAX: np.maximum.reduce, nccl.MIN: np.minimum.reduce}
    if dtype in FLOATS:
        found[nccl.AVG] = partial(np.mean, axis=0)
    if dtype not in ("float16", "bfloat16"):
        found[nccl.PROD] = np.multiply.reduce
    return found


def collectives(comm: Any, kind: Any, dtype: str, count: int) -> None:
    rank, world = comm.rank, comm.size
    everybody = [pattern(peer, count) for peer in range(world)]
    whole = [pattern(peer, count * world) for peer in range(world)]
    mine, empty = everybody[rank], np.zeros(count)

    def new(values: Any) -> Any:
        return fill(kind(len(values), dtype), values, dtype)

    for op, reduction in reductions(dtype).items():
        x, out = new(mine), new(empty)
        nccl.all_reduce([x], [out], op, comms=comm)
        check(f"all_reduce {op}", out, reduction(everybody), dtype)
        check("input of all_reduce", x, mine, dtype)
        nccl.all_reduce([x], op=op, comms=[comm])
        check(f"all_reduce {op} in place", x, reduction(everybody), dtype)
        x, out = new(whole[rank]), new(empty)
        nccl.reduce_scatter([x], [out], op, comms=comm)
        part = slice(rank * count, (rank + 1) * count)
        check(f"reduce_scatter {op}", out, reduction(whole)[part], dtype)
    for root in range(world):
        x, out = new(mine), new(empty)
        nccl.reduce([x], out, root, comms=comm)
        check(f"reduce to {root}", out, sum(everybody) if rank == root else empty, dtype)
        nccl.reduce([x], root=root, comms=comm)
        check(f"reduce to {root} in place", x, sum(everybody) if rank == root else mine, dtype)
        x = new(mine)
        nccl.broadcast([x], root, comms=comm)
        check(f"broadcast from {root}", x, everybody[root], dtype)
    x, out = new(mine), new(np.zeros(count * world))
    nccl.all_gather([x], [out], [None], comms=comm)
    check("all_gather", out, np.concatenate(everybody), dtype)


def kept(kind: Any, dtype: str) -> None:
    """One array and no communicator: that of the device, which is kept."""
    for _ in range(2):
        x, out = fill(kind(8, dtype), pattern(0, 8), dtype), kind(8, dtype)
        nccl.all_gather([x], [out])
        check("all_gather", out, pattern(0, 8), dtype)


def rank_cases(comm: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    for dtype in FLOATS + INTEGERS:
        for count in COUNTS:
            yield f"{dtype} {count}", partial(collectives, comm, Plain, dtype, count)
        yield f"{dtype} dlpack", partial(collectives, comm, ByDlpack, dtype, 1000)
        yield f"{dtype} symmem", partial(collectives, comm, symmetric, dtype, 1000)
    yield "kept", partial(kept, Plain, "float32")


def connect() -> tuple[nccl.Communicator, symmem.TcpStore]:
    """This rank's communicator: the id goes through a store, which must stay as long as other ranks may ask it."""
    global DRIVER, DEVICE
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    devices = symmem._symmem._cuda_device_count()
    DEVICE = rank % devices
    DRIVER = Driver(DEVICE)
    if devices < world and nccl.version()[:3] < SHARING:
        # It refuses ranks that share a GPU, unless they seem to be on different machines.
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = symmem.TcpStore(host, port, is_master=rank == 0, world_size=world)
    if rank == 0:
        store.set("uid", nccl.unique_id())
    return nccl.init_rank(world, store.get("uid"), rank, device=f"cuda:{DEVICE}", timeout=60.0), store


def one_rank() -> Words:
    comm, _store = connect()
    outcomes = {}
    for name, case in rank_cases(comm):
        try:
            case()
            outcomes[name] = "ok"
        except Exception as error:
            traceback.print_exc()
            outcomes[name] = f"{type(error).__name__}: {error}"
            if not isinstance(error, AssertionError):
                # Ranks are not in step any more.
                comm.abort()
                return outcomes
    comm.finish(30.0)
    return outcomes


def one_torch_rank() -> Words:
    """torch's tensors, and its current stream."""
    import torch

    new_stream: Any = torch.cuda.Stream
    comm, _store = connect()
    device, world = torch.device("cuda", DEVICE), comm.size
    torch.cuda.set_device(device)
    total = sum(range(1, world + 1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        with torch.cuda.stream(new_stream(device)):
            x = torch.full((1000,), comm.rank + 1, dtype=dtype, device=device)
            nccl.all_reduce([x], comms=comm)
            assert bool((x == total).all()), dtype
            out = torch.empty(1000 * world, dtype=dtype, device=device)
            nccl.all_gather([x], [out], comms=comm)
            assert bool((out == total).all()), dtype
    moved = torch.full((8,), 1.0, device=device).to(torch.float8_e4m3fnuz)
    nccl.broadcast([moved], comms=comm)
    assert nccl.is_available([x]) and not nccl.is_available([x[::2]])
    torch.cuda.synchronize()
    comm.finish(30.0)
    return {"torch": "ok"}


# ---------------------------------------------------------------------------------------------------------- the tests


def ready() -> None:
    if symmem._symmem._cuda_device_count() == 0:
        harness.skip("there is no CUDA device")
    try:
        nccl.library()
    except symmem.Error as problem:
        harness.skip(str(problem))


def environment(world: int) -> dict[str, str]:
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // world)}
    return shared if symmem._symmem._cuda_device_count() < world else {}


def run_all(world: int, case: str = "one_rank") -> None:
    ready()
    print(json.dumps({"library": nccl.library()}), flush=True)
    ranks = harness.start("test_nccl_gpu.py", ["--rank", case], world, environment(world))
    wrong = {}
    for rank, (code, text) in enumerate(harness.finish(ranks, 2 * harness.LIMIT)):
        lines = [line for line in text.splitlines() if line.startswith('{"result"')]
        if code != 0 or not lines:
            raise harness.Failed(f"rank {rank} of {world}: exit {code}\n{text[-4000:]}")
        outcomes = json.loads(lines[-1])["result"]
        for name, words in outcomes.items():
            if rank == 0 or words != "ok":
                print(json.dumps({"case": name, "ranks": world, "rank": rank, "outcome": words}), flush=True)
        wrong.update({(rank, name): words for name, words in outcomes.items() if words != "ok"})
    assert not wrong, wrong


def test_one_process() -> None:
    run_all(1)


def test_two_processes() -> None:
    run_all(2)


def test_four_processes() -> None:
    run_all(4)


def test_torch() -> None:
    ready()
    try:
        import torch
    except ImportError:
        harness.skip("there is no torch")
    if not torch.cuda.is_available():
        harness.skip("torch finds no CUDA device")
    run_all(1, "one_torch_rank")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps({"result": globals()[sys.argv[2]]()}), flush=True)
    else:
        harness.main(dict(globals()))
