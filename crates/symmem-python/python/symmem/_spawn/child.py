"""A rank's process: takes the job it inherited, joins the group, runs the function, reports, and ends.

Only the launcher (`processes`) starts it. A rank dies with its launcher, and never prints a traceback: the launcher
raises it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from typing import Any, NoReturn

from symmem import _groups
from symmem._spawn import job as jobs, outcome, processes
from symmem._spawn.job import Job, Report
from symmem._symmem import Group

_PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """The whole life of a rank's process."""
    report_fd = int(os.environ.pop(processes.REPORT_FD))
    # What the function starts must not hold the pipe.
    os.set_inheritable(report_fd, False)
    _die_with(int(os.environ.pop(processes.LAUNCHER)))
    rank = int(os.environ["RANK"])
    own = os.getpid()
    try:
        job = _read(int(os.environ.pop(processes.JOB_FD)))
        report = Report(result=jobs.dumper(job.by_value)(_run(job)))
    except BaseException as error:
        if os.getpid() != own:
            raise  # a process that the function has forked: not the rank
        # Nothing that the process has started may keep the others waiting: no exit handlers, no joining of threads.
        _send(report_fd, Report(failure=outcome.failure_of(error, rank)))
        _flush()
        os._exit(1)
    if os.getpid() == own:
        _send(report_fd, report)
    sys.exit(0)


def _die_with(launcher: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before that call.
    if os.getppid() != launcher:
        os._exit(1)


def _read(fd: int) -> Job:
    # By offset: all ranks share one.
    data = bytearray()
    while chunk := os.pread(fd, 1 << 24, len(data)):
        data += chunk
    os.close(fd)
    job: Job = pickle.loads(data)
    return job


def _run(job: Job) -> Any:
    fn, args = jobs.decode(job)
    group = Group.from_env()
    own = os.getpid()
    _groups.set_group_of_process(group)
    try:
        return fn(group, *args)
    except BaseException as error:
        if os.getpid() == own:
            group.abort(outcome.reason_of(error))
        raise
    finally:
        _groups.set_group_of_process(None)


def _send(fd: int, report: Report) -> None:
    # Stays open to the end of the process: its closing is how the launcher learns of that.
    with open(fd, "wb", closefd=False) as file:
        file.write(pickle.dumps(report))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
