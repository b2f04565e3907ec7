"""First in, first out, within priorities."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.queueing.base import (
    NOTHING,
    PolicyBase,
    QueueDecision,
    QueueJob,
    Room,
    queue_key,
    starts,
)
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
        self._blocked = 0  # GPUs of the head of the line if it is known not to fit, else 0

    def clear(self) -> None:
        self._waiting.clear()
        self._last = None
        self._sorted = True
        self._blocked = 0

    def submitted(self, job: QueueJob, now: float) -> None:
        waiting = self._waiting
        if job.key in waiting:
            del waiting[job.key]
            self._blocked = 0
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
            self._blocked = 0

    def admitted(self, job: QueueJob, now: float) -> None:
        if job.key in self._waiting:
            del self._waiting[job.key]
            self._blocked = 0

    def leaving(self, job: QueueJob, now: float) -> None:
        self.admitted(job, now)

    def removed(self, job: QueueJob, now: float) -> None:
        if job.key in self._waiting:
            del self._waiting[job.key]
            self._blocked = 0

    def decide(self, now: float, room: Room) -> QueueDecision:
        if not self._waiting:
            return NOTHING
        if self._blocked:
            slots = room.slots
            if slots is not None and slots < self._blocked:
                return NOTHING
        if not self._sorted:
            self._sort()
        admit = []
        for job in self._waiting.values():
            if room.take(job):
                admit.append(job)
            elif not self._backfill and not room.bars(job):
                if not admit:
                    self._blocked = job.gpus
                break
        return starts(admit) if admit else NOTHING

    def queue(self) -> list[QueueJob]:
        if not self._sorted:
            self._sort()
        return list(self._waiting.values())

    def _sort(self) -> None:
        ordered = sorted(self._waiting.values(), key=queue_key)
        self._waiting = OrderedDict((job.key, job) for job in ordered)
        self._last = ordered[-1] if ordered else None
        self._sorted = True
