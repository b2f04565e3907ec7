"""`python -m tests.whole`: the whole suite (`make test`), as three runs of pytest side by side.

Each run takes from one queue what is to be done next (tests/work_queue.py), and starts a control plane of
its own. Two runs leave a quarter of two cores idle, as tests on a control plane wait half of their time.
What the other runs printed comes when the first is over, and goes on from there. Arguments go to all runs.
Exit status 0 if all passed, else that of the first run that did not; 1 if tests are left that nobody took.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from tests import work_queue

ROOT = Path(__file__).resolve().parents[1]
RUNS = 3
# The control planes' programs collect their garbage a quarter as often: memory is there, cores are not. And
# the hundreds of Python processes that tests start compile each of our modules once, not once each.
_ENVIRONMENT = {"GOGC": "400", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}


class Beside(threading.Thread):
    """One run of pytest beside the first; ``status``: its exit status."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        super().__init__(daemon=True)
        self.status = 0
        self._command = command
        self._output = output.open("w")
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # no run begins once `stop` was called
        self._stopped = False

    def run(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._running = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=_ENVIRONMENT,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it once, by `stop`
            )
        self.status = self._running.wait()
        self._output.close()

    def stop(self) -> None:
        """End it, as Ctrl-C would: its fixtures end their clusters."""
        with self._lock:
            self._stopped = True
            if self._running is not None and self._running.poll() is None:
                self._running.send_signal(signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Run everything, with these arguments of pytest's. Return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the runs of pytest would go on
    with tempfile.TemporaryDirectory(prefix="evalstop-tests-") as name:
        folder = Path(name)
        queue = folder / "queue"
        queue.mkdir()
        printed = [folder / f"run-{number}" for number in range(1, RUNS)]
        others = []
        try:
            for path in printed:
                # One of them begins with what only computes: until then the first has who mostly waits.
                more = ["--computing-first"] if path is printed[0] else []
                others.append(Beside([*pytest_command(queue), *more, *arguments], path))
                others[-1].start()
            status = subprocess.run(
                [*pytest_command(queue), *arguments], cwd=ROOT, env=_ENVIRONMENT
            ).returncode
            for path, other in zip(printed, others, strict=True):
                print("beside it:", flush=True)
                _follow(path, other)
        finally:
            for other in others:
                other.stop()
            for other in others:
                other.join()
        statuses = [status, *(other.status for other in others)]
        print("dearest:", *work_queue.dearest(queue), sep="\n", flush=True)
        if not any(statuses) and (left := work_queue.left(queue)):
            print(f"nobody ran {', '.join(left)}", flush=True)
            return 1
    return next((status for status in statuses if status), 0)


def pytest_command(queue: Path) -> list[str]:
    """Return the command of a run; the percentage of all tests would tell nothing of one run's share."""
    # As one word: by a path that stands alone pytest would look for its configuration there, too.
    plugin = ["-p", "tests.work_queue", f"--queue={queue}"]
    quiet = ["-p", "no:cacheprovider", "-o", "console_output_style=classic"]
    return [sys.executable, "-m", "pytest", *plugin, *quiet]


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
