"""What tests of processes have in common."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from deploy.local import processes


def until(done: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.005)


def running_in(folder: Path) -> list[str]:
    """Command lines of all live processes that name this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and processes.start_time(int(entry.name)):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found
