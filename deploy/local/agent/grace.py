"""The time a pod or container has for leaving: it may be shortened while it runs, never prolonged."""

from __future__ import annotations

import asyncio
from typing import Any


class Grace:
    """``expired`` is set when the time is up. Seconds are counted from `start`."""

    def __init__(self, seconds: float) -> None:
        self.expired = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + max(seconds, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(self._at - self._loop.time(), 0.0)

    def shorten(self, seconds: float) -> None:
        """From now on at most `seconds` are left."""
        at = self._loop.time() + max(seconds, 0.0)
        if at < self._at:
            self._at = at
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.left == 0:
            self.expired.set()
        else:
            self._timer = self._loop.call_at(self._at, self.expired.set)


async def first_of(*waits: asyncio.Future[Any] | asyncio.Event) -> None:
    """Wait until one of the futures is done or one of the events is set; cancel none of the futures."""
    tasks: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(w.wait()) for w in waits if isinstance(w, asyncio.Event)
    ]
    futures = [w for w in waits if not isinstance(w, asyncio.Event)]
    try:
        await asyncio.wait([*tasks, *futures], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
