"""The operator with thousands of jobs, on a real control plane with a thousand simulated nodes (KWOK).

All jobs run, none of them changes: what scraping and deciding costs when there is nothing to do. The jobs
are in Shadow mode, for a simulated pod cannot keep a checkpoint. Baseline of CPU: the goal of a quarter of a
core; of memory: 150 MB; a write is always one too many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.bench.rows import Row
from tests.bench.scale_stage import OPERATOR, Json, Scale, rlhfjob, scale

NODES, GPUS = 1_000, 8
SIZES = (1_000, 5_000)
INTERVAL = 15  # s between scrapes
WINDOW = 60.0  # s measured: four scrapes of every job
_SETTLED = 45.0  # s without a write before the measurement


def run(say: Callable[[str], None]) -> Iterator[Row]:
    with scale(NODES, GPUS, say) as built:
        built.start_operator()
        made = 0
        for size in SIZES:
            began = time.monotonic()
            jobs = [
                rlhfjob(f"job-{i:05d}", built.stub, members=1, gpus=1, mode="Shadow", interval=INTERVAL)
                for i in range(made, size)
            ]
            built.create(jobs, say)
            built.wait("jobs judged", lambda: sum(map(_judged, built.jobs())), size, say, 1_800.0)
            say(f"{size - made} jobs admitted, started and judged in {time.monotonic() - began:.0f} s")
            yield Row(
                f"scale: {size} jobs, brought up at", (size - made) / (time.monotonic() - began), "jobs/s"
            )
            made = size
            yield from _at_rest(built, size, say)


def _judged(job: Json) -> bool:
    return len((job.get("status") or {}).get("evals") or ()) > 0


def _at_rest(built: Scale, size: int, say: Callable[[str], None]) -> Iterator[Row]:
    time.sleep(_SETTLED)
    before, writes, began = built.usage(OPERATOR), built.writes(), time.monotonic()
    time.sleep(WINDOW)
    after, later = built.usage(OPERATOR), built.writes()
    passed = time.monotonic() - began
    changed = {name: n - writes.get(name, 0.0) for name, n in later.items() if n != writes.get(name, 0.0)}
    say(f"{size} jobs at rest for {passed:.0f} s; writes: {changed or 'none'}")
    name = f"scale: {size} jobs at {INTERVAL} s, at rest"
    yield Row(f"{name}: operator's CPU", (after.cpu - before.cpu) / passed, "cores", 0.25)
    yield Row(f"{name}: operator's memory", after.memory / 1e6, "MB", 150.0)
    yield Row(f"{name}: API writes in {WINDOW:g} s", sum(changed.values()), "writes")
