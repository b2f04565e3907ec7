"""The queues of `las`, what it knows of each job, and who is next to leave its queue."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from controller.policy.queueing.base import QueueJob
from controller.policy.queueing.greedy import BySize, Entry

NOWHERE, WAITING, RUNNING, LEAVING = range(4)


class Record:
    """A job: where it is, in which queue, and at which place there.

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
        "moving",
        "place",
        "ran",
        "rises",
        "service",
        "since",
        "state",
    )

    def __init__(self, job: QueueJob, band: Band) -> None:
        self.job = job
        self.key = job.key
        self.gpus = job.gpus
        self.state = NOWHERE
        self.level = 0
        self.band = band
        self.place: Entry = ()
        self.entry: Entry = ()
        self.rises: Entry | None = None  # its entry in `Rising`
        self.ran = False
        self.moving = False
        self.since: float = 0.0
        self.service: float = 0.0


class Band:
    """One queue of one priority. ``gpus``: of those who run, the just demoted among them."""

    __slots__ = ("demoted", "gpus", "level", "priority", "running", "waiting")

    def __init__(self, priority: int, level: int) -> None:
        self.priority = priority
        self.level = level
        self.running: list[Entry] = []  # (place, record)
        self.demoted: list[Record] = []
        self.waiting = BySize()
        self.gpus = 0

    def enter(self, record: Record) -> None:
        record.band = self
        record.entry = (*record.place, record)
        insort(self.running, record.entry)
        self.gpus += record.gpus

    def leave(self, record: Record) -> None:
        """A running job goes, or moves on."""
        if record.moving:
            self.demoted.remove(record)
        else:
            del self.running[bisect_left(self.running, record.entry)]
        self.gpus -= record.gpus


class Rising:
    """Running jobs that have a threshold before them.

    Grouped by queue and GPUs: within a group all gain service at the same rate and have the same threshold,
    so who reaches it first does not change, and only the first of each group is ever looked at.
    """

    __slots__ = ("_groups", "_late")

    def __init__(self, late: bool) -> None:
        """``late``: look for the next one as Tiresias does, (threshold - seconds run) / GPUs from now."""
        self._late = late
        # (level, GPUs) -> (when it reaches the threshold, Tiresias's number for it, arrival, record)
        self._groups: dict[tuple[int, int], list[Entry]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def clear(self) -> None:
        self._groups.clear()

    def add(self, record: Record, limit: float) -> None:
        gpus = record.gpus
        reaches = record.since + (limit - record.service) / gpus
        looks = record.since + limit - record.service / gpus
        job = record.job
        record.rises = (reaches, looks, job.submitted, job.sequence, record.key, record)
        group = self._groups.get((record.level, gpus))
        if group is None:
            self._groups[record.level, gpus] = [record.rises]
        else:
            insort(group, record.rises)

    def drop(self, record: Record) -> None:
        if record.rises is not None:
            group = self._groups[record.level, record.gpus]
            del group[bisect_left(group, record.rises)]
            if not group:
                del self._groups[record.level, record.gpus]
            record.rises = None

    def look(self, now: float, fallen: list[Entry] | None) -> float:
        """When to look again; inf: nobody rises. Entries of those who are there go to ``fallen``."""
        next_ = math.inf
        for (_, gpus), group in self._groups.items():
            head = group[0]
            if head[0] <= now and fallen is not None:
                there = bisect_left(group, (now, math.inf))
                fallen += group[:there]
                if there == len(group):
                    continue
                head = group[there]
            at = now - (now - head[1]) // gpus if self._late else head[0]
            if at < next_:
                next_ = at
        return next_

    def first(self, limit: float, job: QueueJob, now: float) -> float:
        """When to look for a job that starts now."""
        if self._late:
            return now - (job.attained / job.gpus - limit) // job.gpus
        return now + (limit - job.attained) / job.gpus
