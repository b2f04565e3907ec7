"""Parked pods are woken when they would be answered otherwise.

kube-scheduler tries a pod that an extender refused again on any event it knows, and on none without one:
time passing, or an extender that has caught up, is no event. So something is touched: an annotation of the
pod itself, through its status subresource, which cannot change what the pod runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from controller import log, names
from controller.extender.metrics import Metrics
from controller.extender.parked import Parking
from controller.kube.client import Api
from controller.kube.errors import ApiError, Conflict, NotFound
from controller.kube.resources import PODS
from controller.policy.nodeclaims import Asker, Ledger

_logger = log.get("evalstop.extender.waking")

ANNOTATION_RETRY = f"{names.GROUP}/retry"
RETRY = 1.0  # s until a touch that failed is tried again
_TOGETHER = 0.02  # s in which changes are gathered: a gang's admission comes with many of its pods' events
_PARALLEL = 16  # touches at a time


class Waking:
    """Looks over the parked pods whenever something changed or a keep ran out."""

    def __init__(
        self, api: Api, ledger: Ledger, parking: Parking, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._api, self._ledger, self._parking = api, ledger, parking
        self._metrics, self._clock = metrics, clock
        self._changed = asyncio.Event()
        self._room = asyncio.Semaphore(_PARALLEL)

    def changed(self) -> None:
        """Somebody who was refused may pass now."""
        self._changed.set()

    async def run(self) -> None:
        """Wake pods until cancelled."""
        async with asyncio.TaskGroup() as touches:  # one that has to try again does not hold up the others
            while True:
                await self._something()
                await asyncio.sleep(_TOGETHER)
                self._changed.clear()
                for pod in self._parking.take_hopeful(self._ledger, self._clock()):
                    touches.create_task(self.touch(pod.uid, pod.asker))

    async def _something(self) -> None:
        """Until a change, or until the next keep runs out while somebody is parked."""
        end = self._ledger.next_expiry(self._clock()) if len(self._parking) else None
        pause = None if end is None else max(0.0, end - self._clock())
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def touch(self, uid: str, asker: Asker) -> None:
        """Let kube-scheduler notice a pod; one that is gone, or a namesake, is left alone."""
        # Both come from a request: neither may lead anywhere else than to a pod.
        namespace, _, name = (quote(part, safe="") for part in asker.name.partition("/"))
        for _ in range(5):
            # The time makes every touch a change: a write without one is no event.
            stamp = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
            patch = {"metadata": {"annotations": {ANNOTATION_RETRY: stamp}}}
            try:
                async with self._room:
                    await self._api.merge_patch(PODS, name, patch, namespace, subresource="status", uid=uid)
            except (NotFound, Conflict):
                self._metrics.wakes.labels("gone").inc()
                return
            except ApiError as error:
                self._metrics.wakes.labels("failed").inc()
                _logger.warning("cannot touch a parked pod", pod=asker.name, error=str(error))
                await asyncio.sleep(RETRY)
            else:
                self._metrics.wakes.labels("touched").inc()
                _logger.info("woke a parked pod", pod=asker.name, admission=asker.admission)
                return
