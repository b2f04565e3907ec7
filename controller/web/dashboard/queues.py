"""Positions in the queues, from the operator's queue API (`controller.web.queue_api`) if that answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from controller import log
from controller.web import queue_api
from controller.web.positions import Queue

_logger = log.get("evalstop.dashboard.queues")

FRESH = 2.0  # s for which an answer is shown without asking again
PATIENCE = 3.0  # s for an answer


class QueueAddress(Protocol):
    """Address of the operator's queue API; "" as long as there is none, and ``why`` says why not."""

    address: str
    why: str

    def broken(self) -> None:
        """Nobody answers at ``address``."""
        ...


class FixedAddress:
    """An address from the settings; "": none, and positions are taken from the statuses."""

    why = "the address of the operator's queue API is not set"

    def __init__(self, address: str = "") -> None:
        self.address = address

    def broken(self) -> None:
        pass  # it is asked again the next time


@dataclass(frozen=True, slots=True)
class Found:
    """A pool's queue, or why the operator's cannot be had; both: it was worked out without the operator."""

    queue: Queue | None = None
    problem: str = ""


class Queues:
    """Asks for queues, each pool's at most every `FRESH` s."""

    def __init__(self, way: QueueAddress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._way, self._now = way, monotonic
        self._known: dict[str, tuple[float, Found]] = {}

    async def of(self, pool: str) -> Found:
        """Never raises for what the operator does. ``pool`` is one that there is."""
        at, found = self._known.get(pool, (float("-inf"), Found()))
        if self._now() - at < FRESH:
            return found
        found = await self._ask(pool)
        self._known[pool] = (self._now(), found)
        return found

    async def _ask(self, pool: str) -> Found:
        base = self._way.address.rstrip("/")
        if not base:
            return Found(problem=self._way.why)
        try:
            return Found(
                queue=Queue.model_validate(await queue_api.ask(base, queue_api.queue_path(pool), PATIENCE))
            )
        except queue_api.Refused as refused:
            return Found(problem=str(refused))
        except (ValidationError, queue_api.NotQueueApi):
            return Found(problem=f"what answers at {base} is no queue API of this version")
        except queue_api.NoAnswer as error:
            self._way.broken()
            _logger.info("the queue API does not answer", address=base, error=str(error))
            return Found(problem=f"the operator's queue API at {base} does not answer")
