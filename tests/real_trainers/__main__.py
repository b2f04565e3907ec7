"""`make test-trainers`: real GRPO and DPO under the client. KILLS=50: so many of each kind.

The report, build/trainers.txt, has the versions, the date, and what each test printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.real_trainers.environment import LOCK, environment

SHOWN = ("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "safetensors")
REPORT = Path("build/trainers.txt")


def main() -> int:
    python = environment()
    pins = [line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line]
    versions = ", ".join(pin for pin in pins if pin.partition("==")[0] in SHOWN)
    REPORT.parent.mkdir(exist_ok=True)
    with REPORT.open("w") as report:
        report.write(f"{time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}: {versions}\n")
    run = [sys.executable, "-m", "pytest", "-v", "-rA", "tests/real_trainers", *sys.argv[1:]]
    places = {"EVALSTOP_REAL_TRAINERS": str(python), "EVALSTOP_TRAINERS_REPORT": str(REPORT.absolute())}
    status = subprocess.run(run, env={**os.environ, **places}).returncode
    print(REPORT.read_text())
    return status


if __name__ == "__main__":
    sys.exit(main())
