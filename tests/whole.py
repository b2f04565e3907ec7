"""`python -m tests.whole`: the whole suite (`make test`), as two rows of pytest runs side by side.

Tests on a control plane mostly wait, those that only compute need a core. One row has the folders that are
named nowhere here. The other has first those that only compute, at a lower priority so that nobody waits for
them, and then some more that use a control plane: one of their own, as every run of pytest starts one for
itself. What the other row printed comes when the first is over, and goes on from there. Arguments go to all
runs. Exit status 0 if all passed, else that of the first run that did not.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
# Folders of tests that start nothing they would have to wait for.
COMPUTING = (
    "tests/faults",
    "tests/fuzz",
    "tests/policy",
    "tests/sim",
    "tests/sim_experiments",
    "tests/sim_rules",
    "tests/sim_traces",
    "tests/sim_workloads",
    "tests/what_if",
)
# Folders that take about as long as what is left for the first row.
APART = ("tests/bench", "tests/chart", "tests/demo", "tests/kueue", "tests/parity", "tests/story")
_NICER = 10  # than the others
_PYTEST = (sys.executable, "-m", "pytest")


class Beside(threading.Thread):
    """Runs of pytest, one after the other; ``status``: the first that is not 0."""

    def __init__(self, arguments: Sequence[str], output: IO[str]) -> None:
        super().__init__(daemon=True)
        self.status = 0
        self._arguments, self._output = arguments, output
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # no run begins once `stop` was called
        self._stopped = False

    def run(self) -> None:
        for folders, nicer in ((COMPUTING, _NICER), (APART, 0)):
            with self._lock:
                if self._stopped:
                    return
                print(f"{', '.join(folders)}:", file=self._output, flush=True)
                command = [*_PYTEST, *folders, "-p", "no:cacheprovider", *self._arguments]
                # `nice` as a program: a function between fork and exec may hang where there are threads.
                self._running = subprocess.Popen(
                    ["nice", "-n", str(nicer), *command],
                    cwd=ROOT,
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches it once, by `stop`
                )
            self.status = self.status or self._running.wait()

    def stop(self) -> None:
        """End what runs, as Ctrl-C would: its fixtures end their clusters."""
        with self._lock:
            self._stopped = True
            if self._running is not None and self._running.poll() is None:
                self._running.send_signal(signal.SIGINT)


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the runs of pytest would go on
    with tempfile.NamedTemporaryFile("w+", prefix="evalstop-tests-") as output:
        beside = Beside(arguments, output)
        beside.start()
        try:
            ignored = [f"--ignore={folder}" for folder in (*COMPUTING, *APART)]
            status = subprocess.run([*_PYTEST, *ignored, *arguments], cwd=ROOT).returncode
            print("beside them:", flush=True)
            _follow(Path(output.name), beside)
        finally:
            beside.stop()
            beside.join()
    return status or beside.status


def _follow(printed: Path, beside: threading.Thread) -> None:
    """Print what was printed so far, and what comes until it is over."""
    with open(printed) as lines:
        while True:
            over = not beside.is_alive()
            sys.stdout.write(lines.read())
            sys.stdout.flush()
            if over:
                return
            beside.join(0.5)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
