"""One plan of a crowded pool: 200 nodes, 800 gangs that run and 800 that wait, without quotas and with 20.

Of the namespaces half are at their guarantee and half below, so that with quotas runs are taken back, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot, Quota
from tests.bench.rows import Row, median_row

NODES, GPUS, RUNS, NAMESPACES = 200, 8, 800, 20
TIMES = 7
POLICIES = [
    PolicySpec("fifo", {"backfill": True, "max_wait": 604800.0}),
    PolicySpec("srtf", {"max_wait": 604800.0}),
    PolicySpec("las", {"first_threshold": 36000.0, "second_threshold": 360000.0, "max_wait": 604800.0}),
]


def run(say: Callable[[str], None]) -> Iterator[Row]:
    quotas = tuple(Quota((f"n{i:02d}",), GPUS * NODES // NAMESPACES, None) for i in range(NAMESPACES))
    for policy in POLICIES:
        plain, limited = snapshot(policy), snapshot(policy, quotas)
        found = plan_pool(limited, 10_000.0)
        say(f"{policy.name}: {len(found.preemptions)} give way, {len(found.reservations)} holds")
        # In turn, so that whatever else the machine does falls on both.
        times = [(_timed(limited), _timed(plain)) for _ in range(TIMES)]
        yield median_row(
            f"quotas: a plan of {RUNS} runs and {RUNS} waiting, {policy.name}",
            [1e3 * one for one, _ in times],
            "ms",
            [1e3 * one for _, one in times],
        )


def snapshot(policy: PolicySpec, quotas: tuple[Quota, ...] = ()) -> PoolSnapshot:
    """All GPUs are in use, two by each gang; the first namespaces have twice their part, the last none."""
    draw = random.Random(1)
    nodes = tuple(NodeView(f"node-{i:04d}", GPUS) for i in range(NODES))
    jobs = []
    for i in range(RUNS):
        node = nodes[i % NODES].name
        jobs.append(
            JobView(
                f"n{i % (NAMESPACES // 2):02d}/run-{i}",
                float(i),
                i,
                1,
                2,
                state=JobState.ADMITTED,
                bound=((node, 2),),
                nodes=(node,),
                since=float(i),
                remaining=draw.uniform(100.0, 1e5),
                attained=draw.uniform(0.0, 1e6),
            )
        )
        key = f"n{i % NAMESPACES:02d}/wait-{i}"
        left = draw.uniform(100.0, 1e5)
        jobs.append(
            JobView(key, 2e3 + i, RUNS + i, 1, draw.choice([1, 2, 4, 8]), since=2e3 + i, remaining=left)
        )
    return PoolSnapshot("p", policy, nodes, tuple(jobs), quotas=quotas)


def _timed(given: PoolSnapshot) -> float:
    began = time.process_time()
    plan_pool(given, 10_000.0)
    return time.process_time() - began
