"""EvalStop around any base policy: the only place where a verdict becomes a release.

The wrapper watches the proposals that jobs bring with them (`lifecycle.plan` makes them from a stop rule's
verdict), releases those jobs, and leaves everything else to the base policy. With rules that never
propose it decides exactly as its base does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from controller.policy.queueing.base import EventKind, QueueDecision, QueueEvent, QueuePolicy, Room, queue_key
from controller.policy.types import JobKey, JobState, JobView


class EvalStop:
    """Release every admitted job with a proposal; delegate the rest to ``base``."""

    name: ClassVar[str] = "evalStop"

    def __init__(self, base: QueuePolicy) -> None:
        self.base = base
        self.params: Any = base.params
        self._proposed: dict[JobKey, JobView] = {}

    def rebuild(self, jobs: Iterable[JobView]) -> None:
        jobs = list(jobs)
        self.base.rebuild(jobs)
        self._proposed = {j.key: j for j in jobs if _proposes(j)}

    def apply(self, event: QueueEvent) -> None:
        self.base.apply(event)
        if event.kind in (EventKind.ADMITTED, EventKind.UPDATED) and _proposes(event.job):
            self._proposed[event.job.key] = event.job
        else:
            self._proposed.pop(event.job.key, None)

    def decide(self, now: float, room: Room) -> QueueDecision:
        decision = self.base.decide(now, room)
        if self._proposed:
            decision.release = sorted(self._proposed.values(), key=queue_key)
            # A job on its way out is not worth a preemption as well.
            decision.preempt = [(j, why) for j, why in decision.preempt if j.key not in self._proposed]
        return decision

    def queue(self) -> list[JobView]:
        return self.base.queue()


def _proposes(job: JobView) -> bool:
    return job.proposal is not None and job.state is JobState.ADMITTED
