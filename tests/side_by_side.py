"""One process of pytest that has collected its tests forks into several that run them.

So the suite is imported and collected once, not once for each run, and lies in memory once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest


def fork(config: pytest.Config, folder: Path, runs: int) -> int:
    """Fork into so many runs. Return the number of this one, from 0; one run alone is this process.

    What all but the first print goes to files in ``folder``. The process that forked does not return: it
    waits for its runs, and ends with the status of the first of them that did not pass, or 0. SIGINT ends
    them all.
    """
    if runs == 1:
        return 0
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    files = [folder / f"printed-{number}" for number in range(runs)]
    sys.stdout.flush()
    sys.stderr.flush()
    children = []
    for number, path in enumerate(files):
        path.touch()
        if child := os.fork():
            children.append(child)
            continue
        # What tests print is caught in a file: each run needs one of its own.
        capture.stop_global_capturing()
        if number:
            _print_to(path)
        capture.start_global_capturing()
        capture.suspend_global_capture()
        return number
    os._exit(_Waiting(children).printing(files))


def _print_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


class _Waiting:
    """The process that forked: its ``children``, in the order of their numbers."""

    def __init__(self, children: list[int]) -> None:
        self._children = children
        self._statuses: dict[int, int] = {}
        signal.signal(signal.SIGINT, self._stop)

    def printing(self, files: list[Path]) -> int:
        """Wait until the first is over, then print what each of the others printed, and goes on to print.

        Returns:
            The first status that is not 0, in the order of their numbers.
        """
        for number, (child, path) in enumerate(zip(self._children, files, strict=True)):
            with path.open() as printed:
                if number:
                    print("beside it:", flush=True)
                while True:
                    over = self._over(child)
                    sys.stdout.write(printed.read())
                    sys.stdout.flush()
                    if over:
                        break
                    time.sleep(0.2)
        return next((status for child in self._children if (status := self._statuses[child])), 0)

    def _over(self, child: int) -> bool:
        if child not in self._statuses:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                return False
            self._statuses[child] = os.waitstatus_to_exitcode(status)
        return True

    def _stop(self, *_: object) -> None:
        """End them as Ctrl-C would: their fixtures end their clusters."""
        for child in self._children:
            if child not in self._statuses:
                os.kill(child, signal.SIGINT)  # unless waited for, its number is nobody else's
