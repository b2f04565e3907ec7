"""Refusals of access Jobs' pods: the Job controller writes them into an Event of the Job alone.

A dry run of a Job is not judged by what judges its pods: admission webhooks, quotas, Pod Security. Events are
not watched. Those of one Job are listed, and only once its pod should long have been there.

Whoever may write Events in the namespace can write such an Event. It becomes a message, and decides nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller import log
from controller.checkpoints.results import TEXT_LIMIT
from controller.kube.client import Api
from controller.kube.errors import ApiError
from controller.kube.resources import EVENTS
from controller.policy.job import AccessView, Hindrance
from controller.policy.types import JobKey
from controller.untrusted_text import one_line

Object = Mapping[str, Any]

OF_THE_CONTROLLER = "reason=FailedCreate"  # Events of the Job controller's that it could make no pod
FIRST = 5.0  # s without a pod, after which Events are looked at; then after twice as long, each time
MOST = 120.0  # s between two looks
GRAIN = 2.0  # s between two looks at who is due
FORGOTTEN = 1200.0  # s after which a Job that no load speaks of any more was deleted
KNOWN_MOST = 10_000

# Pod Security's answer where the user is what it does not let in.
_USER = re.compile(r"violates PodSecurity.*\b(runAsNonRoot|runAsUser)\b")
_logger = log.get("evalstop.access_refusals")


@dataclass(slots=True)
class _Waiting:
    """An access Job that was set going and has no pod."""

    uid: str
    namespace: str
    due: float  # s, monotonic, of the next look
    delay: float = FIRST
    seen: float = 0.0  # s, monotonic, when a load last spoke of it
    refusal: tuple[Hindrance, str] | None = None  # and the message; None: nothing was found


class AccessRefusals:
    """Causes that keep pods of access Jobs from being made.

    Args:
        api: to list Events with.
        touch: called with the RLHFJob of whose access Job something new is known.
    """

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._touch, self._now = api, touch, monotonic
        self._waiting: dict[JobKey, _Waiting] = {}  # an RLHFJob has one access Job at a time

    def of(self, key: JobKey, view: AccessView, job: Object, pods: Sequence[Object]) -> AccessView:
        """Return an access Job's view with why its pod is refused, if that is known; from now on it is looked
        for."""
        uid, namespace = str(job["metadata"]["uid"]), str(job["metadata"]["namespace"])
        known, now = self._waiting.get(key), self._now()
        if view.finished or pods:
            if known is not None and known.uid == uid:
                del self._waiting[key]
            return view
        if known is None or known.uid != uid:
            if known is None and len(self._waiting) >= KNOWN_MOST:
                return view
            known = self._waiting[key] = _Waiting(uid, namespace, now + FIRST)
        known.seen = now
        if known.refusal is None:
            return view
        reason, message = known.refusal
        return replace(view, hindered=reason, message=message)

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.look_due()
            await asyncio.sleep(GRAIN)

    async def look_due(self) -> None:
        """Look at the Events of every Job whose turn it is, once, one after another."""
        now = self._now()
        for key in [key for key, known in self._waiting.items() if now - known.seen > FORGOTTEN]:
            del self._waiting[key]
        for key, known in list(self._waiting.items()):
            if known.due <= self._now():
                known.delay = min(MOST, 2.0 * known.delay)
                known.due = self._now() + known.delay
                await self._look(key, known)

    async def _look(self, key: JobKey, known: _Waiting) -> None:
        fields = f"involvedObject.uid={known.uid},{OF_THE_CONTROLLER}"
        try:
            events, _ = await self._api.list(EVENTS, known.namespace, fields=fields)
        except ApiError as error:
            _logger.info("Events of an access Job cannot be listed", job=key, error=error.message)
            return
        if events and (refusal := read(events)) != known.refusal:
            known.refusal = refusal
            self._touch(key)


def read(events: Sequence[Object]) -> tuple[Hindrance, str]:
    """Return reason and message of the newest of a Job's Events about pods that could not be made."""
    newest = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    words = str(newest.get("message") or "")
    reason = Hindrance.USER_REFUSED if _USER.search(words) else Hindrance.REFUSED
    return reason, one_line(f"the cluster refuses its access Job's pod: {words}", TEXT_LIMIT)
