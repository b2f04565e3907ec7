"""Pods that have a node and do not start: the kubelet writes why into an Event of the pod alone.

A volume whose ConfigMap, Secret or claim is not there stands in no status: the container waits in
ContainerCreating, as one does whose image is being pulled. Events are not watched. Those of one pod are
listed, and only once its containers should long have been there.

Whoever may write Events in the namespace can write such an Event. It becomes a message, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller import log
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS
from controller.policy.job import PodTrouble
from controller.policy.types import JobKey
from controller.workloads import pod_starts

Object = Mapping[str, Any]

FIRST = 5.0  # s that a pod may take to start, after which its Events are looked at; then after twice as long
MOST = 120.0  # s between two looks
GRAIN = 2.0  # s between two looks at who is due
FORGOTTEN = 1200.0  # s after which a pod that no load speaks of any more is gone
KNOWN_MOST = 10_000
_logger = log.get("evalstop.pod_starts")


@dataclass(slots=True)
class _Waiting:
    """A pod that does not start."""

    uid: str
    name: str
    namespace: str
    due: float  # s, monotonic, of the next look
    delay: float = FIRST
    seen: float = 0.0  # s, monotonic, when a load last spoke of it
    trouble: PodTrouble | None = None


class PodStarts:
    """Causes that keep a trainer's pods from starting; of one pod of each job at a time.

    Args:
        api: to list Events with.
        touch: called with the RLHFJob of whose pod something new is known.
    """

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._touch, self._now = api, touch, monotonic
        self._waiting: dict[JobKey, _Waiting] = {}

    def of(self, key: JobKey, pods: Sequence[Object]) -> PodTrouble | None:
        """Return why one of a job's pods does not start; None: they have, or nobody knows. From now on it is
        looked for."""
        late = [pod for pod in pods if pod_starts.is_starting(pod)]
        known = self._waiting.get(key)
        if not late:
            if known is not None:
                del self._waiting[key]
            return None
        if known is None or all(pod["metadata"]["uid"] != known.uid for pod in late):
            if known is None and len(self._waiting) >= KNOWN_MOST:
                return None
            metadata = min(late, key=lambda pod: str(pod["metadata"]["name"]))["metadata"]
            known = self._waiting[key] = _Waiting(
                str(metadata["uid"]), str(metadata["name"]), str(metadata["namespace"]), self._now() + FIRST
            )
        known.seen = self._now()
        return known.trouble

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.look_due()
            await asyncio.sleep(GRAIN)

    async def look_due(self) -> None:
        """Look at the Events of every pod whose turn it is, once, one after another."""
        now = self._now()
        for key in [key for key, known in self._waiting.items() if now - known.seen > FORGOTTEN]:
            del self._waiting[key]
        for key, known in list(self._waiting.items()):
            if known.due <= self._now():
                known.delay = min(MOST, 2.0 * known.delay)
                known.due = self._now() + known.delay
                await self._look(key, known)

    async def _look(self, key: JobKey, known: _Waiting) -> None:
        fields = f"involvedObject.uid={known.uid}"
        try:
            events, _ = await self._api.list(EVENTS, known.namespace, fields=fields)
        except ApiError as error:
            _logger.info("Events of a pod cannot be listed", job=key, error=error.message)
            return
        if (found := pod_starts.held_up(known.name, events)) != known.trouble:
            known.trouble = found
            self._touch(key)
