"""GPU-hours that stops have saved, by what the RLHFJobs' statuses say: those of deleted jobs are missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from controller.frozen import dataclass
from controller.policy.types import Mode
from controller.policy.wording import about, counted, two_digits
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
    done: float = 0.0  # share of its planned steps that it had made


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
        done=min(1.0, progress.step / progress.total_steps) if progress and progress.total_steps else 0.0,
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


ENOUGH = 5  # runs that ended by themselves, from which on their lengths say how far such runs come
ONE_IN_TEN = 1.2816  # standard normal deviate: nine in ten lie below it


@dataclass(frozen=True, slots=True)
class Range:
    """GPU-hours that stops saved, with what is not known about them.

    Attributes:
        most: if each run had gone on to its planned end, at its own pace.
        about: the mean, by how far runs that nobody stopped came; None: too few of them ended.
        low, high: between which it lies with four chances in five; None as ``about``.
        ended: runs that ended without a rule's stop.
        unknown: stops whose saving is not known, since the trainer did not say how long the run was to be.
    """

    most: float
    about: float | None
    low: float | None
    high: float | None
    ended: int
    unknown: int

    def sentence(self) -> str:
        """Return all of it in words."""
        if not self.most:
            text = "no GPU-hours are known to be saved"
        elif self.about is None or self.low is None or self.high is None:
            text = (
                f"{about(self.most, 'GPU-hours')} saved if the runs had gone on to their planned ends; too "
                f"few runs ended by themselves ({self.ended}, {ENOUGH} are needed) to say how far they would "
                "have come"
            )
        else:
            text = (
                f"{about(self.about, 'GPU-hours')} saved, between {two_digits(self.low)} and "
                f"{two_digits(self.high)} with four chances in five, by how far {counted(self.ended, 'run')} "
                f"came that no rule stopped; {two_digits(self.most)} if all had gone on to their planned ends"
            )
        if self.unknown:
            text += f"; of {counted(self.unknown, 'stop')} it is not known"
        return text


def shares_run(jobs: Iterable[Job]) -> list[float]:
    """Return the share of its planned steps that each run had made when it ended without a rule's stop."""
    found = []
    for job in jobs:
        record, decision = job.record, job.record.decision
        by_rule = decision is not None and decision.by != USER
        by_user = decision is not None and decision.by == USER and decision.pods_gone_at is not None
        ended = record.finished is not None or by_user
        if ended and not by_rule and record.progress is not None and record.progress.total_steps > 0:
            found.append(min(1.0, record.progress.step / record.progress.total_steps))
    return sorted(found)


def expected(stops: Iterable[Saving], ran: Sequence[float]) -> Range:
    """Return what stops saved.

    A run that was stopped after the share q of its steps would have come as far as one of those that nobody
    stopped and that came beyond q: each of them is as likely. Sums are taken for normal and independent.
    What is not known about the pace is not in it.

    Args:
        stops: by rules.
        ran: of `shares_run`.
    """
    known, unknown = [], 0
    for one in stops:
        if one.hours is None:
            unknown += 1
        else:
            known.append(one)
    most = sum(one.hours or 0.0 for one in known)
    if len(ran) < ENOUGH:
        return Range(most, None, None, None, len(ran), unknown)
    mean = variance = 0.0
    for one in known:
        hours, share = one.hours or 0.0, one.done
        beyond = [(s - share) / (1.0 - share) for s in ran if s > share] if share < 1.0 else []
        beyond = beyond or [1.0]
        middle = sum(beyond) / len(beyond)
        mean += hours * middle
        variance += hours**2 * sum((b - middle) ** 2 for b in beyond) / len(beyond)
    reach = ONE_IN_TEN * math.sqrt(variance)
    return Range(most, mean, max(0.0, mean - reach), min(most, mean + reach), len(ran), unknown)
