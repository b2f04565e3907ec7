"""CPU of the commands one waits for: `list`, `get`, `why`, and what the shell asks for at TAB."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.rows import Row, median_row
from tests.support import cli_world as w
from tests.support.stub_api import stub_api

TIMES = 20
PROGRAM = "from controller.cli.main import main; main()"
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "list": (["list"], {}),
    "get": (["get", "over"], {}),
    "why": (["why", "over"], {}),
    "TAB": (
        [],
        {"_EVALSTOP_COMPLETE": "complete_bash", "COMP_WORDS": "evalstop why ov", "COMP_CWORD": "2"},
    ),
}


def run(tell: Callable[[str], None]) -> Iterator[Row]:
    """Yield the median CPU of each command: one RLHFJob of seven, over TLS, a key in the kubeconfig."""
    jobs = [w.whole(name, record) for name, record in w.records().items()]
    with tempfile.TemporaryDirectory() as folder, stub_api(Path(folder), jobs) as kubeconfig:
        for name, (arguments, environ) in COMMANDS.items():
            tell(name)
            taken = [_cpu(arguments, {**environ, "KUBECONFIG": str(kubeconfig)}) for _ in range(TIMES + 1)]
            bare = [_cpu([], {}, "pass") for _ in range(TIMES)]
            # The first may compile. Beside Python's own start, on the same machine in the same minute.
            yield median_row(f"cli: {name}, CPU", taken[1:], "s", bare)


def _cpu(arguments: list[str], environ: dict[str, str], program: str = PROGRAM) -> float:
    """Return seconds of CPU that one call takes, Python's own start with it."""
    called = [sys.executable, "-c", program, *arguments]
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as it is installed
    process = subprocess.Popen(called, env={**kept, **environ}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"evalstop {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime
