"""Pods that the extender refused go back into kube-scheduler's queue once they would be answered otherwise.

kube-scheduler leaves a pod that an extender refused among the unschedulable ones until an event it knows:
time passing, or an extender that has caught up, is none. So something is touched that kube-scheduler watches
and nobody else uses: an annotation of CSIStorageCapacity `evalstop-wake` in the extender's own namespace,
which names a storage class that there is not. No right over a pod is needed for it. All pods that extenders
refused are tried again, as with every node or volume that changes; few are, for pods that the queue has not
admitted do not tolerate the pools' nodes.

`RefusedPods` remembers in memory whom this process refused, so that they are requeued at once. What it has
forgotten (it is bounded, and a restart forgets all) `Requeuer` finds by kube-scheduler's own words in the
pods' status: one small LIST per period, never on the way of a request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from controller import log, names
from controller.extender import views
from controller.extender.metrics import Metrics
from controller.extender.settings import Settings
from controller.frozen import dataclass
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import CAPACITIES, PODS
from controller.kube.trim import Object
from controller.policy.node import (
    NOT_SEEN_YET,
    SIGNATURE,
    STILL_READING,
    GpuLedger,
    Judgement,
    PodRequest,
    Refusal,
    judge,
)

_logger = log.get("evalstop.extender.requeueing")

ANNOTATION_RETRY = f"{names.GROUP}/retry"
RETRY = 1.0  # s until a touch that failed is tried again
MOST = 10_000  # pods remembered
MOST_NODES = 256  # nodes remembered of one pod: where GPUs are kept from it there are few
_TOGETHER = 0.02  # s in which changes are gathered: a gang's admission comes with many of its pods' events
_NAMED = 16  # pods named in a line of the log
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod that was refused every node it asked for, and what it was told."""

    uid: str
    pod_request: PodRequest
    nodes: tuple[str, ...]  # refused to a pod that no plan places, at most `MOST_NODES`
    planned: tuple[str, ...]  # where its gang had a place for it

    def may_pass(self, ledger: GpuLedger, now: float) -> bool:
        """Return whether it would be answered otherwise now."""
        if self.nodes:
            return bool(judge(ledger, self.pod_request, self.nodes, now).passed)
        # Whether its node is free is not ours to judge, and kube-scheduler hears of that by itself.
        planned = ledger.planned(self.pod_request)
        return bool(planned) and planned != self.planned


class RefusedPods:
    """Refused pods by uid, oldest first; beyond ``most`` the oldest is forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._pods: OrderedDict[str, RefusedPod] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pods)

    def answered(self, ledger: GpuLedger, uid: str, pod_request: PodRequest, judgement: Judgement) -> None:
        """Remember, or forget, a pod by the answer that it got."""
        self._pods.pop(uid, None)
        reason = judgement.reason
        # One that may go somewhere was not refused; one whose admission is over is deleted soon.
        if not uid or judgement.passed or reason in (None, Refusal.OVER):
            return
        unplanned = pod_request.gang is None or reason is Refusal.KEPT
        nodes = tuple(judgement.refused)[:MOST_NODES] if unplanned else ()
        self._pods[uid] = RefusedPod(uid, pod_request, nodes, ledger.planned(pod_request))
        if len(self._pods) > self._most:
            self._pods.popitem(last=False)

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def take(self, ledger: GpuLedger, now: float) -> list[RefusedPod]:
        """Return pods that would be answered otherwise now, and forget them."""
        found = [pod for pod in self._pods.values() if pod.may_pass(ledger, now)]
        for pod in found:
            del self._pods[pod.uid]
        return found


class Requeuer:
    """Looks over the refused pods whenever something changed or a reservation ran out, and now and then over
    those that only their status tells of."""

    def __init__(
        self,
        api: Api,
        ledger: GpuLedger,
        refused: RefusedPods,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: Settings,
    ) -> None:
        self._api, self._ledger, self._refused = api, ledger, refused
        self._metrics, self._clock, self._settings = metrics, clock, settings
        self._changed = asyncio.Event()
        self._requeued: dict[str, str] = {}  # uid -> the refusal in its status that was answered by a touch

    def changed(self) -> None:
        """Somebody who was refused may pass now."""
        self._changed.set()

    async def run(self) -> None:
        """Requeue pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._search())
            while True:
                await self._something()
                await asyncio.sleep(_TOGETHER)
                self._changed.clear()
                if found := self._refused.take(self._ledger, self._clock()):
                    # In a task of its own: one that has to try again does not hold up the others.
                    tasks.create_task(self.requeue(*(pod.pod_request for pod in found)))

    async def _something(self) -> None:
        """Wait for a change, or while somebody is refused for the next reservation to run out."""
        end = self._ledger.next_expiry(self._clock()) if len(self._refused) else None
        pause = None if end is None else max(0.0, end - self._clock())
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def requeue(self, *pod_requests: PodRequest) -> None:
        """Let kube-scheduler notice; pods that would be answered as before are refused once more."""
        for _ in range(5):
            # The time makes every touch a change: a write without one is no event.
            stamp = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
            patch = {"metadata": {"annotations": {ANNOTATION_RETRY: stamp}}}
            namespace = self._settings.namespace
            try:
                await self._api.merge_patch(CAPACITIES, names.WAKE_OBJECT, patch, namespace)
            except ApiError as error:
                self._metrics.wakes.labels("failed").inc()
                touched = f"{CAPACITIES} {namespace}/{names.WAKE_OBJECT}"
                _logger.warning("cannot requeue refused pods", by=touched, error=str(error))
                await asyncio.sleep(RETRY)
            else:
                self._metrics.wakes.labels("touched").inc()
                pod_names = [pod_request.name for pod_request in pod_requests[:_NAMED]]
                _logger.info("requeued refused pods", pods=pod_names, all=len(pod_requests))
                return

    # -- by their status -------------------------------------------------------------------------------------

    async def _search(self) -> None:
        while True:
            try:
                await self.search()
            except ApiError as error:
                _logger.warning("cannot list refused pods", error=str(error))
            await asyncio.sleep(self._settings.look_seconds)

    async def search(self) -> None:
        """Requeue pods whose status says that we refused them, and that would pass now: after a restart
        nobody remembers them. Each refusal is answered by one touch."""
        selector = f"spec.schedulerName={self._settings.scheduler_name},spec.nodeName=,{_LIVE}"
        pods, _ = await self._api.list(PODS, fields=selector)
        refused = {pod["metadata"]["uid"]: (pod, words) for pod in pods if (words := _refusal(pod))}
        self._requeued = {uid: words for uid, words in self._requeued.items() if uid in refused}
        found = []
        for uid, (pod, words) in refused.items():
            pod_request = views.pod_request(pod)
            if self._requeued.get(uid) != words and self._may_pass(pod_request, words):
                self._requeued[uid] = words
                found.append(pod_request)
        if found:
            await self.requeue(*found)

    def _may_pass(self, pod_request: PodRequest, words: str) -> bool:
        if pod_request.gang is not None:
            # Refused because it is planned elsewhere: kube-scheduler hears by itself when there is room.
            unseen = NOT_SEEN_YET in words or STILL_READING in words
            return unseen and bool(self._ledger.planned(pod_request))
        nodes = list(self._ledger.capacity)
        return bool(judge(self._ledger, pod_request, nodes, self._clock()).passed)


def _refusal(pod: Object) -> str | None:
    """Return what kube-scheduler wrote when it gave a pod up on our word, with the time; None: it did not."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        message = str(condition.get("message") or "")
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and SIGNATURE in message
        ):
            return f"{condition.get('lastTransitionTime')} {message}"
    return None
