"""One array for a pool of workers: 64 MB once, whatever the number of workers. They are no ranks, and need no group."""

import multiprocessing
import os

import symmem

WORKERS, PARTS = 3, 8


def start(handle):
    global image
    image = handle.open()  # the same memory, in this worker


def brighten(part):
    rows = slice(part * image.shape[0] // PARTS, (part + 1) * image.shape[0] // PARTS)
    image[rows] += part
    return os.getpid()


if __name__ == "__main__":
    image = symmem.empty(4096, 4096, dtype="float32")
    image[:] = 100
    # Spawned workers start with nothing: what they share of this process comes by the handle.
    with multiprocessing.get_context("spawn").Pool(WORKERS, start, (image.share(),)) as pool:
        workers = set(pool.map(brighten, range(PARTS)))
    print(f"{len(workers)} workers wrote {image.nbytes >> 20} MB: mean {float(image.mean()):.1f}")
    assert image[:: 4096 // PARTS, 0].tolist() == [100 + part for part in range(PARTS)]
