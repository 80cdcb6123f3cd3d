"""A kernel of one's own on symmetric memory, with CuPy: each rank writes into its neighbour's memory and signals, all on the device.

Two processes share GPU 0. Without CuPy or a GPU it says so and ends.
"""

import importlib.util
import pathlib
import tempfile

import symmem

SOURCE = r"""
#include "symmem.cuh"

extern "C" __global__ void greet(const symmem::u64* data, const symmem::u64* pads, unsigned rank, unsigned world) {
    symmem::Memory memory{data, pads, rank, world};
    unsigned next = (rank + 1) % world, prev = (rank + world - 1) % world;
    memory.peer<float>(next)[0] = 100.0f + rank;
    symmem::put_signal(memory, next, 0, 10000000000);
    symmem::wait_signal(memory, prev, 0, 10000000000);
}
"""


def compiled(name):
    import cupy

    with tempfile.TemporaryDirectory() as folder:
        for header, text in symmem.device_headers().items():
            pathlib.Path(folder, header).write_text(text)
        return cupy.RawModule(code=SOURCE, options=("--std=c++17", f"-I{folder}")).get_function(name)


def main(group):
    import cupy

    x = symmem.empty(1, dtype="float32", device="cuda:0")
    mem = symmem.rendezvous(x, group)
    greet = compiled("greet")
    group.barrier()
    rank, world = cupy.uint32(group.rank), cupy.uint32(group.size)
    greet((1,), (1,), (mem.buffer_ptrs_dev, mem.signal_pad_ptrs_dev, rank, world))
    greeting = cupy.asarray(x).tolist()
    group.barrier()
    return greeting


def has_gpu():
    try:
        symmem.empty(1, device="cuda:0")
    except symmem.NoCuda as error:
        print(f"nothing to show: {error}")
        return False
    return True


if __name__ == "__main__":
    if importlib.util.find_spec("cupy") is None:
        print("nothing to show: CuPy is not installed")
    elif has_gpu():
        greetings = symmem.spawn(main, ranks=2, env={"SYMMEM_ALLOW_OVERLAPPING_DEVICES": "1"})
        print(greetings)
        assert greetings == [[101.0], [100.0]]
