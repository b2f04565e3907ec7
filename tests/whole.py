"""`python -m tests.whole`: the whole suite (`make test`), as two runs of pytest side by side.

Tests on a control plane mostly wait, those that only compute need a core. The latter run beside the others,
at a lower priority, so that nobody waits for them; what they printed comes in the end. Arguments go to both.
Exit status 0 if both passed, else that of the first run that did not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders of tests that start nothing they would have to wait for.
COMPUTING = (
    "tests/policy",
    "tests/sim",
    "tests/sim_experiments",
    "tests/sim_rules",
    "tests/sim_traces",
    "tests/sim_workloads",
    "tests/what_if",
)
_NICER = 10  # than the others
_PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the runs of pytest would go on
    with tempfile.TemporaryFile("w+") as output:
        beside = subprocess.Popen(
            [*_PYTEST, *COMPUTING, "-p", "no:cacheprovider", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(_NICER),
        )
        try:
            ignored = [f"--ignore={folder}" for folder in COMPUTING]
            status = subprocess.run([*_PYTEST, *ignored, *arguments], cwd=ROOT).returncode
            print(f"beside them, {', '.join(COMPUTING)}:", flush=True)
            computed = beside.wait()
        finally:
            beside.kill()
            beside.wait()
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout)
    return status or computed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
