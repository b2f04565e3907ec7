"""The operator's queue API over a plan of the scene's pool, made by the product's own planner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot
from controller.web.app import create
from controller.web.dashboard.queues import FixedAddress
from controller.web.positions import PlannedPool
from tests.support.dashboard_scene import FALLING, WAITING
from tests.support.queue_server import served

RUNNING = ("/".join(FALLING), "team-a/mistral-ppo-3", "team-b/qwen-grpo-math", "team-c/gemma-safety")
QUEUED = ("/".join(WAITING), "team-c/llama-judge", "team-a/ablation-7")


class Pools:
    """What an operator would serve of the pool ``research``."""

    def __init__(self, now: float) -> None:
        nodes = tuple(NodeView(f"gpu-{n}", 4) for n in range(len(RUNNING)))
        jobs = [
            JobView(
                key, now - 7000.0, 0, 2, 2, state=JobState.ADMITTED, since=now - 6000.0, attained=9000.0,
                bound=((f"gpu-{n}", 4),), nodes=(f"gpu-{n}", f"gpu-{n}"),
            )
            for n, key in enumerate(RUNNING)
        ]  # fmt: skip
        for n, key in enumerate(QUEUED):
            jobs.append(JobView(key, now - 900.0 + 200.0 * n, 0, 2, 2, since=now - 900.0 + 200.0 * n))
        snapshot = PoolSnapshot("research", PolicySpec("fifo", {"max_wait": 604800.0}), nodes, tuple(jobs))
        self._moment = PlannedPool(snapshot, plan_pool(snapshot, now), now)

    def pools(self) -> list[str]:
        return ["research"]

    def problem(self, pool: str) -> str | None:
        return None

    def planned(self, pool: str) -> PlannedPool:
        return self._moment


@contextlib.contextmanager
def queue_api(now: float) -> Iterator[FixedAddress]:
    """The API on loopback, in a thread; gives the way to it."""
    with served(create(Pools(now), lambda: now)) as way:
        yield way
