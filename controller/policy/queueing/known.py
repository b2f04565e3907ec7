"""The jobs a policy knows, by state; for policies that rank all of them again at each decision."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from controller.policy.queueing.base import NOTHING, PolicyBase, QueueDecision, QueueJob, Room
from controller.policy.queueing.greedy import run_best
from controller.policy.types import JobKey


class KnownJobs:
    """Waiting, running and leaving jobs. Each event replaces what was known of its job."""

    __slots__ = ("_leaving", "_shielded", "running", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[JobKey, QueueJob] = {}
        self.running: dict[JobKey, QueueJob] = {}
        self._leaving: dict[JobKey, QueueJob] = {}
        self._shielded: set[JobKey] = set()

    def clear(self) -> None:
        self._shielded.clear()
        self.waiting.clear()
        self.running.clear()
        self._leaving.clear()

    def submitted(self, job: QueueJob, now: float) -> None:
        self.removed(job)
        self.waiting[job.key] = job

    def admitted(self, job: QueueJob, now: float) -> None:
        self.removed(job)
        self.running[job.key] = job

    def shielded(self, job: QueueJob, now: float) -> None:
        self.admitted(job, now)
        self._shielded.add(job.key)

    def leaving(self, job: QueueJob, now: float) -> None:
        self.removed(job)
        self._leaving[job.key] = job

    def removed(self, job: QueueJob) -> None:
        key = job.key
        if self._shielded:
            self._shielded.discard(key)
        if self.waiting.pop(key, None) is None and self.running.pop(key, None) is None:
            self._leaving.pop(key, None)

    def leaving_jobs(self) -> list[QueueJob]:
        return list(self._leaving.values())

    def preemptible(self, now: float, epoch: float) -> dict[JobKey, QueueJob]:
        """Return the running jobs that may be preempted: running for ``epoch`` s or longer, and not shielded.

        A job counts also if it is not known since when it runs.
        """
        shielded = self._shielded
        return {
            k: j
            for k, j in self.running.items()
            if (j.since is None or now >= j.since + epoch) and k not in shielded
        }

    def with_alarm(self, decision: QueueDecision, now: float, epoch: float) -> QueueDecision:
        """Return the decision, to be made again when the next run has had its epoch while somebody waits."""
        if len(decision.admit) == len(self.waiting):
            return decision
        ends = [
            j.since + epoch for j in self.running.values() if j.since is not None and j.since + epoch > now
        ]
        if decision.admit and epoch:
            ends.append(now + epoch)
        return decision._replace(wake_at=min(ends, default=None))


class KnowingPolicy(PolicyBase):
    """A policy that remembers only which jobs wait, run and leave; subclasses add the decision."""

    def __init__(self) -> None:
        self._known = KnownJobs()

    def clear(self) -> None:
        self._known.clear()

    def submitted(self, job: QueueJob, now: float) -> None:
        self._known.submitted(job, now)

    def admitted(self, job: QueueJob, now: float) -> None:
        self._known.admitted(job, now)

    def shielded(self, job: QueueJob, now: float) -> None:
        self._known.shielded(job, now)

    def leaving(self, job: QueueJob, now: float) -> None:
        self._known.leaving(job, now)

    def removed(self, job: QueueJob, now: float) -> None:
        self._known.removed(job)


class RankingPolicy(KnowingPolicy):
    """A policy that ranks all jobs anew at each decision and preempts running ones for better ones.

    Subclasses give `rank` and ``reason``, the CamelCase code of their preemptions.
    """

    reason: ClassVar[str]
    epoch = 0.0  # s after its start for which a run is not preempted

    @property
    def watches(self) -> bool:
        return True

    @property
    def preempts(self) -> bool:
        return True

    @abstractmethod
    def rank(self, job: QueueJob) -> tuple[object, ...]:
        """Return the job's place among all others: the smallest runs first, no two are equal."""

    def decide(self, now: float, room: Room) -> QueueDecision:
        known = self._known
        if not known.waiting:
            return NOTHING
        preemptible = known.preemptible(now, self.epoch)
        order = sorted([*known.waiting.values(), *preemptible.values()], key=self.rank)
        decision = run_best(order, preemptible, known.leaving_jobs(), room, self.reason)
        return known.with_alarm(decision, now, self.epoch) if self.epoch else decision

    def queue(self) -> list[QueueJob]:
        return sorted(self._known.waiting.values(), key=self.rank)
