"""`python -m tests.faults.hunt ROW SECONDS NUMBER`: histories until one fails, half of them about a row."""

from __future__ import annotations

import sys
import time

from tests.faults import driver
from tests.faults.rows import ROWS


def main(row: str, seconds: float, number: int) -> int:
    until, seed = time.time() + seconds, number * 10**6
    while time.time() < until:
        focus = ROWS[row][1] if row in ROWS and seed % 2 else None
        config, steps = driver.drawn(seed, focus)
        outcome = driver.play(config, steps)
        if outcome.violation:
            print(f"seed {seed}: {outcome.violation}"[:300])
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
