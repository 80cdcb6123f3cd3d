"""The measuring loop around collectives that torch can call, the same as `symmem bench` runs around its own.

A script describes its system as a `System` and calls `main`. Ranks are forked processes, one torch thread
each, pinned to one core each where the job asks for that; they meet through a file. Rank 0 writes the report.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import connection, get_context

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Values stay below this; sums over a few dozen ranks are then exact in bfloat16 too.
PERIOD = 8
WARM_UP_BATCHES = 10
# Of a case that is measured for some time: the same numbers as in `race.rs`.
FEWEST_BLOCKS, FEWEST_ITERS, MOST_ITERS, BLOCK_NS = 3, 5, 2000, 10_000_000
TIMEOUT = timedelta(seconds=60)


class System:
    """What is measured. Operations are methods named as in the job; one that is absent is left out."""

    name = None
    version = None
    # The path given by --library, for systems that are loaded from one.
    library = None

    def start(self, rank, ranks):
        """Called on every rank, after torch's default group (Gloo) exists."""

    def barrier(self):
        """What ranks meet in before the clock starts; the smaller the skew it leaves, the better."""
        raise NotImplementedError


class Case:
    """One operation at one size: its buffers, how they are dirtied, and what must come out."""

    def __init__(self, job, rank, ranks):
        self.op, self.dtype, self.bytes = job["op"], job["dtype"], job["bytes"]
        self.iters = job["iters"]
        self.rank, self.ranks = rank, ranks
        dtype = DTYPES[self.dtype]
        whole = self.bytes // dtype.itemsize
        part = whole // ranks
        inputs = {"all_gather": part}.get(self.op, whole)
        outputs = {"reduce_scatter": part}.get(self.op, whole)
        self.in_place = self.op in ("all_reduce", "broadcast")
        self.ramp = (torch.arange(whole + PERIOD) % PERIOD).to(dtype)
        self.input = torch.empty(inputs, dtype=dtype)
        self.output = self.input if self.in_place else torch.empty(outputs, dtype=dtype)

    def value(self, rank, position, iteration):
        """What `rank` puts at `position`; whole numbers."""
        return (position + 3 * rank + iteration) % PERIOD

    def dirty(self, iteration):
        start = self.value(self.rank, 0, iteration)
        self.input.copy_(self.ramp[start : start + len(self.input)])
        if not self.in_place:
            torch.neg(self.ramp[start : start + len(self.output)], out=self.output)

    def expected(self, iteration):
        at = torch.arange(len(self.output))
        part = max(len(at) // self.ranks, 1)
        block, inside = at // part, at % part
        if self.op == "broadcast":
            return self.value(0, at, iteration)
        if self.op == "all_gather":
            return self.value(block, inside, iteration)
        if self.op == "all_to_all":
            return self.value(block, self.rank * part + inside, iteration)
        offset = self.rank * len(at) if self.op == "reduce_scatter" else 0
        return sum(self.value(rank, offset + at, iteration) for rank in range(self.ranks))

    def is_right(self, iteration):
        return torch.equal(self.output.to(torch.int64), self.expected(iteration))

    def sample(self, system, iteration):
        """One timed operation, in nanoseconds."""
        call = getattr(system, self.op)
        self.dirty(iteration)
        system.barrier()
        start = time.perf_counter_ns()
        call(self.input, self.output)
        return time.perf_counter_ns() - start


def slowest(samples):
    """For each iteration the time of the slowest rank."""
    times = torch.tensor(samples, dtype=torch.int64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def agreed(fine):
    """Whether it is fine on every rank."""
    flag = torch.tensor([int(fine)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag.item())


def can(system, op, dtype, rank, ranks):
    """Tries the operation once on a few elements: what a build can do is in no list."""
    if not hasattr(system, op):
        return False
    job = {"op": op, "dtype": dtype, "bytes": 64 * ranks * DTYPES[dtype].itemsize, "iters": 1}
    try:
        Case(job, rank, ranks).sample(system, 0)
    except (RuntimeError, ValueError, NotImplementedError, TypeError):
        return agreed(False)
    return agreed(True)


def warm_up(system, case):
    batch = max(5, case.iters // 10)
    before = None
    for _ in range(WARM_UP_BATCHES):
        # Every rank sees the same slowest times, so all decide alike.
        median = statistics.median(slowest([case.sample(system, i) for i in range(batch)]))
        if before is not None and abs(median - before) <= 0.1 * before:
            return
        before = median


def for_a_while(system, case, seconds):
    """As many samples as the time allows; every block is about as long, and all ranks end together."""
    end = time.monotonic() + seconds
    samples, blocks, block = [], 0, FEWEST_ITERS
    while blocks < FEWEST_BLOCKS or agreed(time.monotonic() < end):
        new = slowest([case.sample(system, len(samples) + i) for i in range(block)])
        block = min(max(int(BLOCK_NS / statistics.fmean(new)), FEWEST_ITERS), MOST_ITERS)
        samples += new
        blocks += 1
    return samples


def measure(system, case, seconds):
    """A row of the report; measures so many seconds, if a number of iterations is not what counts."""
    if seconds is None:
        warm_up(system, case)
        samples = slowest([case.sample(system, i) for i in range(case.iters)])
    else:
        samples = for_a_while(system, case, seconds)
    verified = agreed(case.is_right(len(samples) - 1))
    samples.sort()

    def us(part):
        return samples[min(int(part * len(samples)), len(samples) - 1)] / 1000

    times = {"min": us(0), "p50": us(0.5), "p90": us(0.9), "p99": us(0.99), "mean": statistics.fmean(samples) / 1000}
    row = {"op": case.op, "dtype": case.dtype, "bytes": case.bytes, "us": times}
    return row | {"samples": len(samples), "verified": verified}


def run_rank(system, rank, ranks, job, out, meeting_point):
    if job.get("pin", True):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    store = dist.FileStore(meeting_point, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    system.start(rank, ranks)
    pairs = sorted({(case["op"], case["dtype"]) for case in job["cases"]})
    possible = {pair for pair in pairs if can(system, *pair, rank, ranks)}
    wanted = [case for case in job["cases"] if (case["op"], case["dtype"]) in possible]
    rows = [measure(system, Case(case, rank, ranks), job.get("timed_s")) for case in wanted]
    if rank == 0:
        with open(out, "w") as file:
            json.dump({"system": system.name, "version": system.version, "rows": rows}, file)
    dist.barrier()
    # Some systems leave threads or destructors behind that hang or crash at a normal exit.
    sys.stdout.flush()
    os._exit(0)


def wait_for_all(processes):
    """Ends every rank as soon as one fails; returns the exit status."""
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in connection.wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                print(f"{process.name} failed (exit status {process.exitcode})", file=sys.stderr)
                return 1
    return 0


def stop(processes):
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()


def main(system):
    parser = argparse.ArgumentParser(description=f"Measures {system.name} by the cases of a job.")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--job", required=True, help="JSON file with the cases")
    parser.add_argument("--out", required=True, help="where to write the report")
    parser.add_argument("--library", help="the library that holds the system")
    parser.add_argument("--version", help="the version that the report names")
    options = parser.parse_args()
    system.library = options.library
    system.version = options.version or system.version
    if options.ranks < 1:
        parser.error("--ranks must be at least 1")
    try:
        with open(options.job) as file:
            job = json.load(file)
    except (OSError, ValueError) as error:
        parser.error(f"the job cannot be read: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Forked: importing torch again in every rank takes seconds.
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.ranks, job, options.out, os.path.join(folder, "store"))
        processes = [
            context.Process(target=run_rank, args=(system, rank, *arguments), name=f"rank {rank}", daemon=True)
            for rank in range(options.ranks)
        ]
        for process in processes:
            process.start()
        try:
            status = wait_for_all(processes)
        finally:
            stop(processes)
    sys.exit(status)
