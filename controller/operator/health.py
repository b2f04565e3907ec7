"""Health that means progress: each part of the engine beats as it goes round; one that stops is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from controller.operator.metrics import Metrics

Check = Callable[[], str | None]  # None: fine; else what is wrong, in a sentence


class Health:
    """Beats of the engine's parts, and the conditions for being ready.

    ``/healthz`` fails when a part has not beaten for ``stall`` seconds: the kubelet then restarts the pod.
    ``/readyz`` fails until every check passes; it says which do not.
    """

    def __init__(self, stall: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._stall = stall
        self._now = monotonic
        self._beats: dict[str, Callable[[], float]] = {}
        self._marks: dict[str, float] = {}
        self._ready: dict[str, Check] = {}

    def beat(self, part: str) -> None:
        """``part`` made progress just now."""
        self._marks[part] = self._now()

    def watch(self, part: str, beat: Callable[[], float]) -> None:
        """A part that keeps its own beat (monotonic s), read when asked."""
        self._beats[part] = beat

    def require(self, name: str, check: Check) -> None:
        self._ready[name] = check

    def stalled(self) -> list[str]:
        """Parts without progress, each as a sentence."""
        beats = {**self._marks, **{part: read() for part, read in self._beats.items()}}
        now = self._now()
        return [
            f"{part}: no progress for {now - at:.0f} s, at most {self._stall:.0f} s are expected"
            for part, at in sorted(beats.items())
            if now - at > self._stall
        ]

    def unready(self) -> list[str]:
        told = [f"{name}: {why}" for name, check in self._ready.items() if (why := check()) is not None]
        return told + self.stalled()


class HealthServer:
    """``/healthz``, ``/readyz`` and ``/metrics`` over HTTP. ``port`` is the real one once started."""

    def __init__(self, health: Health, metrics: Metrics, host: str, port: int) -> None:
        self._health, self._metrics = health, metrics
        self._host, self._wanted = host, port
        self._runner: web.AppRunner | None = None
        self.port = port

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_text)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._wanted)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(self._health.stalled())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self._health.unready())

    async def _metrics_text(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _answer(problems: list[str]) -> web.Response:
    return web.Response(status=503 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")


async def measure_lag(metrics: Metrics, health: Health, period: float = 0.5) -> None:
    """Sleep and see how late the loop wakes us; also the engine's own beat. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))
        health.beat("loop")
