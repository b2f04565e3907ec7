"""Several candidates and one Lease in virtual time: an API server whose network does what the test says.

Each candidate has a clock of its own, which starts anywhere and runs a little fast or slow, and a wall clock
that may be wrong by any amount. Calls take time, fail, lose their answer, or take effect long after their
sender gave up.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.kube.errors import AlreadyExists, Conflict, NotFound, Unavailable
from controller.kube.lease import Timing
from controller.operator.process.leader_election import Leadership, LeadershipLost
from tests.support.merge_patch import merge_apply

Object = dict[str, Any]
Fate = Literal["fine", "refused", "unanswered", "late"]


@dataclass
class LeaseServer:
    """The Lease as the API server has it. ``history``: each state it was in, with the time (s)."""

    now: Callable[[], float]
    lease: Object | None = None
    versions: int = 0
    uids: int = 0
    history: list[tuple[float, Object | None]] = field(default_factory=list)

    def get(self) -> Object:
        if self.lease is None:
            raise NotFound(404, "NotFound", "no such lease")
        return copy.deepcopy(self.lease)

    def create(self, body: Object) -> Object:
        if self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        self.uids += 1
        return self._store({**copy.deepcopy(body), "metadata": {**body["metadata"], "uid": f"u{self.uids}"}})

    def patch(self, patch: Mapping[str, Any], version: str | None, uid: str | None) -> Object:
        found = self.get()
        if uid != found["metadata"]["uid"] or version != found["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it has changed")
        return self._store(merge_apply(found, patch))

    def delete(self) -> None:
        self.lease = None
        self.history.append((self.now(), None))

    def _store(self, lease: Object) -> Object:
        self.versions += 1
        lease["metadata"]["resourceVersion"] = str(self.versions)
        self.lease = lease
        self.history.append((self.now(), copy.deepcopy(lease)))
        return copy.deepcopy(lease)


class Line:
    """One candidate's way to the server; has the methods of `Api` that a candidate calls.

    ``fate``: asked of each call for (delay before it reaches the server, what becomes of it, delay of the
    answer).
    """

    def __init__(
        self, server: LeaseServer, timeout: float, fate: Callable[[], tuple[float, Fate, float]]
    ) -> None:
        self._server, self._timeout, self.fate = server, timeout, fate
        self.on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None
        self._late: set[asyncio.Task[None]] = set()
        self.calls = 0

    async def close(self) -> None:
        return

    async def get(self, resource: object, name: str, namespace: str | None = None) -> Object:
        return await self._call(self._server.get)

    async def create(self, resource: object, body: Object) -> Object:
        return await self._call(lambda: self._server.create(body))

    async def merge_patch(
        self,
        resource: object,
        name: str,
        patch: Mapping[str, Any],
        namespace: str | None = None,
        *,
        version: str | None = None,
        uid: str | None = None,
    ) -> Object:
        return await self._call(lambda: self._server.patch(patch, version, uid))

    async def _call(self, act: Callable[[], Object]) -> Object:
        self.calls += 1
        there, fate, back = self.fate()
        try:
            async with asyncio.timeout(self._timeout):
                if fate == "late":  # it lies in some buffer; its sender gives up before it arrives
                    task = asyncio.create_task(self._arrive(act, there + self._timeout))
                    self._late.add(task)
                    await asyncio.Event().wait()
                await asyncio.sleep(there)
                if fate == "refused":
                    raise Unavailable(503, "ServiceUnavailable", "try again")
                answer = act()
                if fate == "unanswered":
                    await asyncio.Event().wait()
                await asyncio.sleep(back)
                return answer
        except TimeoutError as error:
            raise Unavailable(0, "Timeout", "no answer") from error

    async def _arrive(self, act: Callable[[], Object], after: float) -> None:
        await asyncio.sleep(after)
        try:
            act()
        except (NotFound, Conflict, AlreadyExists):
            return


@dataclass
class Clocks:
    """``rate``: seconds its monotonic clock counts in one second; ``start``: what it showed at time 0;
    ``wall``: how far its wall clock is off (s)."""

    rate: float = 1.0
    start: float = 0.0
    wall: float = 0.0


class Replica:
    """One process: a candidate, and a note of when it could have acted. Frozen, it does nothing until it
    wakes; its clock goes on."""

    def __init__(self, name: str, line: Line, timing: Timing, clocks: Clocks | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.line, clocks = line, clocks or Clocks()
        self.leadership = Leadership(
            line,  # type: ignore[arg-type]
            "ns",
            "lease",
            name,
            timing,
            monotonic=lambda: clocks.start + clocks.rate * loop.time(),
            clock=lambda: loop.time() + clocks.wall,
        )
        self.task = asyncio.create_task(self.leadership.run(), name=name)

    @property
    def leads(self) -> bool:
        return self.leadership.leads

    @property
    def lost(self) -> bool:
        return self.task.done() and isinstance(self.task.exception(), LeadershipLost)

    async def kill(self) -> None:
        """The process is gone: nothing it had on its lips is said."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def end(self) -> None:
        await self.kill()
        await self.leadership.release()
