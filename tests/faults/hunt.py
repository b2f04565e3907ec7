"""`python -m tests.faults.hunt ROW SECONDS NUMBER`: seeds of failing histories, half of them about a row."""

from __future__ import annotations

import sys
import time

from tests.faults import driver
from tests.faults.rows import focus_of


def main(row: str, seconds: float, number: int) -> int:
    driver.collect_garbage_rarely()
    until, seed = time.time() + seconds, number * 10**6
    while time.time() < until:
        outcome = driver.play(*driver.drawn(seed, focus_of(row, seed)))
        if outcome.violation:
            print(seed, outcome.violation[:250].replace("\n", " "), flush=True)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
