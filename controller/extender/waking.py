"""Parked pods are woken when they would be answered otherwise.

kube-scheduler tries a pod that an extender refused again on any event it knows, and on none without one:
time passing, or an extender that has caught up, is no event. So something is touched that kube-scheduler
watches and nobody else uses: an annotation of CSIStorageCapacity `evalstop-wake` in the extender's own
namespace, which names a storage class that there is not. No right over a pod is needed for it. All pods that
extenders refused are tried again, as with every node or volume that changes; few are, for pods that the
queue has not admitted do not tolerate the pools' nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from controller import log, names
from controller.extender.metrics import Metrics
from controller.extender.parked import Parking
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import CAPACITIES
from controller.policy.node import Asker, GpuLedger

_logger = log.get("evalstop.extender.waking")

ANNOTATION_RETRY = f"{names.GROUP}/retry"
RETRY = 1.0  # s until a touch that failed is tried again
_TOGETHER = 0.02  # s in which changes are gathered: a gang's admission comes with many of its pods' events
_TOLD = 16  # pods named in a line of the log


class Waking:
    """Looks over the parked pods whenever something changed or a keep ran out."""

    def __init__(
        self,
        api: Api,
        ledger: GpuLedger,
        parking: Parking,
        metrics: Metrics,
        clock: Callable[[], float],
        namespace: str,
    ) -> None:
        """``namespace``: where `evalstop-wake` is."""
        self._api, self._ledger, self._parking = api, ledger, parking
        self._metrics, self._clock, self._namespace = metrics, clock, namespace
        self._changed = asyncio.Event()

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
                if hopeful := self._parking.take_hopeful(self._ledger, self._clock()):
                    touches.create_task(self.wake(*(pod.asker for pod in hopeful)))

    async def _something(self) -> None:
        """Until a change, or until the next keep runs out while somebody is parked."""
        end = self._ledger.next_expiry(self._clock()) if len(self._parking) else None
        pause = None if end is None else max(0.0, end - self._clock())
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def wake(self, *askers: Asker) -> None:
        """Let kube-scheduler notice; pods that would be answered as before are refused once more."""
        for _ in range(5):
            # The time makes every touch a change: a write without one is no event.
            stamp = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
            patch = {"metadata": {"annotations": {ANNOTATION_RETRY: stamp}}}
            try:
                await self._api.merge_patch(CAPACITIES, names.WAKE_OBJECT, patch, self._namespace)
            except ApiError as error:
                self._metrics.wakes.labels("failed").inc()
                told = f"{CAPACITIES} {self._namespace}/{names.WAKE_OBJECT}"
                _logger.warning("cannot wake parked pods", by=told, error=str(error))
                await asyncio.sleep(RETRY)
            else:
                self._metrics.wakes.labels("touched").inc()
                _logger.info(
                    "woke parked pods", pods=[asker.name for asker in askers[:_TOLD]], all=len(askers)
                )
                return
