"""The queues of `las`, its record of each job, and which job is next to leave its queue."""

from __future__ import annotations

import math
from heapq import heappop, heappush, heapreplace
from operator import attrgetter

from controller.policy.queueing.base import QueueJob
from controller.policy.queueing.greedy import BySize, Entry
from controller.policy.types import JobKey

NOWHERE, WAITING, RUNNING, LEAVING = range(4)


class Record:
    """A job, its queue, and its place in it.

    ``service`` (GPU-seconds) was had by ``since`` (s), when it started to run or was last heard of.
    ``ran``: it runs, or ran when last heard of. ``moving``: it was just demoted.
    """

    __slots__ = (
        "band",
        "entry",
        "gpus",
        "job",
        "key",
        "level",
        "looks",
        "moving",
        "place",
        "ran",
        "rises",
        "service",
        "since",
        "state",
    )

    entry: Entry  # its place among those who wait, while it does
    since: float
    service: float
    looks: float  # Tiresias: when it would be looked for if it had one GPU

    def __init__(self, job: QueueJob, band: Band) -> None:
        self.job = job
        self.key = job.key
        self.gpus = job.gpus
        self.state = NOWHERE
        self.level = 0
        self.band = band
        self.place: Entry = ()
        self.rises = 0  # number of its entry in `Rising`; 0: it has none
        self.ran = False
        self.moving = False


class Band:
    """One queue of one priority.

    Attributes:
        gpus: of its running jobs, those just demoted among them.
    """

    __slots__ = ("demoted", "gpus", "running", "waiting")

    def __init__(self) -> None:
        self.running: dict[JobKey, Record] = {}
        self.demoted: list[Record] = []
        self.waiting = BySize()
        self.gpus = 0

    def enter(self, record: Record) -> None:
        record.band = self
        self.running[record.key] = record
        self.gpus += record.gpus

    def leave(self, record: Record) -> None:
        """Remove a running job from ``running``, or from ``demoted`` while it moves to another queue."""
        if record.moving:
            self.demoted.remove(record)
        else:
            del self.running[record.key]
        self.gpus -= record.gpus

    def in_order(self) -> list[Record]:
        """Return those who run, by place. They came nearly in that order, so that this is quick."""
        return sorted(self.running.values(), key=_place)


class Rising:
    """Running jobs below a threshold of service: which reaches it first, and when to look.

    Who has left is not looked for: its entries are void, and dropped when they come to the head.
    """

    __slots__ = ("_bounds", "_count", "_late", "reaches")

    def __init__(self, late: bool) -> None:
        """``late``: look for the next one as Tiresias does, (threshold - seconds run) / GPUs from now."""
        self._late = late
        self._count = 0
        self.reaches: list[tuple[float, int, Record]] = []  # heap of (when, number, record)
        # When to look for a job only moves back as time passes: when it was last worked out, it is no sooner
        # now. So only the heads of a heap of (no sooner than, number, record) are ever worked out again.
        self._bounds: list[tuple[float, int, Record]] = []

    def add(self, record: Record, limit: float) -> None:
        self._count = record.rises = number = self._count + 1
        gpus, since = record.gpus, record.since
        heappush(self.reaches, (since + (limit - record.service) / gpus, number, record))
        if self._late:
            record.looks = looks = since + limit - record.service / gpus
            heappush(self._bounds, (since - (since - looks) // gpus, number, record))

    def there(self, now: float) -> list[Record]:
        """Take out those who have reached their threshold, in the order of their arrival."""
        fallen = []
        while self.reaches and self.reaches[0][0] <= now:
            _, number, record = heappop(self.reaches)
            if record.rises == number:
                record.rises = 0
                fallen.append(record)
        return sorted(fallen, key=_arrival) if len(fallen) > 1 else fallen

    def next(self, now: float) -> float:
        """Return when to look again; inf: nobody rises."""
        if not self._late:
            while self.reaches:
                at, number, record = self.reaches[0]
                if record.rises == number:
                    return at
                heappop(self.reaches)
            return math.inf
        bounds = self._bounds
        while bounds:
            bound, number, record = bounds[0]
            if record.rises != number:
                heappop(bounds)
                continue
            at = now - (now - record.looks) // record.gpus
            if at <= bound:
                return at
            heapreplace(bounds, (at, number, record))
        return math.inf

    def first(self, limit: float, job: QueueJob, now: float) -> float:
        """Return when to look for a job that starts now."""
        if self._late:
            return now - (job.attained / job.gpus - limit) // job.gpus
        return now + (limit - job.attained) / job.gpus


_place = attrgetter("place")


def _arrival(record: Record) -> Entry:
    job = record.job
    return (job.submitted, job.sequence, record.key)
