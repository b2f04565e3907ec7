"""First in, first out, within priorities."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check, param
from controller.policy.queueing.base import NOTHING, PolicyBase, QueueDecision, QueueJob, Room, queue_key
from controller.policy.types import JobKey


@dataclass(frozen=True, slots=True)
class FifoParams:
    backfill: bool = param(
        False, unit="yes or no", doc="let later jobs that fit pass a head of the queue that does not"
    )


class Fifo(PolicyBase):
    """Jobs start in the order of their submission, higher priorities first; nobody is preempted.

    Without backfill the head of the queue blocks all behind it until it fits, so every job starts after
    finitely many others. With backfill a large gang can starve behind small ones.
    """

    name: ClassVar[str] = "fifo"
    params: FifoParams

    def __init__(self, params: FifoParams) -> None:
        check(params, self.name)
        self.params = params
        self._backfill = params.backfill
        self._waiting: OrderedDict[JobKey, QueueJob] = OrderedDict()
        self._last: QueueJob | None = None  # the newest in line; nobody in line comes after it
        self._sorted = True

    def clear(self) -> None:
        self._waiting.clear()
        self._last = None
        self._sorted = True

    def submitted(self, job: QueueJob, now: float) -> None:
        waiting = self._waiting
        if job.key in waiting:
            del waiting[job.key]
        waiting[job.key] = job
        last = self._last
        # Jobs nearly always come in order: only others cost a sort, and only when somebody next looks.
        if (
            last is None
            or (job.submitted > last.submitted and job.priority == last.priority)
            or queue_key(job) >= queue_key(last)
        ):
            self._last = job
        else:
            self._sorted = False

    def admitted(self, job: QueueJob, now: float) -> None:
        self._waiting.pop(job.key, None)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._waiting.pop(job.key, None)

    def gone(self, job: QueueJob, now: float) -> None:
        self._waiting.pop(job.key, None)

    def decide(self, now: float, room: Room) -> QueueDecision:
        if not self._waiting:
            return NOTHING
        if not self._sorted:
            self._sort()
        admit = []
        for job in self._waiting.values():
            if room.take(job):
                admit.append(job)
            elif not self._backfill:
                break
        return QueueDecision(admit) if admit else NOTHING

    def queue(self) -> list[QueueJob]:
        if not self._sorted:
            self._sort()
        return list(self._waiting.values())

    def _sort(self) -> None:
        ordered = sorted(self._waiting.values(), key=queue_key)
        self._waiting = OrderedDict((job.key, job) for job in ordered)
        self._last = ordered[-1] if ordered else None
        self._sorted = True
