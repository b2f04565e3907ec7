"""Simulated turns per CPU-second: two and three residents on one group, and a whole replay of jobs.

A turn has two events (it is asked for, it is released), each decided by the policy's `TurnQueue` and charged
by its `Charges`. The baseline is what is to be reached, 100,000 a CPU-second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from controller.policy.sharing import SECOND
from sim.sharing.cluster import ReplayTrial, perform
from sim.sharing.run import GroupTrial, play
from sim.sharing.trace import ReplaySetting
from sim.sharing.workload import TurnLaw, turns
from tests.bench.rows import Row, median_row

WANTED = 100_000.0  # turns a CPU-second
STEPS = 30_000
REPEATS = 5


def run(say: Callable[[str], None]) -> Iterator[Row]:
    for count in (2, 3):
        rates = [_rate(count, seed) for seed in range(REPEATS)]
        say(f"{count} residents: {', '.join(f'{rate:,.0f}' for rate in rates)} turns a CPU-second")
        yield median_row(f"sharing: turns, {count} residents", rates, "1/CPU s", [WANTED])
    setting = ReplaySetting()
    began = time.process_time()
    found = perform(ReplayTrial(setting, "Spread", True, False, 0))
    used = time.process_time() - began
    say(f"replay of {setting.jobs} jobs: {found.turns:,} turns in {used:.1f} CPU s, placement included")
    yield Row("sharing: turns of a whole replay, placement included", found.turns / used, "1/CPU s", WANTED)


def _rate(count: int, seed: int) -> float:
    law = TurnLaw(160.0, 40.0, 0.25, 0.05)
    trial = GroupTrial((law,) * count, 2 * SECOND, STEPS, seed=seed)
    times = [turns(law, STEPS, 100 * seed + i) for i in range(count)]
    began = time.process_time()
    found = play(trial, times)
    return found.turns / (time.process_time() - began)
