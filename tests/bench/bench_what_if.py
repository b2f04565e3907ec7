"""How near a what-if comes to a hidden truth: it is known what the stopped runs would have done.

Generated populations run under three declines on FIFO; what came after each stop is cut away. Asked is what
``scan`` and five declines would have done; the truth is a run of the whole curves. Errors are shares of the
true difference in mean JCT.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from sim import specs
from sim.what_if.arms import Alternative
from sim.what_if.compare import compare
from tests.bench.rows import Row
from tests.support.hidden_history import hidden

SEEDS = range(10)
RULES = ("scan", "kDeclines:k=5")
SHADOWS = (0.0, 0.25)  # shares of the jobs that are only watched


def run(say: Callable[[str], None]) -> Iterator[Row]:
    """For bounds: in how many histories they hold the truth, and how far they lie apart; for nearest: how far
    it is off, and how often its interval holds the truth."""
    for rule in RULES:
        for shadow in SHADOWS:
            held, width, off, covered, seconds = [], [], [], [], []
            for seed in SEEDS:
                past = hidden(seed, jobs=200, shadow=shadow)
                true = past.truth(rule).mean_jct - past.result.mean_jct
                other = Alternative(rule=specs.rule(rule))
                bounds = compare(past.trace, other).figure("mean_jct")
                values = [found.value for found in bounds.difference]
                held.append(min(values) - 1e-6 <= true <= max(values) + 1e-6)
                width.append((max(values) - min(values)) / true)
                began = time.perf_counter()
                nearest = compare(past.trace, other, future="nearest").figure("mean_jct")
                seconds.append(time.perf_counter() - began)
                off.append(abs(nearest.difference[0].value / true - 1.0))
                covered.append(nearest.interval[0] <= true <= nearest.interval[1])
            name = f"what-if {rule}, {shadow:.0%} in Shadow"
            say(f"{name}: {len(SEEDS)} histories of 200 jobs")
            yield Row(f"{name}: bounds hold the truth", 100.0 * statistics.mean(held), "% of histories")
            yield Row(f"{name}: bounds apart", 100.0 * statistics.median(width), "% of the difference")
            yield Row(f"{name}: nearest off, median", 100.0 * statistics.median(off), "% of the difference")
            yield Row(f"{name}: nearest off, worst", 100.0 * max(off), "% of the difference")
            yield Row(f"{name}: interval holds the truth", 100.0 * statistics.mean(covered), "% of histories")
            yield Row(f"{name}: nearest, 20 draws", statistics.median(seconds), "s")
