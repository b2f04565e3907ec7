"""Least attained service: Tiresias's two-dimensional LAS with discretised queues (Gu et al., NSDI 2019).

A job's service is its GPUs times the time it has run. It starts in the first queue and moves down when its
service reaches that queue's threshold; queues are served in order, so that short jobs pass long ones
without anybody knowing who is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from controller.frozen import dataclass
from controller.policy.params import ParamError, check, param
from controller.policy.queueing.base import (
    NOTHING,
    PolicyBase,
    QueueDecision,
    QueueJob,
    Ranking,
    Room,
    decided,
    queue_key,
    stay_key,
)
from controller.policy.queueing.greedy import Entry, run_best
from controller.policy.queueing.las_queues import LEAVING, NOWHERE, RUNNING, WAITING, Band, Record, Rising
from controller.policy.types import JobKey

REASON = "LessServedJobWaits"
PLAIN, TIRESIAS = "Plain", "Tiresias"
UNPLACED = 0  # in a mark: no place yet; places are numbered from 1

Choice = tuple[Sequence[QueueJob], Sequence[tuple[QueueJob, str]]]  # who starts, who is preempted
_NOBODY: Choice = ((), ())


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
    of a job's view, so it is kept in `policy_state`.
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

    @property
    def preempts(self) -> bool:
        return True

    def clear(self) -> None:
        self._records: dict[JobKey, Record] = {}
        self._bands: dict[int, list[Band]] = {}  # priority -> its queues
        self._ordered: list[Band] = []  # all of them, the one served first first
        self._rising = Rising(self._tiresias)
        self._nowhere = Band()
        self._demoted: list[Record] = []  # Tiresias: just demoted, not yet in their new order
        self._waiting = 0
        self._held = 0  # GPUs of those who run
        self._coming = 0  # GPUs of leaving jobs
        self._count = 0  # numbers places in order
        self._instants = 0  # numbers instants
        self._looked = -math.inf
        self._done = False  # something happened since the last look

    # -- events

    def submitted(self, job: QueueJob, now: float) -> None:
        record = self._records.get(job.key)
        known = record is not None
        if record is None:
            record = self._records[job.key] = Record(job, self._nowhere)
        else:
            self._detach(record, job)
        if not self._tiresias:
            record.level = self._level(job.attained)
            record.place = stay_key(job)
        elif not known and job.policy_state:
            record.place = self._recall(record, job)
            if job.policy_state[-1] == UNPLACED:
                self._count += 1
                record.place = (-self._instants if job.policy_state[1] < 0 else 1, self._count, record.key)
        else:
            # Back from running, a job goes before all who wait; new or just demoted, to the end.
            front = record.ran and not record.moving
            self._count += 1
            record.place = (-self._instants if front else 1, self._count, record.key)
        record.moving = record.ran = False
        record.state = WAITING
        self._done = True
        record.entry = (*record.place, record.gpus, job)
        record.band = band = self._bands_of(job.priority)[record.level]
        band.waiting.put(record.entry)
        self._waiting += 1

    def admitted(self, job: QueueJob, now: float) -> None:
        record = self._records.get(job.key)
        known = record is not None
        if record is None:
            record = self._records[job.key] = Record(job, self._nowhere)
        else:
            if record.moving:
                self._settle()
            self._detach(record, job)
            record.moving = False
        if not self._tiresias:
            record.level = self._level(job.attained)
            record.place = stay_key(job)
        elif known and not record.ran:
            # Those who start together keep the order in which they waited, whoever got free GPUs first.
            record.place = (self._instants, 0, *record.place)
        elif not known and job.policy_state:
            record.place = self._recall(record, job)
        elif not known:
            self._count += 1
            record.place = (self._instants, 0, 1, self._count, record.key)
        record.state = RUNNING
        record.ran = True
        self._done = True
        record.since = now
        record.service = job.attained
        gpus, level = record.gpus, record.level
        record.band = band = self._bands_of(job.priority)[level]
        band.running[record.key] = record
        band.gpus += gpus
        self._held += gpus
        if level < len(self._limits) and gpus:
            self._rising.add(record, self._limits[level])

    def leaving(self, job: QueueJob, now: float) -> None:
        record = self._records.get(job.key)
        if record is None:
            record = self._records[job.key] = Record(job, self._nowhere)
        self._detach(record, job)
        record.state = LEAVING
        self._done = True
        self._coming += record.gpus

    def removed(self, job: QueueJob, now: float) -> None:
        record = self._records.pop(job.key, None)
        if record is not None:
            self._done = True
            self._detach(record, job)

    def rebuild(self, jobs: Iterable[QueueJob], now: float = 0.0) -> None:
        self.clear()
        # Those whose place is known first: the others are numbered on from them.
        order = sorted(
            jobs, key=lambda j: (not j.policy_state or j.policy_state[-1] == UNPLACED, *queue_key(j))
        )
        for job in order:
            self.updated(job, now)

    # -- decisions

    def decide(self, now: float, room: Room) -> QueueDecision:
        first_look = now > self._looked
        # Not when it is asked again with nothing done in between: that must see what the first look saw.
        if self._demoted and (first_look or self._done):
            self._settle()
        self._done = False
        if first_look:
            self._looked = now
            self._instants += 1
        rising = self._rising
        # Tiresias looks once at each instant: twice would be two queues down.
        if rising.reaches and rising.reaches[0][0] <= now and (first_look or not self._tiresias):
            for record in rising.there(now):
                self._demote(record, now)
        wake_at = rising.next(now)
        admit, preempt = self._choose(room) if self._waiting else _NOBODY
        for job in admit:
            level = self._records[job.key].level
            if level < len(self._limits) and job.gpus:
                at = rising.first(self._limits[level], job, now)
                if at < wake_at:
                    wake_at = at
        if wake_at < math.inf:
            return decided(admit, preempt, wake_at)
        return decided(admit, preempt) if admit or preempt else NOTHING

    def ranking(self, job: QueueJob, jobs: Iterable[QueueJob]) -> Ranking:
        level = (
            1 + (job.attained >= self.params.first_threshold) + (job.attained >= self.params.second_threshold)
        )
        if job.policy_state:
            level = 1 + job.policy_state[0]
        return {
            "priority": job.priority,
            "queue": level,
            "attainedGPUSeconds": job.attained,
            "since": job.since,
        }

    def queue(self) -> list[QueueJob]:
        return [job for band in self._ordered for job in band.waiting]

    def policy_state(self, key: JobKey) -> tuple[int, ...]:
        """(queue, its place in it) in the variant Tiresias; ask between instants, not within one."""
        record = self._records.get(key)
        if record is None or not self._tiresias:
            return ()
        if record.state == LEAVING:
            # Its place is given when it is back in line: before all who wait, unless it was just demoted.
            known = record.job.policy_state
            if known and known[-1] == UNPLACED:
                return known
            return (record.level, 1 if record.moving else -1, UNPLACED)
        self._settle()
        return (record.level, *record.place[:-1])

    def _choose(self, room: Room) -> Choice:
        """Return who starts and who is preempted, as `run_best` says; on slots without a look at all the
        others."""
        slots = room.slots
        if slots is None:
            states = self._records.values()
            running = {r.key: r.job for r in states if r.state == RUNNING}
            leaving = [r.job for r in states if r.state == LEAVING]
            admit, preempt, _, _ = run_best(self._order(), running, leaving, room, REASON)
            return admit, preempt
        free = slots + self._coming  # that nobody uses, or that leaving jobs will free
        # A job can have the free GPUs and those of all who run behind its queue. Most of the time nobody who
        # waits asks for so few.
        within = free + self._held
        starting: list[QueueJob] = []
        for band in self._ordered:
            within -= band.gpus
            waiting, here = band.waiting, within
            if band.demoted:
                here += sum([record.gpus for record in band.demoted])
            if waiting.smallest > here:
                continue
            passed: dict[int, int] = {}
            while (best := waiting.best(here, passed)) is not None:
                gpus = best[-2]
                if gpus > free:
                    return self._displace(band, here, passed, starting, room)
                # It fits beside all who run: nobody is displaced.
                free -= gpus
                within -= gpus
                here -= gpus
                passed[gpus] = passed.get(gpus, 0) + 1
                if room.take(best[-1]):  # not, while the GPUs it is to get are still somebody else's
                    starting.append(best[-1])
                if waiting.smallest > here:
                    break
        return (starting, ()) if starting else _NOBODY

    def _displace(
        self, first: Band, free: int, passed: dict[int, int], admit: list[QueueJob], room: Room
    ) -> Choice:
        """Return the walk in full, from those who wait in queue ``first`` on: there somebody displaces
        others."""
        preempt: list[tuple[QueueJob, str]] = []
        for band in self._ordered[self._ordered.index(first) :]:
            if band is not first:
                passed = {}
                for record in band.in_order():
                    free = _keep(record, free, preempt)
            while (best := band.waiting.best(free, passed)) is not None:
                gpus = best[-2]
                free -= gpus
                passed[gpus] = passed.get(gpus, 0) + 1
                if room.take(best[-1]):
                    admit.append(best[-1])
            for record in band.demoted:
                free = _keep(record, free, preempt)
        return admit, preempt

    def _order(self) -> Iterator[QueueJob]:
        for band in self._ordered:
            yield from (record.job for record in band.in_order())
            yield from band.waiting
            yield from (record.job for record in band.demoted)

    # -- demotion

    def _demote(self, record: Record, now: float) -> None:
        """Down by one queue (Tiresias), or to the one that fits."""
        record.band.leave(record)
        service = record.service + (now - record.since) * record.gpus
        record.level = record.level + 1 if self._tiresias else max(record.level + 1, self._level(service))
        band = self._bands_of(record.job.priority)[record.level]
        if self._tiresias:
            record.moving = True
            record.band = band
            self._demoted.append(record)
            band.demoted.append(record)
            band.gpus += record.gpus
        else:
            band.enter(record)
        if record.level < len(self._limits):
            self._rising.add(record, self._limits[record.level])

    def _settle(self) -> None:
        """Tiresias: who was demoted at the last look and still runs is now last among those who run."""
        for record in self._demoted:
            if record.moving and record.state == RUNNING:
                band = record.band
                band.leave(record)
                record.moving = False
                self._count += 1
                record.place = (self._instants, 1, 0, self._count, record.key)
                band.enter(record)
        self._demoted.clear()

    # -- places

    def _detach(self, record: Record, job: QueueJob) -> None:
        """Take a job out of whatever it is in; ``job`` is its new view."""
        state, band = record.state, record.band
        if state == WAITING:
            band.waiting.drop(record.entry)
            self._waiting -= 1
        elif state == RUNNING:
            record.rises = 0
            self._held -= record.gpus
            band.leave(record)
        elif state == LEAVING:
            self._coming -= record.gpus
        record.state = NOWHERE
        record.job = job
        record.gpus = job.gpus

    def _bands_of(self, priority: int) -> list[Band]:
        """Return the queues of a priority."""
        bands = self._bands.get(priority)
        if bands is None:
            bands = self._bands[priority] = [Band() for _ in range(len(self._limits) + 1)]
            self._ordered = [band for rank in sorted(self._bands, reverse=True) for band in self._bands[rank]]
        return bands

    def _level(self, service: float) -> int:
        """Return the queue of a job that has had so many GPU-seconds, up to the rounding of times."""
        first, second = self._limits
        return 0 if service < first * (1 - 1e-9) else 1 if service < second * (1 - 1e-9) else 2

    def _recall(self, record: Record, job: QueueJob) -> Entry:
        """Queue and place as in the job's mark; later places and instants are numbered on from it."""
        record.level = job.policy_state[0]
        place = job.policy_state[1:]
        self._count = max(self._count, place[-1])
        self._instants = max(self._instants, abs(place[0]))
        return (*place, job.key)


def _keep(record: Record, free: int, preempt: list[tuple[QueueJob, str]]) -> int:
    """Leave a run its GPUs if there are enough; return what is left."""
    if record.gpus <= free:
        return free - record.gpus
    preempt.append((record.job, REASON))
    return free
