"""Delivers events to receivers: each at least once, and none waits for another receiver, or for its events.

A receiver that answers 2xx has it. One that does not answer, says that it cannot now (408, 425, 429, 5xx), or
does not take our token (401, 403, 407: a token may be mended, and is read anew for each request) is asked
again, less and less often, until it has it. One that refuses an event for good (another 4xx, or a redirect)
is not asked again: the log and `/readyz` say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from controller import log
from controller.notify.cloud_event import CONTENT_TYPE, body

_logger = log.get("evalstop.notify")

WAITING_MAX = 10_000  # events of one receiver
AT_ONCE = 4  # requests of one receiver under way: a slow answer holds up few others
TIMEOUT = 10.0  # s
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # s between tries
_LATER = frozenset({401, 403, 407, 408, 425, 429})


class Receiver:
    """One address, and what it has still to be told.

    Args:
        url: where to; it is named by its host alone in the log, for it may hold a secret.
        headers: of each request, made anew each time: a token may change.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._url, self._session, self._headers, self._sleep = url, session, headers, sleep
        self._waiting: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._taken: set[str] = set()
        self._news = asyncio.Event()
        self.delivered = self.refused = self.dropped = 0
        self.trouble = ""  # why it has not got the newest; "": it has
        self.refusal = ""  # how it refused the last event that it refused for good

    @property
    def host(self) -> str:
        from urllib.parse import urlsplit

        return urlsplit(self._url).hostname or "?"

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._taken)

    def put(self, event: dict[str, Any]) -> None:
        """Have an event delivered. Returns at once, whatever the receiver does."""
        if event["id"] in self._waiting or event["id"] in self._taken:
            return
        self._waiting[event["id"]] = event
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
            self.dropped += 1
            if self.dropped == 1 or self.dropped % 1000 == 0:
                _logger.error("events dropped: too many wait", receiver=self.host, dropped=self.dropped)
        self._news.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            key, event = self._waiting.popitem(last=False)
            self._taken.add(key)
            try:
                await self._deliver(event)
            finally:
                self._taken.discard(key)

    async def _deliver(self, event: dict[str, Any]) -> None:
        pause = FIRST_PAUSE
        while True:
            problem, again = await self._try(event)
            if not problem:
                self.delivered += 1
                self.trouble = ""
                return
            if not again:
                self.refused += 1
                self.refusal = problem
                _logger.error("event refused", receiver=self.host, type=event["type"], why=problem)
                return
            if not self.trouble:
                _logger.warning("receiver does not take events; trying on", receiver=self.host, why=problem)
            self.trouble = problem
            await self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _try(self, event: dict[str, Any]) -> tuple[str, bool]:
        """Return what went wrong, "" for nothing, and whether to try again."""
        try:
            headers = {"Content-Type": CONTENT_TYPE, **self._headers()}
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with self._session.post(
                self._url, data=body(event), headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if 200 <= answer.status < 300:
                    return "", False
                return f"HTTP {answer.status}", answer.status in _LATER or answer.status >= 500
        except TimeoutError:
            return f"no answer within {TIMEOUT:.0f} s", True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return type(error).__name__, True


class Receivers:
    """All receivers, each with a task of its own."""

    def __init__(self, made: list[Receiver]) -> None:
        self.all = made

    def put(self, event: dict[str, Any]) -> None:
        for one in self.all:
            one.put(event)

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        tasks = [asyncio.create_task(one.run(), name=f"receiver {one.host}") for one in self.all]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
