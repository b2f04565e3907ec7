"""SIGTERM as something to wait for: a pod that is told to leave finishes its step, then leaves."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM  # 143: never mistaken for a completed run


class Termination:
    """The word that SIGTERM or SIGINT has come, and a sleep that ends when it comes.

    The signal writes to a pipe: `threading.Event.set` in a handler can deadlock with the very `wait` that it
    interrupts. The interpreter writes at once (`signal.set_wakeup_fd`): Python's own handler would run after
    the sleep if the signal came between the last instruction and the call that sleeps.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.requested = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT. Main thread only."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def wait(self, seconds: float) -> bool:
        """Sleep; True as soon as the process was asked to leave."""
        if not self.requested and seconds > 0:
            select.select([self._read], [], [], seconds)
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        with contextlib.suppress(BlockingIOError):  # a full pipe says all it has to say
            os.write(self._write, b"\0")  # an event loop may have taken the interpreter's own for a while
