"""A rank of a system that `symmem bench --provider vmm` compares with: PyTorch's symmetric memory, or NCCL.

    python peer.py torch|nccl

Orders come on stdin, one JSON object in a line; every order is answered by one on stdout. `protocol.rs` says which
there are, `plan.rs` what a task is. The kernels around the operations are the bench's own, from the file that the order
`open` names: the same code for every system.
"""

import ctypes
import json
import os
import sys
import time
import traceback
from datetime import timedelta

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
TIMEOUT = timedelta(seconds=60)
# As in the ranks of symmem.
DELAY_NS = 200_000
FILL_THREADS = 512
CHECK_BLOCKS, CHECK_THREADS = 132, 512

# Libraries print as they like; answers have a pipe of their own.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Cannot(Exception):
    """This system has no such case."""


def answer(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")
    ANSWERS.flush()


class Kernels:
    """The bench's kernels, called through the driver."""

    def __init__(self, path, torch, stream):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.stream = ctypes.c_void_p(stream.cuda_stream)
        with open(path, "rb") as file:
            image = file.read() + b"\0"
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.functions = {}
        for name in "fill bump poison check delay stamp".split():
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, f"bench_{name}".encode())
            self.functions[name] = function
        self.counter = torch.ones(1, dtype=torch.int32, device="cuda")
        self.wrong_count = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.stamps = torch.zeros(2, dtype=torch.int64, device="cuda")
        self.load_all()
        torch.cuda.synchronize()

    def load_all(self):
        """Kernels are loaded when they are first launched, which must not be while a peer waits."""
        nowhere = self.stamps.data_ptr()
        self.fill(nowhere, 0, 0, 1)
        self.poison(nowhere, 0)
        self.check(nowhere, 0, 0, 0)
        self.bump(0)
        self.delay(0)
        self.stamp(0)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def launch(self, name, grid, threads, *values):
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values)
        )
        sizes = [ctypes.c_uint(number) for number in (grid, 1, 1, threads, 1, 1, 0)]
        self.call("cuLaunchKernel", self.functions[name], *sizes, self.stream, pointers, None)

    def fill(self, to, count, node, blocks):
        counter = ctypes.c_uint64(self.counter.data_ptr())
        u32 = ctypes.c_uint32
        self.launch("fill", blocks, FILL_THREADS, ctypes.c_uint64(to), u32(count), u32(RANK), counter, u32(node))

    def bump(self, by):
        self.launch("bump", 1, 1, ctypes.c_uint64(self.counter.data_ptr()), ctypes.c_uint32(by))

    def poison(self, to, count):
        self.launch("poison", CHECK_BLOCKS, CHECK_THREADS, ctypes.c_uint64(to), ctypes.c_uint32(count))

    def check(self, got, count, first, back):
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        pointers = u64(self.counter.data_ptr()), u32(back), u64(self.wrong_count.data_ptr())
        self.launch("check", CHECK_BLOCKS, CHECK_THREADS, u64(got), u32(count), u32(first), u32(WORLD), *pointers)

    def wrong(self):
        count = int(self.wrong_count.item())
        self.wrong_count.zero_()
        return count

    def delay(self, nanoseconds):
        self.launch("delay", 1, 1, ctypes.c_uint64(nanoseconds))

    def event(self):
        """An event that takes the time, also within a graph, which torch has in newer versions only."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def record_in_graph(self, event):
        self.call("cuEventRecordWithFlags", event, self.stream, ctypes.c_uint(1))

    def elapsed_us(self, start, end):
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e3

    def stamp(self, which):
        self.launch("stamp", 1, 1, ctypes.c_uint64(self.stamps.data_ptr() + 8 * which))


class System:
    """What both systems have in common: memory, graphs, rounds and checks. Positions are in elements of bf16."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.tasks = {}
        self.ordinary = {}
        self.store = None
        if RANK == 0:
            self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)

    def hello(self):
        fields = {"version": self.version()}
        if self.store is not None:
            fields["port"] = self.store.port
        return fields

    def open(self, order):
        torch, dist = self.torch, self.dist
        devices = torch.cuda.device_count()
        torch.cuda.set_device(RANK % devices)
        self.one_device = devices == 1
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        torch.zeros(1, device="cuda").item()
        if self.store is None:
            self.store = dist.TCPStore("127.0.0.1", order["port"], is_master=False, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=self.store, rank=RANK, world_size=WORLD, timeout=TIMEOUT)
        self.kernels = Kernels(order["kernels"], torch, self.stream)
        self.events = {name: (self.kernels.event(), self.kernels.event()) for name in ("with", "without")}
        dist.barrier()
        start = time.perf_counter()
        self.start()
        startup = (time.perf_counter() - start) * 1e6
        self.make_arena(order["arena"] // 2)
        self.synchronize()
        dist.barrier()
        if order["cores"]:
            # As in the ranks of symmem: this thread only.
            os.sched_setaffinity(0, {order["cores"][RANK]})
        return {"device": torch.cuda.get_device_name(), "startup_us": startup}

    def synchronize(self):
        self.stream.synchronize()

    def own(self, name, elements):
        """Ordinary memory, as long as any task needs it."""
        known = self.ordinary.get(name)
        if known is None or known.numel() < elements:
            known = self.torch.empty(elements, dtype=self.torch.bfloat16, device="cuda")
            self.ordinary[name] = known
        return known[:elements]

    def prepare(self, task):
        torch = self.torch
        slot = dict(task)
        self.tasks[task["slot"]] = slot
        nodes = range(task["nodes"]) if task["work"] == "all_reduce" else range(1)
        if task["work"] == "barrier":
            slot["op"] = lambda _node: self.barrier()
        elif task["work"] in ("all_reduce", "eager"):
            self.make_operations(slot, nodes)
        else:
            raise Cannot(f"there is no {task['work']}")
        # Kernels that load themselves at their first launch must not do so in a graph.
        if task["work"] != "barrier":
            self.kernels.fill(slot["filled"], task["fill_elements"], 0, task["fill_blocks"])
        slot["op"](0)
        self.barrier()
        self.kernels.bump(task["nodes"])
        self.synchronize()
        if task["work"] != "eager":
            for name in self.events:
                slot[name] = self.capture(slot, name)
        self.synchronize()
        torch.cuda.synchronize()
        return {"algorithm": task["variant"]}

    def make_operations(self, slot, nodes):
        size, form = slot["elements"], slot["form"]
        fields = "offset", "stride", "out_stride"
        offset, stride, out_stride = (slot[name] for name in fields)
        output = None if form == "in_place" else self.own("out", out_stride * (len(nodes) - 1) + size)
        inputs = self.own("private", slot["fill_elements"]) if form == "private" else self.arena
        slot["filled"] = self.address(inputs)
        begin = [offset + node * stride for node in nodes]
        source = [inputs[at : at + size] for at in begin]
        target = source if output is None else [output[node * out_stride :][:size] for node in nodes]
        slot["results"] = [self.address(one) for one in target]
        slot["first"] = begin
        slot["output"] = output
        slot["op"] = self.operation(slot["variant"], form, source, target, size)

    def capture(self, slot, name):
        graph = self.torch.cuda.CUDAGraph()
        start, end = self.events[name]
        with self.torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            # As in the ranks of symmem: the time is taken behind a barrier.
            self.barrier()
            self.kernels.record_in_graph(start)
            if slot["work"] == "all_reduce" and not slot["fill_each"]:
                self.kernels.fill(slot["filled"], slot["fill_elements"], 0, slot["fill_blocks"])
            for node in range(slot["nodes"]):
                if slot["work"] == "all_reduce" and slot["fill_each"]:
                    self.kernels.fill(slot["filled"], slot["fill_elements"], node, slot["fill_blocks"])
                if name == "with":
                    slot["op"](node)
            self.kernels.bump(slot["nodes"])
            self.kernels.record_in_graph(end)
        return graph

    def round(self, slot, number):
        if slot["work"] == "eager":
            return {"with_us": self.eager(slot), "without_us": 0.0}
        for name in ["with", "without"] if number % 2 == 0 else ["without", "with"]:
            # As in the ranks of symmem: one replay that nobody times, and one whose events stand.
            slot[name].replay()
            self.kernels.delay(DELAY_NS)
            slot[name].replay()
        self.synchronize()
        return {f"{name}_us": self.kernels.elapsed_us(*events) for name, events in self.events.items()}

    def eager(self, slot):
        self.kernels.fill(slot["filled"], slot["fill_elements"], 0, slot["fill_blocks"])
        self.barrier()
        self.synchronize()
        operate = slot["op"]
        start = time.perf_counter()
        for _ in range(slot["nodes"]):
            operate(0)
        self.synchronize()
        return (time.perf_counter() - start) * 1e6

    def verify(self, slot):
        if slot["work"] == "barrier":
            return self.verify_barrier(slot)
        if slot["output"] is not None:
            self.kernels.poison(self.address(slot["output"]), slot["output"].numel())
        nodes = slot["nodes"]
        if slot["work"] == "eager":
            self.kernels.fill(slot["filled"], slot["fill_elements"], 0, slot["fill_blocks"])
            slot["op"](0)
            self.check(slot, 0, 0)
            self.kernels.bump(nodes)
        else:
            slot["with"].replay()
            if slot["fill_each"]:
                self.check(slot, nodes - 1, 1)
            else:
                for node in range(nodes):
                    self.check(slot, node, nodes)
        return {"wrong": self.kernels.wrong()}

    def check(self, slot, node, back):
        self.kernels.check(slot["results"][node], slot["elements"], slot["first"][node], back)

    def verify_barrier(self, slot):
        slot["with"].replay()
        self.synchronize()
        self.kernels.delay(RANK * DELAY_NS)
        self.kernels.stamp(0)
        self.barrier()
        self.kernels.stamp(1)
        self.synchronize()
        came, left = self.kernels.stamps.tolist()
        return {"wrong": 0, "came_ns": came, "left_ns": left} if self.one_device else {"wrong": 0}

    def clear(self):
        self.tasks.clear()

    def address(self, memory):
        return memory.data_ptr()


class TorchSymmMem(System):
    def __init__(self):
        super().__init__()
        import torch.distributed._symmetric_memory as symm_mem

        self.symm_mem = symm_mem

    def version(self):
        return self.torch.__version__

    def start(self):
        """The first allocation and its rendezvous."""
        self.group = self.dist.group.WORLD.group_name
        self.first = self.symm_mem.empty(1 << 19, dtype=self.torch.bfloat16, device="cuda")
        self.symm_mem.rendezvous(self.first, self.group)

    def make_arena(self, elements):
        self.arena = self.symm_mem.empty(elements, dtype=self.torch.bfloat16, device="cuda")
        self.handle = self.symm_mem.rendezvous(self.arena, self.group)

    def barrier(self):
        self.handle.barrier(channel=0)

    def operation(self, variant, form, source, target, size):
        operate, group = getattr(self.torch.ops.symm_mem, variant), self.group
        if form == "in_place":
            return lambda node: operate(source[node], "sum", group)
        if form == "private":
            staging = self.arena[:size]
            return lambda node: operate(staging, source[node], "sum", group, target[node])
        return lambda node: operate(source[node], "sum", group, target[node])


class Raw:
    """Memory that is no tensor."""

    def __init__(self, address, elements):
        self.at, self.elements = address, elements

    def __getitem__(self, part):
        start, stop, _ = part.indices(self.elements)
        return Raw(self.at + 2 * start, stop - start)

    def data_ptr(self):
        return self.at

    def numel(self):
        return self.elements


class Nccl(System):
    """ncclAllReduce; from registered memory, unless the form is private."""

    BF16, SUM, COLLECTIVE_SYMMETRIC = 9, 0, 1

    def __init__(self):
        super().__init__()
        self.nccl = self.load()

    def load(self):
        names = [os.environ.get("SYMMEM_NCCL_LIBRARY"), "libnccl.so.2"]
        try:
            import nvidia.nccl

            names.insert(1, os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))
        except ImportError:
            pass
        for name in filter(None, names):
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        raise RuntimeError("there is no libnccl.so.2; SYMMEM_NCCL_LIBRARY can name one")

    def version(self):
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def call(self, name, *arguments):
        code = getattr(self.nccl, name)(*arguments)
        if code != 0:
            self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.nccl.ncclGetErrorString(code).decode()}")

    def start(self):
        class Id(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_byte * 128)]

        unique = Id()
        if RANK == 0:
            self.call("ncclGetUniqueId", ctypes.byref(unique))
            self.store.set("nccl_id", bytes(unique).hex())
        unique = Id.from_buffer_copy(bytes.fromhex(self.store.get("nccl_id").decode()))
        self.comm = ctypes.c_void_p()
        # By value, which needs the types.
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
        self.call("ncclCommInitRank", ctypes.byref(self.comm), WORLD, unique, RANK)
        self.flag = self.torch.ones(8, dtype=self.torch.bfloat16, device="cuda")
        self.barrier()
        self.synchronize()

    def make_arena(self, elements):
        address = ctypes.c_void_p()
        self.call("ncclMemAlloc", ctypes.byref(address), ctypes.c_size_t(2 * elements))
        self.arena = Raw(address.value, elements)
        if hasattr(self.nccl, "ncclCommWindowRegister"):
            window = ctypes.c_void_p()
            size, flags = ctypes.c_size_t(2 * elements), ctypes.c_int(self.COLLECTIVE_SYMMETRIC)
            self.call("ncclCommWindowRegister", self.comm, address, size, ctypes.byref(window), flags)

    def all_reduce(self, source, target, count):
        pointers = ctypes.c_void_p(source), ctypes.c_void_p(target)
        stream = ctypes.c_void_p(self.stream.cuda_stream)
        self.call("ncclAllReduce", *pointers, ctypes.c_size_t(count), self.BF16, self.SUM, self.comm, stream)

    def barrier(self):
        flag = self.flag.data_ptr()
        self.all_reduce(flag, flag, 1)

    def operation(self, _variant, _form, source, target, size):
        pairs = [(one.data_ptr(), other.data_ptr()) for one, other in zip(source, target)]
        return lambda node: self.all_reduce(*pairs[node], size)


def obey(system, order):
    name = order["order"]
    if name == "open":
        return system.open(order)
    if name == "prepare":
        return system.prepare(order)
    if name == "round":
        return system.round(system.tasks[order["slot"]], order["round"])
    if name == "verify":
        return system.verify(system.tasks[order["slot"]])
    if name == "clear":
        return system.clear() or {}
    raise ValueError(f"there is no order {name}")


def main():
    systems = {"torch": TorchSymmMem, "nccl": Nccl}
    try:
        system = systems[sys.argv[1]]()
        answer(**system.hello())
    except Exception as error:
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {error}"[:500])
        return
    for line in sys.stdin:
        order = json.loads(line)
        if order["order"] == "quit":
            break
        try:
            answer(**obey(system, order))
        except (Cannot, NotImplementedError) as error:
            answer(cannot=str(error)[:500])
        except Exception as error:
            traceback.print_exc()
            words = (str(error).splitlines() or [""])[0]
            # What an operation refuses before it starts, it refuses on all ranks.
            broken = any(mark in words.lower() for mark in ("cuda error", "failed with", "nccl", "out of memory"))
            refused = order["order"] == "prepare" and not broken
            answer(**{"cannot" if refused else "error": f"{type(error).__name__}: {words}"[:500]})
    # Destructors of a communicator may wait for ranks that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
