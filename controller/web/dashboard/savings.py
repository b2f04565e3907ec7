"""GPU-hours that stops have saved, by what the RLHFJobs' statuses say: those of deleted jobs are missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.policy.types import Mode
from controller.web.dashboard.feed import Job

USER = "User"


@dataclass(frozen=True, slots=True)
class Saving:
    """One stop by a rule. ``hours``: GPU-hours; None: the run's pace or planned end is not known."""

    job: Job
    at: float  # s, when its pods were gone
    by: str
    best_step: int
    step: int
    total: int | None
    hours: float | None


def saving(job: Job) -> Saving | None:
    """Return what stopping this run saved; None: no rule stopped it, or its GPUs are not free yet.

    GPU-hours it would have used from the stop to its planned end, at its own pace until then:
    ``(total - step) * worked / step``, as of the progress that was last noted (what the operator's counter
    evalstop_gpu_hours_saved_total estimates from the last scrape).
    """
    decision, progress = job.record.decision, job.record.progress
    if decision is None or decision.mode is not Mode.ENFORCE or decision.by == USER:
        return None
    if decision.pods_gone_at is None:
        return None
    hours = None
    if progress is not None and progress.step > 0 and progress.worked > 0:
        left = max(0, progress.total_steps - progress.step)
        hours = left * progress.worked / progress.step / 3600.0
    return Saving(
        job=job,
        at=decision.pods_gone_at,
        by=decision.by,
        best_step=decision.proposal.best_step,
        step=decision.proposal.step,
        total=progress.total_steps if progress is not None else None,
        hours=hours,
    )


@dataclass(frozen=True, slots=True)
class Savings:
    """All of them, the newest first. ``shadow``: GPU-hours that runs in Shadow mode used after they would
    have been stopped: what acting would have saved so far."""

    stops: tuple[Saving, ...]
    hours: float
    unknown: int
    shadow: float


def savings(jobs: Iterable[Job]) -> Savings:
    jobs = list(jobs)
    stops = sorted(
        (s for s in map(saving, jobs) if s is not None), key=lambda s: (s.at, s.job.key), reverse=True
    )
    return Savings(
        stops=tuple(stops),
        hours=sum(s.hours for s in stops if s.hours is not None),
        unknown=sum(1 for s in stops if s.hours is None),
        shadow=sum(j.record.past_grades.stopped for j in jobs if j.record.past_grades) / 3600.0,
    )
