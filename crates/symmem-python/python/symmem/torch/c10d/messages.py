"""Messages between two ranks: send, receive, any source, tags.

Only the process group uses it. The mail itself is `symmem.Mailbox`, which moves messages whether or not
somebody waits, and beside collectives. A message is a `Work`; a thread that looks after them exists only
where somebody asked for a future.
"""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

import symmem
from symmem.torch.c10d.operations import as_bytes, quiet, store_bytes
from symmem.torch.c10d.work import FOREVER, Work

_PAUSE = 5e-4


class MessageWork(Work):
    """A message on its way. Whoever finds it done first, by a wait or a look, settles it."""

    def __init__(self, name: str, tensor: Tensor, messages: Messages) -> None:
        super().__init__()
        self.op = name
        self._tensors = [tensor]
        self._messages = messages
        self._pending: symmem.PendingMessage | None = None
        self._received: Tensor | None = None
        self._settling = threading.Lock()
        self._seconds = messages.seconds
        self._deadline = math.inf

    def travels(self, pending: symmem.PendingMessage, received: Tensor | None = None) -> None:
        """It was started. Of a receive: where its bytes will be."""
        self._pending = pending
        self._received = received
        self._deadline = time.monotonic() + self._seconds

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Waits for the end, at most for `timeout`;

        Without one for the group's timeout, which then takes it back.
        """
        if not self.done:
            self._settle(max(math.ceil(timeout.total_seconds() * 1000), 0))
        return super().wait(timeout)

    def is_completed(self) -> bool:
        """Whether the message has ended, well or not."""
        if not self.done and self._pending is not None and self._pending.test():
            self._settle(0)
        return super().is_completed()

    def is_success(self) -> bool:
        """Whether the message has ended well."""
        return self.is_completed() and super().is_success()

    def exception(self) -> BaseException | None:
        """What `wait` would raise; None while the message travels, and when it ended well."""
        self.is_completed()
        return super().exception()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensor."""
        future = super().get_future()
        if not self.is_completed():
            self._messages.watch(self)
        return future

    def fail(self, error: BaseException) -> None:
        """Ends it with `error`, unless it has ended."""
        with self._settling:
            if not self.done:
                self.complete(error)

    def expire(self) -> None:
        """Ends it with `symmem.Timeout` if the group's timeout is over."""
        if time.monotonic() >= self._deadline:
            self.fail(self._late())

    def _late(self) -> symmem.Timeout:
        return symmem.Timeout(f"{self.op}: not done within the timeout of {self._seconds} s of the process group")

    def _settle(self, timeout_ms: int) -> None:
        """Waits for the message, and completes. A message that is not there within `timeout_ms` goes on."""
        pending = self._pending
        assert pending is not None
        error: BaseException | None = None
        try:
            source = pending.wait(timeout_ms or self._left_ms())
        except symmem.Timeout as timed_out:
            travels = not pending.test()
            if timeout_ms and travels:
                raise
            error = self._late() if travels else timed_out
        except symmem.Error as failed:
            error = failed
        with self._settling:
            if self.done:
                return
            if error is None and self._received is not None and source is not None:
                self.source = source
                try:
                    with quiet(self._tensors):
                        store_bytes(self._tensors[0], self._received)
                except Exception as failed:  # it is this receive's, and may be found by a thread that looks after others too
                    error = failed
            self.complete(error)

    def _left_ms(self) -> int:
        """How long a wait may take. 0 leaves it to the mailbox, unless the group's timeout is shorter now."""
        if self._seconds >= self._messages.longest:
            return 0
        return max(math.ceil((self._deadline - time.monotonic()) * 1000), 1)


class Messages:
    """The messages of one rank of a process group. Making it is collective."""

    def __init__(self, group: symmem.Group, name: str, seconds: float) -> None:
        self._mailbox = symmem.Mailbox(group)
        self.seconds = seconds  # the timeout of messages that are started from now on
        self.longest = seconds  # what the mailbox itself allows
        self._name = name
        self._watched: list[MessageWork] = []
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        """Starts a message. It is done when the tensor may be overwritten."""
        work = MessageWork("send", tensor, self)
        with quiet([tensor]):
            data = as_bytes(tensor)
        work.travels(self._mailbox.isend(data, to, tag))
        return work

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> Work:
        """Starts to receive a message of the tensor's size, from `source` or from whoever sends first."""
        work = MessageWork("recv", tensor, self)
        with quiet([tensor]):
            received = as_bytes(tensor)
        work.travels(self._mailbox.irecv(received, source, tag), received)
        return work

    def watch(self, work: MessageWork) -> None:
        """Completes `work` when its message has ended, whether or not anybody waits."""
        with self._changed:
            if not self._closed:
                self._watched.append(work)
                self._ensure_thread()
                self._changed.notify()
                return
        work.fail(symmem.Closed(f"{work.op}: the process group was destroyed"))

    def close(self) -> None:
        """Ends the thread. Futures of messages that have not ended fail with `symmem.Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._mailbox.close()

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
            self._thread.start()

    def _look(self) -> None:
        travelling: list[MessageWork] = []
        while True:
            with self._changed:
                if not self._watched and not self._closed:
                    self._changed.wait(_PAUSE if travelling else None)
                travelling += self._watched
                self._watched = []
                closed = self._closed
            travelling = [work for work in travelling if not work.is_completed()]
            if closed:
                break
            for work in travelling:
                work.expire()
        for work in travelling:
            work.fail(symmem.Closed(f"{work.op}: the process group was destroyed"))
