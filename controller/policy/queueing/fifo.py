"""First in, first out, within priorities."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.queueing.base import EventKind, QueueDecision, QueueEvent, Room, queue_key
from controller.policy.types import JobKey, JobState, JobView


@dataclass(frozen=True, slots=True)
class FifoParams:
    backfill: bool = param(
        False, unit="yes or no", doc="let later jobs that fit pass a head of the queue that does not"
    )


class Fifo:
    """Jobs start in the order of their submission, higher priorities first; nobody is preempted.

    Without backfill the head of the queue blocks all behind it until it fits, so every job starts after
    finitely many others. With backfill a large gang can starve behind small ones.
    """

    name: ClassVar[str] = "fifo"
    params: FifoParams

    def __init__(self, params: FifoParams) -> None:
        check(params, self.name)
        self.params = params
        self._keys: list[tuple[int, float, int, JobKey]] = []  # sorted; parallel to _waiting
        self._waiting: list[JobView] = []
        self._key_of: dict[JobKey, tuple[int, float, int, JobKey]] = {}

    def rebuild(self, jobs: Iterable[JobView]) -> None:
        queued = sorted((j for j in jobs if j.state is JobState.QUEUED), key=queue_key)
        self._waiting = queued
        self._keys = [queue_key(j) for j in queued]
        self._key_of = {j.key: k for j, k in zip(queued, self._keys, strict=True)}

    def apply(self, event: QueueEvent) -> None:
        job = event.job
        if event.kind is EventKind.UPDATED and job.key not in self._key_of:
            return
        self._drop(job.key)
        if event.kind in (EventKind.SUBMITTED, EventKind.UPDATED):
            key = queue_key(job)
            at = bisect_left(self._keys, key)
            self._keys.insert(at, key)
            self._waiting.insert(at, job)
            self._key_of[job.key] = key

    def decide(self, now: float, room: Room) -> QueueDecision:
        decision = QueueDecision()
        for job in self._waiting:
            if room.take(job):
                decision.admit.append(job)
            elif not self.params.backfill:
                break
        return decision

    def queue(self) -> list[JobView]:
        return list(self._waiting)

    def _drop(self, key: JobKey) -> None:
        known = self._key_of.pop(key, None)
        if known is not None:
            at = bisect_left(self._keys, known)
            del self._keys[at], self._waiting[at]
