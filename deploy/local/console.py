"""Print progress lines: rewritten in place on a terminal, now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import TextIO

_SELDOM_S = 15.0  # between progress lines where they cannot be rewritten


class Console:
    """A `Report` that writes to standard error (or `stream`)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self._unfinished = False
        self._last = float("-inf")

    def __call__(self, line: str, progress: bool = False) -> None:
        if progress and not self.live:
            if time.monotonic() - self._last < _SELDOM_S:
                return
            self._last = time.monotonic()
        start = "\r\033[K" if self._unfinished else ""
        inplace = progress and self.live
        self.stream.write(f"{start}{line}{'' if inplace else chr(10)}")
        self.stream.flush()
        self._unfinished = inplace

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unfinished:
            self.stream.write("\n")
            self.stream.flush()
            self._unfinished = False
