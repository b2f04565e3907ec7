"""Jobs with which a pool's plan fails: the pool is planned without them, so that all others go on.

A plan is a pure function, so what fails once fails again: nothing is gained by trying, and everybody waits.
Which job it is is found by halving: of the jobs in order, the shortest beginning with which the plan fails
ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.operator.reconcile.planned_job import PlannedJob
from controller.policy.pool import plan_pool
from controller.policy.types import JobKey, JobView, PoolSnapshot

MOST = 32  # jobs of one pool; more of them are no one job's fault


class PutAside:
    """Remembers which jobs of a pool were put aside, and in which version: a changed one is tried again."""

    def __init__(self) -> None:
        self._versions: dict[JobKey, tuple[str, str]] = {}  # uid, resourceVersion
        self._reported: dict[JobKey, str] = {}  # uid

    def left_out(self, planned_jobs: Mapping[JobKey, PlannedJob]) -> list[JobKey]:
        """Return those of a pool's jobs that have not changed since they were put aside."""
        for key in [key for key in self._versions if key in planned_jobs]:
            if self._versions[key] != _version(planned_jobs[key]):
                del self._versions[key]
        return [key for key in self._versions if key in planned_jobs]

    def is_news(self, key: JobKey) -> bool:
        """Return whether this very job was not put aside before: its own status grows on, and it is tried
        again."""
        uid, _ = self._versions[key]
        news = self._reported.get(key) != uid
        self._reported[key] = uid
        return news

    def find(
        self, snapshot: PoolSnapshot, planned_jobs: Mapping[JobKey, PlannedJob], now: float
    ) -> JobKey | None:
        """Put a job aside without which the plan gets further; None: it fails without any job, too, or with
        too many."""
        for gone in [key for key in self._reported if key not in planned_jobs]:
            self._reported.pop(gone)
            self._versions.pop(gone, None)
        here = [key for key in self._versions if key in planned_jobs]
        if len(here) >= MOST or _fails(snapshot, (), now):
            return None
        jobs = snapshot.jobs
        good, bad = 0, len(jobs)  # with so many of them it does not fail, and does
        while bad - good > 1:
            middle = (good + bad) // 2
            if _fails(snapshot, jobs[:middle], now):
                bad = middle
            else:
                good = middle
        key = jobs[bad - 1].key
        self._versions[key] = _version(planned_jobs[key])
        return key


def _fails(snapshot: PoolSnapshot, jobs: Sequence[JobView], now: float) -> bool:
    try:
        plan_pool(replace(snapshot, jobs=tuple(jobs)), now)
    except Exception:
        return True
    return False


def _version(planned_job: PlannedJob) -> tuple[str, str]:
    return planned_job.desired.uid, planned_job.version
