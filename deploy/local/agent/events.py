"""Events about pods and claims, posted in the background as kubelet does."""

from __future__ import annotations

import asyncio
import logging
import time

from controller.api.values import timestamp
from controller.kube import events
from controller.kube.client import Api, Object

log = logging.getLogger(__name__)

_WAITING = 1000


def now_text() -> str:
    """Return the time as the API writes it, in seconds."""
    return timestamp(int(time.time()))


class Recorder:
    """Posts events in the background, in order; a refused or lost one is forgotten."""

    def __init__(self, api: Api, component: str, host: str = "") -> None:
        # A repeat is told at once: tests and people watch a pod back off.
        self._recorder = events.Recorder(api, host, time.time, component=component, host=host, quiet=0.0)
        self._queue: asyncio.Queue[tuple[Object, str, str, bool]] = asyncio.Queue(_WAITING)

    def post(self, about: Object, reason: str, message: str, warning: bool = False) -> None:
        """Record an event about an object (kind, apiVersion and metadata are read)."""
        try:
            self._queue.put_nowait((about, reason, message, warning))
        except asyncio.QueueFull:
            log.warning("event lost: %s %s", reason, message)

    async def run(self) -> None:
        """Post until cancelled."""
        while True:
            about, reason, message, warning = await self._queue.get()
            await self._recorder.post(about, reason, message, warning=warning)
