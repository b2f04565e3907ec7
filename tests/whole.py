"""`python -m tests.whole`: the whole suite (`make test`), as runs of pytest side by side.

The suite is collected once. Then each run takes from one queue what is to be done next (tests/work_queue.py),
and starts a control plane of its own. Tests on a control plane wait half of their time and more: one run that
computes and three that mostly wait keep two cores busy, and so do four that wait when all is computed. What
the other runs print comes when the first is over. Arguments go to pytest (``--runs=3``: so many).
Exit status 0 if all passed, else that of the first run that did not; 1 if tests are left that nobody took.
What each group of tests took stands in build/test-groups.txt, and the dearest at the end of what is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import cpu_time, work_queue

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ROOT / "build" / "test-groups.txt"
RUNS = 4
DEAREST = 20  # groups that are printed
# The control planes' programs collect their garbage an eighth as often: memory is there, cores are not. And
# the hundreds of Python processes that tests start compile each of our modules once, not once each.
_ENVIRONMENT = {"GOGC": "800", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def main(arguments: list[str]) -> int:
    """Run everything, with these arguments of pytest's. Return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the runs of pytest would go on
    with tempfile.TemporaryDirectory(prefix="evalstop-tests-") as name:
        queue = Path(name)
        began, idle = time.monotonic(), cpu_time.idle()
        # Ctrl-C reaches the runs once, from here.
        running = subprocess.Popen(
            [*pytest_command(queue), f"--runs={RUNS}", *arguments],
            cwd=ROOT,
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        try:
            status = running.wait()
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
                running.wait()
        wall, idle = time.monotonic() - began, cpu_time.idle() - idle
        groups = work_queue.dearest(queue)
        GROUPS.parent.mkdir(exist_ok=True)
        GROUPS.write_text("".join(f"{line}\n" for line in groups))
        print("dearest:", *groups[:DEAREST], sep="\n", flush=True)
        print(f"{wall:.0f} s; of {os.cpu_count()} cores {idle / wall:.2f} were idle", flush=True)
        if status == 0 and (left := work_queue.left(queue)):
            print(f"nobody ran {', '.join(left)}", flush=True)
            return 1
    return status


def pytest_command(queue: Path) -> list[str]:
    """Return the command of a run; the percentage of all tests would tell nothing of one run's share."""
    # As one word: by a path that stands alone pytest would look for its configuration there, too.
    plugin = ["-p", "tests.work_queue", f"--queue={queue}"]
    quiet = ["-p", "no:cacheprovider", "-o", "console_output_style=classic"]
    return [sys.executable, "-m", "pytest", *plugin, *quiet]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
