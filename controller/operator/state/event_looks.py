"""Looks at Events for what stands in no status: of one object of each RLHFJob, ever more seldom.

Events are not watched. Those of one object are listed, and only once what is waited for should long have been
there.

Whoever may write Events in the namespace can write such an Event. It becomes a message, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from controller import log
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS
from controller.policy.types import JobKey

Object = Mapping[str, Any]

FIRST = 5.0  # s of waiting, after which Events are looked at; then after twice as long, each time
MOST = 120.0  # s between two looks
GRAIN = 2.0  # s between two looks at who is due
FORGOTTEN = 1200.0  # s after which an object that no load speaks of any more is gone
KNOWN_MOST = 10_000


@dataclass(slots=True)
class Waiting:
    """An object whose Events are looked at."""

    uid: str
    namespace: str
    due: float = 0.0  # s, monotonic, of the next look
    delay: float = FIRST
    seen: float = 0.0  # s, monotonic, when a load last spoke of it


W = TypeVar("W", bound=Waiting)


class EventLooks(ABC, Generic[W]):
    """Reads Events of objects that wait, in tables of one object for each RLHFJob.

    Args:
        api: to list Events with.
        touch: called with the RLHFJob of whose object something new is known.
    """

    KIND: ClassVar[str]  # of the objects, in a log
    LOGGER: ClassVar[str]

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._touch, self._now = api, touch, monotonic
        self._tables: list[dict[JobKey, W]] = []
        self._logger = log.get(self.LOGGER)

    @abstractmethod
    def fields(self, waits: W) -> str:
        """Return the field selector of the Events that are listed."""

    @abstractmethod
    def is_new(self, waits: W, events: Sequence[Object]) -> bool:
        """Take in the Events of an object. Return whether they tell something new."""

    def table(self) -> dict[JobKey, W]:
        """Return a new table, of which each object's turn comes."""
        self._tables.append({})
        return self._tables[-1]

    def wait_for(self, table: dict[JobKey, W], key: JobKey, waits: W) -> W | None:
        """Return the object, which is looked at from now on; None: there are too many."""
        if key not in table and len(table) >= KNOWN_MOST:
            return None
        waits.due = self._now() + FIRST
        table[key] = waits
        return waits

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.look_due()
            await asyncio.sleep(GRAIN)

    async def look_due(self) -> None:
        """Look at the Events of every object whose turn it is, once, one after another."""
        now = self._now()
        for table in self._tables:
            for key in [key for key, waits in table.items() if now - waits.seen > FORGOTTEN]:
                del table[key]
            for key, waits in list(table.items()):
                if waits.due <= self._now():
                    waits.delay = min(MOST, 2.0 * waits.delay)
                    waits.due = self._now() + waits.delay
                    await self._look(key, waits)

    async def _look(self, key: JobKey, waits: W) -> None:
        try:
            events, _ = await self._api.list(EVENTS, waits.namespace, fields=self.fields(waits))
        except ApiError as error:
            self._logger.info(f"Events of a {self.KIND} cannot be listed", job=key, error=error.message)
            return
        if self.is_new(waits, events):
            self._touch(key)
