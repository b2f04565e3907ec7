"""Least attained service: Tiresias's two-dimensional LAS with discretised queues (Gu et al., NSDI 2019).

A job's service is its GPUs times the time it has run. It starts in the first queue and moves down when its
service reaches that queue's threshold; queues are served in order, so that short jobs pass long ones
without anybody knowing who is short.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import ParamError, check, param
from controller.policy.queueing.base import NOTHING, PolicyBase, QueueDecision, QueueJob, Room
from controller.policy.queueing.greedy import BySize, Entry, Heads, run_best
from controller.policy.types import JobKey

REASON = "LessServedJobWaits"
PLAIN, TIRESIAS = "Plain", "Tiresias"


@dataclass(frozen=True, slots=True)
class LasParams:
    first_threshold: float = param(
        3250.0, unit="GPU-seconds", doc="service at which a job leaves the first queue", gt=0.0, le=1e12
    )
    second_threshold: float = param(
        7200.0, unit="GPU-seconds", doc="service at which a job leaves the second queue", gt=0.0, le=1e12
    )
    variant: str = param(
        PLAIN,
        unit="name",
        doc="Plain: demotion when the threshold is reached, and within a queue who runs or waits the longest "
        "first; Tiresias: both exactly as in its authors' simulator, to compare with its figures",
        choices=(PLAIN, TIRESIAS),
    )


class Las(PolicyBase):
    """Queues of attained service; within a queue running jobs first, then first fit in order.

    Two things in the variant ``Tiresias`` are its simulator's own. It looks for the next demotion
    (threshold - seconds run) / GPUs later, which for gangs that have run is late, and moves a job by one
    queue a time. And its order within a queue is a list's: who is preempted goes before all who wait, who
    is demoted goes to the end, who runs is moved to the front after each event. That order is no function
    of a job's view, so it is kept in `mark`.
    """

    name: ClassVar[str] = "las"
    params: LasParams

    def __init__(self, params: LasParams) -> None:
        check(params, self.name)
        if params.second_threshold < params.first_threshold:
            raise ParamError(
                f"{self.name}.second_threshold",
                params.second_threshold,
                f"at least first_threshold = {params.first_threshold:g}",
            )
        self.params = params
        self._limits = (params.first_threshold, params.second_threshold)
        self._tiresias = params.variant == TIRESIAS
        self.clear()

    def clear(self) -> None:
        self._records: dict[JobKey, _Record] = {}
        self._bands: dict[tuple[int, int], _Band] = {}
        self._ordered: list[_Band] = []
        self._rising: dict[JobKey, _Record] = {}  # running jobs that have a threshold before them
        self._demoted: list[_Record] = []  # Tiresias: demoted in this instant, not yet in their new order
        self._coming: dict[JobKey, QueueJob] = {}
        self._count = 0  # numbers places in order
        self._instants = 0  # numbers instants
        self._looked = -math.inf
        self._waiting = 0

    # -- events

    def submitted(self, job: QueueJob, now: float) -> None:
        record = self._records.get(job.key)
        level = self._level(job, record)
        place: Entry
        if not self._tiresias:
            place = (job.submitted if job.since is None else job.since, job.submitted, job.sequence, job.key)
        elif job.mark and record is None:
            place = self._recall(job)
        else:
            front = record is not None and record.runs and not record.moving
            place = (-self._instants if front else 1, self._next(), job.key)
        self.gone(job, now)
        self._records[job.key] = record = _Record(job, now, level, place, False)
        self._band(job, level).waiting.put(job, place)
        self._waiting += 1

    def admitted(self, job: QueueJob, now: float) -> None:
        known = self._records.get(job.key)
        if known is not None and known.moving:
            self._settle()
        level = self._level(job, known)
        place: Entry
        if not self._tiresias:
            place = (job.submitted if job.since is None else job.since, job.submitted, job.sequence, job.key)
        elif known is not None and known.runs:
            place = known.place
        elif known is not None:
            # Those who start together keep the order in which they waited, whoever got free GPUs first.
            place = (self._instants, 0, *known.place)
        elif job.mark:
            place = self._recall(job)
        else:
            place = (self._instants, 0, 1, self._next(), job.key)
        self.gone(job, now)
        record = self._records[job.key] = _Record(job, now, level, place, True)
        self._band(job, level).enter(record)
        if level < len(self._limits) and job.gpus:
            self._rising[job.key] = record

    def leaving(self, job: QueueJob, now: float) -> None:
        known = self._records.get(job.key)
        self.gone(job, now)
        self._coming[job.key] = job
        if known is not None:
            # What it was is remembered, for where it goes in its queue when it is back.
            self._records[job.key] = known

    def gone(self, job: QueueJob, now: float) -> None:
        record = self._records.pop(job.key, None)
        if record is None:
            self._coming.pop(job.key, None)
            return
        if job.key in self._coming:
            del self._coming[job.key]
            return
        band = self._bands[-record.job.priority, record.level]
        if not record.runs:
            band.waiting.drop(job.key)
            self._waiting -= 1
            return
        self._rising.pop(job.key, None)
        if record.moving:
            band.demoted.remove(record)
            band.gpus -= record.job.gpus
        else:
            band.leave(record)

    # -- decisions

    def decide(self, now: float, room: Room) -> QueueDecision:
        if self._demoted:
            self._settle()
        if now > self._looked:
            self._looked = now
            self._instants += 1
            if self._rising:
                self._demote(now)
        decision = self._choose(room) if self._waiting else NOTHING
        wake_at = self._next_demotion(now, decision.admit)
        return (
            QueueDecision(decision.admit, decision.preempt, (), wake_at) if wake_at < math.inf else decision
        )

    def queue(self) -> list[QueueJob]:
        return [job for band in self._ordered for job in band.waiting]

    def mark(self, key: JobKey) -> tuple[int, ...]:
        """(queue, its place in it) in the variant Tiresias; ask between instants, not within one."""
        record = self._records.get(key)
        if record is None or not self._tiresias:
            return ()
        self._settle()
        return (record.level, *record.place[:-1])

    def _choose(self, room: Room) -> QueueDecision:
        slots = room.slots
        if slots is None:
            running = {
                r.job.key: r.job for r in self._records.values() if r.runs and r.key not in self._coming
            }
            return run_best(self._order(), running, self._coming.values(), room, REASON)
        free = slots + sum(job.gpus for job in self._coming.values()) + sum(b.gpus for b in self._ordered)
        admit: list[QueueJob] = []
        preempt: list[tuple[QueueJob, str]] = []
        for band in self._ordered:
            if band.gpus <= free and not band.demoted:
                free -= band.gpus
            else:
                free = _keep((entry[-1].job for entry in band.running), free, preempt)
            heads = Heads(band.waiting)
            while (best := heads.best(free)) is not None:
                job = best[-1]
                free -= job.gpus
                heads.passed(job.gpus)
                if room.take(job):
                    admit.append(job)
            if band.demoted:
                free = _keep((record.job for record in band.demoted), free, preempt)
        return QueueDecision(admit, preempt) if admit or preempt else NOTHING

    def _order(self) -> Iterator[QueueJob]:
        for band in self._ordered:
            yield from (entry[-1].job for entry in band.running)
            yield from band.waiting
            yield from (record.job for record in band.demoted)

    # -- queues and places

    def _level(self, job: QueueJob, known: _Record | None) -> int:
        """The queue a job belongs to. In the variant Tiresias a job keeps its queue until it is looked at."""
        if self._tiresias:
            if known is not None:
                return known.level
            if job.mark:
                return job.mark[0]
        return sum(1 for limit in self._limits if _reached(job.attained, limit))

    def _demote(self, now: float) -> None:
        """Move down whoever has reached the threshold of its queue."""
        fallen = [r for r in self._rising.values() if _reached(r.service(now), self._limits[r.level])]
        for record in sorted(fallen, key=lambda r: (r.job.submitted, r.job.sequence, r.job.key)):
            self._band(record.job, record.level).leave(record)
            if self._tiresias:
                record.level += 1
            else:
                record.level = sum(1 for limit in self._limits if _reached(record.service(now), limit))
            if record.level == len(self._limits):
                del self._rising[record.job.key]
            band = self._band(record.job, record.level)
            if self._tiresias:
                record.moving = True
                self._demoted.append(record)
                band.demoted.append(record)
                band.gpus += record.job.gpus
            else:
                band.enter(record)

    def _settle(self) -> None:
        """Tiresias: who was demoted at the last look and still runs is now last among those who run."""
        for record in self._demoted:
            if record.moving and self._records.get(record.key) is record and record.key not in self._coming:
                band = self._band(record.job, record.level)
                band.demoted.remove(record)
                band.gpus -= record.job.gpus
                record.moving = False
                record.place = (self._instants, 1, 0, self._next(), record.key)
                band.enter(record)
        self._demoted.clear()

    def _next_demotion(self, now: float, starting: Sequence[QueueJob]) -> float:
        """When to look again for somebody to move down, those who start now included; inf: never."""
        next_ = math.inf
        for record in self._rising.values():
            limit, gpus = self._limits[record.level], record.job.gpus
            if self._tiresias:
                at = now + math.ceil((limit - record.service(now) / gpus) / gpus)
            else:
                at = record.reaches(limit)
            if at < next_:
                next_ = at
        for job in starting:
            level, gpus = self._records[job.key].level, job.gpus
            if level < len(self._limits) and gpus:
                limit = self._limits[level]
                if self._tiresias:
                    at = now + math.ceil((limit - job.attained / gpus) / gpus)
                else:
                    at = now + (limit - job.attained) / gpus
                if at < next_:
                    next_ = at
        return next_

    def _band(self, job: QueueJob, level: int) -> _Band:
        key = (-job.priority, level)
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = _Band()
            self._ordered = [self._bands[k] for k in sorted(self._bands)]
        return band

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _recall(self, job: QueueJob) -> Entry:
        """The place in a job's mark; later places and instants are numbered on from it."""
        place = job.mark[1:]
        self._count = max(self._count, place[-1])
        self._instants = max(self._instants, abs(place[0]))
        return (*place, job.key)


class _Record:
    """What the policy knows of one job. ``place`` orders it among its like; ``moving``: just demoted."""

    __slots__ = ("_service", "_since", "job", "key", "level", "moving", "place", "runs")

    def __init__(self, job: QueueJob, now: float, level: int, place: Entry, runs: bool) -> None:
        self.job = job
        self.key = job.key
        self.level = level
        self.place = place
        self.runs = runs
        self.moving = False
        self._since = now
        self._service = job.attained

    def service(self, now: float) -> float:
        """GPU-seconds a running job has had at ``now``."""
        return self._service + (now - self._since) * self.job.gpus

    def reaches(self, limit: float) -> float:
        """When a running job will have had ``limit`` GPU-seconds."""
        return self._since + (limit - self._service) / self.job.gpus


class _Band:
    """One queue of one priority. ``gpus``: of those who run, the just demoted among them."""

    __slots__ = ("demoted", "gpus", "running", "waiting")

    def __init__(self) -> None:
        self.running: list[Entry] = []
        self.demoted: list[_Record] = []
        self.waiting = BySize()
        self.gpus = 0

    def enter(self, record: _Record) -> None:
        insort(self.running, (*record.place, record))
        self.gpus += record.job.gpus

    def leave(self, record: _Record) -> None:
        del self.running[bisect_left(self.running, (*record.place, record))]
        self.gpus -= record.job.gpus


def _keep(jobs: Iterator[QueueJob], free: int, preempt: list[tuple[QueueJob, str]]) -> int:
    """Leave running what fits, in order; return what is left."""
    for job in jobs:
        if job.gpus <= free:
            free -= job.gpus
        else:
            preempt.append((job, REASON))
    return free


def _reached(service: float, limit: float) -> bool:
    """Whether the threshold is reached, up to the rounding of a time computed from it."""
    return service >= limit * (1.0 - 1e-9)
