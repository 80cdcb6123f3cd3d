"""What an operation of the backend returns: a real `Work`, with a wait, an error and futures.

Only the process group makes them. A work completes exactly once, on the thread that ran its operation; its
error is raised by every `wait`, as the exception that symmem raised.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Work

import symmem

FOREVER = timedelta(0)
_futures_lock = threading.Lock()


class Work(_Work):
    """One operation of a process group: queued, running or done.

    `tensors` is what its futures give; torch expects a list of tensors there.
    """

    def __init__(self, name: str, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.op = name
        self.source = -1
        self._tensors = tensors
        self._done = False
        self._error: BaseException | None = None
        self._on_its_thread: Callable[[], bool] | None = None
        self._futures: list[torch.futures.Future[Any]] = []
        self._latch = threading.Lock()
        self._latch.acquire()

    def belongs_to(self, on_its_thread: Callable[[], bool]) -> None:
        """It was queued; `on_its_thread` says whether the current thread is the one that has to run it."""
        self._on_its_thread = on_its_thread

    def waits_for_itself(self) -> bool:
        """Whether a wait here would be one for the current thread, and so never end."""
        return not self._done and self._on_its_thread is not None and self._on_its_thread()

    def run(self, operation: Callable[[], object]) -> None:
        """Runs `operation` here and completes with what came of it."""
        error: BaseException | None = None
        try:
            operation()
        except BaseException as raised:  # it belongs to whoever waits, KeyboardInterrupt included
            error = raised
        self.complete(error)

    def complete(self, error: BaseException | None = None) -> None:
        """Ends the operation. Callbacks of futures run here, before a `wait` returns."""
        with _futures_lock:
            self._error = error
            self._done = True
            futures, self._futures = self._futures, []
        for future in futures:
            future.set_result(None)
        self._latch.release()

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Waits for the end.

        Raises the operation's error, `symmem.Timeout` when `timeout` is over first, or `symmem.Busy` in a callback
        on the thread that has to run it.
        """
        if self.waits_for_itself():
            raise symmem.Busy(f"{self.op}: a callback cannot wait for its own group. Hint: get_future().then()")
        if not self._done:
            seconds = timeout.total_seconds()
            if not self._latch.acquire(timeout=seconds if seconds > 0 else -1):
                raise symmem.Timeout(f"{self.op}: not done within {seconds} s; it still runs")
            self._latch.release()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait()`: there is no stream to wait on."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as `wait()`: there is no stream to block."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._done

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        """What `wait` would raise; None while the operation runs, and when it ended well."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation wrote."""
        self.wait()
        return self._tensors

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
        with _futures_lock:
            pending = not self._done
            if pending:
                self._futures.append(root)
        if not pending:
            root.set_result(None)
        return future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors


class JointWork(Work):
    """Several works as one, for coalesced operations: done when all are, with the first error."""

    def __init__(self, name: str, works: Sequence[Work]) -> None:
        super().__init__(name, [tensor for work in works for tensor in work._tensors])
        self._works = works
        self._left = len(works)
        self._first: BaseException | None = None
        if not works:
            self.complete()
        for work in works:
            work.get_future().add_done_callback(functools.partial(self._one_done, work))

    def waits_for_itself(self) -> bool:
        """Whether one of them would."""
        return not self._done and any(work.waits_for_itself() for work in self._works)

    def _one_done(self, work: Work, _: object) -> None:
        with _futures_lock:
            self._left -= 1
            self._first = self._first or work.exception()
            done = self._left == 0
        if done:
            self.complete(self._first)
