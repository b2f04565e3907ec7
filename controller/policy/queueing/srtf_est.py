"""SRTF-Est: shortest remaining time first on an estimate made once and the progress a job reports.

Remaining time is estimate x (1 - progress), as EvalStop's paper has it (evalstop.md, 2.5). Between reports
progress is taken to go on as it went so far; before the first one, at the pace of the estimate itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from controller.policy.params import check
from controller.policy.queueing.base import NOTHING, PolicyBase, QueueDecision, QueueJob, Room
from controller.policy.queueing.greedy import run_best
from controller.policy.queueing.known import KnownJobs

REASON = "ShorterJobWaits"


@dataclass(frozen=True, slots=True)
class SrtfEstParams:
    """No parameters."""


class SrtfEst(PolicyBase):
    """At every event, jobs run in the order of estimated remaining time; who does not fit is passed over.

    Higher priorities first; ties: who runs first, then who came first. A job without an estimate comes last.
    """

    name: ClassVar[str] = "srtfEst"
    params: SrtfEstParams

    def __init__(self, params: SrtfEstParams) -> None:
        check(params, self.name)
        self.params = params
        self._known = KnownJobs()

    @property
    def watches(self) -> bool:
        return True

    def clear(self) -> None:
        self._known.clear()

    def submitted(self, job: QueueJob, now: float) -> None:
        self._known.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        self._known.admitted(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._known.leaving(job, now)

    def gone(self, job: QueueJob, now: float) -> None:
        self._known.gone(job)

    def decide(self, now: float, room: Room) -> QueueDecision:
        known = self._known
        if not known.waiting:
            return NOTHING
        ranked = [(self._rank(job, remaining(job, 0.0), True), job) for job in known.waiting.values()]
        for key, job in known.running.items():
            ranked.append((self._rank(job, remaining(job, now - known.heard(key)), False), job))
        ranked.sort(key=lambda pair: pair[0])
        order = [job for _, job in ranked]
        return run_best(order, known.running, known.leaving_jobs(), room, REASON)

    def queue(self) -> list[QueueJob]:
        waiting = self._known.waiting.values()
        return sorted(waiting, key=lambda job: self._rank(job, remaining(job, 0.0), True))

    def _rank(self, job: QueueJob, left: float, waits: bool) -> tuple[object, ...]:
        return (-job.priority, left, waits, job.submitted, job.sequence, job.key)


def remaining(job: QueueJob, ran: float) -> float:
    """Estimated remaining time, s, of a job that ran for ``ran`` s since its view was given; at least 0."""
    if job.estimate is None:
        return inf
    progress = job.progress or 0.0
    seconds = job.attained / job.gpus if job.gpus else 0.0
    # How much of the estimate a second of running uses up.
    pace = job.estimate * progress / seconds if progress > 0.0 and seconds > 0.0 else 1.0
    return max(0.0, job.estimate * (1.0 - progress) - ran * pace)
