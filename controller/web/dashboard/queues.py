"""Positions in the queues, and turns of worker groups, from the operator's queue API
(`controller.web.queue_api`) if that answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from controller import log
from controller.frozen import dataclass
from controller.web import queue_api
from controller.web.groups import Group, Groups
from controller.web.positions import Queue

_logger = log.get("evalstop.dashboard.queues")

_Model = TypeVar("_Model", bound=BaseModel)

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


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """Worker groups by name, as the operator last heard of them; or why they cannot be had from it."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    problem: str = ""


class Queues:
    """Asks for queues and worker groups, each pool's queue, and all groups, at most every `FRESH` s."""

    def __init__(self, way: QueueAddress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._way, self._now = way, monotonic
        self._answers: dict[str, tuple[float, Any]] = {}  # by path, with the time of each (s)

    async def of(self, pool: str) -> Found:
        """Never raises for what the operator does. ``pool`` is one that there is."""
        answer = await self._fresh(queue_api.queue_path(pool), Queue)
        return Found(problem=answer) if isinstance(answer, str) else Found(queue=answer)

    async def groups(self) -> FoundGroups:
        """Return all worker groups with their turns. Never raises for what the operator does."""
        answer = await self._fresh(queue_api.group_path(), Groups)
        if isinstance(answer, str):
            return FoundGroups(problem=answer)
        return FoundGroups({one.name: one for one in answer.items})

    async def _fresh(self, path: str, model: type[_Model]) -> _Model | str:
        """Return the operator's answer (`_answer`), the last one if it is younger than `FRESH`."""
        at, answer = self._answers.get(path, (float("-inf"), ""))
        if self._now() - at >= FRESH:
            answer = await self._answer(path, model)
            self._answers[path] = (self._now(), answer)
        found: _Model | str = answer
        return found

    async def _answer(self, path: str, model: type[_Model]) -> _Model | str:
        """Return the operator's answer; a text: why there is none."""
        base = self._way.address.rstrip("/")
        if not base:
            return self._way.why
        try:
            return model.model_validate(await queue_api.ask(base, path, PATIENCE))
        except queue_api.Refused as refused:
            return str(refused)
        except (ValidationError, queue_api.NotQueueApi):
            return f"what answers at {base} is no queue API of this version"
        except queue_api.NoAnswer as error:
            self._way.broken()
            _logger.info("the queue API does not answer", address=base, error=str(error))
            return f"the operator's queue API at {base} does not answer"
