"""Parked pods that this process does not remember, looked for now and then by what their status says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller import log
from controller.extender import views
from controller.extender.waking import Waking
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import PODS
from controller.kube.trim import Object
from controller.policy.node import NOT_SEEN_YET, SIGNATURE, STILL_READING, Asker, GpuLedger, judge

_logger = log.get("evalstop.extender.lookout")

_LIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Lookout:
    """One small LIST per period, never on the way of a request."""

    def __init__(
        self,
        api: Api,
        ledger: GpuLedger,
        waking: Waking,
        scheduler: str,
        clock: Callable[[], float],
        period: float,
    ) -> None:
        self._api, self._ledger, self._waking = api, ledger, waking
        self._scheduler, self._clock, self._period = scheduler, clock, period
        self._woken: dict[str, str] = {}  # uid -> the refusal that it was woken from

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except ApiError as error:
                _logger.warning("cannot look at pods", error=str(error))
            await asyncio.sleep(self._period)

    async def look(self) -> None:
        """Wake pods whose status says that we refused them, and that would pass now: after a restart nobody
        remembers them. Each refusal is answered by one touch."""
        selector = f"spec.schedulerName={self._scheduler},spec.nodeName=,{_LIVE}"
        pods, _ = await self._api.list(PODS, fields=selector)
        refused = {pod["metadata"]["uid"]: (pod, told) for pod in pods if (told := _refusal(pod))}
        self._woken = {uid: told for uid, told in self._woken.items() if uid in refused}
        hopeful = []
        for uid, (pod, told) in refused.items():
            asker = views.asker(pod)
            if self._woken.get(uid) != told and self._may_pass(asker, told):
                self._woken[uid] = told
                hopeful.append(asker)
        if hopeful:
            await self._waking.wake(*hopeful)

    def _may_pass(self, asker: Asker, told: str) -> bool:
        if asker.gang is not None:
            # Refused because it is planned elsewhere: kube-scheduler hears by itself when there is room.
            unseen = NOT_SEEN_YET in told or STILL_READING in told
            return unseen and bool(self._ledger.planned(asker))
        nodes = list(self._ledger.capacity)
        return bool(judge(self._ledger, asker, nodes, self._clock()).passed)


def _refusal(pod: Object) -> str | None:
    """Return what kube-scheduler wrote when it parked a pod on our word, with the time; None: it did not."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        message = str(condition.get("message") or "")
        if (
            condition.get("type") == "PodScheduled"
            and condition.get("status") == "False"
            and SIGNATURE in message
        ):
            return f"{condition.get('lastTransitionTime')} {message}"
    return None
