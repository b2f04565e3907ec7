"""The operator's Lease, by which it is told to live: nothing is decided while nobody renews it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from controller import names
from controller.kube.errors import ApiError
from controller.kube.lease import RefusedNote, UnwrittenNote, left_since, refused, served, unwritten
from controller.kube.resources import LEASES
from controller.objects import parse_time

if TYPE_CHECKING:
    from controller.kube.client import Api

LOOK = 5.0  # s between two looks
SPARE = 10.0  # s beside the Lease's own duration in which a new leader may come
USUAL_DURATION = 15.0  # s, where the Lease does not say


class OperatorLease:
    """Looks at the Lease. What counts is whether it changes, seen by one clock: not two clocks' difference.

    Args:
        api: a client that may have the right to get it; without the right nothing is known.
        namespace: the operator's.
        clock: gives seconds that only rise.
    """

    def __init__(self, api: Api, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._namespace, self._clock = api, namespace, clock
        self._seen: tuple[str, str] | None = None  # holder and time of renewal
        self._changed = self._answered = 0.0
        self._duration = USUAL_DURATION
        self._renewed: float | None = None
        self.refused: RefusedNote | None = None  # what its holder says that it is refused
        self.unwritten: UnwrittenNote | None = None  # statuses that it says it cannot write
        self.served: frozenset[str] | None = None  # the namespaces that it says it serves; None: all
        self.term_began: float | None = None  # s since the epoch

    def away_since(self) -> float | None:
        """Return when (s since the epoch) it was renewed last, if nobody renews it any more; None: somebody
        does, or it is not known."""
        if self._seen is None or self._clock() - self._changed <= self._duration + SPARE:
            return None
        return self._renewed

    @property
    def unanswered(self) -> bool:
        """Return whether it is the API server that has told nothing of it for so long, not the operator that
        has not renewed it: its last answer came while the Lease still held."""
        return self._answered - self._changed <= self._duration + SPARE

    async def follow(self) -> None:
        """Look again and again until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        """Look once. What cannot be read changes nothing: whoever cannot reach the API server says so.
        A Lease that was there and is gone, perhaps with all of the operator, is renewed by nobody."""
        try:
            lease = await self._api.get(LEASES, names.OPERATOR, self._namespace)
        except ApiError as error:
            if error.status == 403:
                self._seen = self.refused = self.served = self.unwritten = None
            elif error.status == 404:
                self._answered = self._clock()
            return
        self._answered = self._clock()
        self.refused, self.served, self.unwritten = refused(lease), served(lease), unwritten(lease)
        spec = lease.get("spec") or {}
        self.term_began = parse_time(str(spec.get("acquireTime") or ""))
        seen = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        if seen != self._seen:
            first = self._seen is None
            self._seen, self._changed = seen, self._clock()
            self._renewed = parse_time(seen[1])
            if first and (left := left_since(lease, time.time())) is not None:
                self._changed -= time.time() - left
        self._duration = float(spec.get("leaseDurationSeconds") or USUAL_DURATION)
