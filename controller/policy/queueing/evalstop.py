"""EvalStop around any base policy: the only place where a verdict becomes a release.

The wrapper watches the proposals that jobs bring with them (`lifecycle.plan` makes them from a stop rule's
verdict), releases those jobs, and leaves everything else to the base policy, to which a job that proposes
is already on its way out. With rules that never propose it decides exactly as its base does.
"""

from __future__ import annotations

from typing import Any, ClassVar

from controller.policy.queueing.base import (
    PolicyBase,
    QueueDecision,
    QueueJob,
    QueuePolicy,
    Room,
    decided,
    queue_key,
)
from controller.policy.types import JobKey, JobState


class EvalStop(PolicyBase):
    """Release every admitted job with a proposal; delegate the rest to ``base``."""

    name: ClassVar[str] = "evalStop"

    def __init__(self, base: QueuePolicy) -> None:
        self.base = base
        self.params: Any = base.params
        self._proposed: dict[JobKey, QueueJob] = {}

    @property
    def watches(self) -> bool:
        return self.base.watches

    def clear(self) -> None:
        self._proposed.clear()
        self.base.rebuild(())

    def submitted(self, job: QueueJob, now: float) -> None:
        if self._proposed:
            self._proposed.pop(job.key, None)
        self.base.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        if job.proposal is not None and job.state is JobState.ADMITTED:
            self._proposed[job.key] = job
            self.base.leaving(job, now)
        else:
            self._proposed.pop(job.key, None)
            self.base.admitted(job, now)

    def updated(self, job: QueueJob, now: float) -> None:
        if job.state is JobState.ADMITTED:
            self.admitted(job, now)
        else:
            self._proposed.pop(job.key, None)
            self.base.updated(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._proposed.pop(job.key, None)
        self.base.leaving(job, now)

    def gone(self, job: QueueJob, now: float) -> None:
        if self._proposed:
            self._proposed.pop(job.key, None)
        self.base.gone(job, now)

    def decide(self, now: float, room: Room) -> QueueDecision:
        decision = self.base.decide(now, room)
        if not self._proposed:
            return decision
        released = list(self._proposed.values())
        if len(released) > 1:
            released.sort(key=queue_key)
        return decided(decision.admit, decision.preempt, decision.wake_at, released)

    def queue(self) -> list[QueueJob]:
        return self.base.queue()

    def mark(self, key: JobKey) -> tuple[int, ...]:
        return self.base.mark(key)
