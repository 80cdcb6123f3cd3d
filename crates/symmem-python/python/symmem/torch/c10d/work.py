"""What an operation of the backend returns: a real `Work`, with a wait, an error and futures.

Only the process group makes them. A work completes exactly once, on the thread that ran its operation, which may be one that
waits for it; its error is raised by every `wait`, as the exception that symmem raised.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._C._distributed_c10d import Work as _Work

import symmem

if TYPE_CHECKING:
    from symmem.torch.c10d.worker import Worker

FOREVER = timedelta(0)
_lock = threading.Lock()


class Work(_Work):
    """One operation of a process group: queued, running or done.

    `tensors` is what its futures give; torch expects a list of tensors there.
    """

    op: str
    source = -1
    _tensors: Sequence[torch.Tensor]
    # What most works never need is made when it is needed.
    done = False
    _error: BaseException | None = None
    _worker: Worker | None = None
    _futures: list[torch.futures.Future[Any]] | None = None
    _latch: threading.Lock | None = None

    @classmethod
    def of(cls, name: str, tensors: Sequence[torch.Tensor]) -> Self:
        """A work that has not ended. No `__init__`, because one in Python takes as long as the rest of it."""
        work = cls()
        work.op = name
        work._tensors = tensors
        return work

    def belongs_to(self, worker: Worker) -> None:
        """It was queued there."""
        self._worker = worker

    def waits_for_itself(self) -> bool:
        """Whether a wait here would be one for the current thread, and so never end."""
        return not self.done and self._worker is not None and self._worker.turn.is_here()

    def complete(self, error: BaseException | None = None) -> None:
        """Ends the operation. Callbacks of futures run here, before a `wait` returns."""
        with _lock:
            self._error = error
            self.done = True
            futures, latch = self._futures, self._latch
            self._futures = None
        for future in futures or ():
            future.set_result(None)
        if latch is not None:
            latch.release()

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Waits for the end.

        Raises the operation's error, `symmem.Timeout` when `timeout` is over first, or `symmem.Busy` in a callback
        on the thread that has to run it.
        """
        if not self.done:
            self._wait(timeout.total_seconds())
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, seconds: float) -> None:
        if self.waits_for_itself():
            raise symmem.Busy(f"{self.op}: a callback cannot wait for its own group. Hint: get_future().then()")
        # What runs here cannot be left when the time is over.
        if self._worker is not None and seconds <= 0:
            self._worker.help(self)
            if self.done:
                return
        with _lock:
            if self.done:
                return
            if self._latch is None:
                self._latch = threading.Lock()
                self._latch.acquire()
        if not self._latch.acquire(timeout=seconds if seconds > 0 else -1):
            raise symmem.Timeout(f"{self.op}: not done within {seconds} s; it still runs")
        self._latch.release()

    def synchronize(self) -> None:
        """The same as `wait()`: there is no stream to wait on."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait()`: there is no stream to block."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        if not self.done and self._worker is not None:
            self._worker.turn.hurry()
        return self.done

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self.done and self._error is None

    def exception(self) -> BaseException | None:
        """What `wait` would raise; None while the operation runs, and when it ended well."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation wrote."""
        self.wait()
        return list(self._tensors)

    def source_rank(self) -> int:
        """Of a receive: which rank sent, once it is done."""
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the written tensors.

        It fails with the operation's error, also for callers in C++ (DDP): hence `then`, for an exception set
        from Python is a value to them.
        """
        root: torch.futures.Future[Any] = torch.futures.Future()
        future = root.then(self._outcome)
        with _lock:
            pending = not self.done
            if pending:
                self._futures = [*(self._futures or ()), root]
        if not pending:
            root.set_result(None)
        elif self._worker is not None:
            self._worker.turn.hurry()
        return future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return list(self._tensors)


class JointWork(Work):
    """Several works as one, for coalesced operations: done when all are, with the first error."""

    def __init__(self, name: str, works: Sequence[Work]) -> None:
        super().__init__()
        self.op = name
        self._tensors = [tensor for work in works for tensor in work._tensors]
        self._works = works
        self._left = len(works)
        self._first: BaseException | None = None
        if not works:
            self.complete()
        for work in works:
            work.get_future().add_done_callback(functools.partial(self._one_done, work))

    def waits_for_itself(self) -> bool:
        """Whether one of them would."""
        return not self.done and any(work.waits_for_itself() for work in self._works)

    def _one_done(self, work: Work, _: object) -> None:
        with _lock:
            self._left -= 1
            self._first = self._first or work.exception()
            done = self._left == 0
        if done:
            self.complete(self._first)
