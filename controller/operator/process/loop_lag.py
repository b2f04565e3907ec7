"""Lag of the engine's event loop, measured by a timer of its own."""

from __future__ import annotations

import asyncio

from controller.operator.process.metrics import Metrics
from controller.web.health import Health


async def measure_lag(metrics: Metrics, health: Health, period: float = 0.5) -> None:
    """Sleep and see how late the loop wakes us; also the engine's own beat. Runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))
        health.beat("loop")
