"""Refusals of Jobs' pods, an access Job's or a trainer's: the Job controller writes them into an Event of the
Job alone.

A dry run of a Job is not judged by what judges its pods: admission webhooks, quotas, Pod Security. So its
Events are looked at (`event_looks`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from controller.checkpoints.results import TEXT_LIMIT
from controller.kube.client import Api
from controller.operator.state.event_looks import EventLooks, Object, Waiting
from controller.policy.job import LAST_WORDS, AccessView, Hindrance
from controller.policy.types import JobKey
from controller.untrusted_text import one_line

OF_THE_CONTROLLER = "reason=FailedCreate"  # Events of the Job controller's that it could make no pod
SECONDS = len("2026-11-24T00:00:00")  # of a time after RFC 3339, up to its seconds

# Pod Security's answer where the user is what it does not let in.
_USER = re.compile(r"violates PodSecurity.*\b(runAsNonRoot|runAsUser)\b")


@dataclass(slots=True)
class _Job(Waiting):
    """A Job that was set going and lacks pods."""

    started: str = ""  # RFC 3339: Events from before it are of an earlier start
    words: str = ""  # of the newest Event; "": nothing was found


class AccessRefusals(EventLooks[_Job]):
    """Causes that keep pods of access Jobs, and of trainers, from being made."""

    KIND: ClassVar[str] = "Job"
    LOGGER: ClassVar[str] = "evalstop.access_refusals"

    def __init__(
        self, api: Api, touch: Callable[[JobKey], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(api, touch, monotonic)
        self._waiting = self.table()  # an RLHFJob has one access Job at a time
        self._trainers = self.table()

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

    def _words(self, waiting: dict[JobKey, _Job], key: JobKey, job: Object, *, there: bool) -> str:
        """Return the words of the newest refusal; "": none is known. ``there``: its pods are."""
        uid, namespace = str(job["metadata"]["uid"]), str(job["metadata"]["namespace"])
        started = str((job.get("status") or {}).get("startTime") or "")
        known = waiting.get(key)
        if there:
            if known is not None and known.uid == uid:
                del waiting[key]
            return ""
        if known is None or (known.uid, known.started) != (uid, started):
            known = self.wait_for(waiting, key, _Job(uid, namespace, started=started))
            if known is None:
                return ""
        known.seen = self._now()
        return known.words

    def fields(self, waits: _Job) -> str:
        return f"involvedObject.uid={waits.uid},{OF_THE_CONTROLLER}"

    def is_new(self, waits: _Job, events: Sequence[Object]) -> bool:
        events = [event for event in events if _at(event)[:SECONDS] >= waits.started[:SECONDS]]
        if not events or (words := newest_words(events)) == waits.words:
            return False
        waits.words = words
        return True


def newest_words(events: Sequence[Object]) -> str:
    """Return the message of the newest of a Job's Events about pods that could not be made."""
    return str(max(events, key=_at).get("message") or "")


def refusal(words: str) -> tuple[Hindrance, str]:
    """Return reason and message of an access Job's pod that could not be made."""
    reason = Hindrance.USER_REFUSED if _USER.search(words) else Hindrance.REFUSED
    return reason, one_line(f"the cluster refuses its access Job's pod: {words}", TEXT_LIMIT)


def _at(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
