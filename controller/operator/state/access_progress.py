"""Progress of access Jobs: their pods are asked once a minute, as trainers are scraped.

What they say is a tenant's word, and decides nothing but whether that tenant's own access Job is given up.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller import log
from controller.metrics.address import AddressPolicy
from controller.metrics.fetch import Caps, fetch
from controller.metrics.samples import MetricsError
from controller.names import PROGRESS_PORT_NAME, PROGRESS_PREFIX
from controller.policy.job import AccessView, Progress
from controller.policy.types import JobKey

Object = Mapping[str, Any]
Fetch = Callable[[str, int, str, Caps], Awaitable[bytes]]

INTERVAL = 60.0  # s between two questions to the same pod
GRAIN = 5.0  # s between two looks at who is to be asked
WINDOW = 300.0  # s over which the rate is taken
CAPS = Caps(timeout=5.0, connect_timeout=2.0, body_bytes=16 << 10)
CONCURRENCY = 16
KNOWN_MOST = 10_000
_BYTES_MOST = 1 << 60

_SAMPLE = re.compile(
    rf'^{PROGRESS_PREFIX}(?:(bytes_done|bytes_total) (\d{{1,19}})|phase{{phase="([A-Za-z]{{1,32}})"}} 1)$',
    re.MULTILINE | re.ASCII,
)
_logger = log.get("evalstop.progress")


@dataclass(slots=True)
class _Known:
    """One access Job that has not ended."""

    key: JobKey
    since: float  # s, when it was first seen here
    address: tuple[str, int] | None = None
    asked: float = float("-inf")  # s, monotonic
    seen: float = 0.0  # s, monotonic, when a load last spoke of it
    progress: Progress | None = None
    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=16))


class AccessProgress:
    """The last progress that each running access Job reported.

    Args:
        addresses: which pod addresses may be asked.
        stall: s, the setting that each view carries to the brain.
        touch: called with the RLHFJob whose access Job has moved.
        clock: s since the epoch, the time of statuses.
        ask: tests give one of their own.
    """

    def __init__(
        self,
        addresses: AddressPolicy,
        stall: float,
        touch: Callable[[JobKey], None],
        clock: Callable[[], float],
        ask: Fetch = fetch,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses, self._stall, self._touch = addresses, stall, touch
        self._clock, self._ask, self._now = clock, ask, monotonic
        self._known: dict[str, _Known] = {}  # by the Job's uid

    def of(self, key: JobKey, view: AccessView, job: Object, pods: Sequence[Object]) -> AccessView:
        """Return an access Job's view with what is known of its progress; from now on its pod is asked."""
        uid = str(job["metadata"]["uid"])
        if view.finished:
            self._known.pop(uid, None)
            return view
        known = self._known.get(uid)
        if known is None:
            if len(self._known) >= KNOWN_MOST:
                self._forget_deleted()
            known = self._known[uid] = _Known(key, self._clock())
        known.seen = self._now()
        known.address = _address(pods)
        return replace(view, progress=known.progress, since=known.since, stall=self._stall)

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.ask_due()
            await asyncio.sleep(GRAIN)

    async def ask_due(self) -> None:
        """Ask every pod whose turn it is, once."""
        self._forget_deleted()
        turn = asyncio.Semaphore(CONCURRENCY)

        async def one(known: _Known) -> None:
            async with turn:
                await self._ask_one(known)

        due = [
            known
            for known in self._known.values()
            if known.address is not None and self._now() - known.asked >= INTERVAL
        ]
        await asyncio.gather(*(one(known) for known in due))

    async def _ask_one(self, known: _Known) -> None:
        assert known.address is not None
        known.asked = self._now()
        ip, port = known.address
        try:
            if (problem := self._addresses.problem(ip)) is not None:
                _logger.debug("an access pod is not asked", job=known.key, problem=problem)
                return
            progress = parse(await self._ask(ip, port, "/metrics", CAPS))
        except MetricsError as error:
            _logger.debug("an access pod does not say how far it is", job=known.key, error=error.message)
            return
        if progress is not None:
            self._note(known, *progress)

    def _note(self, known: _Known, phase: str, done: int, total: int) -> None:
        now, before = self._clock(), known.progress
        same = before is not None and (before.phase, before.total) == (phase, total)
        moved = not same or before is None or before.done != done
        if not same or (known.samples and done < known.samples[-1][1]):
            known.samples.clear()
        known.samples.append((now, done))
        while len(known.samples) > 2 and now - known.samples[0][0] > WINDOW:
            known.samples.popleft()
        (then, first), (_, last) = known.samples[0], known.samples[-1]
        rate = (last - first) / (now - then) if now > then else 0.0
        at = now if moved or before is None else before.moved_at
        known.progress = Progress(done, total, rate, now, at, phase)
        self._touch(known.key)

    def _forget_deleted(self) -> None:
        """Jobs that no load has spoken of for long: they were deleted."""
        limit = self._now() - max(10 * INTERVAL, self._stall)
        for uid in [uid for uid, known in self._known.items() if known.seen < limit]:
            del self._known[uid]


def parse(page: bytes) -> tuple[str, int, int] | None:
    """Phase, bytes done and bytes in all of a page; None: it does not tell both numbers."""
    numbers: dict[str, int] = {}
    phase = ""
    for name, value, current in _SAMPLE.findall(page.decode("utf-8", "replace")):
        if name:
            numbers[name] = min(int(value), _BYTES_MOST)
        else:
            phase = current
    if len(numbers) < 2:
        return None
    return phase, numbers["bytes_done"], numbers["bytes_total"]


def _address(pods: Sequence[Object]) -> tuple[str, int] | None:
    """Return where the running pod of an access Job answers."""
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("phase") == "Running" and status.get("podIP"):
            for container in (pod.get("spec") or {}).get("containers") or ():
                for port in container.get("ports") or ():
                    if port.get("name") == PROGRESS_PORT_NAME:
                        return str(status["podIP"]), int(port["containerPort"])
    return None
