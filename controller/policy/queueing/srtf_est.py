"""SRTF-Est: shortest remaining time first on an estimate made once and the progress a job reports.

Remaining time is estimate x (1 - progress). The operator tells the progress by the time that a job has run
(`estimates`), the simulator that last reported. A job that never reports stays as long as its estimate said;
one that is done by its own word and goes on running has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import check
from controller.policy.queueing.base import QueueJob, Ranking
from controller.policy.queueing.known import RankingPolicy

REASON = "ShorterJobWaits"


@dataclass(frozen=True, slots=True)
class SrtfEstParams:
    """No parameters."""


class SrtfEst(RankingPolicy):
    """At every event, jobs run in order of estimated remaining time; those that do not fit are passed over.

    Higher priorities first; ties: who runs first, then who came first. A job without an estimate comes last.
    """

    name: ClassVar[str] = "srtfEst"
    reason: ClassVar[str] = REASON
    params: SrtfEstParams

    def __init__(self, params: SrtfEstParams) -> None:
        super().__init__()
        check(params, self.name)
        self.params = params

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        return {
            "priority": job.priority,
            "remainingSeconds": remaining(job),
            "estimateSeconds": job.estimate,
            "progress": job.progress,
        }

    def rank(self, job: QueueJob) -> tuple[object, ...]:
        waits = job.key in self._known.waiting
        return (-job.priority, remaining(job), waits, job.submitted, job.sequence, job.key)


def remaining(job: QueueJob) -> float:
    """Estimated remaining time, s; inf without an estimate."""
    progress = job.progress or 0
    return inf if job.estimate is None or progress >= 1 else job.estimate * (1 - progress)
