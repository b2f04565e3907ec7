"""Refusals of Jobs' pods, an access Job's or a trainer's: the Job controller writes them into an Event of the
Job alone.

A dry run of a Job is not judged by what judges its pods: admission webhooks, quotas, Pod Security. Events are
not watched. Those of one Job are listed, and only once its pods should long have been there.

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
from controller.policy.job import LAST_WORDS, AccessView, Hindrance
from controller.policy.types import JobKey
from controller.untrusted_text import one_line

Object = Mapping[str, Any]

OF_THE_CONTROLLER = "reason=FailedCreate"  # Events of the Job controller's that it could make no pod
FIRST = 5.0  # s without a pod, after which Events are looked at; then after twice as long, each time
MOST = 120.0  # s between two looks
GRAIN = 2.0  # s between two looks at who is due
FORGOTTEN = 1200.0  # s after which a Job that no load speaks of any more was deleted
KNOWN_MOST = 10_000
SECONDS = len("2026-11-24T00:00:00")  # of a time after RFC 3339, up to its seconds

# Pod Security's answer where the user is what it does not let in.
_USER = re.compile(r"violates PodSecurity.*\b(runAsNonRoot|runAsUser)\b")
_logger = log.get("evalstop.access_refusals")


@dataclass(slots=True)
class _Waiting:
    """A Job that was set going and lacks pods."""

    uid: str
    namespace: str
    due: float  # s, monotonic, of the next look
    delay: float = FIRST
    seen: float = 0.0  # s, monotonic, when a load last spoke of it
    started: str = ""  # RFC 3339: Events from before it are of an earlier start
    words: str = ""  # of the newest Event; "": nothing was found


class AccessRefusals:
    """Causes that keep pods of access Jobs, and of trainers, from being made.

    Args:
        api: to list Events with.
        touch: called with the RLHFJob of whose Jobs something new is known.
    """

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._touch, self._now = api, touch, monotonic
        self._waiting: dict[JobKey, _Waiting] = {}  # an RLHFJob has one access Job at a time
        self._trainers: dict[JobKey, _Waiting] = {}

    def of(self, key: JobKey, view: AccessView, job: Object, pods: Sequence[Object]) -> AccessView:
        """Return an access Job's view with why its pod is refused, if that is known; from now on it is looked
        for."""
        words = self._words(self._waiting, key, job, there=view.finished or bool(pods))
        if not words:
            return view
        reason, message = refusal(words)
        return replace(view, hindered=reason, message=message)

    def of_trainer(self, key: JobKey, job: Object, pods: int, expected: int) -> str | None:
        """Return why the cluster makes no more pods of a trainer's Job, in its words; None: nothing is known.

        Args:
            key: of its RLHFJob.
            job: its workload, which is not suspended and has not ended.
            pods: how many pods it has.
            expected: how many it should have; from now on, if it has fewer, it is looked for.
        """
        words = self._words(self._trainers, key, job, there=pods >= expected)
        return one_line(words, LAST_WORDS) if words else None

    def _words(self, waiting: dict[JobKey, _Waiting], key: JobKey, job: Object, *, there: bool) -> str:
        """Return the words of the newest refusal; "": none is known. ``there``: its pods are."""
        uid, namespace = str(job["metadata"]["uid"]), str(job["metadata"]["namespace"])
        started = str((job.get("status") or {}).get("startTime") or "")
        known, now = waiting.get(key), self._now()
        if there:
            if known is not None and known.uid == uid:
                del waiting[key]
            return ""
        if known is None or (known.uid, known.started) != (uid, started):
            if known is None and len(waiting) >= KNOWN_MOST:
                return ""
            known = waiting[key] = _Waiting(uid, namespace, now + FIRST, started=started)
        known.seen = now
        return known.words

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self.look_due()
            await asyncio.sleep(GRAIN)

    async def look_due(self) -> None:
        """Look at the Events of every Job whose turn it is, once, one after another."""
        now = self._now()
        for waiting in (self._waiting, self._trainers):
            for key in [key for key, known in waiting.items() if now - known.seen > FORGOTTEN]:
                del waiting[key]
            for key, known in list(waiting.items()):
                if known.due <= self._now():
                    known.delay = min(MOST, 2.0 * known.delay)
                    known.due = self._now() + known.delay
                    await self._look(key, known)

    async def _look(self, key: JobKey, known: _Waiting) -> None:
        fields = f"involvedObject.uid={known.uid},{OF_THE_CONTROLLER}"
        try:
            events, _ = await self._api.list(EVENTS, known.namespace, fields=fields)
        except ApiError as error:
            _logger.info("Events of a Job cannot be listed", job=key, error=error.message)
            return
        events = [event for event in events if _at(event)[:SECONDS] >= known.started[:SECONDS]]
        if events and (words := newest_words(events)) != known.words:
            known.words = words
            self._touch(key)


def newest_words(events: Sequence[Object]) -> str:
    """Return the message of the newest of a Job's Events about pods that could not be made."""
    return str(max(events, key=_at).get("message") or "")


def refusal(words: str) -> tuple[Hindrance, str]:
    """Return reason and message of an access Job's pod that could not be made."""
    reason = Hindrance.USER_REFUSED if _USER.search(words) else Hindrance.REFUSED
    return reason, one_line(f"the cluster refuses its access Job's pod: {words}", TEXT_LIMIT)


def _at(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
