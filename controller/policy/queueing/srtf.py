"""Shortest remaining time first: preemptive, on whatever estimate of remaining time the jobs come with."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import ClassVar

from controller.policy.params import check
from controller.policy.queueing.base import NOTHING, PolicyBase, QueueDecision, QueueJob, Room
from controller.policy.queueing.greedy import BySize, Entry, Heads, run_best
from controller.policy.types import JobKey

REASON = "ShorterJobWaits"


@dataclass(frozen=True, slots=True)
class SrtfParams:
    """No parameters."""


class Srtf(PolicyBase):
    """At every event, jobs run in the order of their remaining time; what does not fit is passed over.

    Higher priorities first; ties: who runs first, then who came first. A job without an estimate comes
    last. A running job's remaining time falls by a second per second, so its expected end stays where it
    is: running jobs are kept in the order of their ends, waiting ones in the order of their remaining
    times, and the two are merged at `decide`.
    """

    name: ClassVar[str] = "srtf"
    params: SrtfParams

    def __init__(self, params: SrtfParams) -> None:
        check(params, self.name)
        self.params = params
        self._waiting = BySize()  # by (-priority, remaining, submitted, sequence, key)
        self._running: list[Entry] = []  # by (-priority, expected end, submitted, sequence, key)
        self._entry_of: dict[JobKey, Entry] = {}
        self._leaving: dict[JobKey, QueueJob] = {}
        self._in_use = 0  # GPUs of running jobs
        self._coming = 0  # GPUs of leaving jobs

    def clear(self) -> None:
        self._waiting.clear()
        self._running.clear()
        self._entry_of.clear()
        self._leaving.clear()
        self._in_use = self._coming = 0

    def submitted(self, job: QueueJob, now: float) -> None:
        self.gone(job, now)
        self._waiting.put(job, (-job.priority, _remaining(job), job.submitted, job.sequence, job.key))

    def admitted(self, job: QueueJob, now: float) -> None:
        self.gone(job, now)
        entry = (-job.priority, now + _remaining(job), job.submitted, job.sequence, job.key, job)
        self._entry_of[job.key] = entry
        insort(self._running, entry)
        self._in_use += job.gpus

    def leaving(self, job: QueueJob, now: float) -> None:
        self.gone(job, now)
        self._leaving[job.key] = job
        self._coming += job.gpus

    def gone(self, job: QueueJob, now: float) -> None:
        key = job.key
        entry = self._entry_of.pop(key, None)
        if entry is not None:
            running = self._running
            del running[bisect_left(running, entry)]
            self._in_use -= entry[-1].gpus
            return
        self._waiting.drop(key)
        if self._leaving:
            known = self._leaving.pop(key, None)
            if known is not None:
                self._coming -= known.gpus

    def decide(self, now: float, room: Room) -> QueueDecision:
        if not self._waiting.sizes:
            return NOTHING
        slots = room.slots
        if slots is None:
            running = {entry[-1].key: entry[-1] for entry in self._running}
            return run_best(self._order(now), running, self._leaving.values(), room, REASON)
        if not self._somebody_can_start(now, slots):
            return NOTHING
        return self._merge(now, slots, room)

    def queue(self) -> list[QueueJob]:
        return list(self._waiting)

    def _order(self, now: float) -> list[QueueJob]:
        """All jobs, best first: who runs comes before who waits with the same remaining time."""
        ranked = [((e[0], e[1] - now, 0, *e[2:-1]), e[-1]) for e in self._running]
        for job in self._waiting:
            rank = (-job.priority, _remaining(job), 1, job.submitted, job.sequence, job.key)
            ranked.append((rank, job))
        ranked.sort(key=lambda pair: pair[0])
        return [job for _, job in ranked]

    def _somebody_can_start(self, now: float, idle: int) -> bool:
        """Whether a merge can change anything: some size's best job fits with the GPUs of those behind it."""
        running = self._running
        for gpus, entries in self._waiting.sizes.items():
            needed = gpus - idle - self._coming
            if needed <= 0:
                return True
            head = entries[0]
            ahead = (head[0], head[1] + now, math.inf)
            for entry in reversed(running):
                if entry < ahead:
                    break
                needed -= entry[-1].gpus
                if needed <= 0:
                    return True
        return False

    def _merge(self, now: float, idle: int, room: Room) -> QueueDecision:
        running, free = self._running, idle + self._in_use + self._coming
        heads, at, last = Heads(self._waiting), 0, len(self._running)
        admit: list[QueueJob] = []
        preempt: list[tuple[QueueJob, str]] = []
        while (best := heads.best(free)) is not None:
            ahead = (best[0], best[1] + now, math.inf)  # on a tie, who runs is ahead
            while at < last and running[at] < ahead:
                job = running[at][-1]
                at += 1
                if job.gpus <= free:
                    free -= job.gpus
                else:
                    preempt.append((job, REASON))
            job = best[-1]
            if job.gpus <= free:
                free -= job.gpus
                heads.passed(job.gpus)
                if room.take(job):  # not, while the GPUs it is to get are still somebody else's
                    admit.append(job)
        for entry in running[at:]:
            job = entry[-1]
            if job.gpus <= free:
                free -= job.gpus
            else:
                preempt.append((job, REASON))
        return QueueDecision(admit, preempt) if admit or preempt else NOTHING


def _remaining(job: QueueJob) -> float:
    """Estimated running time left, s; an unknown one comes after all known ones."""
    return math.inf if job.remaining is None else job.remaining
