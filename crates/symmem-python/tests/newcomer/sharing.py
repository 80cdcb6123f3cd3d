"""One large array for all ranks: one brings it, the others bring nothing, and it is in memory once."""

import re

import numpy as np
import symmem

ELEMENTS = 1 << 24
BYTES = 4 * ELEMENTS


def shared_bytes():
    """This rank's part of the shared memory that it maps: what n processes map counts 1/n in each."""
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * int(re.search(r"Pss_Shmem: +(\d+) kB", file.read())[1])


def main(group):
    x = symmem.empty(ELEMENTS, dtype="float32") if group.rank == 0 else None
    mem = symmem.rendezvous(x, group)
    if x is not None:
        x[:] = 1.0
    mem.barrier()
    share = mem.get_buffer(0, (ELEMENTS,), "float32")[group.rank :: group.size]
    total = float(np.asarray(share).sum(dtype="float64"))
    mem.barrier()
    used = shared_bytes()
    mem.barrier()
    return total, used


if __name__ == "__main__":
    totals, used = zip(*symmem.spawn(main, ranks=4))
    print(sum(totals) == ELEMENTS, BYTES <= sum(used) < 1.5 * BYTES)
