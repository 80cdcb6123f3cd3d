"""Ranks as processes: fresh interpreters that this process starts, hears, and ends.

The launcher serves the store on the loopback interface and sets the environment as torchrun does, so that
`torch.distributed.init_process_group()` works in a rank too. The job lies in anonymous memory that every rank
inherits; each rank has a pipe for its report. Nothing is in the file system.
"""

from __future__ import annotations

import math
import os
import pickle
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from symmem._spawn import lines, outcome
from symmem._spawn.job import Failure, Job, Report
from symmem._spawn.places import Places
from symmem._symmem import Error, TcpStore

JOB_FD = "SYMMEM_SPAWN_JOB_FD"
REPORT_FD = "SYMMEM_SPAWN_REPORT_FD"
LAUNCHER = "SYMMEM_SPAWN_LAUNCHER"
PATH = "SYMMEM_SPAWN_PATH"
CPUS = "SYMMEM_SPAWN_CPUS"

#: The rank's cores come first, for math libraries count them when they are imported; then the launcher's path: it is how the
#: ranks find this package.
_BOOT = (
    f"import os, sys; cpus = os.environ.pop({CPUS!r}); "
    "cpus and os.sched_setaffinity(0, map(int, cpus.split(','))); "
    f"sys.path[:] = os.environ.pop({PATH!r}).split(os.pathsep); "
    "from symmem._spawn.child import main; main()"
)
#: Seconds between two looks at processes that closed no pipe.
_TICK = 0.1
#: Seconds between asking a process to end and killing it.
_PATIENCE = 1.0
_CHUNK = 1 << 20


def run(
    job: Job, ranks: int, timeout: float | None, place: Places, prefix: bool, return_exceptions: bool
) -> list[Any] | Error:
    """Runs the job on `ranks` processes; see `symmem.spawn`. Gives the results, or what to raise."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    # Explicitly, whatever the environment says: nobody elsewhere has business with this store.
    store = TcpStore("127.0.0.1", 0, is_master=True, bind="127.0.0.1")
    job_fd = _in_memory(pickle.dumps(job))
    children: list[_Rank] = []
    try:
        shared = {**os.environ, **_environment(store.port, ranks, job_fd), **place.env}
        for rank in range(ranks):
            children.append(_Rank(rank, place.cpus[rank], shared, job_fd, lines.pipes(rank) if prefix else ()))
        ended = _listen(children, deadline, return_exceptions)
    finally:
        os.close(job_fd)
        _end(children)
    left = [child.rank for child in children if child.rank not in dict(ended)]
    if timeout is not None and left and not any(report.failure for _, report in ended):
        return outcome.timed_out(left, timeout)
    return outcome.results(ended, ranks, timeout, return_exceptions)


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("symmem-spawn")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


def _environment(port: int, ranks: int, job_fd: int) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(16),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # The run id is new, so nothing under it can be a leftover.
        "SYMMEM_FRESH_RUN": "1",
        JOB_FD: str(job_fd),
        LAUNCHER: str(os.getpid()),
        PATH: os.pathsep.join(entry for entry in sys.path if isinstance(entry, str)),
    }


class _Rank:
    """A started process and what it has said so far."""

    def __init__(
        self, rank: int, cpus: list[int], env: Mapping[str, str], job_fd: int, output: Sequence[lines.Pipe]
    ) -> None:
        self.rank = rank
        self.said = bytearray()
        self.output = output
        self.pipe, writer = os.pipe()
        os.set_blocking(self.pipe, False)
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), REPORT_FD: str(writer)}
        own[CPUS] = ",".join(map(str, cpus))
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        writers = [pipe.writer for pipe in output]
        stdout, stderr = writers or (None, None)
        # What is printed is seen at once, as on a terminal.
        unbuffered = ["-u"] if output else []
        try:
            self.process = subprocess.Popen(
                [sys.executable, *flags, *unbuffered, "-c", _BOOT],
                env={**env, **own},
                pass_fds=(job_fd, writer),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        except BaseException:
            for fd in (self.pipe, *(pipe.reader for pipe in output)):
                os.close(fd)
            raise
        finally:
            for fd in (writer, *writers):
                os.close(fd)

    def hear(self) -> bool:
        """Takes what is in the pipe, without waiting; whether the other end is closed."""
        try:
            while chunk := os.read(self.pipe, _CHUNK):
                self.said += chunk
            return True
        except BlockingIOError:
            return False

    def has_ended(self, closed: bool) -> bool:
        """Whether the process is gone. One that has `closed` its pipe is about to be."""
        try:
            self.process.wait(_TICK if closed else 0)
            return True
        except subprocess.TimeoutExpired:
            return False

    def report(self) -> Report:
        """What it said; a failure if it ended without a word. Call when the process has ended."""
        self.hear()
        status = self.process.returncode
        try:
            report: Report = pickle.loads(self.said)
        except Exception:
            return Report(failure=Failure(f"{_how(status)} before it had a result"))
        if report.failure is None and status != 0:
            return Report(failure=Failure(f"{_how(status)} after it had returned"))
        return report


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        try:
            return f"it was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"it was killed by signal {-status}"
    return f"it exited with status {status}"


def _listen(children: list[_Rank], deadline: float, to_the_end: bool) -> list[tuple[int, Report]]:
    """The reports in the order in which the ranks ended. Returns early when time is up, or soon after a failure."""
    ended: list[tuple[int, Report]] = []
    running = list(children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ)
            for pipe in child.output:
                selector.register(pipe.reader, selectors.EVENT_READ, pipe)
        while running and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(min(_TICK, left)):
                if key.data is not None and not key.data.take():
                    selector.unregister(key.fd)
            for child in [child for child in running if child.has_ended(closed=child.hear())]:
                selector.unregister(child.pipe)
                running.remove(child)
                ended.append((child.rank, child.report()))
                if ended[-1][1].failure and not to_the_end:
                    deadline = min(deadline, time.monotonic() + outcome.GRACE)
    return ended


def _end(children: list[_Rank]) -> None:
    """Ends what still runs: asks, waits a moment, kills. Returns when all are gone."""
    running = [child.process for child in children if child.process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _PATIENCE
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for child in children:
        os.close(child.pipe)
        for pipe in child.output:
            pipe.end()
