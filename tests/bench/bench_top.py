"""`evalstop top` over 5,000 jobs that change: from a key to the screen, and the CPU it takes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

from tests.bench.rows import Row, median_row
from tests.support.process_cpu import cpu_seconds

JOBS, CHANGES = 5000, 333  # changes a second: each job's eval every 15 s
SECONDS, TIMES = 20.0, 21


class Screen:
    """The program on a pseudo-terminal of 200x50."""

    def __init__(self, jobs: int, changes: int) -> None:
        self.reader, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        command = [sys.executable, "-m", "tests.bench.top_screen", str(jobs), str(changes)]
        environ = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environ, start_new_session=True
        )
        os.close(other)
        self._drawn = ""

    def read(self, seconds: float) -> None:
        if select.select([self.reader], [], [], seconds)[0]:
            self._drawn += os.read(self.reader, 1 << 20).decode("utf-8", "replace")

    def shows(self, text: str, seconds: float = 60.0) -> float:
        """Return when (s) a text has come; what was drawn before is forgotten."""
        deadline = time.monotonic() + seconds
        while text not in self._drawn:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} does not come")
            self.read(0.5)
        self._drawn = ""
        return time.monotonic()

    def drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)
        self._drawn = ""

    def press(self, key: str) -> None:
        self._drawn = ""
        os.write(self.reader, key.encode())

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.reader)


def run(tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield CPU, in cores, and the time from a key to the screen; beside one job that does not change."""
    found: dict[int, tuple[float, list[float]]] = {}
    for jobs, changes in ((1, 0), (JOBS, CHANGES)):
        tell(f"{jobs} jobs, {changes} changes a second")
        screen = Screen(jobs, changes)
        try:
            screen.shows("Quit")
            screen.drain(3.0)
            before, begun = cpu_seconds(screen.process.pid), time.monotonic()
            screen.drain(SECONDS)
            cores = (cpu_seconds(screen.process.pid) - before) / (time.monotonic() - begun)
            taken = []
            for _ in range(TIMES):
                pressed = time.monotonic()
                screen.press("?")
                taken.append(screen.shows("other way round") - pressed)
                screen.press("\x1b")
                screen.drain(1.0)
            found[jobs] = cores, taken
        finally:
            screen.end()
    yield Row(f"top: {JOBS} jobs changing, CPU", found[JOBS][0], "cores", found[1][0])
    yield median_row("top: key to screen", found[JOBS][1], "s", found[1][1])
    worst = max(found[JOBS][1])
    yield Row("top: key to screen, the worst of 21", worst, "s", max(found[1][1]))
