"""The operator's queue API over a plan of the scene's pool, made by the product's own planner."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from controller.policy.pool.plan import plan_pool
from controller.policy.types import JobState, JobView, NodeView, PolicySpec, PoolSnapshot
from controller.web.app import create
from controller.web.dashboard.queues import FixedAddress
from controller.web.positions import PlannedPool
from controller.web.server import WebServer
from tests.support.dashboard_scene import FALLING, WAITING

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
    way, begun = FixedAddress(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    over = asyncio.Event()

    async def serve() -> None:
        server = WebServer(create(Pools(now), lambda: now), "127.0.0.1", 0)
        await server.start()
        way.address = f"http://127.0.0.1:{server.port}"
        loops.append(asyncio.get_running_loop())
        begun.set()
        await over.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="queue API")
    thread.start()
    assert begun.wait(45)
    try:
        yield way
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(45)
