"""Runs the operations of one process group, one after the other, in the order they were given.

Only the process group uses it. Whoever waits for an operation runs it, and what is before it, on its own thread, if
nobody is at it: that saves two switches of threads. Everything else runs on one thread, which starts when it is needed,
and leaves an operation for a moment to whoever waits for it.
"""

from __future__ import annotations

import threading
from collections import deque

import symmem
from symmem._symmem import _Turn
from symmem.torch.c10d.operations import Operation, perform
from symmem.torch.c10d.work import Work


class Worker:
    """A queue of operations, and a thread that works it off when nobody else does.

    Who has the `turn` runs operations.
    """

    def __init__(self, name: str) -> None:
        self.turn = _Turn()
        self._name = name
        self._queue: deque[tuple[Work, Operation]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run_here(self, name: str, operation: Operation) -> bool:
        """Runs an operation that its caller waits for, and what is before it; false if another thread is at one."""
        self._check(name)
        if not self.turn.take():
            if self.turn.is_here():
                raise symmem.Busy(
                    f"{name}: a callback cannot wait for its own group. Hint: async_op=True, and then()"
                )
            return False
        try:
            self._work_off(None)
            perform(*operation)
        finally:
            self.turn.give_back()
        return True

    def submit(self, work: Work, operation: Operation, *, at_once: bool) -> Work:
        """Gives it an operation to run beside the caller, `at_once` or when the caller has not waited for it soon."""
        self._check(work.op)
        work.belongs_to(self)
        # In this order: who takes it counts it down.
        self.turn.queued(at_once)
        self._queue.append((work, operation))
        if self._thread is None:
            self._start_thread()
        return work

    def help(self, work: Work) -> None:
        """Runs `work` here, and what is before it, unless another thread is at it."""
        if self.turn.take():
            try:
                self._work_off(work)
            finally:
                self.turn.give_back()

    def close(self, seconds: float) -> bool:
        """Takes no more, and waits until what it has is done: false if that took longer than `seconds`."""
        self._closed = True
        self.turn.close()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def _check(self, name: str) -> None:
        if self._closed:
            raise symmem.Closed(f"{name}: the process group was destroyed")

    def _work_off(self, last: Work | None) -> None:
        """Runs what is queued, up to `last`. The turn is this thread's."""
        while self._queue and (last is None or not last.done):
            work, operation = self._queue.popleft()
            self.turn.taken()
            error: BaseException | None = None
            try:
                perform(*operation)
            except BaseException as raised:  # it belongs to whoever waits, KeyboardInterrupt included
                error = raised
            work.complete(error)
            del work, operation, error  # its tensors may be freed while this thread waits for the next one

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while self.turn.wait():
            try:
                self._work_off(None)
            finally:
                self.turn.give_back()
