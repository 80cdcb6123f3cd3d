"""What ranks write, line by line, with the rank before each line: `prefix=True` of `spawn`.

Each rank's stdout and stderr are pipes that the launcher reads, so lines are whole whoever writes them, libraries in C
included, and appear where the launcher's own do: also in a notebook's cell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

#: More than a pipe holds.
_CHUNK = 1 << 20
#: A line that is longer is cut.
_LONGEST = 1 << 20


class Pipe:
    """One stream of one rank: `writer` is for the process, `take` for the launcher."""

    def __init__(self, rank: int, stream: Callable[[], TextIO | None]) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._prefix = f"[rank {rank}] "
        self._stream = stream
        self._begun = bytearray()

    def take(self) -> bool:
        """Prints the lines that have ended, without waiting for more; whether more may come."""
        try:
            chunk = os.read(self.reader, _CHUNK)
        except BlockingIOError:
            return True
        *ended, self._begun = (self._begun + chunk).split(b"\n")
        if len(self._begun) >= _LONGEST:
            ended.append(self._begun)
            self._begun = bytearray()
        self._print(ended)
        return bool(chunk)

    def end(self) -> None:
        """Prints what is left, and closes the launcher's side."""
        try:
            self.take()
            self._print([self._begun] if self._begun else [])
        finally:
            os.close(self.reader)

    def _print(self, lines: list[bytearray]) -> None:
        stream = self._stream()
        if lines and stream is not None:
            text = (self._prefix + line.decode(errors="backslashreplace") + "\n" for line in lines)
            stream.write("".join(text))
            stream.flush()


def pipes(rank: int) -> tuple[Pipe, Pipe]:
    """Those of a rank's stdout and stderr. Where they lead is looked up at every line, as `print` does."""
    return Pipe(rank, lambda: sys.stdout), Pipe(rank, lambda: sys.stderr)
