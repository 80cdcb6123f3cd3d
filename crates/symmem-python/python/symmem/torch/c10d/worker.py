"""Runs the operations of one process group, one after the other, in the order they were given.

Only the process group uses it. An operation that its caller waits for anyway runs on the caller's thread when
nothing is before it: that saves two switches of threads. Everything else runs on one thread, which starts
when it is needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import symmem
from symmem.torch.c10d.work import Work

_Job = tuple[Work, Callable[[], object]]


class Worker:
    """A queue of operations, and the thread that works it off."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._running = False  # an operation runs, on whichever thread
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, work: Work, operation: Callable[[], object], *, wait: bool) -> Work:
        """Gives it an operation; `wait` says that the caller waits for it right away."""
        if wait and self._is_here():
            raise symmem.Busy(
                f"{work.op}: a callback cannot wait for its own group. Hint: async_op=True, and then()"
            )
        with self._lock:
            if self._closed:
                raise symmem.Closed(f"{work.op}: the process group was destroyed")
            inline = wait and not self._running and not self._queue
            if inline:
                self._running = True
            else:
                work.belongs_to(self._is_here)
                self._queue.append((work, operation))
                self._ensure_thread()
                self._changed.notify_all()
        if inline:
            try:
                work.run(operation)
            finally:
                self._end()
        return work

    def close(self, seconds: float) -> bool:
        """Takes no more, and waits until what it has is done: false if that took longer than `seconds`."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _end(self) -> None:
        with self._lock:
            self._running = False
            if self._queue:
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        with self._lock:
            while self._running or not self._queue:
                if self._closed and not self._queue:
                    return None
                self._changed.wait()
            self._running = True
            return self._queue.popleft()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job[0].run(job[1])
            del job  # its tensors may be freed while this thread waits for the next one
            self._end()
