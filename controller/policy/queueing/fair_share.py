"""Weighted fair share: every namespace gets GPUs in proportion to its weight.

Progressive filling: again and again the namespace with the fewest GPUs per weight gets its next job, running
ones before waiting ones. What a namespace does not use, others do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar

from controller.frozen import dataclass
from controller.policy.params import check, param
from controller.policy.queueing.base import NOTHING, QueueDecision, QueueJob, Ranking, Room
from controller.policy.queueing.greedy import run_best
from controller.policy.queueing.known import KnowingPolicy
from controller.policy.types import JobKey

REASON = "NamespaceBelowItsShare"


@dataclass(frozen=True, slots=True)
class FairShareParams:
    preempt: bool = param(
        False, unit="yes or no", doc="preempt runs of a namespace above its share for one below it"
    )
    epoch: float = param(
        600.0, unit="s", doc="a run is left alone for this long after its start", ge=0.0, le=1e9
    )


class FairShare(KnowingPolicy):
    """The namespace with the fewest GPUs per weight goes next; within one, priority, then submission.

    Demoted jobs of all namespaces go after all others.

    A namespace is what comes before the ``/`` of a job's key; its weight is that of its jobs (the largest,
    if they differ).
    """

    name: ClassVar[str] = "fairShare"
    params: FairShareParams

    def __init__(self, params: FairShareParams) -> None:
        super().__init__()
        check(params, self.name)
        self.params = params

    @property
    def preempts(self) -> bool:
        return self.params.preempt

    def decide(self, now: float, room: Room) -> QueueDecision:
        known = self._known
        if not known.waiting:
            return NOTHING
        open_ = known.preemptible(now, self.params.epoch) if self.params.preempt else {}
        order = [job for job in self._filling() if job.key in known.waiting or job.key in open_]
        decision = run_best(order, open_, known.leaving_jobs(), room, REASON)
        return known.with_alarm(decision, now, self.params.epoch) if self.params.preempt else decision

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        gpus = sum(j.gpus for j in jobs)
        return {
            "namespaceGPUs": gpus,
            "weight": job.weight,
            "gpusPerWeight": (gpus + job.gpus) / job.weight,
            "priority": job.priority,
        }

    def queue(self) -> list[QueueJob]:
        return [job for job in self._filling() if job.key in self._known.waiting]

    def _filling(self) -> Iterator[QueueJob]:
        """Yield all running and waiting jobs in the order in which filling an empty pool would take them."""
        tenants: dict[str, list[QueueJob]] = {}
        for job in [*self._known.running.values(), *self._known.waiting.values()]:
            tenants.setdefault(_namespace(job.key), []).append(job)
        # (whether the next job is demoted, GPUs per weight with it, namespace, its jobs, how many are taken,
        # GPUs, weight)
        heap: list[list[Any]] = []
        for tenant, jobs in tenants.items():
            jobs.sort(key=self._rank)
            weight = max(job.weight for job in jobs)
            heap.append([jobs[0].demoted, jobs[0].gpus / weight, tenant, jobs, 0, 0, weight])
        heapify(heap)
        while heap:
            entry = heap[0]
            _, _, _, jobs, taken, gpus, weight = entry
            job = jobs[taken]
            yield job
            if taken + 1 == len(jobs):
                heappop(heap)
                continue
            entry[4], entry[5] = taken + 1, gpus + job.gpus
            entry[0], entry[1] = jobs[taken + 1].demoted, (entry[5] + jobs[taken + 1].gpus) / weight
            heapreplace(heap, entry)

    def _rank(self, job: QueueJob) -> tuple[object, ...]:
        waits = job.key in self._known.waiting
        return (job.demoted, waits, -job.priority, job.submitted, job.sequence, job.key)


def _namespace(key: JobKey) -> str:
    return key.partition("/")[0]
